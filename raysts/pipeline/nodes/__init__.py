"""One file per kind of node."""
