"""A stand-in for slime, for tests."""
