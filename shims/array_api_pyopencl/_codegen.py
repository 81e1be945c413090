"""OpenCL C for one call: the source of elementwise kernels, including gathers and scatters.

The source depends on the operation, the types, and one of a few classes of layout for each operand. Lengths, strides
and offsets are arguments, so there are few kernels, and each is compiled once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from array_api_pyopencl import _dtypes
from array_api_pyopencl._dtypes import C_TYPES, DType
from array_api_pyopencl._expressions import convert, library

CONTIGUOUS = "contiguous"  # element i is the i-th after the start
SINGLE = "single"  # one element for all
STRIDED = "strided"  # a stride for each dimension
VALUE = "value"  # a Python scalar, passed by value
INDIRECT = "indirect"  # strided, offset by the first operand's value

NAMES = "abc"
NOWHERE = "LONG_MIN"
"""An offset at which there is no element: NaN or 0 is read there, and nothing is written."""


class Operand(NamedTuple):
    """An operand of a kernel: the type in memory, the type to compute with, and the class of its layout.

    If `inner`, the stride along the innermost dimension, is 0 or 1, the source says so, and the compiler vectorizes.
    """

    dtype: DType
    meet: DType
    kind: str
    inner: int | None = None

    @property
    def has_strides(self) -> bool:
        """Whether the kernel has arguments for its strides."""
        return self.kind in (STRIDED, INDIRECT)


class Spec(NamedTuple):
    """Everything that the source of an elementwise kernel depends on."""

    expression: str  # over a, b and c; see `_expressions`
    computes: DType  # the type of the expression's value
    out: Operand
    operands: tuple[Operand, ...]
    dimensions: int  # 1 where nothing is strided
    wide: bool  # whether an index needs 64 bits


def header(dtypes: Sequence[DType], wide: bool) -> str:
    """Return the beginning of every program."""
    lines = ["#pragma OPENCL FP_CONTRACT OFF"]
    if any(_dtypes.real_of(d) == _dtypes.float64 for d in dtypes):
        lines.append("#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
    if _dtypes.float16 in dtypes:
        lines.append("#pragma OPENCL EXTENSION cl_khr_fp16 : enable")
    lines.append(f"typedef {'long' if wide else 'int'} idx;\n")
    return "\n".join(lines)


def elementwise_source(spec: Spec) -> str:
    """Return the source of the kernel ``elementwise``.

    Its arguments are the output's buffer and start; for each operand its buffer and start, or its value; the lengths
    of the dimensions, outermost first; and the strides of the output and of each strided operand.
    """
    arguments = [f"__global {C_TYPES[spec.out.dtype]}* out", "idx start"]
    body = []
    for name, operand in zip(NAMES, spec.operands, strict=False):
        c_type = C_TYPES[operand.dtype]
        if operand.kind == VALUE:
            arguments.append(f"{c_type} value_{name}")
        else:
            arguments += [f"__global const {c_type}* p_{name}", f"idx start_{name}"]
        loaded = f"value_{name}" if operand.kind == VALUE else f"p_{name}[start_{name}{_index(name, operand.kind)}]"
        if operand.kind == INDIRECT:
            missing = "NAN" if operand.dtype.kind in "fc" else "0"
            loaded = f"(a == {NOWHERE} ? ({C_TYPES[operand.dtype]})({missing}) : {loaded})"
        body.append(f"  {C_TYPES[operand.meet]} {name} = {convert(loaded, operand.dtype, operand.meet)};")
    arguments += [f"idx n{d}" for d in range(spec.dimensions)]
    sides = zip(("out", *NAMES), (spec.out, *spec.operands), strict=False)
    steps = {name: side.inner for name, side in sides if side.has_strides}
    arguments += [f"idx s_{name}{d}" for name in steps for d in range(spec.dimensions)]
    value = convert(f"({spec.expression})", spec.computes, spec.out.dtype)
    if spec.out.kind == INDIRECT:
        body.append(f"  if (a == {NOWHERE}) return;")
    body.append(f"  out[start{_index('out', spec.out.kind)}] = {value};")
    types = [spec.out.dtype, spec.computes, *(d for o in spec.operands for d in (o.dtype, o.meet))]
    meet = spec.operands[0].meet if spec.operands else spec.computes
    return "\n".join(
        (
            header(types, spec.wide),
            library(spec.expression, meet),
            f"__kernel void elementwise({', '.join(arguments)}) {{",
            *(_strided_position(spec.dimensions, steps) if steps else _PLAIN_POSITION),
            *body,
            "}",
        )
    )


_PLAIN_POSITION = ("  idx i = get_global_id(0);", "  if (i >= n0) return;")


def _strided_position(dimensions: int, steps: Mapping[str, int | None]) -> list[str]:
    """Find the work-item's element: the two innermost dimensions are the launch's first two, all others its third.

    Divisions take longer than everything else, so there are none for up to three dimensions.
    """
    last = dimensions - 1
    lines = [f"  idx i{last} = get_global_id(0);", f"  if (i{last} >= n{last}) return;"]
    position = f"i{last}"
    if dimensions > 1:
        lines += [f"  idx i{last - 1} = get_global_id(1);", f"  if (i{last - 1} >= n{last - 1}) return;"]
        position = f"i{last - 1} * n{last} + i{last}"
    if dimensions > 2:
        outer = " * ".join(f"n{d}" for d in range(last - 1))
        lines += ["  idx rest = get_global_id(2);", f"  if (rest >= {outer}) return;"]
        position = f"(rest * n{last - 1} + i{last - 1}) * n{last} + i{last}"
    lines.append(f"  idx i = {position};")
    for d in range(last - 2, 0, -1):
        lines += [f"  idx i{d} = rest % n{d};", f"  rest /= n{d};"]
    if dimensions > 2:
        lines.append("  idx i0 = rest;")
    for name, inner in steps.items():
        terms = [f"i{d} * s_{name}{d}" for d in range(last)]
        if inner != 0:
            terms.append(f"i{last}" if inner == 1 else f"i{last} * s_{name}{last}")
        lines.append(f"  idx at_{name} = {' + '.join(terms) or '0'};")
    return lines


def _index(name: str, kind: str) -> str:
    return {CONTIGUOUS: " + i", SINGLE: "", STRIDED: f" + at_{name}", INDIRECT: f" + at_{name} + a"}[kind]
