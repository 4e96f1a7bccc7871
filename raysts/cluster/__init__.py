"""The Ray room: the only one that imports Ray."""
