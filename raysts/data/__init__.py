"""Corpora, the embedded world, token windows and batches."""
