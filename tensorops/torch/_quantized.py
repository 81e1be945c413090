"""Linear layers of torch whose weights are blocks of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tensorops as tp

OPTIONS: dict[int, dict[str, Any]] = {
    8: {"bits": 8, "group_size": 32, "mode": "symmetric"},
    4: {"bits": 4, "group_size": 32, "mode": "affine"},
}
"""What a number of bits alone stands for."""


class QuantizedLinear(torch.nn.Linear):  # type: ignore[misc]
    """A linear layer whose weight is quantized; made of another by `tensorops.torch.prepare_model`.

    Its state has ``weight_blocks``, ``weight_scales`` and ``weight_biases``, the results of `tensorops.quantize`, and
    no ``weight``. As an attribute, that is the matrix of rounded elements.
    """

    bits: int
    group_size: int
    mode: str

    @property
    def weight(self) -> torch.Tensor:
        """The matrix that the blocks stand for."""
        return tp.dequantize(*self._blocks(), bits=self.bits, group_size=self.group_size, mode=self.mode)

    def _blocks(self) -> tuple[Any, Any, Any]:
        return self.weight_blocks, self.weight_scales, self.weight_biases

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ weight.T + bias``; torch multiplies many rows, by a weight that is made for the call."""
        rows = x.numel() // max(x.shape[-1], 1)
        if rows > (16 if x.dtype is torch.float32 else 8):
            return torch.nn.functional.linear(x, self.weight.to(x.dtype), self.bias)
        y = tp.quantized_linear(x, *self._blocks(), bits=self.bits, group_size=self.group_size)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """Return what `print` shows of the layer."""
        return f"{super().extra_repr()}, bits={self.bits}, group_size={self.group_size}, mode={self.mode!r}"


def options_of(quantize: int | dict[str, Any]) -> dict[str, Any]:
    """Return the options of `tensorops.quantize` that the caller asks for."""
    if isinstance(quantize, dict):
        found: dict[str, Any] = {"group_size": 32, "mode": "affine"} | quantize
        tp.quantize(torch.zeros(1, 0), **found)  # an error in terms of its options
        return found
    if quantize not in OPTIONS:
        known = ", ".join(map(str, OPTIONS))
        raise ValueError(f"prepare_model: quantize is {quantize!r}, expected {known}, or options of tensorops.quantize")
    return OPTIONS[quantize]


def refuse(module: torch.nn.Linear, options: dict[str, Any]) -> str:
    """Return why a layer cannot be quantized; empty if it can."""
    if module.in_features % options["group_size"] or not module.weight.numel():
        return f"its {module.in_features} columns are no groups of {options['group_size']}"
    if not module.weight.is_floating_point():
        return f"weight has dtype {module.weight.dtype}"
    return ""


def quantize(module: torch.nn.Linear, options: dict[str, Any]) -> tuple[float, Callable[[], None]]:
    """Make a layer a quantized one; return the error of its results, and a function that makes it what it was.

    The error is the root mean square of the difference for random rows, relative to that of the results.
    """
    weight = module.weight
    with torch.no_grad():
        x = torch.randn(8, module.in_features, generator=torch.Generator().manual_seed(0)).to(weight.dtype)
        before = module.forward(x).double()
        blocks = dict(
            zip(("weight_blocks", "weight_scales", "weight_biases"), tp.quantize(weight, **options), strict=True)
        )
    del module.weight
    for name, block in blocks.items():
        module.register_buffer(name, block)
    vars(module).update(options)
    module.__class__ = QuantizedLinear

    def undo() -> None:
        module.__class__ = torch.nn.Linear
        for name in blocks:
            del module._buffers[name]
        for name in options:
            del vars(module)[name]
        module.register_parameter("weight", weight)
        module._parameters = {name: module._parameters[name] for name in ("weight", "bias")}  # in their order

    with torch.no_grad():
        after = module(x).double()
    return float((after - before).square().mean().sqrt() / before.square().mean().sqrt()), undo
