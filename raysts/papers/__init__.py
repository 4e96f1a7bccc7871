"""The papers: their experiments, claims, printed numbers and measurements."""
