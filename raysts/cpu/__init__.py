"""Faster layers and optimisers for CPUs."""
