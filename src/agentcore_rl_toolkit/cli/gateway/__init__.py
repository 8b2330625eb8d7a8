"""Verbs of the model gateway: serve, show."""
