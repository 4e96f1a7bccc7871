"""Measurement of models, with its uncertainty."""
