"""Modules that are exported with a model. They import nothing of raysts."""
