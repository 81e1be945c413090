"""Linear layers of torch whose weights are blocks of integers: affine groups, or those of a format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tensorops as tp
from tensorops import formats

OPTIONS: dict[int, dict[str, Any]] = {
    8: {"bits": 8, "group_size": 32, "mode": "symmetric"},
    4: {"bits": 4, "group_size": 32, "mode": "affine"},
}
"""What a number of bits alone stands for."""


class QuantizedLinear(torch.nn.Linear):  # type: ignore[misc]
    """A linear layer whose weight is quantized; made of another by `tensorops.torch.prepare_model`.

    Its state has ``weight_blocks`` and, of affine groups, ``weight_scales`` and ``weight_biases``, the results of
    `tensorops.quantize`, and no ``weight``. As an attribute, that is the matrix of rounded elements. `options` are
    those of `tensorops.quantize`, whose format may have interleaved blocks as well.
    """

    options: dict[str, Any]

    @property
    def weight(self) -> torch.Tensor:
        """The matrix that the blocks stand for."""
        return tp.dequantize(*self._blocks(), **self.options)

    def _blocks(self) -> tuple[Any, Any, Any]:
        return self.weight_blocks, self.weight_scales, self.weight_biases

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ weight.T + bias``; torch multiplies many rows, by a weight that is made for the call."""
        rows = x.numel() // max(x.shape[-1], 1)
        if rows > (16 if x.dtype is torch.float32 else 8):
            return torch.nn.functional.linear(x, self.weight.to(x.dtype), self.bias)
        options = {name: value for name, value in self.options.items() if name != "mode"}
        y = tp.quantized_linear(x, *self._blocks(), **options)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """Return what `print` shows of the layer."""
        return ", ".join([super().extra_repr(), *(f"{name}={value!r}" for name, value in self.options.items())])


def options_of(quantize: int | str | dict[str, Any]) -> dict[str, Any]:
    """Return the options of `tensorops.quantize` that the caller asks for."""
    if isinstance(quantize, dict):
        found: dict[str, Any] = {"group_size": 32, "mode": "affine"} | quantize
        tp.quantize(torch.zeros(1, 0), **found)  # an error in terms of its options
        return found
    if isinstance(quantize, str):
        stored = _as_stored(formats.get(quantize))
        tp.quantize(torch.zeros(1, stored.elements), format=stored.name)  # which may be one that can only be read
        return {"format": quantize}
    if quantize not in OPTIONS:
        known = ", ".join(map(str, OPTIONS))
        raise ValueError(
            f"prepare_model: quantize is {quantize!r}, expected {known}, a format, or options of tensorops.quantize"
        )
    return OPTIONS[quantize]


def _as_stored(of: formats.Format) -> formats.Format:
    """Return the format of the blocks that are interleaved, if they are."""
    return of.of if isinstance(of, formats.Interleaved) else of


def refuse(module: torch.nn.Linear, options: dict[str, Any]) -> str:
    """Return why a layer cannot be quantized; empty if it can."""
    of = formats.get(options["format"]) if "format" in options else None
    group = options["group_size"] if of is None else of.elements
    if module.in_features % group or not module.weight.numel():
        return f"its {module.in_features} columns are no groups of {group}"
    if not module.weight.is_floating_point():
        return f"weight has dtype {module.weight.dtype}"
    if not isinstance(of, formats.Interleaved):
        return ""
    if module.out_features % of.ROWS:
        return f"its {module.out_features} rows are no multiple of {of.ROWS}, which {of.name!r} interleaves"
    return (
        ""
        if module.weight.device.type == "cpu"
        else f"blocks are interleaved in host memory, not on {module.weight.device}"
    )


def quantize(module: torch.nn.Linear, options: dict[str, Any]) -> tuple[float, Callable[[], None]]:
    """Make a layer a quantized one; return the error of its results, and a function that makes it what it was.

    The error is the root mean square of the difference for random rows, relative to that of the results.
    """
    weight = module.weight
    with torch.no_grad():
        x = torch.randn(8, module.in_features, generator=torch.Generator().manual_seed(0)).to(weight.dtype)
        before = module.forward(x).double()
        names = ("weight_blocks", "weight_scales", "weight_biases")
        blocks = dict(zip(names, _quantized(weight, options), strict=True))
    del module.weight
    for name, block in blocks.items():
        module.register_buffer(name, block)
    module.options = options
    module.__class__ = QuantizedLinear

    def undo() -> None:
        module.__class__ = torch.nn.Linear
        for name in blocks:
            del module._buffers[name]
        del module.options
        module.register_parameter("weight", weight)
        module._parameters = {name: module._parameters[name] for name in ("weight", "bias")}  # in their order

    with torch.no_grad():
        after = module(x).double()
    return float((after - before).square().mean().sqrt() / before.square().mean().sqrt()), undo


def _quantized(weight: torch.Tensor, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return blocks, scales and biases, the latter `None` for a format."""
    if "format" not in options:
        return tp.quantize(weight, **options)
    of = formats.get(options["format"])
    blocks, *_ = tp.quantize(weight.float(), format=_as_stored(of).name)
    if isinstance(of, formats.Interleaved):
        blocks = torch.from_numpy(of.store(blocks.numpy()))
    return blocks, None, None
