"""Operators under `torch.compile`.

TorchDynamo traces Python but cannot trace a context variable. It inlines `_under_torch_compile` in place of
``Operator.__call__`` and puts the operator's own body into the graph, which its compiler then fuses. The settings in
force are read once, during tracing.
"""

from __future__ import annotations

from typing import ParamSpec, TypeVar

from tensorops._operator import Operator
from tensorops.backends.process_default import in_force
from tensorops.libraries import LIBRARIES, learn_types

P = ParamSpec("P")
R = TypeVar("R")


def _before_tracing(name: str) -> None:
    """Load what cannot be loaded during tracing, and refuse a backend that is not torch."""
    torch = LIBRARIES["torch"]
    learn_types(torch)
    assert torch.xp is not None
    torch.is_wrapper(None)  # look up the type of its wrappers, if any
    backend = in_force().backend
    if backend is not None and backend.library.name != "torch":
        raise RuntimeError(
            f"{name}: backend {backend.name!r} is in force, but torch.compile can only compile torch operations; "
            f"leave the set_backend block, or call the operator outside of the compiled function"
        )


def _under_torch_compile(self: Operator[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    _before_tracing(self.__name__)
    return self.compute(*args, **kwargs)


_before_tracing._dynamo_marked_constant = True  # type: ignore[attr-defined]
Operator.__call__._torchdynamo_inline = _under_torch_compile  # type: ignore[attr-defined]
