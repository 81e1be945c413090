"""Benchmarks, one module for each family of operators; see docs/benchmarks.md."""
