"""Operators on arrays that do not conform to the standard, for which wrappers compute."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import _providers
from tensorops._providers import Provider
from tensorops.backends import Backend, registry
from tensorops.libraries import Library, _known, library_of
from tensorops.typing import Array

X = np.linspace(-2.0, 2.0, 8, dtype=np.float32).reshape(2, 4)
W = np.linspace(0.5, 1.5, 4, dtype=np.float32)


class Bare:
    """An array without any operations."""

    __module__ = "bare"

    def __init__(self, values):
        self.values = values
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim


class Wrapper(np.ndarray):
    """A conforming array that wraps a bare one."""

    __module__ = "wrapping_bare"


def asarray(x):
    assert type(x) is Bare
    return x.values.view(Wrapper)


UNWRAPPED = []


def unwrapped(x):
    assert type(x) is Wrapper
    UNWRAPPED.append(x.shape)
    return Bare(np.asarray(x))


def to_numpy(x):
    assert type(x) is Bare
    return x.values


@pytest.fixture
def row(monkeypatch):
    monkeypatch.setitem(_providers.PROVIDERS, "adding", Provider("adding", ("bare",), "adds", "adds"))
    monkeypatch.setitem(_providers._reasons, "adding", "")
    bare, wrapping = types.ModuleType("bare"), types.ModuleType("wrapping_bare")
    bare.Array = Bare
    wrapping.Wrapper = Wrapper
    wrapping.asarray = asarray
    wrapping.__getattr__ = lambda name: getattr(np, name)
    monkeypatch.setitem(sys.modules, "bare", bare)
    monkeypatch.setitem(sys.modules, "wrapping_bare", wrapping)
    for table in ("LIBRARIES", "_BY_PACKAGE", "_BY_TYPE"):
        monkeypatch.setattr(_known, table, getattr(_known, table).copy())
    row = Library(
        name="bare",
        packages=("bare", "wrapping_bare"),
        array_type="bare:Array",
        wrapper="wrapping_bare:Wrapper",
        unwrapped=unwrapped,
        standard="wrapping_bare",
        to_numpy=to_numpy,
        from_numpy=lambda a, device: Bare(a),
    )
    _known.register_library(row)
    return row


@pytest.fixture
def adder(row):
    """An operator that adds 1000 to a wrapper, and a kernel that adds 1 to a bare array if it has two dimensions."""

    def adder(x: Array, y: Array | None = None) -> Array:
        """Add."""
        assert type(x) is Wrapper
        assert y is None or type(y) is Wrapper
        return x + 1000, None if y is None else y + 1000

    def supports(x, y=None):
        assert type(x) is Bare
        assert y is None or type(y) is Bare
        return None if x.ndim == 2 else "x has not two dimensions"

    with support.temporary_operator(adder) as made:

        @made.kernel("adding", supports=supports)
        def _(x, y=None):
            assert supports(x, y) is None
            return Bare(x.values + 1), None if y is None else Bare(y.values + 1)

        yield made


def test_both_types_belong_to_the_library(row):
    assert library_of(Bare(X)) is library_of(X.view(Wrapper)) is row
    assert row.owns(Bare(X))
    assert row.owns(X.view(Wrapper))
    assert not row.owns(X)
    assert tp.get_namespace(Bare(X), X.view(Wrapper)) is sys.modules["wrapping_bare"]


@pytest.mark.parametrize("x", [X, W], ids=["kernel", "body"])
def test_the_result_is_of_the_callers_type(adder, x):
    expected = x + (1 if x is X else 1000)
    for given, second in ((Bare(x), Bare(x)), (x.view(Wrapper), x.view(Wrapper)), (x.view(Wrapper), Bare(x))):
        for result in adder(given, second):
            assert type(result) is type(given)
            np.testing.assert_array_equal(result.values if type(result) is Bare else result, expected)
        assert adder(given)[1] is None
        explanation = adder.explain(given, y=second)
        assert explanation.kernel == ("adding" if x is X else "generic")
        assert explanation.library == "bare"
    mixed = adder(Bare(x), x.view(Wrapper))
    assert [type(result) for result in mixed] == [Wrapper, Wrapper]


def test_every_operator_on_wrappers_and_bare_arrays(row):
    expected = tp.add_rms_norm.generic(X, X, W)
    for result, wanted in zip(tp.add_rms_norm(Bare(X), Bare(X), Bare(W)), expected, strict=True):
        assert type(result) is Bare
        np.testing.assert_array_equal(result.values, wanted)
    for result, wanted in zip(tp.add_rms_norm(*(a.view(Wrapper) for a in (X, X, W))), expected, strict=True):
        assert type(result) is Wrapper
        np.testing.assert_array_equal(result, wanted)


def test_wrappers_are_only_opened_for_kernels(row, adder):
    UNWRAPPED.clear()
    tp.rms_norm(X.view(Wrapper), W.view(Wrapper))
    assert UNWRAPPED == []
    adder(X.view(Wrapper), W.view(Wrapper))
    assert set(UNWRAPPED) == {X.shape, W.shape}


def test_a_kernel_that_takes_wrappers_gets_and_returns_them(row, adder):
    got = []

    def kernel(x, y=None):
        got.append((type(x), type(y)))
        wrapped = Wrapper in got[-1]
        return tuple(a if a is None else (a.view(Wrapper) if wrapped else Bare(a)) for a in (values(x) + 2, None))

    def values(x):
        return x.values if type(x) is Bare else np.asarray(x)

    provider = Provider("wrapping", ("bare",), "wrapping", "takes wrappers", rank=-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_providers.PROVIDERS, "wrapping", provider)
        patch.setitem(_providers._reasons, "wrapping", "")
        _providers.serving_library.cache_clear()
        adder.kernel("wrapping", supports=lambda x, y=None: None, checks=True, wrappers=True)(kernel)
        UNWRAPPED.clear()
        for given, second, expected in (
            (Bare(X), None, Bare),
            (X.view(Wrapper), None, Wrapper),
            (X.view(Wrapper), Bare(X), Wrapper),
            (Bare(X), X.view(Wrapper), Wrapper),
        ):
            for _ in range(2):  # the second call has a plan
                y, nothing = adder(given, second)
                assert nothing is None
                assert type(y) is expected
                np.testing.assert_array_equal(values(y), X + 2)
                assert got[-1] == (type(given), type(second))
        assert UNWRAPPED == []
    _providers.serving_library.cache_clear()


def test_a_wrapper_is_taken_to_a_backend_and_comes_back_as_one(row):
    with tp.set_backend("numpy"), tp.trace() as log:
        wrapped, bare = tp.silu(X.view(Wrapper)), tp.silu(Bare(X))
    assert type(wrapped) is Wrapper
    assert type(bare) is Bare
    np.testing.assert_array_equal(wrapped, tp.silu.generic(X))
    np.testing.assert_array_equal(bare.values, tp.silu.generic(X))
    assert [(t.source, t.target) for t in log[0].transfers] == [("bare", "numpy"), ("numpy", "bare")]


def test_a_backend_of_wrappers_gets_other_libraries_arrays(row, monkeypatch):
    backend = Backend("bare", row, "bare arrays", isolated=False)
    monkeypatch.setattr(Library, "is_installed", lambda self: True)
    monkeypatch.setitem(registry._by_any_name, "bare", backend)
    with tp.set_backend("bare"):
        assert type(tp.silu(X)) is np.ndarray
        assert type(tp.silu(Bare(X))) is Bare
        assert type(tp.silu(X.view(Wrapper))) is Wrapper
        np.testing.assert_array_equal(tp.silu(X), tp.silu.generic(X))
