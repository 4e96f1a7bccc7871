"""Searches: which points are tried, what came of them, and what is kept."""
