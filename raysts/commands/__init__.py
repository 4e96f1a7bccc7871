"""Commands: one file each, with its arguments and its function."""
