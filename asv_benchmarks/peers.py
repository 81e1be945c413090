"""Equivalents of the operators in other libraries, for comparing times.

A task is an operator with its options. A peer does the task without tensorops, written as that library's users would
write it. It gets arrays of its own library, created before the clock starts.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from tensorops.benchmarks.measuring import Call, CannotMeasureError
from tensorops.benchmarks.workloads import Workload, workload
from tensorops.libraries import LIBRARIES
from tensorops.testing import DTYPES
from tensorops.testing._libraries import back

__all__ = ["ATTENTION", "PEERS", "ROWS", "PeerDiffersError", "PeerMissingError", "Task", "prepare"]

Expressions: TypeAlias = dict[str, Callable[..., Any]]


class PeerMissingError(Exception):
    """A peer cannot take part; the message says why."""


class PeerDiffersError(CannotMeasureError):
    """A peer computes something else than the operator, so its time would be meaningless."""


@dataclass(frozen=True)
class Task:
    """A computation to be timed.

    Parameters
    ----------
    operator : str
        The operator to call.
    options : dict
        Its keyword arguments.
    copies : float
        The size of a copy that moves as many bytes, relative to the largest array: a copy reads one and writes one.
    shapes : tuple of tuple of int
        The shapes of its arrays; `workload` chooses them if empty.
    """

    operator: str
    options: dict[str, Any] = field(default_factory=dict)
    copies: float = 1.0
    shapes: tuple[tuple[int, ...], ...] = ()

    def work(self, rows: int, features: int, dtype: str) -> Workload:
        """Return its arguments: `rows` by `features`, or of its own shapes."""
        if not self.shapes:
            return workload(self.operator, rows, features, dtype)
        rng = np.random.default_rng(0)
        return Workload(tuple(rng.standard_normal(s, dtype=np.float32).astype(DTYPES[dtype]) for s in self.shapes))


def _attention(queries: int, keys: int, groups: int, **options: Any) -> Task:
    q, k = (1, 32, queries, 128), (1, groups, keys, 128)
    asked, kept = 32 * queries, groups * keys  # the rows of q and of the result; of k and of v
    return Task("scaled_dot_product_attention", options, (asked + kept) / max(asked, kept), (q, k, k))


_GROUPS = 4
_GATED = 1.5  # two arrays are read and one is written

ROWS: dict[str, Task] = {
    "rms_norm": Task("rms_norm"),
    "add_rms_norm": Task("add_rms_norm", copies=2.0),  # two arrays are read and two are written
    "layer_norm": Task("layer_norm"),
    "group_norm": Task("group_norm", {"num_groups": _GROUPS}),
    "instance_norm": Task("instance_norm"),
    "l2_norm": Task("l2_norm"),
    "silu": Task("silu"),
    "sigmoid": Task("sigmoid"),
    "relu": Task("relu"),
    "softplus": Task("softplus"),
    "gelu": Task("gelu"),
    "gelu_tanh": Task("gelu", {"approximate": "tanh"}),
    "quick_gelu": Task("quick_gelu"),
    "mish": Task("mish"),
    "hard_sigmoid": Task("hard_sigmoid"),
    "hard_swish": Task("hard_swish"),
    "elu": Task("elu"),
    "selu": Task("selu"),
    "leaky_relu": Task("leaky_relu"),
    "swiglu": Task("swiglu", copies=_GATED),
    "geglu": Task("geglu", copies=_GATED),
    "reglu": Task("reglu", copies=_GATED),
    "softmax": Task("softmax"),
    "log_softmax": Task("log_softmax"),
    "top_k": Task("top_k", {"k": 8}, copies=0.5),  # one array is read
}
"""The tasks on rows of features."""

ATTENTION: dict[str, Task] = {
    "prefill": _attention(2048, 2048, 32, is_causal=True),
    "decode": _attention(1, 4096, 8),
}
"""Attention of a long prompt, and of one new token with four query heads per key and value head."""


# --- the peers ---------------------------------------------------------------------------------------


def _torch() -> Expressions:
    import torch
    from torch.nn import functional as f

    def rms_norm(x: Any, w: Any) -> Any:
        return f.rms_norm(x, (x.shape[-1],), w, 1e-6)

    def add_rms_norm(x: Any, residual: Any, w: Any) -> Any:
        total = x + residual
        return rms_norm(total, w), total

    return {
        "rms_norm": rms_norm,
        "add_rms_norm": add_rms_norm,
        "layer_norm": lambda x, w, b: f.layer_norm(x, (x.shape[-1],), w, b, 1e-5),
        "group_norm": lambda x: f.group_norm(x, _GROUPS),
        "instance_norm": lambda x, w, b: f.instance_norm(x, weight=w, bias=b),
        "l2_norm": lambda x: f.normalize(x, dim=-1),
        "silu": f.silu,
        "sigmoid": torch.sigmoid,
        "relu": f.relu,
        "softplus": f.softplus,
        "gelu": f.gelu,
        "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "mish": f.mish,
        "hard_sigmoid": f.hardsigmoid,
        "hard_swish": f.hardswish,
        "elu": f.elu,
        "selu": f.selu,
        "leaky_relu": f.leaky_relu,
        "swiglu": lambda gate, up: f.silu(gate) * up,
        "geglu": lambda gate, up: f.gelu(gate) * up,
        "reglu": lambda gate, up: f.relu(gate) * up,
        "softmax": lambda x: f.softmax(x, -1),
        "log_softmax": lambda x: f.log_softmax(x, -1),
        "top_k": lambda x: tuple(torch.topk(x, 8)),
        "prefill": lambda q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
        "decode": lambda q, k, v: f.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    }


def _torch_out() -> Expressions:
    """Return what torch can write into an existing array, partly through undocumented functions."""
    import torch

    nn, aten = torch._C._nn, torch.ops.aten

    def layer_norm(y: Any, x: Any, w: Any, b: Any, mean: Any, rstd: Any) -> Any:
        aten.native_layer_norm.out(x, [x.shape[-1]], w, b, 1e-5, out0=y, out1=mean, out2=rstd)
        return y

    found: Expressions = {
        "layer_norm": layer_norm,
        "l2_norm": lambda y, x: torch.nn.functional.normalize(x, dim=-1, out=y),
        "silu": lambda y, x: nn.silu(x, out=y),
        "sigmoid": lambda y, x: torch.sigmoid(x, out=y),
        "relu": lambda y, x: torch.clamp_min(x, 0, out=y),
        "softplus": lambda y, x: nn.softplus(x, out=y),
        "gelu": lambda y, x: nn.gelu(x, out=y),
        "gelu_tanh": lambda y, x: nn.gelu(x, approximate="tanh", out=y),
        "quick_gelu": lambda y, x: torch.mul(x, torch.sigmoid(torch.mul(x, 1.702, out=y), out=y), out=y),
        "mish": lambda y, x: aten.mish.out(x, out=y),
        "hard_sigmoid": lambda y, x: nn.hardsigmoid(x, out=y),
        "hard_swish": lambda y, x: aten.hardswish.out(x, out=y),
        "elu": lambda y, x: aten.elu.out(x, out=y),
        "leaky_relu": lambda y, x: aten.leaky_relu.out(x, out=y),
        "swiglu": lambda y, gate, up: torch.mul(nn.silu(gate, out=y), up, out=y),
        "geglu": lambda y, gate, up: torch.mul(nn.gelu(gate, out=y), up, out=y),
        "reglu": lambda y, gate, up: torch.mul(torch.clamp_min(gate, 0, out=y), up, out=y),
        "softmax": lambda y, x: torch.softmax(x, -1, out=y),
        "log_softmax": lambda y, x: torch.log_softmax(x, -1, out=y),
    }
    return found


def _numexpr() -> dict[str, str]:
    """Return numerically stable expressions; constants are arguments because a literal would promote to float64."""
    return {
        "silu": "x / (1 + exp(-x))",
        "sigmoid": "1 / (1 + exp(-x))",
        "softplus": "log1p(exp(-abs(x))) + where(x > 0, x, 0 * x)",
        "gelu_tanh": "half * x * (1 + tanh(root * (x + cube * x * x * x)))",
    }


def _jax() -> Expressions:
    import jax.numpy as jnp
    from jax import lax
    from jax.scipy.special import erf

    def wide(x: Any) -> Any:
        return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x  # every library computes half types in float32

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + jnp.exp(-x))

    def gelu(x: Any) -> Any:
        return x / 2 * (1 + erf(x * np.sqrt(0.5).item()))

    def rms_norm(x: Any, w: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * w

    def standardized(x: Any) -> Any:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        return centred * lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)

    def l2_norm(x: Any) -> Any:
        return x / jnp.maximum(jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True)), 1e-12)

    def softmax(x: Any) -> Any:
        e = jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))
        return e / jnp.sum(e, axis=-1, keepdims=True)

    def log_softmax(x: Any) -> Any:
        below = x - jnp.max(x, axis=-1, keepdims=True)
        return below - jnp.log(jnp.sum(jnp.exp(below), axis=-1, keepdims=True))

    def narrowed(function: Callable[..., Any]) -> Callable[..., Any]:
        def computed(*arrays: Any) -> Any:
            result = function(*map(wide, arrays))
            dtype = arrays[0].dtype
            return tuple(y.astype(dtype) for y in result) if isinstance(result, tuple) else result.astype(dtype)

        return computed

    expressions: Expressions = {
        "rms_norm": rms_norm,
        "add_rms_norm": lambda x, residual, w: (rms_norm(x + residual, w), x + residual),
        "layer_norm": lambda x, w, b: standardized(x) * w + b,
        "group_norm": lambda x: standardized(x.reshape((x.shape[0], _GROUPS, -1))).reshape(x.shape),
        "instance_norm": lambda x, w, b: standardized(x) * w[:, None] + b[:, None],
        "l2_norm": l2_norm,
        "silu": lambda x: x * sigmoid(x),
        "sigmoid": sigmoid,
        "relu": lambda x: jnp.maximum(x, 0),
        "softplus": lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))),
        "gelu": gelu,
        "gelu_tanh": lambda x: x / 2 * (1 + jnp.tanh(np.sqrt(2 / np.pi).item() * (x + 0.044715 * x * x * x))),
        "quick_gelu": lambda x: x * sigmoid(1.702 * x),
        "mish": lambda x: x * jnp.tanh(jnp.logaddexp(x, 0)),
        "hard_sigmoid": lambda x: jnp.clip(x + 3, 0, 6) / 6,
        "hard_swish": lambda x: x * jnp.clip(x + 3, 0, 6) / 6,
        "elu": lambda x: jnp.where(x > 0, x, jnp.expm1(x)),
        "selu": lambda x: 1.0507009873554805 * jnp.where(x > 0, x, 1.6732632423543772 * jnp.expm1(x)),
        "leaky_relu": lambda x: jnp.where(x > 0, x, 0.01 * x),
        "swiglu": lambda gate, up: gate * sigmoid(gate) * up,
        "geglu": lambda gate, up: gelu(gate) * up,
        "reglu": lambda gate, up: jnp.maximum(gate, 0) * up,
        "softmax": softmax,
        "log_softmax": log_softmax,
        "top_k": lambda x: tuple(lax.top_k(x, 8)),
    }
    return {name: narrowed(function) for name, function in expressions.items()}


# --- ready to be called ------------------------------------------------------------------------------


def _call_torch(name: str, arrays: tuple[Any, ...]) -> Call:
    return partial(_expression(_torch(), name), *_to_torch(arrays))


def _call_torch_out(name: str, arrays: tuple[Any, ...]) -> Call:
    import torch

    try:
        function = _expression(_torch_out(), name)
    except AttributeError as error:
        raise PeerMissingError(f"this version has no {error.name}") from None
    x, *rest = _to_torch(arrays)
    if name == "layer_norm":  # it also needs memory for the mean and the scale of each row
        rest += [x.new_empty((*x.shape[:-1], 1)) for _ in range(2)]
    return partial(function, torch.empty_like(x), x, *rest)


def _call_numexpr(name: str, arrays: tuple[Any, ...]) -> Call:
    import numexpr

    expression = _expression(_numexpr(), name)
    (x,) = arrays
    if x.dtype.name not in ("float32", "float64"):
        raise PeerMissingError(f"it has no {x.dtype.name}")
    constants = {"half": 0.5, "root": np.sqrt(2 / np.pi), "cube": 0.044715}
    names = {"x": x} | {key: x.dtype.type(value) for key, value in constants.items() if key in expression}
    return partial(numexpr.evaluate, expression, local_dict=names, global_dict={}, out=np.empty_like(x))


def _call_jax(name: str, arrays: tuple[Any, ...]) -> Call:
    import jax

    function = jax.jit(_expression(_jax(), name))
    there = [jax.device_put(a, jax.devices("cpu")[0]) for a in arrays]
    if there[0].dtype != arrays[0].dtype:
        raise PeerMissingError(f"it holds {arrays[0].dtype.name} only if jax_enable_x64 is set")
    return lambda: jax.block_until_ready(function(*there))


def _expression(known: dict[str, Any], name: str) -> Any:
    if name not in known:
        raise PeerMissingError("")  # a blank in the table needs no reason
    return known[name]


def _to_torch(arrays: tuple[Any, ...]) -> list[Any]:
    return [LIBRARIES["torch"].from_numpy(a, None) for a in arrays]


PEERS: dict[str, tuple[str, Callable[[str, tuple[Any, ...]], Call]]] = {
    "torch": ("torch", _call_torch),
    "torch out=": ("torch", _call_torch_out),
    "numexpr": ("numexpr", _call_numexpr),
    "jax.jit": ("jax", _call_jax),
}
"""For each name in the table, the package and the function that makes a call of it."""


def prepare(peer: str, name: str, arrays: tuple[Any, ...], ours: Any) -> Call:
    """Return a call of a peer's form of a task after checking its result against the operator's.

    Parameters
    ----------
    peer, name : str
        Keys of `PEERS` and of `ROWS` or `ATTENTION`.
    arrays : tuple of numpy.ndarray
        The arguments.
    ours : numpy.ndarray or tuple of them
        The operator's result.

    Raises
    ------
    PeerMissingError
        If the peer is not installed, or has no form of the task.
    PeerDiffersError
        If it computes something else.
    """
    package, make = PEERS[peer]
    require_package(package)
    call = make(name, arrays)
    require_same(call(), ours, f"{name} of {peer}")
    return call


def require_package(package: str) -> None:
    """Raise `PeerMissingError` if a package cannot be imported."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        said = "not installed" if isinstance(error, ModuleNotFoundError) and error.name == package else str(error)
        raise PeerMissingError(said) from None


# Relative to the largest magnitude. Some peers round half types in between.
_TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
_CHECKED_ROWS = 64


def require_same(theirs: Any, ours: Any, what: str) -> None:
    """Raise `PeerDiffersError` unless a peer's result matches ours in dtype, shape and values.

    For large results, only some rows between the first and the last are compared. Indices are not: of equal elements
    others may choose others.
    """
    pairs = zip(theirs, ours, strict=True) if isinstance(ours, tuple) else [(theirs, ours)]
    for their, our in pairs:
        if our.dtype.name not in _TOLERANCE:
            continue
        found = back(their)
        if (found.dtype, found.shape) != (our.dtype, our.shape):
            raise PeerDiffersError(
                f"{what} gives {found.dtype.name} of shape {found.shape}, the operator {our.dtype.name} of {our.shape}"
            )
        a, b = (x.reshape(-1, x.shape[-1]) for x in (found, our))
        some = np.unique(np.linspace(0, len(a) - 1, _CHECKED_ROWS).astype(int))
        a, b = (x[some].astype(np.float64) for x in (a, b))
        error, bound = np.max(np.abs(a - b)), _TOLERANCE[our.dtype.name] * np.max(np.abs(b))
        if not error <= bound:  # also if it is NaN
            raise PeerDiffersError(f"{what} is off by {error:.3g}, more than {bound:.3g}: it computes something else")


def versions() -> dict[str, str]:
    """Return the versions of the installed peers."""
    found = {}
    for package in dict.fromkeys(package for package, _ in PEERS.values()):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def use_threads(count: int) -> None:
    """Set the number of threads of the installed peers; JAX uses all processors and cannot be limited."""
    for package in ("torch", "numexpr"):
        try:
            require_package(package)
        except PeerMissingError:
            continue
        importlib.import_module(package).set_num_threads(count)
