"""JAX: figures of its platform's allocator, and the options that it reads from its own configuration."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorops.backends.devices import ConfigurationError, DeviceConfig, JAXConfig
from tensorops.backends.registry import describe_error
from tensorops.backends.runtimes import _host
from tensorops.backends.runtimes._base import Change, DeviceFacts, MemoryStats, Runtime

# What JAX calls a platform once it has started.
_STARTED_AS = {"cuda": "gpu", "rocm": "gpu"}
_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_NEWER_FRACTION = "XLA_CLIENT_MEM_FRACTION"  # either is read, but both together are refused


class JaxRuntime(Runtime):
    """JAX's default device.

    `synchronize` waits for every array that is alive and for ordered effects; a computation whose results have all been
    dropped is not waited for. On the processor, where JAX counts nothing, `in_use` is the sum of all living arrays.
    `empty_cache` drops the compiled functions, which JAX compiles again when they are next called: memory for arrays is
    kept by the platform, which has no way to give it back.
    """

    before_use = True  # the platform, and how much of its memory to take, are settled by the first computation

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
                if not array.is_deleted():  # donated or deleted meanwhile: then there is nothing to wait for
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
            *_platform_changes(jax, config, "tpu" if self.name == "tpu" else None),
            _option(jax, "jax_default_matmul_precision", config.precision),
            *_cache_changes(jax, config),
        )

    def _bytes_in_use(self, jax: Any) -> int | None:
        found: int | None = (self._device(jax).memory_stats() or {}).get("bytes_in_use")
        return found

    def _device(self, jax: Any) -> Any:
        return jax.devices("tpu")[0] if self.name == "tpu" else jax.devices()[0]


def _has_started() -> bool:
    """Tell whether JAX has chosen its platform; JAX says so nowhere in public."""
    try:
        from jax._src import xla_bridge

        return bool(xla_bridge.backends_are_initialized())
    except (ImportError, AttributeError):
        return True  # then nothing is set that would have had to come before


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
                f"platform {wanted!r} comes too late, JAX already computes on {jax.default_backend()!r}: configure it "
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
            f"memory_fraction bounds the memory that JAX takes of a GPU, and {named}; on a GPU say platform='cuda' too"
        )
    if _has_started() and os.environ.get(_FRACTION) != share:
        raise ConfigurationError("memory_fraction comes too late, JAX has already taken its memory")


def _started_as(platform: str) -> str:
    return _STARTED_AS.get(platform.lower(), platform.lower())


def _runs_on(jax: Any, platform: str) -> bool:
    """Start JAX, and tell whether it computes there."""
    try:
        return bool(jax.default_backend() == _started_as(platform))
    except Exception as error:
        said = f": {describe_error(error)}" if str(error).strip() else ""  # a missing plug-in fails without a word
        raise ConfigurationError(f"JAX has no platform {platform!r} here{said}{_known_platforms()}") from error


def _known_platforms() -> str:
    """Return which platforms this installation of JAX has code for; JAX says so nowhere in public."""
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
                "compilation_cache_bytes bounds a cache on disk, and there is none: give compilation_cache_dir too"
            )
        if importlib.util.find_spec("filelock") is None:
            raise ConfigurationError("JAX bounds its cache with the package filelock only: pip install filelock")
    # A cache that is in use keeps its folder and its bound until it is reset.
    return [
        _option(jax, "jax_compilation_cache_dir", folder, reset_cache),
        _option(jax, "jax_compilation_cache_max_size", config.compilation_cache_bytes, reset_cache),
    ]


def _usable_folder(wanted: str | os.PathLike[str]) -> str:
    text = os.fspath(wanted)
    if "://" in text:
        return text  # a store elsewhere, which JAX reaches in its own way
    path = Path(text).expanduser().absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"compilation_cache_dir {str(path)!r} cannot be written: {str(existing)!r} is in the way"
        )
    return str(path)
