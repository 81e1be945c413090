"""JAX: transfers, its platform's memory statistics, and the options it reads from its own configuration."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorops._messages import describe_error
from tensorops.libraries import _host
from tensorops.libraries._arrays import native_byte_order
from tensorops.libraries._options import (
    FRACTION,
    PATH,
    SOME_BYTES,
    TEXT,
    ConfigurationError,
    DeviceConfig,
    one_of,
    option,
)
from tensorops.libraries._rows import ON_EVERY_CHANGE, Backend, Library
from tensorops.libraries._runtime import Change, DeviceFacts, MemoryStats, Runtime
from tensorops.typing import Array

if TYPE_CHECKING:
    import numpy as np

    from tensorops._row_axes import RowAxes
    from tensorops.hardware.accelerator import Accelerator
    from tensorops.hardware.machine import Machine


def _to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import jax
    import numpy as np

    if isinstance(x, jax.core.Tracer):
        raise TypeError("a traced jax array has no values yet and cannot leave jax inside jit, grad or vmap")
    return np.asarray(x)


def _from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import jax
    import numpy as np

    if not jax.config.jax_enable_x64 and a.dtype.itemsize == 8 and a.dtype.kind in "fiu":
        if a.dtype.kind == "f":
            raise TypeError("jax holds float64 only if jax_enable_x64 is set; pass float32, or set it")
        limits = np.iinfo(np.int32 if a.dtype.kind == "i" else np.uint32)
        if a.size and (a.min() < limits.min or a.max() > limits.max):
            raise TypeError(f"jax holds {a.dtype} values this large only if jax_enable_x64 is set")
        a = a.astype(limits.dtype)
    if isinstance(device, str):  # a platform, as providers name it
        device = jax.devices(device)[0]
    return jax.device_put(native_byte_order(a), device)


def _jit(function: Callable[..., Any], donate_argnums: tuple[int, ...] = ()) -> Callable[..., Any]:
    import jax

    compiled: Callable[..., Any] = jax.jit(function, donate_argnums=donate_argnums)
    return compiled


def _constant(x: Array) -> Array:
    import jax

    return jax.lax.stop_gradient(x)


def _over_parts(
    function: Callable[[dict[str, Any]], Any], arguments: dict[str, Any], rows: Callable[..., RowAxes] | None
) -> Any:
    from tensorops.libraries._jax_meshes import over_parts

    return over_parts(function, arguments, rows)


def _over_blocks(
    function: Callable[..., Array], size: int, rows: tuple[Array | None, ...], shared: tuple[Any, ...]
) -> Array:
    result: Array = _compiled_over_blocks()(function, size, rows, shared)
    return result


@functools.cache
def _compiled_over_blocks() -> Callable[..., Array]:
    """Return a loop that XLA compiles as one: a loop in Python would be a copy of its body for every block."""
    import jax

    def over_blocks(function: Callable[..., Array], size: int, rows: Any, shared: Any) -> Array:
        @functools.partial(jax.checkpoint, prevent_cse=False)  # nothing else is computed in the loop
        def step(block: Any, shared: Any) -> Array:
            return function(*block, *shared)

        count = rows[0].shape[0]
        whole = count - count % size
        blocks = jax.tree.map(lambda a: a[:whole].reshape(whole // size, size, *a.shape[1:]), rows)
        results = jax.lax.map(lambda block: step(block, shared), blocks).reshape(whole)
        if whole == count:
            return results
        rest = jax.tree.map(lambda a: a[whole:], rows)
        return jax.numpy.concat((results, step(rest, shared)))

    compiled: Callable[..., Array] = jax.jit(over_blocks, static_argnums=(0, 1))
    return compiled


def _wait(arrays: list[Any]) -> object:
    import jax

    return jax.block_until_ready(arrays)


@contextlib.contextmanager
def _holding(dtype: str) -> Iterator[None]:
    import jax

    with jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext():
        yield


def _holds_float64() -> bool:
    import jax

    return bool(jax.config.jax_enable_x64)


def _accelerators(machine: Machine, notes: list[str]) -> list[Accelerator]:
    """Return JAX's devices if this process has already started it: starting it takes them from other programs."""
    from tensorops.hardware.accelerator import Accelerator
    from tensorops.hardware.accelerators import tpu_version
    from tensorops.hardware.machine import as_int
    from tensorops.hardware.nvidia import generation

    jax, bridge = machine.modules.get("jax"), machine.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)  # there is no public interface
    if jax is None or started is None or not started():
        return []
    found = []
    for device in jax.local_devices():
        kind = {"gpu": "cuda", "cuda": "cuda", "rocm": "rocm", "tpu": "tpu", "neuron": "neuron"}.get(device.platform)
        if device.platform == "gpu" and "rocm" in str(getattr(device.client, "platform_version", "")).lower():
            kind = "rocm"
        if kind == "cuda":
            major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
            capability = as_int(major + minor)
            found.append(Accelerator(kind, device.device_kind, None, "jax", capability, generation(capability)))
        elif kind:
            version = tpu_version(device.device_kind) if kind == "tpu" else None
            found.append(Accelerator(kind, device.device_kind, None, "jax", None, version))
    return found


LIBRARY = Library(
    name="jax",
    packages=("jax", "jaxlib"),
    array_type="jax:Array",
    standard="jax.numpy",
    to_numpy=_to_numpy,
    from_numpy=_from_numpy,
    constant=_constant,
    over_blocks=_over_blocks,
    over_parts=_over_parts,
    runtime="tensorops.libraries.jax:JaxRuntime",
    jit=_jit,  # without it, each operation is compiled for each shape
    wait=_wait,
    holding=_holding,
    slow=True,
    holds_float64=_holds_float64,
    accelerators=_accelerators,
    extra="jax",
)


@dataclass(frozen=True)
class JAXConfig(DeviceConfig):
    """Options of JAX, for the backends ``jax`` and ``tpu``.

    Parameters
    ----------
    platform : str, optional
        Where JAX computes, such as ``'cpu'``, ``'cuda'`` or ``'tpu'``; must be set before its first computation.
    precision : str, optional
        The minimum precision of products (``jax_default_matmul_precision``): ``'default'``, ``'high'``, ``'highest'``,
        ``'bfloat16'``, ``'tensorfloat32'`` or ``'float32'``. A platform may be more precise, as a CPU is.
    compilation_cache_dir : path, optional
        The folder in which JAX keeps functions that took long to compile for later runs.
    compilation_cache_bytes : int, optional
        The maximum size of that folder; the least recently used functions are deleted first.
    memory_fraction : float, optional
        The fraction of a GPU's memory that JAX allocates when it starts, which is also its limit. Needs `platform`,
        because only GPUs support it.

    Raises
    ------
    TypeError, ValueError
        If a value is not valid; the message names it and what is expected.

    Examples
    --------
    >>> from tensorops import JAXConfig
    >>> JAXConfig(precision="highest").precision
    'highest'
    """

    platform: str | None = option(TEXT)
    precision: str | None = option(one_of("default", "high", "highest", "bfloat16", "tensorfloat32", "float32"))
    compilation_cache_dir: str | os.PathLike[str] | None = option(PATH)  # noqa: RUF009 - a field
    compilation_cache_bytes: int | None = option(SOME_BYTES)
    memory_fraction: float | None = option(FRACTION)


def _no_tpu() -> str:
    """Return why JAX does not compute on a TPU in this process, or an empty string; this starts JAX."""
    import jax

    try:
        jax.devices("tpu")
    except RuntimeError as error:
        return f"JAX finds no TPU here ({describe_error(error)})"
    here = jax.default_backend()
    return "" if here == "tpu" else f"JAX finds a TPU here, but computes on {here!r} by default"


# The packages that let JAX compute on a kind of accelerator, as the start of their names, and how to install them.
_PLUGINS = {
    "cuda": ("jax_cuda", "pip install 'jax[cuda13]'"),
    "rocm": ("jax_rocm", "install the jax-rocm packages of your version of ROCm"),
    "tpu": ("libtpu", "pip install 'jax[tpu]'"),
}


def _lacks(kind: str) -> str:
    """Return why JAX here does not compute on a kind of accelerator, as far as that is known without starting it."""
    allowed = os.environ.get("JAX_PLATFORMS", "").lower()
    names = {kind} if kind == "tpu" else {kind, "gpu"}
    if allowed and names.isdisjoint(allowed.split(",")):
        return f"JAX_PLATFORMS={allowed} lets JAX compute on no such device (unset JAX_PLATFORMS)"
    if importlib.util.find_spec("jax") is None:
        return ""  # that it is not installed is another reason
    package, remedy = _PLUGINS[kind]
    if any(info.name.startswith(package) for info in pkgutil.iter_modules()):
        return ""
    return f"JAX is installed without the package that makes it compute there ({remedy})"


BACKENDS = (
    Backend(
        "tpu",
        LIBRARY,
        "JAX on a TPU, with Pallas kernels; not yet run on one",
        providers=("pallas",),
        needs="tpu",
        suits=("tpu",),
        options=JAXConfig,
        runtime="tensorops.libraries.jax:TpuRuntime",
        absent=_no_tpu,
        remedy="on a machine with a TPU, pip install 'jax[tpu]' and leave JAX_PLATFORMS unset; on others, use 'jax'",
    ),
    Backend(
        "jax",
        LIBRARY,
        "JAX on its default device",
        suits=("tpu", "cuda", "rocm"),
        lacks=_lacks,
        options=JAXConfig,
        remedy="pip install --upgrade jax",
        tested=ON_EVERY_CHANGE,
    ),
    Backend(
        "nki",
        LIBRARY,
        "AWS Neuron through JAX",
        suits=("neuron",),
        missing="its kernels are not written yet, and no such hardware was available",
        remedy="use 'jax' with AWS's own plug-in",
    ),
)

# ------------------------------------------------------------------------------------------- device and memory

# JAX's names of a platform once it has started.
_STARTED_AS = {"cuda": "gpu", "rocm": "gpu"}
_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_NEWER_FRACTION = "XLA_CLIENT_MEM_FRACTION"  # either is read, but both together are refused


class JaxRuntime(Runtime):
    """JAX's default device.

    `synchronize` waits for every live array and for ordered effects, but not for a computation whose results have all
    been dropped. On the processor, where JAX has no statistics, `in_use` is the sum of all live arrays. `empty_cache`
    drops the compiled functions, which JAX compiles again on their next call. The platform keeps the memory of arrays
    and cannot return it.
    """

    before_use = True  # the first computation fixes the platform and its share of the memory
    platform: str | None = None  # the one that is computed on, if it is not the default

    def do_facts(self) -> DeviceFacts:
        import jax

        device = self._device(jax)
        host = device.platform == "cpu"
        stats = device.memory_stats() or {}
        capability = getattr(device, "compute_capability", None)
        return DeviceFacts(
            compute_capability=None if capability is None else int(str(capability).replace(".", "")),
            compute_units=_host.processors() if host else getattr(device, "core_count", None),
            max_memory=_host.memory_bytes() if host else stats.get("bytes_limit"),
            device_count=len(jax.devices(device.platform)),
            device_name=_host.processor_name() if host else device.device_kind,
            dtypes=self.held_dtypes(),
            versions=self.version() | {"platform": device.client.platform_version.splitlines()[0]},
        )

    def do_synchronize(self) -> None:
        import jax

        if not _has_started():
            return
        jax.effects_barrier()
        for array in _living_arrays(jax):
            try:
                array.block_until_ready()
            except RuntimeError:
                if not array.is_deleted():  # donated or deleted meanwhile: nothing to wait for
                    raise

    def do_memory_stats(self) -> MemoryStats:
        import jax

        device = self._device(jax)
        stats = device.memory_stats()
        if stats is None:
            host = device.platform == "cpu"
            in_use = sum(x.nbytes for x in _living_arrays(jax, device.platform))
            return MemoryStats(self.name, str(device), in_use=in_use, total=_host.memory_bytes() if host else None)
        in_use = stats.get("bytes_in_use")
        pool = stats.get("pool_bytes")
        return MemoryStats(
            self.name,
            str(device),
            in_use=in_use,
            peak=stats.get("peak_bytes_in_use"),
            cached=None if pool is None or in_use is None else pool - in_use,
            limit=stats.get("bytes_limit"),
        )

    def do_empty_cache(self) -> int | None:
        import jax

        before = self._bytes_in_use(jax) if _has_started() else None
        jax.clear_caches()
        after = None if before is None else self._bytes_in_use(jax)
        return None if before is None or after is None else max(0, before - after)

    def do_gauge(self) -> Callable[[], int | None]:
        import jax

        device = self._device(jax)
        if self._bytes_in_use(jax) is None:
            return lambda: sum(x.nbytes for x in _living_arrays(jax, device.platform))
        return lambda: self._bytes_in_use(jax)

    def do_changes(self, config: DeviceConfig) -> Sequence[Change]:
        import jax

        assert isinstance(config, JAXConfig)
        return (
            *_platform_changes(jax, config, self.platform),
            _option(jax, "jax_default_matmul_precision", config.precision),
            *_cache_changes(jax, config),
        )

    def _bytes_in_use(self, jax: Any) -> int | None:
        found: int | None = (self._device(jax).memory_stats() or {}).get("bytes_in_use")
        return found

    def _device(self, jax: Any) -> Any:
        return jax.devices(self.platform)[0]


class TpuRuntime(JaxRuntime):
    """The first TPU that JAX finds."""

    platform = "tpu"

    @property
    def loaded(self) -> bool:
        """Whether JAX computes on a TPU in this process; asking starts nothing."""
        return super().loaded and _has_started() and bool(sys.modules["jax"].default_backend() == self.platform)


def _has_started() -> bool:
    """Return whether JAX has chosen its platform; there is no public interface for this."""
    try:
        from jax._src import xla_bridge

        return bool(xla_bridge.backends_are_initialized())
    except (ImportError, AttributeError):
        return True  # to be safe: then no option is set that would have to come before


def _living_arrays(jax: Any, platform: str | None = None) -> list[Any]:
    """Return the arrays that hold memory, of one platform or of all that have started."""
    from jax.extend.backend import backends

    return [x for p in ([platform] if platform else backends()) for x in jax.live_arrays(p) if not x.is_deleted()]


def _option(jax: Any, name: str, value: Any, after: Callable[[], object] = lambda: None) -> Change:
    def write(new: Any) -> None:
        jax.config.update(name, new)
        after()

    return Change(name, lambda: getattr(jax.config, name), write, value)


def _platform_changes(jax: Any, config: JAXConfig, own: str | None) -> list[Change]:
    wanted = config.platform or own
    if own is not None and wanted != own:
        raise ConfigurationError(f"its platform is {own!r}, not {wanted!r}")
    share = None if config.memory_fraction is None else str(float(config.memory_fraction))
    if share is not None:
        _refuse_fraction(wanted or jax.config.jax_platforms, share)
    if _has_started():
        if wanted is not None and _started_as(wanted) != jax.default_backend():
            raise ConfigurationError(
                f"platform {wanted!r} is set too late, JAX already computes on {jax.default_backend()!r}: configure it "
                "before JAX's first computation"
            )
        return []
    changes = []
    if share is not None:
        changes += [_environment(_NEWER_FRACTION, ""), _environment(_FRACTION, share)]
    if wanted is not None:
        changes.append(_option(jax, "jax_platforms", wanted))
        changes.append(Change(f"JAX's start on {wanted!r}", lambda: _runs_on(jax, wanted), lambda _: None, True))
    return changes


def _refuse_fraction(platform: str | None, share: str) -> None:
    if platform is None or _started_as(platform) != "gpu":
        named = "no platform is named" if platform is None else f"the platform is {platform!r}"
        raise ConfigurationError(
            f"memory_fraction limits JAX's memory on a GPU, but {named}; on a GPU, set platform='cuda' as well"
        )
    if _has_started() and os.environ.get(_FRACTION) != share:
        raise ConfigurationError("memory_fraction is set too late, JAX has already allocated its memory")


def _started_as(platform: str) -> str:
    return _STARTED_AS.get(platform.lower(), platform.lower())


def _runs_on(jax: Any, platform: str) -> bool:
    """Start JAX, and return whether it computes there."""
    try:
        return bool(jax.default_backend() == _started_as(platform))
    except Exception as error:
        said = f": {describe_error(error)}" if str(error).strip() else ""  # a missing plug-in fails without a message
        raise ConfigurationError(f"JAX has no platform {platform!r} here{said}{_known_platforms()}") from error


def _known_platforms() -> str:
    """Return the platforms that this installation of JAX has code for; there is no public interface for this."""
    try:
        from jax._src import xla_bridge

        return f"; it is installed with: {', '.join(sorted(xla_bridge._backend_factories))}"
    except (ImportError, AttributeError):
        return ""


def _environment(name: str, value: str) -> Change:
    def write(new: str) -> None:
        if new:
            os.environ[name] = new
        else:
            os.environ.pop(name, None)

    return Change(name, lambda: os.environ.get(name, ""), write, value)


def _cache_changes(jax: Any, config: JAXConfig) -> list[Change]:
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    folder = None if config.compilation_cache_dir is None else _usable_folder(config.compilation_cache_dir)
    if config.compilation_cache_bytes is not None:
        if folder is None and jax.config.jax_compilation_cache_dir is None:
            raise ConfigurationError(
                "compilation_cache_bytes limits a cache on disk, but there is none: set compilation_cache_dir as well"
            )
        if importlib.util.find_spec("filelock") is None:
            raise ConfigurationError("JAX needs the package filelock to limit its cache: pip install filelock")
    # A cache in use keeps its folder and its limit until it is reset.
    return [
        _option(jax, "jax_compilation_cache_dir", folder, reset_cache),
        _option(jax, "jax_compilation_cache_max_size", config.compilation_cache_bytes, reset_cache),
    ]


def _usable_folder(wanted: str | os.PathLike[str]) -> str:
    text = os.fspath(wanted)
    if "://" in text:
        return text  # remote storage, which JAX accesses itself
    path = Path(text).expanduser().absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"compilation_cache_dir {str(path)!r} cannot be written: {str(existing)!r} is in the way"
        )
    return str(path)
