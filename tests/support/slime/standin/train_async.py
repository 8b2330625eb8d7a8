"""Not started by any test."""
