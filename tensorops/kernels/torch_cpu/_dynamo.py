"""Operators under `torch.compile`.

TorchDynamo traces Python but cannot trace a context variable. It inlines `_under_torch_compile` in place of
``Operator.__call__`` and puts a call of the compiled kernel into the graph, or the operator's own body, which its
compiler then fuses. The settings in force are read once, during tracing. Nor can it trace an import, so what torch's
first tensor imports is imported before: the look-up of a tensor's library sees to it, also outside of operators.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from tensorops import formats
from tensorops._operator import Operator
from tensorops._providers import load
from tensorops.backends.process_default import in_force
from tensorops.libraries import LIBRARIES, Library, learn_types, library_of

P = ParamSpec("P")
R = TypeVar("R")

_LEAST_BYTES = 1 << 17
"""Smaller calls are left to the body: the kernel would not earn the time that a graph takes to call it."""

_FUSED = frozenset(
    {
        "cross_entropy",
        "log_softmax",
        "logsumexp",
        "reglu",
        "relu",
        "relu_squared",
        "sigmoid",
        "silu",
        "softmax",
        "swiglu",
    }
)
"""Operators whose bodies torch's compiler makes as fast as the kernels, and fuses with what surrounds them."""


def _before_look_up() -> None:
    """Load what cannot be loaded during tracing."""
    torch = LIBRARIES["torch"]
    learn_types(torch)
    assert torch.xp is not None
    torch.is_wrapper(None)  # look up the type of its wrappers, if any
    formats.load_own()


def _library_under_torch_compile(x: object) -> Library | None:
    _before_look_up()
    return _look_up(x)  # type: ignore[no-any-return]


def _before_tracing(name: str) -> bool:
    """Refuse a backend that is not torch; return whether kernels may run."""
    _before_look_up()
    settings = in_force()
    if settings.backend is not None and settings.backend.library.name != "torch":
        raise RuntimeError(
            f"{name}: backend {settings.backend.name!r} is in force, but torch.compile can only compile torch "
            f"operations; leave the set_backend block, or call the operator outside of the compiled function"
        )
    allowed = settings.providers is None or "torch_cpu" in settings.providers
    if not allowed or name in _FUSED or load("torch_cpu"):
        return False
    from tensorops.kernels.torch_cpu import _custom_operators

    return _custom_operators.has_kernel(name)


def _encode(operator: str, arrays: tuple[str, ...], names: tuple[str, ...], values: tuple[Any, ...]) -> str:
    from tensorops.kernels.torch_cpu import _custom_operators

    return _custom_operators.encode(operator, arrays, dict(zip(names, values, strict=True)))


def _differentiates(operator: str, moving: tuple[str, ...]) -> bool:
    from tensorops.kernels.torch_cpu import _custom_operators

    return _custom_operators.differentiates(operator, moving)


def _under_torch_compile(self: Operator[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    import torch

    may_run = _before_tracing(self.__name__)
    arguments = self.canonical(*args, **kwargs)
    if torch._C._is_any_autocast_enabled():
        devices = [x.device.type for x in arguments.values() if isinstance(x, torch.Tensor)]
        with torch.autocast(devices[0], enabled=False):  # `without_autocast`, as it can be traced
            return _traced(torch, self, arguments, may_run=may_run)  # type: ignore[no-any-return]
    return _traced(torch, self, arguments, may_run=may_run)  # type: ignore[no-any-return]


def _traced(torch: Any, self: Operator[..., Any], arguments: dict[str, Any], *, may_run: bool) -> Any:
    """Return the results of a kernel or of the body, as they stand in the graph."""
    if may_run:
        if self.__name__ == "linear":  # torch's own operation
            from tensorops.kernels.torch_cpu._linear import by_torch

            result = by_torch(**arguments)
            return self.apply(self._body, arguments) if result is NotImplemented else result

        if not torch.compiler.is_exporting():
            found = _kernel_in_graph(torch, self.__name__, arguments)
            if found is not None:
                return found
    return self.apply(self._body, arguments)


def _kernel_in_graph(torch: Any, operator: str, arguments: dict[str, Any]) -> Any:
    """Return the results of the compiled kernel; ``None`` if the body is to compute."""
    arrays, moving, names, values, size = [], [], [], [], 0
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                return None
            arrays.append(name)
            size += value.numel() * value.element_size()
            if torch.is_grad_enabled() and value.requires_grad:
                moving.append(name)
        elif value is not None:
            names.append(name)
            values.append(_constant(torch, value))
    if size < _LEAST_BYTES or (moving and not _differentiates(operator, tuple(moving))):
        return None
    call = _encode(operator, tuple(arrays), tuple(names), tuple(values))
    found = torch.ops.tensorops.call(call, [arguments[name] for name in arrays])
    return found[0] if len(found) == 1 else tuple(found)


def _constant(torch: Any, value: Any) -> Any:
    """Return a value of which a graph is made anew if it changes, as options are text in a graph."""
    if isinstance(value, tuple):
        return tuple(_constant(torch, each) for each in value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return torch.fx.experimental.symbolic_shapes.guard_scalar(value) if is_number else value


_function: Any
for _function in (_before_look_up, _before_tracing, _encode, _differentiates):
    _function._dynamo_marked_constant = True
_look_up = FunctionType(library_of.__code__, library_of.__globals__)  # library_of itself would be replaced again
library_of._torchdynamo_inline = _library_under_torch_compile  # type: ignore[attr-defined]
Operator.__call__._torchdynamo_inline = _under_torch_compile  # type: ignore[attr-defined]
