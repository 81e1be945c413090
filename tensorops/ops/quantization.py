"""Quantization in groups along the input axis.

All three share a layout. A row of weights is split into groups of `group_size`; each group has a scale and, except
in symmetric mode, a bias: ``w ≈ scales · q + biases``. The integers ``q`` are stored in bytes; with 4 bits, the even
column is in the low half of the byte. Four such bytes, read as one uint32, are MLX's packing; the blocks of GGUF's
Q4_0, Q4_1 and Q8_0 map onto it with groups of 32.
"""

from __future__ import annotations

from typing import Any

from tensorops import formats
from tensorops._dtypes import dtype_name, epsilon, largest, largest_exponent, narrow, smallest, widen
from tensorops._messages import nearest
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, every_axis, given
from tensorops._validation import as_choice, as_integer, require_floating, require_ndim, shown
from tensorops.backends import get_namespace
from tensorops.formats import Format
from tensorops.libraries import has_host_values
from tensorops.typing import Array, ArrayInput, ArrayInputT, ArrayOfKind, KindT, Namespace

__all__ = ["dequantize", "quantize", "quantized_linear"]

_MODES = ("affine", "symmetric")
AFFINE = "affine"
"""The format of integers whose scales and biases are arrays of their own."""
PRECISIONS = ("highest", "high", "low")


def check_format(name: str, bits: int, group_size: int, mode: str) -> dict[str, Any]:
    """Check the options that describe a format and return them."""
    bits, group_size = as_integer(name, "bits", bits), as_integer(name, "group_size", group_size)
    mode = as_choice(name, "mode", mode, _MODES)
    if bits not in (4, 8):
        raise ValueError(f"{name}: bits is {shown(bits)}, expected one of 4, 8")
    if mode == "symmetric" and bits != 8:
        raise ValueError(f"{name}: bits is {bits}, but mode 'symmetric' has 8")
    if group_size < 1 or group_size * bits % 8:
        raise ValueError(
            f"{name}: group_size is {shown(group_size)}, expected a positive number that fills whole bytes"
        )
    bits = 4 if bits == 4 else 8  # a number even where it is a symbol in a trace
    return {"bits": bits, "group_size": group_size, "mode": mode}


def check_quantized(
    name: str,
    arrays: dict[str, Any],
    bits: int,
    group_size: int,
    shape: tuple[str, ...] = ("rows",),
) -> dict[str, Any]:
    """Check a quantized matrix, or a stack of them, given as integers, scales and biases by name; return the options.

    `shape` names the axes before the last.
    """
    (label, weight), *parameters = arrays.items()
    if parameters[0][1] is None:
        raise TypeError(f"{name}: {parameters[0][0]} is NoneType, expected an array")
    options = check_format(name, bits, group_size, "affine" if parameters[1][1] is not None else "symmetric")
    bits, group_size = options["bits"], options["group_size"]
    if dtype_name(weight) != "uint8":
        raise TypeError(f"{name}: {label} has dtype {dtype_name(weight)}, expected uint8")
    require_floating(name, **dict(parameters))
    require_ndim(name, label, weight, len(shape) + 1, len(shape) + 1)
    *stack, width = weight.shape
    columns = width * 8 // bits
    if columns % group_size:
        raise ValueError(f"{name}: {label} has {columns} columns, not a multiple of group_size {shown(group_size)}")
    expected = (*stack, columns // group_size)
    for own, parameter in parameters:
        if parameter is not None and tuple(parameter.shape) != expected:
            raise ValueError(
                f"{name}: {own} has shape {tuple(parameter.shape)}, but {label} has "
                f"({', '.join(shape)}, groups) {expected}"
            )
    return {"bits": bits, "group_size": group_size}


def _check_quantized(
    name: str, weight: Array, scales: Array | None, biases: Array | None, bits: int, group_size: int
) -> dict[str, Any]:
    return check_quantized(name, {"weight": weight, "scales": scales, "biases": biases}, bits, group_size)


def refuse_blocks(format: str) -> str | None:
    """Return why a kernel that reads affine groups alone cannot compute a call with this format, if it cannot."""
    return None if format == AFFINE else f"the kernel reads no blocks of format {format!r}, only affine groups"


def as_format(name: str, format: Any, label: str = "format") -> str:
    """Return the name of a format, or raise."""
    if not isinstance(format, str):
        raise TypeError(f"{name}: {label} is {type(format).__name__}, expected the name of a format")
    if format != AFFINE:
        try:
            formats.get(format)
        except ValueError:
            known = (AFFINE, *formats.names())
            like = nearest(format[:40], known)
            raise ValueError(
                f"{name}: {label} is {shown(format)}, expected {AFFINE!r} or one of tensorops.formats.names(){like}"
            ) from None
    return str(format)


def check_blocks(name: str, label: str, weight: Array, others: dict[str, Any], format: str, ndim: int = 2) -> Format:
    """Check a matrix in blocks of a format, or a stack of them, without `others`; return the format."""
    found = formats.get(format)
    if dtype_name(weight) != "uint8":
        raise TypeError(f"{name}: {label} has dtype {dtype_name(weight)}, expected uint8")
    require_ndim(name, label, weight, ndim, ndim)
    for other, value in others.items():
        if value is not None:
            raise ValueError(f"{name}: {other} is given, but blocks of format {format!r} hold their own")
    if weight.shape[-1] % found.nbytes:
        raise ValueError(
            f"{name}: {label} has rows of {weight.shape[-1]} bytes, not of whole blocks of {found.nbytes} bytes"
        )
    if isinstance(found, formats.Interleaved) and weight.shape[-2] % formats.Interleaved.ROWS:
        raise ValueError(
            f"{name}: {label} has {weight.shape[-2]} rows, but format {format!r} interleaves {formats.Interleaved.ROWS}"
        )
    return found


def _check_quantize(name: str, w: Array, bits: int, group_size: int, mode: str, format: str) -> dict[str, Any]:
    require_floating(name, w=w)
    require_ndim(name, "w", w, 2, 2)
    if (format := as_format(name, format)) != AFFINE:
        blocks = formats.get(format)
        if blocks.pack is None:
            known = ", ".join(each for each in formats.names() if formats.get(each).pack)
            raise ValueError(f"{name}: format is {format!r}, which can only be read; those written are {known}")
        if w.shape[1] % blocks.elements:
            raise ValueError(f"{name}: w has {w.shape[1]} columns, not a multiple of {blocks.elements}, a block")
        return {"mode": as_choice(name, "mode", mode, _MODES), "format": format}
    options = check_format(name, bits, group_size, mode)
    if w.shape[1] % options["group_size"]:
        raise ValueError(f"{name}: w has {w.shape[1]} columns, not a multiple of group_size {shown(group_size)}")
    return options


def _check_dequantize(
    name: str,
    weight: Array,
    scales: Array | None,
    biases: Array | None,
    bits: int,
    group_size: int,
    mode: str,
    format: str,
) -> dict[str, Any]:
    mode = as_choice(name, "mode", mode, _MODES)
    if (format := as_format(name, format)) != AFFINE:
        check_blocks(name, "weight", weight, {"scales": scales, "biases": biases}, format)
        return {"mode": mode, "format": format}
    if mode == "symmetric" and biases is not None:
        raise ValueError(f"{name}: biases are given, but mode 'symmetric' has none")
    return _check_quantized(name, weight, scales, biases, bits, group_size) | {"mode": mode}


def _check_quantized_linear(
    name: str,
    x: Array,
    weight: Array,
    scales: Array | None,
    biases: Array | None,
    bits: int,
    group_size: int,
    format: str,
    precision: str,
) -> dict[str, Any]:
    require_floating(name, x=x)
    require_ndim(name, "x", x, 1)
    options: dict[str, Any] = {"precision": as_choice(name, "precision", precision, PRECISIONS)}
    if (format := as_format(name, format)) != AFFINE:
        blocks = check_blocks(name, "weight", weight, {"scales": scales, "biases": biases}, format)
        columns = weight.shape[1] // blocks.nbytes * blocks.elements
        options["format"] = format
    else:
        options |= _check_quantized(name, weight, scales, biases, bits, group_size)
        columns = weight.shape[1] * 8 // options["bits"]
    if columns != x.shape[-1]:
        raise ValueError(f"{name}: weight has {columns} columns, but the last axis of x has {x.shape[-1]}")
    return options


def _quantized_linear_rows(
    x: Array, weight: Array, scales: Array | None, biases: Array | None, format: str = AFFINE, **_: Any
) -> RowAxes:
    *rows, columns = every_axis(x)
    out, packed, groups = range(x.ndim, x.ndim + 3)
    if scales is None:
        arrays = given(x=(x, every_axis(x)), weight=(weight, (out, packed)))
        together = (out,) if isinstance(formats.get(format), formats.Interleaved) else ()
        return RowAxes(arrays, (*rows, out), whole=(columns, packed, *together))
    arrays = given(
        x=(x, every_axis(x)),
        weight=(weight, (out, packed)),
        scales=(scales, (out, groups)),
        biases=(biases, (out, groups)),
    )
    return RowAxes(arrays, (*rows, out), whole=(columns, packed, groups))


@operator(check=_check_quantize)
def quantize(
    w: ArrayOfKind[KindT], *, bits: int = 4, group_size: int = 32, mode: str = "affine", format: str = "affine"
) -> tuple[Array, KindT | None, KindT | None]:
    r"""Quantize a matrix in groups along its rows, or in blocks of a format.

    .. math:: q = \operatorname{round}\left(\frac{w - b}{s}\right), \qquad
              s = \frac{\max w - \min w}{2^{\mathit{bits}} - 1}, \quad b = \min w
              \quad\text{(symmetric: } s = \max |w| / 127,\; b = 0\text{)}

    The scale is first rounded up to a number of the dtype of `w`, so an element is off by at most half of that scale.

    Parameters
    ----------
    w : array, floating point, shape (out, in)
        Matrix; `in` is a multiple of `group_size`, or of the numbers in a block.
    bits : {4, 8}, optional
        Size of an integer.
    group_size : int, optional
        How many neighbours in a row share a scale.
    mode : {"affine", "symmetric"}, optional
        Symmetric mode uses signed 8-bit integers and no biases.
    format : str, optional
        ``"affine"``, or one of `tensorops.formats.names` that can be written: ``"q4_0"``, ``"q4_1"``, ``"q5_0"``,
        ``"q5_1"``, ``"q8_0"`` and ``"mxfp4"``, whose blocks are those of `gguf.quants.quantize`; ``"fp8_e4m3"`` and
        ``"fp8_e5m2"``, with a scale for 128 neighbours; and ``"sparse_2_4"``, which takes a matrix that has at most two
        numbers other than 0 in four neighbours, see `tensorops.formats.prune_2_4`.

    Returns
    -------
    weight : array of uint8, shape (out, in · bits / 8)
        The integers: with 4 bits, two per byte, low half first; in symmetric mode, int8 in two's complement. With a
        `format`, rows of its blocks.
    scales : array, shape (out, in / group_size), or None
        Dtype of `w`; blocks have their own.
    biases : array or None
        Like `scales`; ``None`` in symmetric mode. Derivatives with respect to `w` flow through scales and biases to the
        extremes of each group; the integers and blocks have none.

    Raises
    ------
    TypeError
        If `w` is not floating point.
    ValueError
        If shapes do not match, the combination of `bits` and `mode` is invalid, or `format` can only be read. With a
        `format`, also if a number is not finite, or too large for the format; numbers that are traced, lazy or on an
        accelerator are not checked.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> weight, scales, biases = tensorops.quantize(np.asarray([[0.0, 1.0, 2.0, 15.0]]), bits=4, group_size=4)
    >>> weight, scales, biases
    (array([[ 16, 242]], dtype=uint8), array([[1.]]), array([[0.]]))
    >>> blocks, *_ = tensorops.quantize(np.ones((2, 64)), format="q8_0")
    >>> tensorops.quantized_linear(np.ones(64), blocks, format="q8_0").round(1)
    array([64., 64.])
    """
    xp = get_namespace(w)
    if format != AFFINE:
        return _in_blocks(xp, w, formats.get(format)), None, None
    rows, columns = w.shape
    if 0 in w.shape:
        packed, scale, low = (xp.zeros_like(w) for _ in range(3))
        packed = xp.astype(packed[:, : columns * bits // 8], xp.uint8)
        groups = columns // group_size
        return packed, scale[:, :groups], None if mode == "symmetric" else low[:, :groups]
    (wide,) = widen(xp, w)
    groups = xp.reshape(wide, (rows, columns // group_size, group_size))
    if mode == "symmetric":
        scale = xp.max(xp.abs(groups), axis=-1) / 127.0
        scale = _as_stored(xp, scale, xp.zeros_like(scale), 127.0, w)
        q = xp.clip(_levels(xp, groups, scale), -127.0, 127.0)
        q = xp.where(q < 0, q + 256.0, q)  # two's complement
        return xp.reshape(xp.astype(q, xp.uint8), (rows, columns)), narrow(xp, scale, w), None
    low, high = xp.min(groups, axis=-1), xp.max(groups, axis=-1)
    steps = float(2**bits - 1)
    # Halves are exact, so their difference cannot overflow and is 0 for equal elements however it is compiled.
    scale = _as_stored(xp, (0.5 * high - 0.5 * low) / (0.5 * steps), low, steps, w)
    unit = _unit(xp, scale)  # the distance from the minimum may also overflow
    distance = groups * xp.expand_dims(unit, axis=-1) - xp.expand_dims(low * unit, axis=-1)
    q = xp.clip(_levels(xp, distance, scale * unit), 0.0, steps)
    packed = _pack(xp, xp.reshape(xp.astype(q, xp.uint8), (rows, columns)), bits)
    return packed, narrow(xp, scale, w), narrow(xp, low, w)


@operator(check=_check_dequantize)
def dequantize(
    weight: ArrayInput,
    scales: ArrayOfKind[KindT] | None = None,
    biases: ArrayInput | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    mode: str = "affine",
    format: str = "affine",
) -> KindT:
    r"""Return the numbers of a quantized matrix: the inverse of `quantize`, or those that blocks of a format hold.

    .. math:: w = s \, q + b

    Parameters
    ----------
    weight : array of uint8, shape (out, in · bits / 8)
        The integers, see `quantize`. With a `format`, rows of its blocks, as files store them.
    scales : array, floating point, shape (out, in / group_size), optional
        Scales :math:`s`; blocks have their own.
    biases : array, optional
        Biases :math:`b`, like `scales`; without them `weight` holds int8 in two's complement.
    bits : {4, 8}, optional
        Size of an integer.
    group_size : int, optional
        How many neighbours in a row share a scale.
    mode : {"affine", "symmetric"}, optional
        As for `quantize`; always symmetric without `biases`.
    format : str, optional
        ``"affine"``, or one of `tensorops.formats.names`.

    Returns
    -------
    array, shape (out, in)
        Dtype, library and device of `scales`; of blocks, float32.

    Raises
    ------
    TypeError
        If `weight` is not uint8, or `scales` or `biases` is not floating point.
    ValueError
        If shapes do not match, or `bits`, `group_size`, `mode` or `format` is invalid.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> packed = np.asarray([[16, 242]], dtype=np.uint8)
    >>> tensorops.dequantize(packed, np.asarray([[1.0]]), np.asarray([[0.0]]), group_size=4)
    array([[ 0.,  1.,  2., 15.]])
    """
    xp = get_namespace(weight, scales, biases)
    if scales is None:
        return formats.get(format).values(xp, weight)
    return narrow(xp, unpacked(xp, weight, scales, biases, bits, group_size), scales)


@operator(check=_check_quantized_linear, rows=_quantized_linear_rows)
def quantized_linear(
    x: ArrayInputT,
    weight: ArrayInput,
    scales: ArrayInput | None = None,
    biases: ArrayInput | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    format: str = "affine",
    precision: str = "highest",
) -> ArrayInputT:
    r"""Linear map of the last axis by a quantized matrix.

    .. math:: y = x W^\mathsf{T}, \qquad W = s \, q + b

    Parameters
    ----------
    x : array, floating point, shape (..., in)
        Input.
    weight : array of uint8, shape (out, in · bits / 8)
        The integers, see `quantize`. With a `format`, rows of its blocks, as files store them.
    scales : array, floating point, shape (out, in / group_size), optional
        Scales :math:`s`; blocks have their own.
    biases : array, optional
        Biases :math:`b`, like `scales`; without them `weight` holds int8 in two's complement.
    bits : {4, 8}, optional
        Size of an integer.
    group_size : int, optional
        How many neighbours in a row share a scale.
    format : str, optional
        ``"affine"``, or one of `tensorops.formats.names`.
    precision : {"highest", "high", "low"}, optional
        How accurate products have to be; kernels may be more accurate. ``"highest"``: as in float32. ``"high"``: as if
        32 neighbours of `x` were rounded to 16 bits with a common scale. ``"low"``: to 8 bits, as in llama.cpp.

    Returns
    -------
    array, shape (..., out)
        Dtype, library and device of `x`.

    Raises
    ------
    TypeError
        If `weight` is not uint8, or another input is not floating point.
    ValueError
        If shapes do not match, or an option is invalid.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> packed = np.asarray([[16, 242]], dtype=np.uint8)  # 0, 1, 2, 15
    >>> scales, biases = np.asarray([[2.0]]), np.asarray([[1.0]])
    >>> tensorops.quantized_linear(np.ones(4), packed, scales, biases, group_size=4)
    array([40.])
    """
    xp = get_namespace(x, weight, scales, biases)
    if scales is None:
        (wide,) = widen(xp, x)
        w = xp.astype(formats.get(format).values(xp, weight), wide.dtype)
        return narrow(xp, xp.matmul(wide, xp.matrix_transpose(w)), x)
    wide, s, b = widen(xp, x, scales, biases)
    w = unpacked(xp, weight, s, b, bits, group_size)
    return narrow(xp, xp.matmul(wide, xp.matrix_transpose(w)), x)


def _in_blocks(xp: Namespace, w: Array, format: Format) -> Array:
    """Return a matrix in blocks of a format; raise if its numbers are known and do not fit."""
    is_known = has_host_values(w) and 0 not in w.shape
    wide = xp.astype(w, xp.float32)
    if is_known and not bool(xp.all(xp.isfinite(wide))):
        raise ValueError("quantize: w holds a number that is not finite in float32")
    blocks = format.packed(xp, wide)
    if is_known and not bool(xp.all(xp.isfinite(format.values(xp, blocks)))):
        raise ValueError(f"quantize: w holds a number that is too large for format {format.name!r}")
    return blocks


def _levels(xp: Namespace, groups: Array, scale: Array) -> Array:
    """Return ``round(groups / scale)``, or 0 for a group of equal elements, whose scale is 0."""
    steps = xp.expand_dims(scale, axis=-1)
    return xp.round(groups / xp.where(steps == 0, xp.ones_like(steps), steps))


def _unit(xp: Namespace, scale: Array) -> Array:
    """Return the factor for groups while they are scaled: 0.5 if a product with `scale` could overflow, else 1.

    Halving is exact, and doubling afterwards overflows only if the result itself is out of range.
    """
    is_large = xp.abs(scale) >= 2.0 ** (largest_exponent(scale) - 8)
    return xp.where(is_large, xp.full_like(scale, 0.5), xp.ones_like(scale))


def _as_stored(xp: Namespace, scale: Array, low: Array, steps: float, w: Array) -> Array:
    """Return `scale` as the dtype of `w` stores it: the integers are computed with the scale that is kept.

    It is rounded up, so that the integers reach every element. Where that would push the largest element out of the
    range of the dtype, it is slightly smaller instead.
    """
    stored = scale
    if w.dtype != scale.dtype:
        (stored,) = widen(xp, narrow(xp, scale, w))
        step = xp.maximum(stored * (0.625 * epsilon(w)), xp.full_like(stored, 0.75 * smallest(w)))  # less than 1.5 ulp
        (stored,) = widen(xp, narrow(xp, xp.where(stored < scale, stored + step, stored), w))
    half_of_largest = steps * (stored * 0.5) + low * 0.5
    less = scale * (1.0 - 2.0 * epsilon(w))
    (less,) = widen(xp, narrow(xp, less, w))
    return xp.where(half_of_largest > 0.5 * largest(w), less, stored)


def _pack(xp: Namespace, q: Array, bits: int) -> Array:
    if bits == 8:
        return q
    return q[:, 0::2] | (q[:, 1::2] << 4)


def unpacked(xp: Namespace, weight: Array, scales: Array, biases: Array | None, bits: int, group_size: int) -> Array:
    """Return the matrix in the dtype used to compute with `scales`."""
    rows, columns = weight.shape[0], weight.shape[1] * 8 // bits
    s, b = widen(xp, scales, biases)
    if bits == 4:
        weight = xp.reshape(xp.stack((weight & 15, weight >> 4), axis=-1), (rows, columns))
    q = xp.astype(weight, s.dtype)
    if b is None:
        q = xp.where(q > 127.0, q - 256.0, q)  # two's complement
    unit = _unit(xp, s)
    groups = xp.reshape(q, (rows, columns // group_size, group_size)) * xp.expand_dims(s * unit, axis=-1)
    if b is not None:
        groups = groups + xp.expand_dims(b * unit, axis=-1)
    return xp.reshape(groups / xp.expand_dims(unit, axis=-1), (rows, columns))
