"""Cases, references and assertions: what a kernel is tested with, here and by third parties.

It needs NumPy and ml_dtypes only, and none of the operators.
"""

from tensorops.testing.assertions import DTYPES, assert_matches, ulp_error
from tensorops.testing.cases import BENCHMARK_SHAPES, CASES, Case, cases, cast
from tensorops.testing.invalid import INVALID, InvalidCase
from tensorops.testing.references import REFERENCES

__all__ = [
    "BENCHMARK_SHAPES",
    "CASES",
    "DTYPES",
    "INVALID",
    "REFERENCES",
    "Case",
    "InvalidCase",
    "assert_matches",
    "cases",
    "cast",
    "ulp_error",
]
