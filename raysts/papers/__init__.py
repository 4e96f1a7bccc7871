"""The papers: their experiments, claims and printed numbers, and what was measured of each."""
