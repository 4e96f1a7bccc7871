"""One command, one file: its arguments and its function."""
