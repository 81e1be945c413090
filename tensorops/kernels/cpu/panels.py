"""Quantized weights in panels, the layout in which the compiled kernel multiplies several rows fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorops._typing import Array
from tensorops.kernels.cpu import _native


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


def pack(
    *,
    weight: Array,
    scales: Array | None = None,
    biases: Array | None = None,
    bits: int = 4,
    group_size: int = 32,
    format: str = "affine",
) -> Panels | str:
    """Pack a quantized matrix for `quantized_linear`, or return why packing does not help on this processor."""
    if scales is None:
        return f"blocks of format {format!r} are multiplied as they are"
    reason = _native.pack_panels_supports(weight, scales, biases, bits=bits, group_size=group_size)
    if reason is not None:
        return reason
    return Panels(_native.pack_panels(weight, scales, biases, bits=bits, group_size=group_size))
