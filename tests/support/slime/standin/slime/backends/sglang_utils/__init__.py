"""No flags of its own."""
