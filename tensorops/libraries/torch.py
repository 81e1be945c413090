"""PyTorch: transfers, and its caching allocator on NVIDIA GPUs; it has no statistics on the processor."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorops.libraries import _host
from tensorops.libraries._arrays import bfloat16, shareable
from tensorops.libraries._rows import ON_EVERY_CHANGE, Backend, Library
from tensorops.libraries._runtime import DeviceFacts, MemoryStats, Runtime
from tensorops.typing import Array

if TYPE_CHECKING:
    import numpy as np


def _to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import numpy as np
    import torch

    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            "a torch tensor that requires grad cannot leave torch without losing its gradient: "
            "pass x.detach(), or compute under torch.no_grad()"
        )
    if reason := _unreadable(x):
        raise ValueError(reason)
    host = x.detach().cpu()
    if host.dtype == torch.bfloat16:
        return np.asarray(host.view(torch.uint16).numpy()).view(bfloat16())
    return np.asarray(host.numpy())


def _from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import numpy as np
    import torch

    native = shareable(a)
    if native.dtype == bfloat16():
        tensor = torch.from_numpy(native.view(np.uint16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(native)
    return tensor if device is None else tensor.to(device)


def _unfit(x: Array) -> str:
    import torch

    if x.is_nested:
        return "a nested tensor is not supported; pass its parts one by one, or torch.nested.to_padded_tensor(x, value)"
    return "" if x.layout is torch.strided else f"a tensor of layout {x.layout} is not supported; pass x.to_dense()"


def _unreadable(x: Array) -> str:
    """Return what is wrong with a torch tensor whose storage is too small for it; torch itself does not check."""
    import torch

    if torch.compiler.is_compiling() or x.layout is not torch.strided:
        return ""
    try:
        held = x.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):  # it wraps another tensor or belongs to a tracer: it has no memory
        return ""
    if isinstance(held, int) and not storage_suffices(x, held):
        return (
            f"a torch tensor of shape {tuple(x.shape)} whose storage has been resized to {held} bytes, "
            "which no longer hold it: its values are gone"
        )
    return ""


def storage_suffices(x: Array, held: int) -> bool:
    """Return whether this many bytes of storage include the last element of a strided torch tensor."""
    if x.is_contiguous():
        reach = x.numel()
    elif x.numel() == 0:
        reach = 0
    else:
        reach = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return reach == 0 or bool((x.storage_offset() + reach) * x.element_size() <= held)


@functools.cache
def observers(torch: Any) -> tuple[Callable[[], Any], ...]:
    """Return what asks torch for a transformation, for modes that see operations or functions, and for a tracer."""
    c = torch._C
    return c._functorch.peek_interpreter_stack, c._len_torch_dispatch_stack, c._len_torch_function_stack, c._is_tracing


def observed(torch: Any) -> str | None:
    """Return what sees the operations of an eager call instead of their being computed at once, if anything does."""
    transformation, modes, function_modes, traced = observers(torch)
    if transformation() is not None:
        return "torch.func transforms the call"
    if modes() or function_modes():
        return "a mode of torch sees every operation"
    return "torch.jit traces the call" if traced() else None


REQUIRES_GRAD = "an argument requires grad"


def refuse_tensors(arguments: tuple[Any, ...], *, host: bool, differentiates: bool = False) -> str | None:
    """Return why kernels cannot take the tensor arguments as memory of the host or of a GPU, or what must see the call.

    Torch records and transforms only its own operations, unless a kernel `differentiates`.
    """
    torch, tensor, strided, forward_ad, numpys = _modules()
    if reason := observed(torch):
        return reason
    if forward_ad._current_level >= 0:
        return "forward-mode derivatives are being taken"
    recording = torch.is_grad_enabled() and not differentiates
    for x in arguments:
        if type(x) is not tensor:
            if isinstance(x, numpys):
                return f"an argument is a numpy.{'dtype' if isinstance(x, numpys[1:]) else 'ndarray'}"
            if not isinstance(x, tensor):
                continue
            if type(x) is not torch.nn.Parameter:
                return f"an argument is a {type(x).__name__}"
        if not (x.is_cpu if host else x.is_cuda) or x.layout is not strided or x.is_neg() or x.is_conj():
            return f"an argument is not a dense tensor on {'the CPU' if host else 'a CUDA device'}"
        if not storage_suffices(x, x.untyped_storage().nbytes()):
            return "an argument's storage has been resized"
        if recording and x.requires_grad:
            return REQUIRES_GRAD
    return None


@functools.cache
def _modules() -> tuple[Any, Any, Any, Any, tuple[type, ...]]:
    """Return what every call looks up in torch, and those of NumPy's types that other kernels would accept."""
    import numpy as np
    import torch

    numpys = (np.ndarray, np.dtype, type)  # a type such as numpy.float32
    return torch, torch.Tensor, torch.strided, torch.autograd.forward_ad, numpys


_UNCHANGED = contextlib.nullcontext()


def without_autocast() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which results have the dtypes of their arguments within `torch.autocast`, too."""
    import torch

    return torch._C._DisableAutocast() if torch._C._is_any_autocast_enabled() else _UNCHANGED


def _symbol(value: object) -> type | None:
    import torch

    return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}.get(type(value))


def _fixed(length: Any) -> bool:
    import torch

    if not torch.compiler.is_compiling():
        return not isinstance(length, torch.SymInt)
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return bool(has_static_value(length))  # under TorchDynamo, all lengths seem to be of the type int


def _lookup(matrix: Array, indices: Array) -> Array:
    import torch

    # Inductor counts negative indices of index_select from the end.
    return torch.nn.functional.embedding(indices, matrix)


def _take_along(x: Array, indices: Array, axis: int) -> Array:
    import torch

    return torch.gather(x, axis, indices)  # torch.take_along_dim broadcasts lengths, and fixes them to compare them


def _host_values(x: Array) -> bool:
    import torch

    if torch.compiler.is_compiling() or observed(torch):
        return False
    return bool(x.is_cpu) and type(x) is torch.Tensor and x.layout is torch.strided


def _recomputed(function: Callable[..., Array]) -> Callable[..., Array]:
    """Checkpoint a function where torch records what it computes, unless torch.func does, which has no checkpoints."""
    import torch
    from torch.utils.checkpoint import checkpoint

    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return function
    return lambda *args: checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)


def _lacks(kind: str) -> str:
    """Return why the installed build has no code for a kind of GPU, as its file says: importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""  # that it is not installed is another reason
    try:
        said = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return ""  # not known
    built_for = {"cuda": "cuda", "rocm": "hip"}[kind]
    if re.search(rf"^{built_for}\b[^=\n]*= *None", said, re.MULTILINE) is None:
        return ""
    return (
        f"the installed build of PyTorch has no code for {'NVIDIA' if kind == 'cuda' else 'AMD'} GPUs "
        "(install the one that https://pytorch.org/get-started names)"
    )


LIBRARY = Library(
    name="torch",
    packages=("torch",),
    array_type="torch:Tensor",
    subtypes=("torch.nn:Parameter",),
    standard="tensorops.libraries._torch_namespace",
    to_numpy=_to_numpy,
    from_numpy=_from_numpy,
    runtime="tensorops.libraries.torch:TorchRuntime",
    device=lambda x: x.device,
    quiet=without_autocast,
    symbol=_symbol,
    fixed=_fixed,
    lookup=_lookup,
    take_along=_take_along,
    host_values=_host_values,
    unreadable=_unreadable,
    unfit=_unfit,
    constant=lambda x: x.detach(),
    recomputed=_recomputed,
    extra="torch",
)


BACKENDS = (
    Backend(
        "torch",
        LIBRARY,
        "PyTorch tensors",
        suits=("cuda", "rocm"),
        lacks=_lacks,
        remedy="pip install --upgrade torch",
        tested=ON_EVERY_CHANGE,
    ),
    Backend(
        "triton",
        LIBRARY,
        "PyTorch tensors with Triton kernels on NVIDIA GPUs; not yet run on one",
        providers=("triton", "cuda", "torch_cpu"),
        requires="triton",
        needs="cuda",
        remedy="pip install triton",
    ),
)

# ------------------------------------------------------------------------------------------- device and memory


class TorchRuntime(Runtime):
    """PyTorch's default device, and CUDA's caching allocator once the program has started CUDA.

    Nothing here starts CUDA: in a program that uses only the processor, that would cost time and GPU memory.
    """

    def do_facts(self) -> DeviceFacts:
        import torch

        device = torch.get_default_device()
        versions = self.version()
        if device.type != "cuda":
            host = device.type == "cpu"
            return DeviceFacts(
                compute_units=_host.processors() if host else None,
                max_memory=_host.memory_bytes() if host else None,
                device_count=1,
                device_name=_host.processor_name() if host else device.type,
                dtypes=self.held_dtypes(),
                versions=versions,
            )
        properties = torch.cuda.get_device_properties(device)
        return DeviceFacts(
            compute_capability=10 * properties.major + properties.minor,
            compute_units=properties.multi_processor_count,
            max_memory=properties.total_memory,
            max_shared_memory=getattr(properties, "shared_memory_per_block_optin", None),
            device_count=torch.cuda.device_count(),
            device_name=properties.name,
            dtypes=self.held_dtypes(),
            versions=versions | {"cuda": str(torch.version.cuda)},
        )

    def do_synchronize(self) -> None:
        import torch

        for device in _cuda_devices(torch):
            torch.cuda.synchronize(device)
        if torch.backends.mps.is_available():
            torch.mps.synchronize()

    def do_memory_stats(self) -> MemoryStats:
        import torch

        if not torch.cuda.is_initialized():
            return MemoryStats(self.name, "cpu", total=_host.memory_bytes())
        device = torch.cuda.current_device()
        in_use = torch.cuda.memory_allocated(device)
        return MemoryStats(
            self.name,
            f"cuda:{device}",
            in_use=in_use,
            peak=torch.cuda.max_memory_allocated(device),
            cached=torch.cuda.memory_reserved(device) - in_use,
            total=torch.cuda.mem_get_info(device)[1],
        )

    def do_empty_cache(self) -> int | None:
        import torch

        devices = _cuda_devices(torch)
        before = sum(torch.cuda.memory_reserved(d) for d in devices)
        if devices:
            torch.cuda.empty_cache()
        return int(before - sum(torch.cuda.memory_reserved(d) for d in devices))

    def do_reset_peak(self) -> bool:
        import torch

        if not torch.cuda.is_initialized():
            return False
        torch.cuda.reset_peak_memory_stats()
        return True

    def do_gauge(self) -> Callable[[], int | None]:
        import torch

        if not torch.cuda.is_initialized():
            return lambda: None
        device = torch.cuda.current_device()  # that of this thread; the reading thread has its own
        return lambda: int(torch.cuda.memory_allocated(device))


def _cuda_devices(torch: Any) -> list[int]:
    """Return the GPUs that hold data of this program; querying another one would start it."""
    if not torch.cuda.is_initialized():
        return []
    current = torch.cuda.current_device()
    return [d for d in range(torch.cuda.device_count()) if d == current or torch.cuda.memory_reserved(d)]
