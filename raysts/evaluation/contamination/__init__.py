"""Training text in test sets."""
