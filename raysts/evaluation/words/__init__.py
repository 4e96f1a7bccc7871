"""Word benchmarks."""
