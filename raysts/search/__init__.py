"""Searches: the choice of points, their trials, and the models that are kept."""
