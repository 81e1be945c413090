"""The backend computes every operator as its reference does."""

from tensorops.testing import check_conformance


def test_conformance():
    check_conformance("tiny")
