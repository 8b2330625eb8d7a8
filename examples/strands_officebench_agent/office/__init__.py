"""What the office agent works with: a workspace of real files, the apps on them, and the checks that judge the work."""
