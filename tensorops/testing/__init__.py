"""Cases, references and assertions: what a kernel is tested with, here and by third parties.

Importing it imports NumPy and ml_dtypes only; `check_conformance` imports the library that it is asked to test.
"""

from tensorops.testing.assertions import DTYPES, assert_matches, ulp_error
from tensorops.testing.cases import BENCHMARK_SHAPES, CASES, Case, cases, cast
from tensorops.testing.conformance import ConformanceReport, Outcome, check_conformance
from tensorops.testing.invalid import INVALID, InvalidCase
from tensorops.testing.references import REFERENCES

__all__ = [
    "BENCHMARK_SHAPES",
    "CASES",
    "DTYPES",
    "INVALID",
    "REFERENCES",
    "Case",
    "ConformanceReport",
    "InvalidCase",
    "Outcome",
    "assert_matches",
    "cases",
    "cast",
    "check_conformance",
    "ulp_error",
]
