"""Named recipes and pipelines."""
