"""Which modules compute what an operator computes, by their structure; whether they do is proven by `_proof.py`."""

from __future__ import annotations

import copy
import inspect
import math
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tensorops.torch import _attention as _attention_layers, _layers
from tensorops.torch._coverage import DTYPES
from tensorops.torch._layers import Layer
from tensorops.torch._quantized import QuantizedLinear

Sample = Callable[[torch.Generator, torch.dtype], tuple[tuple[Any, ...], dict[str, Any]]]
"""Makes arguments of a `forward`, by position and by name, in a dtype."""
Tables = list[tuple[torch.Tensor, torch.Tensor]]


class Candidate(NamedTuple):
    """What may stand for the `forward` of a module."""

    operator: str
    layer: Layer
    knows: tuple[Any, ...]  # what the layer has to know about the module
    samples: tuple[Sample, ...]
    stand_in: torch.nn.Module  # computes the same with few parameters
    called: tuple[str, ...] | None = ()  # modules inside that the layer calls; `None`: it runs the module's own code
    dtypes: tuple[torch.dtype, ...] = DTYPES  # of the modes that are tried
    note: str = ""
    slower: str = ""  # why it is not used unless it is named
    unfit: str = ""  # why it is not used


def candidates_of(module: torch.nn.Module, tables: Tables) -> list[Candidate]:
    """Return what may stand for a module of a model with some tables of rotation, in the order of preference."""
    if not isinstance(inspect.getattr_static(type(module), "forward"), types.FunctionType):  # of torch.jit, perhaps
        return []
    if found := _attention(module, tables):
        return found
    for of_a_kind in (_norms, _activations, _linear, _gated_mlps, _experts, _losses):
        if found := of_a_kind(module):
            return found
    return []


def reason_without_candidates(module: torch.nn.Module) -> str:
    """Return why nothing may stand for a module's `forward`; empty if the module only contains others."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by torch.jit"
    if isinstance(module, QuantizedLinear):
        return "already quantized"
    kind = type(module)
    own = [x for x in (*module._parameters.values(), *module._buffers.values()) if x is not None]
    if kind.forward is torch.nn.Module.forward or isinstance(module, torch.nn.Identity | torch.nn.Sequential):
        return ""
    if module._modules and not own:
        name = type(module._modules.get("act_fn")).__name__
        return f"its activation is {name}, not SiLU" if _has_matrices(module) and name != "NoneType" else ""
    if kind is torch.nn.Linear:
        return _reason_for_torchs_product(module)
    if len(getattr(module, "normalized_shape", ())) > 1:
        return f"it normalizes {len(module.normalized_shape)} axes"
    return "there is no replacement for this class"


def unusable(module: torch.nn.Module) -> str:
    """Return why the kernels cannot take a module's parameters; empty if they can."""
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        if x.device.type == "meta":
            return f"{name} is on the device meta: prepare the model after its weights are loaded"
        if x.device.type != "cpu":
            return f"{name} is on {x.device}: the kernels have been tried on processors only"
        if type(x) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return f"{name} is a {type(x).__name__}"
        if x.layout is not torch.strided:
            return f"{name} is not dense"
        if x.dtype not in DTYPES and (x.is_floating_point() or type(x) is torch.nn.Parameter):
            return f"{name} has dtype {str(x.dtype).removeprefix('torch.')}"
    return ""


def bare(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module that shares another's parameters, but nobody listens to its calls."""
    stand_in = copy.copy(module)
    for name, value in vars(module).items():
        if name.endswith("_hooks") or name in ("_parameters", "_buffers", "_modules"):
            vars(stand_in)[name] = type(value)() if name.endswith("_hooks") else dict(value)
    vars(stand_in).pop("forward", None)
    vars(stand_in).pop("_compiled_call_impl", None)
    for name, child in module._modules.items():
        stand_in._modules[name] = None if child is None else bare(child)
    return stand_in


def _takes_one(module: torch.nn.Module) -> bool:
    return len(inspect.signature(type(module).forward).parameters) == 2


def _rows(features: int, *batch: int) -> Sample:
    """Rows of very different lengths, in which the added constant matters for some."""

    def sample(generator: torch.Generator, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = torch.randn(5, *batch, features, generator=generator, dtype=torch.float64)
        lengths = torch.tensor([1.0, 0.001, 0.03, 30.0, 1.0], dtype=torch.float64)
        return ((x * lengths.reshape(5, *(1 for _ in x.shape[1:]))).to(dtype),), {}

    return sample


# ------------------------------------------------------------------------------------------------------------- norms

_EPSILONS = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")


def _norms(module: torch.nn.Module) -> list[Candidate]:
    name = type(module).__name__
    if isinstance(module, torch.nn.GroupNorm):
        channels = 2 * module.num_groups if module.num_channels is None else module.num_channels

        def images(generator: torch.Generator, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return (torch.randn(2, channels, 3, 2, generator=generator, dtype=torch.float64).to(dtype),), {}

        return [Candidate("group_norm", _layers.group_norm, (), (images,), bare(module))]
    eps_name = next((e for e in _EPSILONS if hasattr(module, e)), None)
    is_norm = any(part in name for part in ("RMSNorm", "RmsNorm", "LayerNorm", "L2Norm"))
    if not is_norm or eps_name is None or not _takes_one(module) or module._modules:
        return []
    eps = getattr(module, eps_name)
    parameters = {key: p for key, p in module._parameters.items() if p is not None}
    shape = getattr(module, "normalized_shape", None)
    if any(p.ndim != 1 for p in parameters.values()) or not isinstance(eps, float | int | None):
        return []
    if shape is not None and (not isinstance(shape, tuple | list) or len(shape) != 1):
        return []
    width = None if shape is None else shape[0]
    size = next((p.shape[0] for p in parameters.values()), width)
    samples = (_rows(48), _rows(33, 2)) if size is None else (_rows(size), _rows(size, 2))
    if not parameters:
        layers: list[tuple[str, Layer, tuple[Any, ...]]] = [("rms_norm", _layers.rms_norm_without_weight, (eps, width))]
        if hasattr(module, "weight"):
            layers.append(("layer_norm", _layers.layer_norm, (eps, width)))
    elif set(parameters) == {"weight"}:
        layers = [
            ("rms_norm", _layers.rms_norm, (eps, 0.0)),
            ("rms_norm", _layers.rms_norm_rounded_first, (eps,)),
            ("rms_norm", _layers.rms_norm, (eps, 1.0)),
            ("layer_norm", _layers.layer_norm, (eps, width)),
        ]
    elif set(parameters) == {"weight", "bias"}:
        layers = [("layer_norm", _layers.layer_norm, (eps, width))]
    else:
        return []
    return [Candidate(operator, layer, knows, samples, bare(module)) for operator, layer, knows in layers]


# ------------------------------------------------------------------------------------------------------- activations

_ACTIVATIONS = {
    "ELU": "elu",
    "GELU": "gelu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "Mish": "mish",
    "MishActivation": "mish",
    "QuickGELUActivation": "quick_gelu",
    "ReLUSquaredActivation": "relu_squared",
    "SELU": "selu",
    "SiLU": "silu",
    "SiLUActivation": "silu",
}
_AS_FAST = {"silu": "torch's own silu is as fast"}


def _activations(module: torch.nn.Module) -> list[Candidate]:
    name = _ACTIVATIONS.get(type(module).__name__, "")
    if name == "gelu" and getattr(module, "approximate", "none") == "tanh":
        name = "gelu_tanh"
    if not name or not _takes_one(module):
        return []
    reasons = _AS_FAST.get(name, ""), "it writes into its argument" if getattr(module, "inplace", False) else ""
    operator = "gelu" if name == "gelu_tanh" else name
    note = "approximate=tanh" if name == "gelu_tanh" else ""
    return [Candidate(operator, _layers.activation, (name,), (_rows(33),), bare(module), (), DTYPES, note, *reasons)]


# ------------------------------------------------------------------------------------------------ matrices and experts

ELEMENTS = {torch.float32: (2**14, math.inf), torch.bfloat16: (2**14, 2**19)}
"""Of matrices that the kernel multiplies with one row no slower than torch, in the caches and in memory."""


def _reason_for_torchs_product(module: torch.nn.Linear) -> str:
    weight = module.weight
    least, most = ELEMENTS.get(weight.dtype, (math.inf, 0))
    if _layers.row_product() is None:
        return "the kernels have not been compiled"
    if most == 0:
        return f"torch's own product of {str(weight.dtype).removeprefix('torch.')} is as fast"
    within = least <= weight.numel() <= most
    return "" if within else f"torch's own product of {weight.numel()} elements is as fast"


def _linear(module: torch.nn.Module) -> list[Candidate]:
    if type(module) is not torch.nn.Linear or _reason_for_torchs_product(module):
        return []
    stand_in = bare(module)
    stand_in._parameters["weight"] = torch.nn.Parameter(torch.empty(24, 16))
    if module.bias is not None:
        stand_in._parameters["bias"] = torch.nn.Parameter(torch.empty(24))

    def row(generator: torch.Generator, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(1, 1, 16, generator=generator, dtype=torch.float64).to(dtype),), {}

    note = "one row without gradients"
    return [Candidate("linear", _layers.linear, (), (row,), stand_in, dtypes=(module.weight.dtype,), note=note)]


def _is_silu(module: Any) -> bool:
    return type(module).__name__ in ("SiLU", "SiLUActivation") and not getattr(module, "inplace", False)


MATRICES = ("gate_proj", "up_proj", "down_proj")


def _has_matrices(module: torch.nn.Module) -> bool:
    return all(isinstance(module._modules.get(name), torch.nn.Module) for name in MATRICES)


def _gated_mlps(module: torch.nn.Module) -> list[Candidate]:
    if not _has_matrices(module) or not _takes_one(module) or not _is_silu(module._modules.get("act_fn")):
        return []
    stand_in, width, inner = bare(module), 16, 24
    for name, (columns, rows) in zip(MATRICES, ((width, inner), (width, inner), (inner, width)), strict=True):
        # No numbers are drawn for it: a program's own generator stays as it is.
        stand_in._modules[name] = torch.nn.utils.skip_init(torch.nn.Linear, columns, rows, dtype=torch.float64)
    return [Candidate("swiglu", _layers.gated_mlp, (), (_rows(width),), stand_in, MATRICES)]


_USUAL_EXPERTS = {
    "has_gate": True,
    "is_concatenated": True,
    "is_transposed": False,
    "has_bias": False,
    "has_post_expert_norm": False,
}


def _experts(module: torch.nn.Module) -> list[Candidate]:
    parameters = module._parameters
    if set(parameters) != {"gate_up_proj", "down_proj"} or not _is_silu(module._modules.get("act_fn")):
        return []
    if any(getattr(module, name, None) is not value for name, value in _USUAL_EXPERTS.items()):
        return []
    count, width, inner, top_k = 5, 16, 24, 2
    stand_in = bare(module)
    stand_in._parameters = {
        "gate_up_proj": torch.nn.Parameter(torch.empty(count, 2 * inner, width)),
        "down_proj": torch.nn.Parameter(torch.empty(count, width, inner)),
    }
    config = copy.copy(module.config)
    config._experts_implementation = "eager"  # what the class itself computes, in float64 as well
    vars(stand_in).update(num_experts=count, hidden_dim=width, intermediate_dim=inner, config=config)

    def sample(generator: torch.Generator, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = torch.randn(7, width, generator=generator, dtype=torch.float64).to(dtype)
        scores = torch.rand(7, count, generator=generator, dtype=torch.float64)
        weights, index = torch.topk(scores, top_k, dim=-1)
        return (hidden, index, weights.to(dtype)), {}

    operators, note = "grouped_linear, swiglu", "few tokens without gradients"
    return [Candidate(operators, _layers.experts, (), (sample,), stand_in, note=note)]


# -------------------------------------------------------------------------------------------------------------- loss


def _losses(module: torch.nn.Module) -> list[Candidate]:
    if type(module) is not torch.nn.CrossEntropyLoss:
        return []
    classes = 11 if module.weight is None else module.weight.shape[0]

    def sample(generator: torch.Generator, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
        logits = torch.randn(6, classes, generator=generator, dtype=torch.float64).to(dtype)
        targets = torch.randint(0, classes, (6,), generator=generator)
        targets[1] = module.ignore_index
        return (logits, targets), {}

    return [Candidate("cross_entropy", _layers.cross_entropy, (), (sample,), bare(module))]


# --------------------------------------------------------------------------------------------------------- attention

DIRECT = _attention_layers.DIRECT


def _heads(generator: torch.Generator, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
    q, k, v = torch.randn(3, 2, 3, 6, 16, generator=generator, dtype=torch.float64).to(dtype)
    return (q, k, v), {}


def _attention(module: torch.nn.Module, tables: Tables) -> list[Candidate]:
    rotates, asks, direct = _attention_layers.replaced_in(module)
    if direct and not asks:
        stand_in = _attention_layers.Attends()
        return [Candidate(DIRECT, _attention_layers.direct_attention, (), (_heads,), stand_in, None)]
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    parameters = inspect.signature(type(module).forward).parameters
    widths = [child.in_features for child in module.children() if isinstance(child, torch.nn.Linear)]
    if not (rotates or asks) or not widths or "hidden_states" not in parameters:
        return []

    def sample(queries: int, mask: torch.Tensor | None) -> Sample:
        def make(generator: torch.Generator, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
            hidden = torch.randn(2, queries, widths[0], generator=generator, dtype=torch.float64).to(dtype)
            named: dict[str, Any] = {"attention_mask": mask} if "attention_mask" in parameters else {}
            if "position_embeddings" in parameters and tables:
                named["position_embeddings"] = tuple(table[:, :queries].to(dtype) for table in tables[0])
            return (hidden,), named

        return make

    masked = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    masked[1, ..., 0] = False
    masked[1, :, 0, 0] = True
    samples = (sample(6, None), *((sample(6, masked),) if implementation == "sdpa" else ()))
    dtypes = tuple({p.dtype: None for p in module.parameters()})  # of their real sizes: more would take long
    attends = [DIRECT] if asks and implementation == "sdpa" else []
    equal = all(_attention_layers.halves_are_equal(table) for pair in tables for table in pair)
    found = []
    if attends:
        _attention_layers.enable_in_graphs(type(module))
    for rotating in (True, False) if rotates and tables and equal else (False,):
        operators = [*(["rope"] if rotating else []), *attends]
        note = "" if attends or not asks else f"attention itself is the implementation {implementation!r}"
        if operators:
            layer = _attention_layers.attention
            found.append(Candidate(", ".join(operators), layer, (rotating,), samples, bare(module), None, dtypes, note))
    return found
