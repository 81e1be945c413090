"""The sizes of benchmarks; each operator's workload is in `tensorops.testing`, next to its cases."""

from tensorops.testing.workloads import WORKLOADS, Workload, workload

__all__ = ["SIZES", "WORKLOADS", "Workload", "workload"]

SIZES: dict[str, tuple[int, int]] = {
    "small": (1, 64),
    "decode": (1, 4096),
    "prefill": (128, 4096),
    "large": (2048, 4096),
}
"""Names for some of `BENCHMARK_SHAPES` (rows, features): call overhead, one token, a prompt, many prompts."""
