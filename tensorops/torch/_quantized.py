"""Linear layers of torch whose weights are blocks of integers: affine groups, or those of a format."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import tensorops as tp
from tensorops import formats
from tensorops._messages import describe_type, nearest
from tensorops._validation import shown

OPTIONS: dict[int, dict[str, Any]] = {
    8: {"bits": 8, "group_size": 32, "mode": "symmetric"},
    4: {"bits": 4, "group_size": 32, "mode": "affine"},
}
"""What a number of bits alone stands for."""
BLOCKS = ("weight_blocks", "weight_scales", "weight_biases")


class _Rounded(torch.Tensor):  # type: ignore[misc]
    """The matrix that a layer's blocks stand for; they are made anew whenever something is written into it.

    Results of functions are usual tensors, but for views, through which the matrix may be written as well.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, layer: QuantizedLinear, values: torch.Tensor, matrix: torch.Tensor) -> _Rounded:
        """Return a view of the layer's matrix; `values` are its numbers."""
        found = torch.Tensor._make_subclass(cls, values)
        found.layer, found.values, found.matrix = layer, values, matrix
        return found  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, function: Any, _: Any, args: Any = (), named: Any = None) -> Any:
        """Compute with the numbers, and tell the layers whose matrices the function writes."""
        named, schema = named or {}, function._schema
        y = function(*tree_map_only(cls, lambda x: x.values, args), **tree_map_only(cls, lambda x: x.values, named))
        by_name = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | named
        for x in tree_leaves([by_name.get(argument.name) for argument in schema.arguments if argument.is_write]):
            if isinstance(x, cls):
                x.layer._round(x.matrix)
        if all(result.alias_info is None for result in schema.returns):
            return y
        sources = {id(x.values): x for x in tree_leaves((args, named)) if isinstance(x, cls)}
        source = next(iter(sources.values()))

        def view(x: torch.Tensor) -> _Rounded:
            return sources[id(x)] if id(x) in sources else cls(source.layer, x, source.matrix)

        return tree_map_only(torch.Tensor, view, y)

    @property
    def data(self) -> torch.Tensor:
        """The matrix itself: it records no gradients."""
        return self.detach()

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        self.layer._check(values)
        with torch.no_grad():
            self.copy_(values)

    def numpy(self, *, force: bool = False) -> Any:
        """Return the numbers as an array."""
        return self.values.numpy(force=force)

    def tolist(self) -> Any:
        """Return the numbers as lists."""
        return self.values.tolist()

    def __repr__(self, **options: Any) -> str:
        return str(self.values.__repr__(**options))

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.values.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.values.clone().__reduce_ex__(protocol)


class QuantizedLinear(torch.nn.Linear):  # type: ignore[misc]
    """A linear layer whose weight is quantized; made of another by `tensorops.torch.prepare_model`.

    Its state has ``weight_blocks`` and, of affine groups, ``weight_scales`` and ``weight_biases``, the results of
    `tensorops.quantize`, how these are stored, and no ``weight``. As an attribute, that is the matrix of rounded
    elements. What is written into it, or assigned, is quantized at once. `options` are those of `tensorops.quantize`,
    whose format may have interleaved blocks as well; `precision` is that of `tensorops.quantized_linear`.
    """

    options: dict[str, Any]
    precision: str = "highest"
    written: bool = False  # whether the weight has been changed since

    @property
    def weight(self) -> torch.Tensor:
        """The matrix that the blocks stand for."""
        matrix = self._matrix()
        return matrix if torch.compiler.is_compiling() else _Rounded(self, matrix, matrix)

    def __setattr__(self, name: str, value: Any) -> None:
        """Quantize what is assigned as the weight."""
        if name != "weight":
            super().__setattr__(name, value)
            return
        self._check(value)
        self._round(value.detach())

    def _check(self, weight: Any) -> None:
        if not isinstance(weight, torch.Tensor):
            raise TypeError(f"QuantizedLinear: weight is {describe_type(weight)}, expected a tensor")
        expected = self.out_features, self.in_features
        if tuple(weight.shape) != expected:
            raise ValueError(f"QuantizedLinear: weight has shape {tuple(weight.shape)}, expected {expected}")

    def _matrix(self) -> torch.Tensor:
        return tp.dequantize(*self._blocks(), **self.options)

    def _blocks(self) -> tuple[Any, Any, Any]:
        return self.weight_blocks, self.weight_scales, self.weight_biases

    def _round(self, matrix: torch.Tensor) -> None:
        scales = self.weight_scales
        with torch.no_grad():
            blocks = _quantized(matrix if scales is None else matrix.to(scales.dtype), self.options)
        self._buffers |= dict(zip(BLOCKS, blocks, strict=True))
        self.written = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ weight.T + bias``; torch multiplies many rows, by a weight that is made for the call."""
        kind = x.device.type
        if torch.is_autocast_enabled(kind) and x.dtype is not torch.float64:
            x = x.to(torch.get_autocast_dtype(kind))  # as torch's own
        bias = None if self.bias is None else self.bias.to(x.dtype)
        rows = x.numel() // max(x.shape[-1], 1)
        if rows > (16 if x.dtype is torch.float32 else 8):
            return torch.nn.functional.linear(x, self._matrix().to(x.dtype), bias)
        options = {name: value for name, value in self.options.items() if name != "mode"}
        y = tp.quantized_linear(x, *self._blocks(), **options, precision=self.precision)
        return y if bias is None else y + bias

    def get_extra_state(self) -> torch.Tensor:
        """Return how the blocks are stored, as bytes: programs that write a state to a file expect tensors."""
        return torch.tensor(list(json.dumps(self.options, sort_keys=True).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Refuse the state of a layer whose blocks are stored otherwise."""
        stored = bytes(state.tolist()).decode()
        own = json.dumps(self.options, sort_keys=True)
        if stored != own:
            raise ValueError(f"QuantizedLinear: the state has weights of {stored}, and the layer of {own}")

    def extra_repr(self) -> str:
        """Return what `print` shows of the layer."""
        options = self.options if self.precision == "highest" else self.options | {"precision": self.precision}
        return ", ".join([super().extra_repr(), *(f"{name}={value!r}" for name, value in options.items())])


def options_of(quantize: int | str | dict[str, Any]) -> dict[str, Any]:
    """Return the options of `tensorops.quantize` that the caller asks for."""
    if isinstance(quantize, dict):
        found: dict[str, Any] = {"group_size": 32, "mode": "affine"} | quantize
        tp.quantize(torch.zeros(1, 0), **found)  # an error in terms of its options
        return found
    written = [name for name in formats.names() if formats.get(name).pack]
    if isinstance(quantize, str) and quantize.removesuffix(formats.Interleaved.ENDING) in written:
        formats.get(quantize)  # not every format can be interleaved
        return {"format": quantize}
    if not isinstance(quantize, int) or quantize not in OPTIONS:
        raise ValueError(
            f"prepare_model: quantize is {shown(quantize)}, expected {', '.join(map(str, OPTIONS))}, options of "
            f"tensorops.quantize, or a format that can be written: {', '.join(written)}, most of them also with "
            f"{formats.Interleaved.ENDING!r} behind{nearest(quantize, written)}"
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
        return f"its {module.in_features} columns cannot be divided into groups of {group}"
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


def quantize(module: torch.nn.Linear, options: dict[str, Any], precision: str) -> tuple[float, Callable[[], None]]:
    """Make a layer a quantized one; return the error of its results, and a function that makes it what it was.

    The error is the root mean square of the difference for random rows, relative to that of the results.
    """
    weight = module.weight
    with torch.no_grad():
        x = torch.randn(8, module.in_features, generator=torch.Generator().manual_seed(0)).to(weight.dtype)
        before = module.forward(x).double()
        blocks = _quantized(weight, options)
    del module.weight
    for name, block in zip(BLOCKS, blocks, strict=True):
        module.register_buffer(name, block)
    module.options, module.precision, module.written = options, precision, False
    module.__class__ = QuantizedLinear

    def undo() -> None:
        if module.written:
            weight.data = module._matrix().to(weight.dtype)
        module.__class__ = torch.nn.Linear
        for name in BLOCKS:
            del module._buffers[name]
        del module.options, module.precision, module.written
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
