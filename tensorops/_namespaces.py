"""The one table of array libraries: which types are theirs, how to load them, how arrays come and go.

Every library-specific fact of tensorops stands here or in a kernel; operators see an array's library only
as a namespace of the Array API standard. Nothing is imported before an array of it arrives, or is asked for.

All transfers go through host memory as a NumPy array, sharing memory where the library can (see `move`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tensorops import _dtypes
from tensorops._typing import Array
from tensorops._typing import Namespace as ArrayNamespace

if TYPE_CHECKING:
    import numpy as np


def __getattr__(name: str) -> Any:
    if name != "NUMPY_TYPES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import numpy as np

    return np.ndarray, np.generic  # NumPy's reductions return scalars of such types: arrays in all but name


def _attribute(path: str) -> Any:
    """Return what ``"module:name"`` points at, importing the module."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True, eq=False)
class Namespace:
    """One array library, seen through the Array API standard.

    Parameters
    ----------
    name
        What errors, `explain` and `trace` call it.
    packages
        Top-level packages in which its array types are defined, `wrapper` included; the first is the one to import.
    array_type
        ``"module:name"`` of the type that all its arrays are instances of, tracers included.
    standard
        The module that implements the standard for it.
    to_numpy, from_numpy
        Conversions through host memory; `from_numpy` takes the device to go to, or ``None``.
    subtypes
        ``"module:name"`` of other types that arrays have, where they must be known before the first array.
    wrapper
        ``"module:name"`` of the type that `standard` computes with, where the arrays themselves do not conform. Its
        ``asarray`` wraps one of them. Operators take both: their bodies see wrappers, kernels see what is in them,
        and the caller gets wrappers if there were any among the arguments.
    unwrapped
        What takes an array out of a wrapper.
    providers
        The providers of kernels for its arrays, best first.
    device
        The device on which to create arrays that are to meet `x`, in the library's own terms.
    unfit
        Why operators cannot take an array, and what to pass instead; an empty string if they can.
    arrayed
        Makes an array of what its functions return in place of one.
    quiet
        A context in which it computes without warnings: IEEE special values are results, not accidents.
    unreadable
        What is wrong with an array whose values nobody may read, so that the library itself would read foreign memory.
    host_values
        Its arrays lie in host memory and are computed eagerly: looking at a value costs only the look.
    lazy
        Reading a value computes a graph that its owner meant to compute later.
    sums_in_order
        Along some axes its sums add one element after another, so that a long one loses digits; see `ops._sums`.
    runtime
        ``"module:class"`` of what knows its devices and memory, see `tensorops.backends.runtimes`.
    extra
        The extra of tensorops that installs it.
    missing
        Why its arrays cannot be used at all, if so.
    """

    name: str
    packages: tuple[str, ...]
    array_type: str
    standard: str
    to_numpy: Callable[[Array], np.ndarray[Any, Any]]
    from_numpy: Callable[[np.ndarray[Any, Any], Any], Array]
    unreadable: Callable[[Array], str] = lambda x: ""
    subtypes: tuple[str, ...] = ()
    wrapper: str = ""
    unwrapped: Callable[[Array], Array] = lambda x: x
    providers: tuple[str, ...] = ()
    device: Callable[[Array], Any] = lambda x: None
    unfit: Callable[[Array], str] = lambda x: ""
    arrayed: Callable[[Any], Array] = lambda y: y
    quiet: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    host_values: bool = False
    lazy: bool = False
    sums_in_order: bool = False
    runtime: str = "tensorops.backends.runtimes:Runtime"
    extra: str = ""
    missing: str = ""

    @cached_property
    def xp(self) -> ArrayNamespace:
        """The module that implements the standard, imported on first use."""
        return importlib.import_module(self.standard)

    @classmethod
    def unusable(cls, name: str, reason: str) -> Namespace:
        """Return a row for a library that could not be made known."""
        return cls(name, (name,), "", "", _unsupported, _unsupported, missing=reason)

    def learn_types(self) -> None:
        """Enter the types of its arrays into the look-up, without waiting for the first array of each."""
        for path in (self.array_type, *self.subtypes):
            _BY_TYPE[_attribute(path)] = self

    @cached_property
    def _bare_type(self) -> Any:
        return _attribute(self.array_type)

    @cached_property
    def _wrapper_type(self) -> Any:
        return _attribute(self.wrapper) if self.wrapper else ()

    def is_wrapper(self, x: object) -> bool:
        """Tell whether `x` is one of this library's arrays in its `wrapper`."""
        return isinstance(x, self._wrapper_type)

    def wrap(self, x: Any) -> Any:
        """Return an array as `standard` computes with it; anything else stays as it is."""
        return self.xp.asarray(x) if self.wrapper and isinstance(x, self._bare_type) else x

    def unwrap(self, x: Any) -> Any:
        """Return the array in a wrapper; anything else stays as it is."""
        return self.unwrapped(x) if isinstance(x, self._wrapper_type) else x

    def is_installed(self) -> bool:
        """Tell whether the library can be found, without importing it."""
        return importlib.util.find_spec(self.packages[0]) is not None

    def owns(self, x: object) -> bool:
        """Tell whether `x` is one of this library's arrays."""
        return isinstance(x, (_attribute(self.array_type), self._wrapper_type))


# ------------------------------------------------------------------------------------ arrays that are not taken


def _numpy_unfit(x: Array) -> str:
    import numpy as np

    # Their arithmetic differs from the standard's: `*` of a matrix multiplies matrices, and the operators of a masked
    # array leave out elements that every formula here would have to know of.
    if isinstance(x, np.matrix):
        return "matrix is not supported; pass numpy.asarray(x)"
    if isinstance(x, np.ma.MaskedArray):
        return "MaskedArray is not supported; pass x.filled(value)"
    return ""


def _numpy_arrayed(y: Array) -> Array:
    import numpy as np

    return np.asarray(y) if isinstance(y, np.generic) else y  # a scalar is an array of zero dimensions


def _torch_unfit(x: Array) -> str:
    import torch

    if x.is_nested:
        return "a nested tensor is not supported; pass its parts one by one, or torch.nested.to_padded_tensor(x, value)"
    return "" if x.layout is torch.strided else f"a tensor of layout {x.layout} is not supported; pass x.to_dense()"


# --------------------------------------------------------------------------- transfers, one pair a library


def _numpy_to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.asarray(x)


def _numpy_quiet() -> contextlib.AbstractContextManager[Any]:
    import numpy as np

    return np.errstate(all="ignore")


def _numpy_from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    return a if a.flags.writeable else a.copy()  # what comes from a library of immutable arrays


def _torch_to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import numpy as np
    import torch

    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            "a torch tensor that requires grad cannot leave torch without losing its gradient: "
            "pass x.detach(), or compute under torch.no_grad()"
        )
    if reason := _torch_unreadable(x):
        raise ValueError(reason)
    host = x.detach().cpu()
    if host.dtype == torch.bfloat16:
        return np.asarray(host.view(torch.uint16).numpy()).view(_bfloat16())
    return np.asarray(host.numpy())


def _torch_unreadable(x: Array) -> str:
    """Return what is wrong with a torch tensor whose storage was made too small for it; torch itself does not look."""
    import torch

    if torch.compiler.is_compiling() or x.layout is not torch.strided:
        return ""
    try:
        held = x.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):  # it wraps another tensor, or is one of a tracer: it has no memory
        return ""
    if isinstance(held, int) and not torch_storage_suffices(x, held):
        return (
            f"a torch tensor of shape {tuple(x.shape)} whose storage has been resized to {held} bytes, "
            "which do not hold it any more: its values are gone"
        )
    return ""


def torch_storage_suffices(x: Array, held: int) -> bool:
    """Tell whether so many bytes of storage reach to the last element of a strided torch tensor."""
    if x.is_contiguous():
        reach = x.numel()
    elif x.numel() == 0:
        reach = 0
    else:
        reach = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return reach == 0 or bool((x.storage_offset() + reach) * x.element_size() <= held)


def _torch_from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import numpy as np
    import torch

    native = _shareable(a)
    if native.dtype == _bfloat16():
        tensor = torch.from_numpy(native.view(np.uint16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(native)
    return tensor if device is None else tensor.to(device)


def _jax_to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import jax
    import numpy as np

    if isinstance(x, jax.core.Tracer):
        raise TypeError("a traced jax array has no values yet and cannot leave jax inside jit, grad or vmap")
    return np.asarray(x)


def _jax_from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import jax
    import numpy as np

    if not jax.config.jax_enable_x64 and a.dtype.itemsize == 8 and a.dtype.kind in "fiu":
        if a.dtype.kind == "f":
            raise TypeError("jax holds float64 only if jax_enable_x64 is set; pass float32, or set it")
        limits = np.iinfo(np.int32 if a.dtype.kind == "i" else np.uint32)
        if a.size and (a.min() < limits.min or a.max() > limits.max):
            raise TypeError(f"jax holds {a.dtype} values this large only if jax_enable_x64 is set")
        a = a.astype(limits.dtype)
    return jax.device_put(_native_byte_order(a), device)


def _mlx_to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import mlx.core as mx
    import numpy as np

    if x.dtype == mx.bfloat16:
        return np.asarray(x.view(mx.uint16)).view(_bfloat16())
    return np.asarray(x)


def _mlx_from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import mlx.core as mx
    import numpy as np

    native = _shareable(a)
    if native.dtype == _bfloat16():
        return mx.array(native.view(np.uint16)).view(mx.bfloat16)
    dtype = getattr(mx, "bool_" if native.dtype == bool else native.dtype.name, None)
    if not isinstance(dtype, mx.Dtype):
        raise TypeError(f"mlx holds no {native.dtype.name}")
    return mx.array(native, dtype=dtype)


def _dask_to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.asarray(x.compute())


def _dask_from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import dask.array as da

    # Dask cannot estimate how much memory objects take, and so not into how many blocks to put them.
    return da.from_array(a, chunks=-1 if a.dtype.hasobject else "auto")


def _cupy_to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import cupy
    import numpy as np

    return np.asarray(cupy.asnumpy(x))


def _cupy_from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import cupy

    if device is None and "tensorops.backends.devices" in sys.modules:  # else nobody can have configured one
        from tensorops.backends.devices import enter_gpu

        enter_gpu(lambda index: cupy.cuda.Device(index).use())  # what follows in this thread computes there, too
    with contextlib.nullcontext() if device is None else device:
        return cupy.asarray(a)


def _pyopencl_to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import array_api_pyopencl as xp

    return xp.asarray(x).numpy()


def _pyopencl_from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import array_api_pyopencl as xp

    if a.dtype == _bfloat16():
        raise TypeError("pyopencl holds no bfloat16")
    return xp.asarray(a, device=device).cl_array


def _strict_to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import array_api_strict as xp
    import numpy as np

    return np.asarray(x.to_device(xp.Device("CPU_DEVICE")))


def _strict_from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import array_api_strict as xp

    # Sharing the caller's memory would let a library that has in-place operators write to it.
    return xp.asarray(_native_byte_order(a), device=device, copy=True)


def _unsupported(*_: Any) -> Any:
    raise TypeError("arrays of this library cannot be moved")


def _bfloat16() -> np.dtype[Any]:
    import ml_dtypes
    import numpy as np

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def _native_byte_order(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a if a.dtype.isnative else a.astype(a.dtype.newbyteorder("="))


def _shareable(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return `a`, or a copy where DLPack could not hand it over: no negative strides, no read-only memory."""
    native = _native_byte_order(a)
    if native.flags.writeable and native.flags.aligned and all(s >= 0 for s in native.strides):
        return native
    return native.copy()


# --------------------------------------------------------------------------------------------- the table

NAMESPACES: dict[str, Namespace] = {
    row.name: row
    for row in (
        Namespace(
            name="numpy",
            packages=("numpy",),
            array_type="tensorops._namespaces:NUMPY_TYPES",
            standard="array_api_compat.numpy",
            to_numpy=_numpy_to_numpy,
            from_numpy=_numpy_from_numpy,
            runtime="tensorops.backends.runtimes:NumpyRuntime",
            providers=("cpu",),
            unfit=_numpy_unfit,
            arrayed=_numpy_arrayed,
            quiet=_numpy_quiet,
            host_values=True,
            sums_in_order=True,
        ),
        Namespace(
            name="cupy",
            packages=("cupy",),
            array_type="cupy:ndarray",
            standard="array_api_compat.cupy",
            to_numpy=_cupy_to_numpy,
            from_numpy=_cupy_from_numpy,
            runtime="tensorops.backends.runtimes:CupyRuntime",
            device=lambda x: x.device,
            extra="cuda",
        ),
        Namespace(
            name="pyopencl",
            packages=("pyopencl", "array_api_pyopencl"),
            array_type="pyopencl.array:Array",
            wrapper="array_api_pyopencl:Array",
            unwrapped=lambda x: x.cl_array,
            standard="array_api_pyopencl",
            to_numpy=_pyopencl_to_numpy,
            from_numpy=_pyopencl_from_numpy,
            runtime="tensorops.backends.runtimes:PyopenclRuntime",
            sums_in_order=True,
            device=lambda x: x.queue,
            extra="opencl",
        ),
        Namespace(
            name="jax",
            packages=("jax", "jaxlib"),
            array_type="jax:Array",
            standard="jax.numpy",
            to_numpy=_jax_to_numpy,
            from_numpy=_jax_from_numpy,
            runtime="tensorops.backends.runtimes:JaxRuntime",
            providers=("xla",),
            extra="jax",
        ),
        Namespace(
            name="mlx",
            packages=("mlx", "array_api_mlx"),
            array_type="mlx.core:array",
            wrapper="array_api_mlx:Array",
            unwrapped=lambda x: x.mlx,
            standard="array_api_mlx",
            to_numpy=_mlx_to_numpy,
            from_numpy=_mlx_from_numpy,
            runtime="tensorops.backends.runtimes:MlxRuntime",
            providers=("mlx",),
            extra="mlx",
            sums_in_order=True,
        ),
        Namespace(
            name="torch",
            packages=("torch",),
            array_type="torch:Tensor",
            subtypes=("torch.nn:Parameter",),
            standard="array_api_compat.torch",
            to_numpy=_torch_to_numpy,
            unreadable=_torch_unreadable,
            from_numpy=_torch_from_numpy,
            runtime="tensorops.backends.runtimes:TorchRuntime",
            providers=("torch_cpu",),
            device=lambda x: x.device,
            unfit=_torch_unfit,
            extra="torch",
        ),
        Namespace(
            name="dask",
            packages=("dask",),
            array_type="dask.array:Array",
            standard="array_api_compat.dask.array",
            to_numpy=_dask_to_numpy,
            from_numpy=_dask_from_numpy,
            runtime="tensorops.backends.runtimes:NumpyRuntime",
            providers=("dask",),
            quiet=_numpy_quiet,
            lazy=True,
            extra="dask",
            sums_in_order=True,
        ),
        Namespace(
            name="array_api_strict",
            packages=("array_api_strict",),
            array_type="array_api_strict._array_object:Array",
            standard="array_api_strict",
            to_numpy=_strict_to_numpy,
            from_numpy=_strict_from_numpy,
            runtime="tensorops.backends.runtimes:NumpyRuntime",
            device=lambda x: x.device,
            quiet=_numpy_quiet,
            host_values=True,
            extra="test",
            sums_in_order=True,
        ),
    )
}

_BY_PACKAGE = {package: row for row in NAMESPACES.values() for package in row.packages}
_BY_TYPE: dict[type, Namespace] = {}
_NO_LIBRARY = {"builtins", "__main__"}


def register_namespace(row: Namespace) -> None:
    """Make an array library of another distribution known.

    Raises
    ------
    ValueError
        If its name or one of its packages belongs to another library.
    """
    if NAMESPACES.get(row.name, row) is not row:
        raise ValueError(f"the namespace {row.name!r} is already known, as another library")
    for package in row.packages:
        if (owner := _BY_PACKAGE.get(package, row)) is not row:
            raise ValueError(f"the package {package!r} already belongs to the namespace {owner.name!r}")
    NAMESPACES[row.name] = row
    _BY_PACKAGE.update(dict.fromkeys(row.packages, row))


def namespace_of(x: object) -> Namespace | None:
    """Return the row of the library that `x` is an array of, or ``None`` if it is no array at all.

    Looked up once per type: JAX's tracers, subclasses and parameters are types of their own.
    """
    row = _BY_TYPE.get(type(x))
    if row is None:
        row = _find(x)
        if row is not None:
            _BY_TYPE[type(x)] = row
    return row


def _find(x: object) -> Namespace | None:
    row = _find_among_known(x)
    package = type(x).__module__.partition(".")[0]
    if row is None and package not in _NO_LIBRARY and package not in _BY_PACKAGE:
        from tensorops.backends.registry import load_plugins  # somebody else's array, perhaps

        load_plugins()
        row = _find_among_known(x)
    return row


def _find_among_known(x: object) -> Namespace | None:
    for cls in type(x).__mro__:
        row = _BY_PACKAGE.get(cls.__module__.partition(".")[0])
        if row is not None and row.packages[0] in sys.modules and row.owns(x):
            return row
    return None


def describe_type(x: object) -> str:
    """Return how errors name the type of something that is not an array."""
    cls = type(x)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def common_namespace(*arrays: Array | None) -> Namespace:
    """Return the row of the one library that all `arrays` belong to; ``None`` entries are left out.

    Raises
    ------
    TypeError
        If something is no array, or the arrays belong to several libraries: they are named.
    """
    found: Namespace | None = None
    for x in arrays:
        if x is None:
            continue
        row = namespace_of(x)
        if row is None:
            raise TypeError(f"expected an array, got {describe_type(x)}")
        if row.missing:
            raise TypeError(f"{row.name} arrays cannot be used: {row.missing}")
        if reason := row.unfit(x):
            raise TypeError(reason)
        if found is not None and row is not found:
            raise TypeError(
                f"arrays of several libraries in one call: {found.name} and {row.name}; convert one of them, or "
                f"choose a backend to take them all to: tensorops.set_backend({found.name!r})"
            )
        found = row
    if found is None:
        raise TypeError("expected at least one array")
    return found


def creation_device(x: Array) -> Any:
    """Return the device on which to create arrays that are to meet `x`; ``None`` for the default."""
    row = namespace_of(x)
    return None if row is None else row.device(row.unwrap(x))


def has_host_values(x: Array) -> bool:
    """Tell whether reading values of `x` costs only the reading."""
    row = namespace_of(x)
    return row is not None and row.host_values


def sums_in_order(x: Array) -> bool:
    """Tell whether sums of the library of `x` lose digits where they are long."""
    row = namespace_of(x)
    return row is not None and row.sums_in_order


def move(x: Array, target: Namespace, device: Any = None) -> Array:
    """Take `x` to another library, sharing memory where both can, and keep its dtype; the result is in no wrapper.

    Raises
    ------
    TypeError
        If the value cannot go: it is traced, carries a gradient, or the target has no such dtype.
    """
    source = common_namespace(x)
    if source is target:
        return target.unwrap(x)
    moved = target.from_numpy(source.to_numpy(source.unwrap(x)), device)
    before, after = _dtypes.dtype_name(x), _dtypes.dtype_name(moved)
    if before != after and before not in _dtypes.INTEGER:  # integers are narrowed where their values allow
        raise TypeError(f"{target.name} holds no {before}")
    return moved
