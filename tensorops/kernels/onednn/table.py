"""`linear` by oneDNN: in float32, and in bfloat16 where the processor multiplies it.

A call cannot be interrupted: Ctrl-C takes effect when it is done.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from tensorops.kernels import _gemm
from tensorops.kernels._gemm import BFLOAT16, FLOAT32
from tensorops.kernels._wheels import Threads, library_path, load, refuse_after_fork, threads_of
from tensorops.ops.linear import linear
from tensorops.typing import Array

_PATH = library_path("onednn", "libdnnl.so.3")

_FEWEST_ROWS, _FEWEST_INPUTS = 256, 512
"""From how many rows and columns of x on products of bfloat16 were measured to be clearly faster.

In float32, oneDNN is faster from 512 rows on while nothing else computes, but slower where calls alternate with
numpy.matmul, whose threads wait actively: see docs/design-decisions.md.
"""

_AVX512_CORE_BF16 = 0xE7  # bits of dnnl_cpu_isa_t, which every newer set of instructions has as well
_LONG, _FLOAT, _POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class OneDNN:
    """The loaded library.

    Attributes
    ----------
    multiplies_bfloat16
        Whether the processor has instructions for products of bfloat16; without them, oneDNN computes one by one.
    """

    def __init__(self) -> None:
        library = load(_PATH)
        threads = threads_of(_PATH.parent)
        isa = library.dnnl_get_effective_cpu_isa()
        self.multiplies_bfloat16 = isa & _AVX512_CORE_BF16 == _AVX512_CORE_BF16
        self.float32 = _product(library.dnnl_sgemm, threads)
        self.bfloat16 = _product(library.dnnl_gemm_bf16bf16f32, threads)


@functools.cache
def _loaded() -> OneDNN | str:
    """Return the library, or why it cannot be loaded."""
    try:
        return OneDNN()
    except (OSError, AttributeError) as error:
        return f"oneDNN cannot be loaded: {error}"


def _product(function: Any, threads: Threads) -> _gemm.Product:
    function.argtypes = (
        ctypes.c_char, ctypes.c_char, _LONG, _LONG, _LONG,
        _FLOAT, _POINTER, _LONG, _POINTER, _LONG, _FLOAT, _POINTER, _LONG,
    )  # fmt: skip

    def product(
        transposed: bool, m: int, n: int, k: int, x: int, ldx: int, w: int, ldw: int, beta: float, y: int, ldy: int
    ) -> None:
        with threads.bounded():
            status = function(b"N", b"N" if transposed else b"T", m, n, k, 1.0, x, ldx, w, ldw, beta, y, ldy)
        if status:
            raise RuntimeError(f"linear: oneDNN failed with status {status}")

    return product


def _supports(x: Array, weight: Array, bias: Array | None) -> str | None:
    if reason := _gemm.refuse(x, weight, bias):
        return reason
    if _gemm.is_float64(x, weight, bias):
        return "an array has dtype float64, whose products oneDNN lacks"
    if reason := refuse_after_fork():
        return reason
    library = _loaded()
    return library if isinstance(library, str) else None


def _outpaced(x: Array) -> str | None:
    if x.dtype != BFLOAT16:
        return "outside bfloat16 the compiled kernel or numpy.matmul is as fast or faster"
    inputs = x.shape[-1] if x.ndim else 0
    if inputs < _FEWEST_INPUTS or x.size < _FEWEST_ROWS * inputs:
        return (
            f"x has fewer than {_FEWEST_ROWS} rows or {_FEWEST_INPUTS} columns, for which the compiled kernel is as "
            "fast or faster"
        )
    library = _loaded()
    if isinstance(library, str):
        return library
    return None if library.multiplies_bfloat16 else "the processor has no instructions for products of bfloat16"


@linear.kernel("onednn", supports=_supports, outpaced=_outpaced)
def _(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any] | None) -> Array:
    library = _loaded()
    assert isinstance(library, OneDNN)
    narrow = (
        library.multiplies_bfloat16
        and x.dtype == weight.dtype == BFLOAT16
        and _gemm.keeps_small_numbers(x, weight)  # the instructions flush subnormal numbers
    )
    dtype, product = (BFLOAT16, library.bfloat16) if narrow else (FLOAT32, library.float32)
    return _gemm.affine(x, weight, bias, dtype, product, wide=FLOAT32)
