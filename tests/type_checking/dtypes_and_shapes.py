"""NumPy's types state dtypes and ranks: operators return those of the result, or leave them open."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import tensorops as tp

Single = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]


def the_first_array_decides(x: Single, w: Double) -> None:
    assert_type(tp.rms_norm(x, w), Single)
    assert_type(tp.rms_norm(w, x), Double)
    assert_type(tp.linear(w, x), Double)


def or_another_that_holds_what_is_returned(ids: Integers, table: Single, logits: Double) -> None:
    assert_type(tp.embedding(ids, table), Single)
    assert_type(tp.cross_entropy(logits, ids), Double)
    assert_type(tp.dequantize(ids, table), Single)


def indices_and_codes_are_of_another_dtype_and_left_open(x: Single, rng: np.random.Generator) -> None:
    assert_type(tp.sample(x, rng=rng), Any)
    assert_type(tp.sample(x, rng=x), Any)
    assert_type(tp.quantize(x, bits=4, group_size=32), tuple[Any, Single | None, Single | None])


def ranks(x: Matrix, ids: Integers) -> None:
    assert_type(tp.softmax(x), Matrix)
    assert_type(tp.linear(x, x), Matrix)
    assert_type(tp.logsumexp(x), Single)
    assert_type(tp.cross_entropy(x, ids), Single)
    assert_type(tp.embedding(ids, x), Single)


def a_table_in_a_file_gives_plain_arrays(
    ids: Integers, table: np.memmap[tuple[int, int], np.dtype[np.float32]]
) -> None:
    assert_type(tp.embedding(ids, table), Single)
