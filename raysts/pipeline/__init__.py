"""A pipeline: planned into nodes, checked, run."""
