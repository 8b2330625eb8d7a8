"""Verbs that look at runs: ui, show."""
