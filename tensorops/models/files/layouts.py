"""Quantised weights in folders: the layouts of MLX, GPTQ, AWQ, FP8 and MXFP4, as weights of the same values.

Each layout is several tensors with a common name. MLX's and MXFP4's are only other orders of the same bytes; GPTQ's and
AWQ's become groups of integers, exactly. Scales of 8-bit floating-point numbers move into their blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensorops import formats
from tensorops.models._errors import GGUFError

from .blocks import BlockWeight, ComputedTensor, QuantizedWeight, Tensor

if TYPE_CHECKING:
    from ._open_file import OpenFile

__all__ = ["Raw", "combined"]

Integers = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
DTYPES = {"U8": "u1", "I8": "i1", "U32": "<u4", "I32": "<i4", "I64": "<i8"}
DTYPES |= dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0"), "u1")
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place of each of eight neighbours in an integer of 32 bits
FP8_BLOCK = 128  # rows and columns with a scale of their own
FP8_FORMATS = {"F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2"}


@dataclass(frozen=True)
class Raw:
    """Integers, or bits of 8-bit floating-point numbers, in a safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: OpenFile
    start: int
    nbytes: int

    def array(self) -> Integers:
        """Return the values, read from the file again."""
        return (
            self.file.read(self.start, self.nbytes, f"tensor {self.name}").view(DTYPES[self.dtype]).reshape(self.shape)
        )

    def error(self, problem: str) -> GGUFError:
        """Return the error that says what is wrong with it."""
        return GGUFError(self.file.path, f"tensor {self.name}", problem)


Given = Tensor | Raw


def combined(tensors: Mapping[str, Given], options: Mapping[str, Any]) -> dict[str, Tensor | ComputedTensor]:
    """Return the tensors of a folder, where those of one quantised weight are one.

    Parameters
    ----------
    tensors : mapping
        By their names in the folder.
    options : mapping
        ``quantization_config`` or, in folders of MLX, ``quantization`` of its ``config.json``.

    Raises
    ------
    GGUFError
        A layout is unknown, or tensors do not fit together.
    """
    made: dict[str, Tensor | ComputedTensor] = {}
    left = {name: tensor for name, tensor in tensors.items() if not _is_of_inputs(name, tensors)}
    for name in list(left):
        stem, _, kind = name.rpartition(".")
        if kind == "qweight":
            parts = _parts(left, stem, ("qweight", "qzeros", "scales"), ("g_idx",), numbers=("scales",))
            made[f"{stem}.weight"] = _gptq(parts, options) if options.get("quant_method") != "awq" else _awq(parts)
        elif kind == "weight" and f"{stem}.weight_scale_inv" in tensors:
            made[name] = _fp8(_parts(left, stem, ("weight", "weight_scale_inv"), numbers=("weight_scale_inv",)))
        elif kind == "weight" and f"{stem}.scales" in tensors:
            own = options.get(stem, options)
            own = own if isinstance(own, Mapping) else options
            numbers = ("biases",) if own.get("mode") == "mxfp4" else ("scales", "biases")
            made[name] = _mlx(_parts(left, stem, ("weight", "scales"), ("biases",), numbers=numbers), own)
        elif name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            blocks, scales = (left.pop(f"{stem}{end}", None) for end in ("_blocks", "_scales"))
            made[stem] = _mxfp4(stem, blocks, scales)
    for name, tensor in left.items():
        if isinstance(tensor, Raw):
            raise tensor.error(
                f"dtype {tensor.dtype} is not that of a weight, or other tensors of the weight are missing"
            )
        made[name] = tensor
    return made


def _is_of_inputs(name: str, tensors: Mapping[str, Given]) -> bool:
    """Return whether a tensor scales the inputs of a product of 8-bit numbers: here, inputs are not rounded."""
    stem, _, kind = name.rpartition(".")
    weight = tensors.get(f"{stem}.weight")
    return kind in ("activation_scale", "input_scale") and isinstance(weight, Raw) and weight.dtype in FP8_FORMATS


def _parts(
    left: dict[str, Given],
    stem: str,
    names: tuple[str, ...],
    optional: tuple[str, ...] = (),
    *,
    numbers: tuple[str, ...],
) -> dict[str, Any]:
    """Take the tensors of one weight, of which `numbers` are floating-point numbers, and the others integers."""
    parts = {name: left.pop(f"{stem}.{name}") for name in (*names, *optional) if f"{stem}.{name}" in left}
    path = next(iter(parts.values())).file.path
    for name in names:
        if name not in parts:
            raise GGUFError(path, f"tensor {stem}.{name}", "missing")
    for name, part in parts.items():
        if isinstance(part, Raw) is (name in numbers):
            raise GGUFError(path, f"tensor {stem}.{name}", f"not {'numbers' if name in numbers else 'integers'}")
    return parts


def _require(weight: Raw, is_right: bool, what: str) -> None:
    if not is_right:
        raise weight.error(f"shape {weight.shape} does not fit to that of {what}")


def _packed(codes: Integers) -> Integers:
    """Return integers of 4 bits, (..., in), in bytes: two neighbours share one."""
    low, high = codes[..., ::2].astype(np.uint8), codes[..., 1::2].astype(np.uint8)
    return low | (high << 4)


def _eight(words: Integers, axis: int, order: tuple[int, ...] = tuple(range(8))) -> Integers:
    """Return the eight integers of 4 bits in each of 32 bits, one after the other along an axis."""
    parts = [(words.view(np.uint32) >> np.uint32(4 * place)) & np.uint32(15) for place in order]
    spread = np.stack(parts, axis=axis + 1).astype(np.uint8)
    return spread.reshape(*words.shape[:axis], words.shape[axis] * 8, *words.shape[axis + 1 :])


def _gptq(parts: dict[str, Any], options: Mapping[str, Any]) -> ComputedTensor:
    """Frantar et al., https://arxiv.org/abs/2210.17323: eight rows in an integer, and zeros less one."""
    weight, zeros, scales = parts["qweight"], parts["qzeros"], parts["scales"]
    if (bits := options.get("bits", 4)) != 4:
        raise weight.error(f"{bits!r:.40} bits are not supported, only 4")
    rows, groups = scales.shape[1], scales.shape[0]
    columns = 8 * weight.shape[0]
    _require(weight, weight.shape[1] == rows and zeros.shape == (groups, rows // 8) and not columns % groups, "scales")
    size, index = columns // groups, parts.get("g_idx")
    offset = 0 if options.get("checkpoint_format") == "gptq_v2" else 1

    def make() -> Float32 | QuantizedWeight:
        codes, factors = _eight(weight.array(), 0).T, scales.dequantize().T
        minima = -factors * (_eight(zeros.array(), 1).T.astype(np.float32) + offset)
        of = np.arange(columns) // size if index is None else index.array()
        if np.array_equal(of, np.arange(columns) // size):
            return _groups(_packed(codes), factors, minima, size)
        if of.min() < 0 or of.max() >= groups:
            raise weight.error("a group of g_idx is out of range")
        return np.ascontiguousarray(codes * factors[:, of] + minima[:, of], dtype=np.float32)

    return ComputedTensor(weight.name, (rows, columns), make, size)


def _awq(parts: dict[str, Any]) -> ComputedTensor:
    """Lin et al., https://arxiv.org/abs/2306.00978: eight columns in an integer, in another order."""
    weight, zeros, scales = parts["qweight"], parts["qzeros"], parts["scales"]
    (groups, rows), columns = scales.shape, weight.shape[0]
    fits = weight.shape[1] * 8 == rows and zeros.shape == (groups, rows // 8) and not columns % groups
    _require(weight, fits, "scales")

    def make() -> QuantizedWeight:
        codes, factors = _eight(weight.array(), 1, AWQ_ORDER).T, scales.dequantize().T
        minima = -factors * _eight(zeros.array(), 1, AWQ_ORDER).T.astype(np.float32)
        return _groups(_packed(codes), factors, minima, columns // groups)

    return ComputedTensor(weight.name, (rows, columns), make, columns // groups)


def _groups(packed: Integers, scales: Float32, biases: Float32, size: int) -> QuantizedWeight:
    packed, scales, biases = (np.ascontiguousarray(part) for part in (packed, scales, biases))
    return QuantizedWeight(packed, scales, biases, 4, size)


def _mlx(parts: dict[str, Any], options: Mapping[str, Any]) -> ComputedTensor:
    """Return what MLX writes: groups of integers with scales and biases, or those of MXFP4, only in another order."""
    weight, scales, biases = parts["weight"], parts["scales"], parts.get("biases")
    mode, size, bits = options.get("mode", "affine"), options.get("group_size", 64), options.get("bits", 4)
    if mode == "mxfp4":
        columns = 8 * weight.shape[-1]
        _require(weight, scales.shape == (*weight.shape[:-1], columns // 32), "scales")
        return _microscaled(weight.name, weight, scales, (*weight.shape[:-1], columns))
    if mode != "affine" or type(bits) is not int or bits not in (4, 8) or biases is None:
        problem = f"mode {mode!r:.40} with {bits!r:.40} bits is not supported, only 'affine' with 4 or 8, and 'mxfp4'"
        raise weight.error(problem)
    if type(size) is not int or size < 1:
        raise weight.error(f"group_size {size!r:.40} is not a positive integer")
    columns = weight.shape[-1] * 32 // bits
    _require(weight, scales.shape == biases.shape == (*weight.shape[:-1], columns // size), "scales")

    def make() -> QuantizedWeight:
        packed = weight.array().view(np.uint8)
        return QuantizedWeight(packed, scales.dequantize(), biases.dequantize(), bits, size)

    return ComputedTensor(weight.name, (*weight.shape[:-1], columns), make, size)


def _mxfp4(name: str, blocks: Given | None, scales: Given | None) -> ComputedTensor:
    """Blocks of 32 numbers as in gpt-oss: (experts, rows, groups, 16), and scales of one byte."""
    if not isinstance(blocks, Raw) or not isinstance(scales, Raw) or blocks.shape != (*scales.shape, 16):
        raise GGUFError(blocks.file.path if blocks else "", f"tensor {name}", "its blocks and scales do not fit")
    return _microscaled(name, blocks, scales, (*scales.shape[:-1], 32 * scales.shape[-1]))


def _microscaled(name: str, codes: Raw, scales: Raw, shape: tuple[int, ...]) -> ComputedTensor:
    """Return numbers of 4 bits, of which neighbours share a byte, as blocks of a GGUF file: each from one half."""

    def make() -> BlockWeight:
        pairs = codes.array().view(np.uint8).reshape(*shape[:-1], -1, 16)
        low, high = pairs & 15, pairs >> 4
        numbers = np.stack([low, high], axis=-1).reshape(*pairs.shape[:-1], 32)
        halves = numbers[..., :16] | (numbers[..., 16:] << 4)
        power = scales.array().view(np.uint8).reshape(*pairs.shape[:-1], 1)
        stored = np.concatenate([power, halves], axis=-1)
        return BlockWeight(stored.reshape(*shape[:-1], -1), "mxfp4")

    return ComputedTensor(name, shape, make, 32)


def _fp8(parts: dict[str, Any]) -> ComputedTensor:
    """Numbers of 8 bits with a scale for each block of 128 × 128, as in DeepSeek's folders, for each row, or for all.

    Rows of whole blocks stay packed.
    """
    weight, scales = parts["weight"], parts["weight_scale_inv"]
    blocks = tuple(-(-n // FP8_BLOCK) for n in weight.shape)
    fits = len(weight.shape) == 2 and scales.shape in (blocks, (weight.shape[0], 1), (1, 1), (1,), ())
    if weight.dtype not in FP8_FORMATS or not fits:
        raise weight.error(
            f"{weight.dtype} of shape {weight.shape} with scales of shape {scales.shape} is not supported"
        )
    rows, columns = weight.shape
    left = -columns % FP8_BLOCK

    def make() -> Float32 | BlockWeight:
        padded = np.pad(weight.array(), ((0, 0), (0, left)))
        stored = BlockWeight(formats.fp8_blocks(np, padded, scales.dequantize()), FP8_FORMATS[weight.dtype])
        values = formats.get(stored.format).values
        for start in range(0, rows, FP8_BLOCK):
            if not np.isfinite(values(np, stored.blocks[start : start + FP8_BLOCK])).all():
                raise weight.error("holds a number that is not finite")
        return np.ascontiguousarray(values(np, stored.blocks)[:, :columns]) if left else stored

    return ComputedTensor(weight.name, weight.shape, make, 1 if left else FP8_BLOCK)
