"""Benchmarks, one module per family of operators; see docs/benchmarks.md."""

import contextlib

with contextlib.suppress(ImportError):  # what prints figures by itself needs no asv
    from asv_runner.benchmarks.time import TimeBenchmark

    # Where there is a setup, asv_runner 0.3 times one call per sample. For calls of half a microsecond, such a sample
    # tells the time of the clock. Our calls change nothing that a setup makes, so each sample is a batch of them.
    TimeBenchmark._setup_isolates_timed_calls = False
