"""`linear` by MKL, in all dtypes.

A call cannot be interrupted: Ctrl-C takes effect when it is done.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from tensorops.kernels import _gemm
from tensorops.kernels._gemm import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from tensorops.kernels._wheels import Threads, library_path, load, refuse_after_fork, threads_of
from tensorops.ops.linear import linear
from tensorops.typing import Array

_PATH = library_path("mkl", "libmkl_rt.so.3")

_TBB_LAYER = 4  # MKL_THREADING_TBB
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
_INT, _POINTER = ctypes.c_int, ctypes.c_void_p


class MKL:
    """The loaded library: its products, by the dtype that they multiply."""

    def __init__(self) -> None:
        threads = threads_of(_PATH.parent)
        library = load(_PATH)
        # If this program has already used MKL with other threads, it stays with those.
        library.MKL_Set_Threading_Layer(_TBB_LAYER)
        self.products = {
            FLOAT64: _product(library.cblas_dgemm, ctypes.c_double, threads),
            FLOAT32: _product(library.cblas_sgemm, ctypes.c_float, threads),
            FLOAT16: _product(library.cblas_gemm_f16f16f32, ctypes.c_float, threads),
            BFLOAT16: _product(library.cblas_gemm_bf16bf16f32, ctypes.c_float, threads),
        }


@functools.cache
def _loaded() -> MKL | str:
    """Return the library, or why it cannot be loaded."""
    try:
        return MKL()
    except (OSError, AttributeError) as error:
        return f"MKL cannot be loaded: {error}"


def _product(function: Any, real: Any, threads: Threads) -> _gemm.Product:
    function.restype = None
    function.argtypes = (
        _INT, _INT, _INT, _INT, _INT, _INT, real, _POINTER, _INT, _POINTER, _INT, real, _POINTER, _INT,
    )  # fmt: skip

    def product(
        transposed: bool, m: int, n: int, k: int, x: int, ldx: int, w: int, ldw: int, beta: float, y: int, ldy: int
    ) -> None:
        order = _PLAIN if transposed else _TRANSPOSED
        with threads.bounded():
            function(_ROW_MAJOR, _PLAIN, order, m, n, k, 1.0, x, ldx, w, ldw, beta, y, ldy)

    return product


def _supports(x: Array, weight: Array, bias: Array | None) -> str | None:
    if reason := _gemm.refuse(x, weight, bias):
        return reason
    if reason := refuse_after_fork():
        return reason
    library = _loaded()
    return library if isinstance(library, str) else None


@linear.kernel("mkl", supports=_supports)
def _(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any] | None) -> Array:
    library = _loaded()
    assert isinstance(library, MKL)
    wide = FLOAT64 if _gemm.is_float64(x, weight, bias) else FLOAT32
    dtype = x.dtype if x.dtype == weight.dtype and wide == FLOAT32 else wide
    if dtype == BFLOAT16 and not _gemm.keeps_small_numbers(x, weight):  # instructions for it flush subnormal numbers
        dtype = wide
    return _gemm.affine(x, weight, bias, dtype, library.products[dtype], wide=wide)
