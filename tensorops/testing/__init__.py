"""Cases, references and assertions for testing kernels, here and by third parties.

Importing it imports only NumPy and ml_dtypes; `check_conformance` imports the library under test.
"""

from tensorops.testing.assertions import DTYPES, assert_matches, ulp_error
from tensorops.testing.conformance import ConformanceReport, Outcome, check_conformance
from tensorops.testing.entries import Case, InvalidCase, cast
from tensorops.testing.tables import BENCHMARK_SHAPES, CASES, INVALID, REFERENCES, cases

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
