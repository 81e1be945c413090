"""oneDNN: where it is asked without its name, by measurement, and what it refuses there."""

import ml_dtypes
import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.kernels import _gemm

support.require("numpy")
support.require_provider("onednn")

from tensorops.kernels.onednn import table  # noqa: E402 - not before it is known to be installed

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Fake:
    """A library on some processor."""

    def __init__(self, multiplies_bfloat16):
        self.multiplies_bfloat16 = multiplies_bfloat16


def zeros(rows, inputs, dtype):
    return np.zeros((rows, inputs), dtype=dtype)


@pytest.mark.parametrize(
    ("rows", "inputs", "dtype", "asked"),
    [
        (256, 512, BFLOAT16, True),
        (255, 512, BFLOAT16, False),
        (256, 511, BFLOAT16, False),
        (4096, 4096, "f4", False),
        (4096, 4096, "f2", False),
        (4096, 4096, "f8", False),
        (0, 512, BFLOAT16, False),
    ],
)
def test_where_it_is_asked_depends_on_rows_and_dtype(monkeypatch, rows, inputs, dtype, asked):
    monkeypatch.setattr(table, "_loaded", lambda: Fake(multiplies_bfloat16=True))
    assert (table._outpaced(zeros(rows, inputs, dtype)) is None) == asked


def test_it_is_not_asked_on_processors_without_the_instructions(monkeypatch):
    monkeypatch.setattr(table, "_loaded", lambda: Fake(multiplies_bfloat16=False))
    assert table._outpaced(zeros(512, 512, BFLOAT16)) == "the processor has no instructions for products of bfloat16"


def test_calls_of_many_rows_find_it_and_others_do_not_wait(rng):
    support.require_native()
    if not table._loaded().multiplies_bfloat16:
        pytest.skip("the processor has no instructions for products of bfloat16")
    w = support.normal(rng, 5, 512, dtype="bfloat16")
    ran = {}
    for rows in (8, 256, 8, 256, 3):  # a plan for the few must not serve the many
        x = support.normal(rng, rows, 512, dtype="bfloat16")
        with tp.trace() as log:
            tp.linear(x, w)
        y = tp.linear(x, w)
        expected = x.astype(float) @ w.astype(float).T
        np.testing.assert_allclose(y.astype(float), expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())
        ran.setdefault(rows, set()).add((log[0].kernel, tp.linear.explain(x, w).kernel))
    assert ran == {8: {("cpu", "cpu")}, 256: {("onednn", "onednn")}, 3: {("cpu", "cpu")}}


def test_the_reason_says_that_it_is_a_measurement_and_how_to_ask_for_it(rng):
    support.require_native()
    x, w = support.normal(rng, 4, 512), support.normal(rng, 5, 512)
    named = "; it runs where it is named: providers=['onednn']"
    assert tp.linear.explain(x, w).refused["onednn"] == (
        f"outside bfloat16 the compiled kernel or numpy.matmul is as fast or faster{named}"
    )
    x, w = x.astype(BFLOAT16), w.astype(BFLOAT16)
    assert tp.linear.explain(x, w).refused["onednn"] == (
        f"x has fewer than 256 rows or 512 columns, for which the compiled kernel is as fast or faster{named}"
    )
    assert "onednn" not in tp.silu.explain(x).refused  # it has nothing for it, and nobody asked


def test_a_call_by_plan_is_the_one_that_the_compiled_kernel_takes(rng, monkeypatch):
    """With few rows no second decision is made in Python, though oneDNN comes first in the order."""
    support.require_native()
    x, w = support.normal(rng, 4, 512), support.normal(rng, 5, 512)
    with tp.set_backend("cpu"):
        expected = tp.linear(x, w)
    tp.linear(x, w)
    monkeypatch.setattr(type(tp.linear), "_dispatch", None)
    support.assert_identical(tp.linear(x, w), expected)


@pytest.mark.parametrize(
    ("x", "weight", "safe"),
    [
        ([1.0, -2.0, 0.0], [3.0], True),
        ([1.0, 1e-39], [3.0], False),
        ([1.0], [3.0, -1e-39], False),
        ([1e-20], [1e-20], False),
        ([1e-20], [1e-13], True),
        ([np.nan, np.inf, 1.0], [-np.inf], True),
        ([0.0], [-0.0], True),
        ([2.0**-126, 0.0], [1.0], False),  # products of the last bits are smaller
        ([2.0**-112], [1.0], True),
        ([2.0**-113], [1.0], False),
    ],
)
def test_where_flushed_numbers_would_be_missed(x, weight, safe):
    pad = np.ones(_gemm._CHUNK + 5)
    for before in (0, 3, _gemm._CHUNK + 1):
        a = np.concatenate([pad[:before], x]).astype(BFLOAT16)[None]
        assert _gemm.keeps_small_numbers(a, np.asarray([weight], dtype=BFLOAT16)) == safe


def test_products_of_bfloat16_use_the_instructions(monkeypatch, rng):
    library = table._loaded()
    if not library.multiplies_bfloat16:
        pytest.skip("the processor has no instructions for products of bfloat16")
    used = []
    product = library.bfloat16
    monkeypatch.setattr(library, "bfloat16", lambda *args: used.append(args) or product(*args))
    x, w = support.normal(rng, 9, 64, dtype="bfloat16"), support.normal(rng, 5, 64, dtype="bfloat16")
    with tp.set_backend("numpy", providers=["onednn"]):
        tp.linear(x, w)
        assert len(used) == 1
        w[2, 3] = 1e-39  # which they would flush
        tp.linear(x, w)
        tp.linear(x.astype(np.float16), w)
    assert len(used) == 1
