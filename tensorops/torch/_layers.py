"""What is computed in place of a module's own `forward`.

Each function is bound to a module as a method, and takes the arguments of its `forward`. The module's attribute `FOUND`
says what was found out about it, and which calls that covers. The module's own `forward` computes all others, and
whatever an operator refuses, or refuses it in its own terms. Parameters are looked up in each call: they may change.

TorchDynamo traces the module's own `forward` instead, as its compiler fuses the operations of that, but for what is
faster as a call of a kernel in the graph.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

import tensorops as tp

REFUSALS = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What an operator raises about arguments, and Python about what is no tensor or lacks an attribute."""

Layer = Callable[..., Any]
LAYERS: set[Layer] = set()
"""The functions that stand for a module's own `forward`."""


def own_forward(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Call what the module's class computes."""
    return type(module).forward(module, *args, **named)


def layer(function: Layer, traced: Layer = own_forward) -> Layer:
    """Make a function a layer, in place of which TorchDynamo traces another."""
    function.__name__ = "forward"  # under which pickle finds the method, of a module that is not prepared
    function._torchdynamo_inline = traced  # type: ignore[attr-defined]
    LAYERS.add(function)
    return function


# ------------------------------------------------------------------------------------------------------------- norms


def _epsilon(eps: float | None, x: torch.Tensor) -> float:
    """Return a constant as `torch.nn.RMSNorm`, which takes that of the type in which it computes for `None`."""
    if eps is None:
        return float(torch.finfo(torch.float64 if x.dtype is torch.float64 else torch.float32).eps)
    return eps


@layer
def rms_norm(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Normalize, multiply and round once."""
    try:
        (x,) = args
        found = module._tensorops_found
        weight = module._parameters["weight"]
        if weight.dtype is x.dtype and not named and found.holds(module, x):
            eps, offset = found.knows
            return tp.rms_norm(x, weight, _epsilon(eps, x), weight_offset=offset)
    except REFUSALS:
        pass
    return own_forward(module, *args, **named)


@layer
def rms_norm_rounded_first(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Normalize and round, then multiply and round again, as Llama does: in float32 both are the same."""
    try:
        (x,) = args
        found = module._tensorops_found
        weight = module._parameters["weight"]
        if weight.dtype is x.dtype and not named and found.holds(module, x):
            (eps,) = found.knows
            if x.dtype is torch.float32:
                return tp.rms_norm(x, weight, _epsilon(eps, x))
            return weight * tp.rms_norm(x, None, _epsilon(eps, x))
    except REFUSALS:
        pass
    return own_forward(module, *args, **named)


@layer
def rms_norm_without_weight(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Normalize rows without a weight, of one width if the module names it."""
    try:
        (x,) = args
        found = module._tensorops_found
        eps, width = found.knows
        if width in (None, x.shape[-1]) and not named and found.holds(module, x):
            return tp.rms_norm(x, None, _epsilon(eps, x))
    except REFUSALS:
        pass
    return own_forward(module, *args, **named)


@layer
def layer_norm(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Subtract the mean, divide by the deviation, scale and shift."""
    try:
        (x,) = args
        found = module._tensorops_found
        eps, width = found.knows
        weight, bias = map(module._parameters.get, ("weight", "bias"))
        alike = (weight is None or weight.dtype is x.dtype) and (bias is None or bias.dtype is x.dtype)
        if alike and width in (None, x.shape[-1]) and not named and found.holds(module, x):
            return tp.layer_norm(x, weight, bias, eps)
    except REFUSALS:
        pass
    return own_forward(module, *args, **named)


@layer
def group_norm(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Normalize groups of channels."""
    try:
        (x,) = args
        found = module._tensorops_found
        weight, bias = module._parameters["weight"], module._parameters["bias"]
        if (weight is None or weight.dtype is bias.dtype is x.dtype) and not named and found.holds(module, x):
            return tp.group_norm(x, module.num_groups, weight, bias, module.eps)
    except REFUSALS:
        pass
    return own_forward(module, *args, **named)


# ------------------------------------------------------------------------------------------ activations and gated units

ACTIVATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "elu": lambda module, x: tp.elu(x, alpha=module.alpha),
    "gelu": lambda module, x: tp.gelu(x),
    "gelu_tanh": lambda module, x: tp.gelu(x, approximate="tanh"),
    "mish": lambda module, x: tp.mish(x),
    "quick_gelu": lambda module, x: tp.quick_gelu(x),
    "relu_squared": lambda module, x: tp.relu_squared(x),
    "selu": lambda module, x: tp.selu(x),
    "silu": lambda module, x: tp.silu(x),
}


def _activation_in_graph(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Compute the only one whose kernel is faster than what torch's compiler makes."""
    found = module._tensorops_found
    if found.knows == ("gelu_tanh",) and len(args) == 1 and not named and found.holds(module, args[0]):
        return tp.gelu(args[0], approximate="tanh")
    return own_forward(module, *args, **named)


@functools.partial(layer, traced=_activation_in_graph)
def activation(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Compute one of the activations above."""
    try:
        (x,) = args
        found = module._tensorops_found
        (name,) = found.knows
        if not named and found.holds(module, x):
            return ACTIVATIONS[name](module, x)
    except REFUSALS:
        pass
    return own_forward(module, *args, **named)


@layer
def gated_mlp(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Compute ``down(silu(gate(x)) * up(x))``."""
    try:
        (x,) = args
        covered = not named and module._tensorops_found.holds(module, x)
    except REFUSALS:
        covered = False
    if not covered:
        return own_forward(module, *args, **named)
    gate, up, inner = module.gate_proj(x), module.up_proj(x), None
    # Of half types, torch's two derivatives are faster than ours of both.
    if gate.is_cpu and (gate.dtype is torch.float32 or not gate.requires_grad):
        with contextlib.suppress(*REFUSALS):
            inner = tp.swiglu(gate, up)
    return module.down_proj(module.act_fn(gate) * up if inner is None else inner)


# ------------------------------------------------------------------------------------------------ matrices and experts


@functools.cache
def row_product() -> Callable[..., Any] | None:
    """Return the compiled kernel of `linear` on tensors, which torch's own product outpaces for many rows."""
    try:
        from tensorops.kernels.cpu import _native
        from tensorops.kernels.torch_cpu import _launch
    except ImportError:  # the module has not been compiled
        return None
    return _launch.on_tensors(_native.linear)


@layer
def linear(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Multiply one row without gradients by the kernel of `linear`, and everything else by torch's own."""
    try:
        (x,) = args
        # A traced shape is no number.
        is_row = not torch.is_grad_enabled() and not torch._C._get_tracing_state() and x.numel() == x.shape[-1]
        if is_row and not named and module._tensorops_found.holds(module, x):
            product = row_product()
            weight, bias = module._parameters["weight"], module._parameters["bias"]
            if product is not None:
                y = product(x, weight) if bias is None else product(x, weight, bias)
                if y is not NotImplemented:
                    return y
    except REFUSALS:
        pass
    return own_forward(module, *args, **named)


@layer
def experts(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Compute the gated experts of each token, and the sum of their results by weight."""
    try:
        hidden, index, weights = args
        gate_up, down = module._parameters["gate_up_proj"], module._parameters["down_proj"]
        # There are no compiled derivatives of grouped products, and torch is faster for many tokens.
        recording = torch.is_grad_enabled() and (hidden.requires_grad or gate_up.requires_grad)
        worthwhile = not recording and hidden.shape[0] <= (32 if hidden.dtype is torch.float32 else 16)
        worthwhile = worthwhile and not module._is_expert_parallel and gate_up.dtype is down.dtype is hidden.dtype
        if worthwhile and not named and module._tensorops_found.holds(module, hidden):
            both = tp.grouped_linear(hidden[:, None, :], index, gate_up)
            results = tp.grouped_linear(tp.swiglu(*both.chunk(2, dim=-1)), index, down)
            return (results * weights[..., None]).sum(dim=1).to(hidden.dtype)
    except REFUSALS:
        pass
    return own_forward(module, *args, **named)


# --------------------------------------------------------------------------------------------------------------- loss


def cross_entropy_of_rows(logits: Any, targets: Any, weight: Any = None, **options: Any) -> Any:
    """Return `torch.nn.functional.cross_entropy` of rows of logits and class numbers."""
    if logits.is_cpu and logits.ndim == 2 and targets.ndim == 1 and not torch.is_autocast_enabled("cpu"):
        try:
            return tp.cross_entropy(logits, targets, weight, **options)
        except REFUSALS:
            pass
    return torch.nn.functional.cross_entropy(logits, targets, weight, **options)


@layer
def cross_entropy(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Compute the loss of rows of logits; torch's own takes other shapes."""
    try:
        logits, targets = args
        if not named and module._tensorops_found.holds(module, logits):
            options = {name: getattr(module, name) for name in ("reduction", "ignore_index", "label_smoothing")}
            return cross_entropy_of_rows(logits, targets, module._buffers["weight"], **options)
    except REFUSALS:
        pass
    return own_forward(module, *args, **named)
