"""Encoders: loading, saving, embedding."""
