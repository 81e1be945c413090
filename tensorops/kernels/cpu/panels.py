"""Weights in the orders in which compiled kernels multiply them fastest: columns, panels, or interleaved blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorops import _hooks, formats
from tensorops.kernels.cpu import _native
from tensorops.typing import Array

_hooks.interleave_blocks.append(_native.interleave_blocks)
_LONGEST = 16384  # elements of a row of packed weights; see native/kernels/float_panels.h


@dataclass(frozen=True)
class Panels:
    """Weights packed by `pack`."""

    panels: _native.WeightPanels

    @property
    def nbytes(self) -> int:
        """The memory used, in bytes."""
        return self.panels.nbytes

    def supports(self, x: Array) -> str | None:
        """Return why `x` cannot be multiplied by the weights, or ``None``."""
        return _native.panel_linear_supports(x, self.panels)

    def __call__(self, x: Array) -> Any:
        """Multiply, or return ``NotImplemented``."""
        return _native.panel_linear(x, self.panels)

    def plain(self) -> dict[str, Any]:
        """Return the original arrays."""
        weight, scales, biases = self.panels.unpack()
        return {"weight": weight, "scales": scales, "biases": biases}


@dataclass(frozen=True)
class Columns:
    """Weights of `linear` packed by `pack_linear`: of some outputs, columns are one after another."""

    blocks: Array
    outputs: int
    bias: Array | None
    activation: str | None

    @property
    def nbytes(self) -> int:
        """The memory used, in bytes."""
        return int(self.blocks.nbytes + (0 if self.bias is None else self.bias.nbytes))

    def supports(self, x: Array, *, bias: Array | None = None, activation: str | None = None) -> str | None:
        """Return why `x` cannot be multiplied by the weights, or ``None``."""
        options = {"outputs": self.outputs, "activation": activation or self.activation}
        bias = self.bias if bias is None else bias
        reason: str | None = _native.packed_linear_supports(x, self.blocks, bias, **options)
        return reason

    def __call__(self, x: Array, *, bias: Array | None = None, activation: str | None = None) -> Any:
        """Multiply, or return ``NotImplemented``."""
        bias, activation = self.bias if bias is None else bias, activation or self.activation
        return _native.packed_linear(x, self.blocks, bias, outputs=self.outputs, activation=activation)

    def plain(self) -> dict[str, Any]:
        """Return the original arrays."""
        rows = np.ascontiguousarray(self.blocks.transpose(0, 2, 1)).reshape(-1, self.blocks.shape[1])
        return {"weight": rows[: self.outputs], **({} if self.bias is None else {"bias": self.bias})}


def pack_linear(*, weight: Array, bias: Array | None = None, activation: str | None = None) -> Columns | str:
    """Pack a matrix of float32 for `linear`, or return why that does not help."""
    if weight.dtype != np.float32:
        return f"weight has dtype {weight.dtype}: only float32 is packed"
    if weight.ndim != 2 or weight.size == 0 or weight.shape[1] > _LONGEST:
        return f"weight has shape {weight.shape}: packed rows have 1 to {_LONGEST} elements"
    (outputs, inputs), width = weight.shape, _native.packed_outputs()
    whole, rest = divmod(outputs, width)
    shape = (whole + bool(rest), inputs, width)
    blocks = _native.empty_like(np.broadcast_to(np.float32(0), shape))  # large ones begin at a cache line
    blocks[:whole] = weight[: outputs - rest].reshape(whole, width, inputs).transpose(0, 2, 1)
    if rest:
        blocks[-1] = 0
        blocks[-1, :, :rest] = weight[-rest:].T
    packed = Columns(blocks, outputs, bias, activation)
    return packed.supports(weight[:1]) or packed


@dataclass(frozen=True)
class InterleavedBlocks:
    """Weights in interleaved blocks, made by `pack`."""

    format: formats.Interleaved
    blocks: Array
    precision: str

    @property
    def nbytes(self) -> int:
        """The memory used, in bytes."""
        return int(self.blocks.nbytes)

    def supports(self, x: Array) -> str | None:
        """Return why `x` cannot be multiplied by the weights, or ``None``."""
        options = {"format": self.format.name, "precision": self.precision}
        reason: str | None = _native.quantized_linear_supports(x, self.blocks, **options)
        return reason

    def __call__(self, x: Array) -> Any:
        """Multiply, or return ``NotImplemented``."""
        return _native.quantized_linear(x, self.blocks, format=self.format.name, precision=self.precision)

    def plain(self) -> dict[str, Any]:
        """Return the original array."""
        return {"weight": self.format.separate(np, self.blocks)}


def pack(
    *,
    weight: Array,
    scales: Array | None = None,
    biases: Array | None = None,
    bits: int = 4,
    group_size: int = 32,
    format: str = "affine",
    precision: str = "highest",
) -> Panels | InterleavedBlocks | str:
    """Pack a quantized matrix for `quantized_linear`, or return why packing does not help on this processor."""
    if format != "affine":
        return _interleave(weight, format, precision)
    reason = _native.pack_panels_supports(weight, scales, biases, bits=bits, group_size=group_size)
    if reason is not None:
        return reason
    return Panels(_native.pack_panels(weight, scales, biases, bits=bits, group_size=group_size))


def _interleave(weight: Array, format: str, precision: str) -> InterleavedBlocks | str:
    of = formats.get(format)
    if isinstance(of, formats.Interleaved):
        return "the blocks are interleaved"
    target = formats.get(format + formats.Interleaved.ENDING)
    assert isinstance(target, formats.Interleaved)
    if weight.ndim != 2 or weight.shape[0] % target.ROWS or weight.size == 0:
        return f"weight does not have a multiple of {target.ROWS} rows"
    band = np.zeros((target.ROWS, weight.shape[1]), np.uint8)
    x = np.zeros((1, weight.shape[1] // of.nbytes * of.elements), np.float32)
    reason = _native.quantized_linear_supports(x, band, format=target.name, precision=precision)
    return InterleavedBlocks(target, target.store(weight), precision) if reason is None else str(reason)
