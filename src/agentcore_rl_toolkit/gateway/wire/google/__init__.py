"""Google's generateContent. Pure translations."""
