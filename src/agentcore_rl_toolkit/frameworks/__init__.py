"""What single agent frameworks need beyond the app. Each file imports its framework and sits behind an extra."""
