"""Benchmarks, one module per family of operators; see docs/benchmarks.md."""
