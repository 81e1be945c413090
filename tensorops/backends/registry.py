"""The table of backends: what a user names in `set_backend` and in the configuration.

A backend is a namespace, a device of it, and the order of its providers of kernels. Rows of other distributions
come in through the entry points ``tensorops.backends``, once somebody asks for a name that is not among the rows
below, wants to see all of them, or brings an array of a library that none of them knows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tensorops import kernels
from tensorops._display import printable, shortened
from tensorops._namespaces import NAMESPACES, Namespace, register_namespace

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "tensorops.backends"


class BackendUnavailableError(RuntimeError):
    """A backend was asked for by name and cannot compute here; the message says why and what mends it."""


@dataclass(frozen=True, eq=False)
class Backend:
    """What a backend's name stands for.

    Parameters
    ----------
    name : str
        The name that users write.
    namespace : Namespace
        The array library it computes with.
    summary : str
        One line for people.
    aliases : tuple of str
        Other names for it.
    providers : tuple of str
        The providers whose kernels it uses, best first; the generic body comes last.
    kernel_packages : mapping of str to str
        For providers that are not tensorops' own, the package whose import registers their kernels.
    missing : str
        Why it cannot compute in this version at all, if so.
    remedy : str
        The command or step that makes it available where the library is installed and yet cannot compute.
    tested : str
        Where its authors run the conformance tests; an empty string says that nobody has.
    needs : str
        The kind of accelerator that the machine must have, as in `Accelerator.kind`; empty if any machine will do.
    isolated : bool
        Try it in a process of its own first, as its driver may hang or crash.
    """

    name: str
    namespace: Namespace
    summary: str
    aliases: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    kernel_packages: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    remedy: str = ""
    tested: str = ""
    needs: str = ""
    isolated: bool = True


_ON_EVERY_CHANGE = "x86-64 Linux, on every change"
_COMPILER = (
    "install a C++ compiler (Debian: apt-get install g++), and then tensorops again, from where it was installed, with "
    "pip's option --force-reinstall"
)


def _planned(name: str, namespace: str, summary: str, missing: str, remedy: str, *aliases: str) -> Backend:
    return Backend(name, NAMESPACES[namespace], summary, aliases=aliases, missing=missing, remedy=remedy)


BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(
            "cuda",
            NAMESPACES["cupy"],
            "CuPy on an NVIDIA GPU, generic bodies",
            aliases=("nvidia",),
            needs="cuda",
            remedy="install NVIDIA's driver, so that nvidia-smi lists a GPU, and the CuPy of its CUDA version: "
            "pip install 'tensorops[cuda]'",
        ),
        Backend(
            "cpu",
            NAMESPACES["numpy"],
            "NumPy with compiled kernels",
            aliases=("cpp", "openmp", "xeon"),
            providers=("cpu",),
            remedy=_COMPILER,
            tested=_ON_EVERY_CHANGE,
            isolated=False,
        ),
        Backend(
            "jax",
            NAMESPACES["jax"],
            "JAX on its default device",
            providers=("xla",),
            remedy="pip install --upgrade 'tensorops[jax]'",
            tested=_ON_EVERY_CHANGE,
        ),
        Backend(
            "mlx",
            NAMESPACES["mlx"],
            "MLX on its default device",
            aliases=("mps",),
            providers=("mlx",),
            remedy="pip install --upgrade 'tensorops[mlx]'",
            tested=_ON_EVERY_CHANGE,
        ),
        Backend(
            "torch",
            NAMESPACES["torch"],
            "PyTorch tensors",
            providers=("torch_cpu",),
            remedy="pip install --upgrade 'tensorops[torch]'",
            tested=_ON_EVERY_CHANGE,
        ),
        Backend(
            "opencl",
            NAMESPACES["pyopencl"],
            "PyOpenCL arrays",
            remedy="install the OpenCL driver of your device; one for CPUs: pip install pocl-binary-distribution",
            tested=_ON_EVERY_CHANGE,
        ),
        Backend(
            "dask",  # importing it imports CuPy as well, where that is installed
            NAMESPACES["dask"],
            "Dask arrays: chunked, lazy, larger than memory",
            providers=("dask",),
            remedy="pip install --upgrade 'tensorops[dask]'",
            tested=_ON_EVERY_CHANGE,
        ),
        Backend(
            "numpy",
            NAMESPACES["numpy"],
            "NumPy with generic bodies only",
            aliases=("python",),
            tested=_ON_EVERY_CHANGE,
            isolated=False,
        ),
        Backend(
            "array_api_strict",
            NAMESPACES["array_api_strict"],
            "the standard at its strictest, for tests",
            remedy="pip install --upgrade 'tensorops[test]'",
            tested=_ON_EVERY_CHANGE,
            isolated=False,
        ),
        _planned(
            "tpu",
            "jax",
            "JAX with Pallas kernels on a TPU",
            "its Pallas kernels are not written yet",
            "use 'jax', which computes on a TPU with generic bodies: pip install 'jax[tpu]'",
        ),
        _planned(
            "onednn",
            "numpy",
            "oneDNN for linear maps on NumPy arrays",
            "its kernels are not written yet",
            "use 'cpu'",
            "mkldnn",
        ),
        _planned("mkl", "numpy", "MKL for linear maps on NumPy arrays", "its kernels are not written yet", "use 'cpu'"),
        _planned("cudnn", "cupy", "cuDNN's attention on CuPy", "its kernels are not written yet", "use 'cuda'"),
        _planned("triton", "torch", "Triton kernels on torch", "its kernels are not written yet", "use 'torch'"),
        _planned("cusparselt", "cupy", "2:4 sparse linear maps", "its kernels are not written yet", "use 'cuda'"),
        _planned(
            "opt_einsum",
            "numpy",
            "einsum along an optimized path",
            "tensorops.einsum is not written yet",
            "use opt_einsum itself: pip install opt_einsum",
        ),
        _planned(
            "mha",
            "numpy",
            "multi-head attention",
            "multi_head_attention is not written yet",
            "call tensorops.scaled_dot_product_attention on any backend",
        ),
        _planned(
            "nki",
            "jax",
            "AWS Neuron through JAX",
            "its kernels are not written yet, and no such hardware was within reach",
            "use 'jax' with AWS's own plug-in",
        ),
        _planned(
            "nnpack",
            "numpy",
            "NNPACK",
            "NNPACK is retired: its authors archived it, and nothing replaces it here",
            "use 'cpu'",
        ),
    )
}
"""Every backend by name, those of plug-ins included once they were asked for; see `all_backends`."""

_by_any_name = {name: b for b in BACKENDS.values() for name in (b.name, *b.aliases)}
_lock = threading.RLock()
_plugins_loaded = _plugins_loading = False

plugins: dict[str, str] = {}
"""The rows that other distributions brought, or tried to bring, and the name of each one's distribution."""
plugin_failures: dict[str, str] = {}
"""Why a row of `plugins` is not what its distribution meant."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # a lock that another thread held in the parent would never be released
    os.register_at_fork(after_in_child=_renew_lock)


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return `` (did you mean 'numpy'?)`` if one of the valid names is near, else an empty string."""
    import difflib  # only for who has made a mistake

    by_lower = {v.lower(): v for v in valid}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1) if isinstance(name, str) else []
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def resolve(name: object) -> Backend:
    """Return the backend called `name`, by its name or an alias.

    Raises
    ------
    ValueError
        If there is none: the valid names are listed, and the nearest is suggested.
    """
    backend = _by_any_name.get(name) if isinstance(name, str) else None
    if backend is None:
        load_plugins()
        backend = _by_any_name.get(name) if isinstance(name, str) else None
    if backend is None:
        raise ValueError(
            f"unknown backend {shortened(repr(name))}{nearest(name, _by_any_name)}; "
            f"valid names: {', '.join(_by_any_name)}"
        )
    return backend


def all_backends() -> dict[str, Backend]:
    """Return every backend by name, plug-ins included."""
    load_plugins()
    return dict(BACKENDS)


def register_backend(backend: Backend) -> None:
    """Add a backend of one's own to the table.

    A distribution that brings one names it in the group ``tensorops.backends`` of its entry points instead, and
    nobody has to call anything.

    Parameters
    ----------
    backend : tensorops.backends.Backend
        Its namespace, if that is new, becomes known as well, and so do its providers of kernels.

    Raises
    ------
    TypeError
        If it is not a `Backend`.
    ValueError
        If one of its names, its namespace or a provider is already taken, or a provider has no package.

    Examples
    --------
    >>> import tensorops
    >>> from tensorops.backends import NAMESPACES, Backend
    >>> tensorops.register_backend(Backend("python", NAMESPACES["numpy"], "NumPy once more"))
    Traceback (most recent call last):
        ...
    ValueError: register_backend: the name 'python' already means the backend 'numpy'
    """
    lists = [getattr(backend, name, None) for name in ("aliases", "providers")]
    if not isinstance(getattr(backend, "namespace", None), Namespace) or any(isinstance(names, str) for names in lists):
        raise TypeError(
            f"register_backend: expected a tensorops.backends.Backend with a Namespace, and tuples of "
            f"names, got {backend!r}"
        )
    with _lock:
        names = (backend.name, *backend.aliases)
        for name in names:
            if not isinstance(name, str) or not name.isidentifier() or name == "auto":
                raise ValueError(
                    f"register_backend: {name!r} cannot be a backend's name: it is 'auto', or no Python identifier"
                )
            if (taken := _by_any_name.get(name)) is not None and taken is not backend:
                raise ValueError(f"register_backend: the name {name!r} already means the backend {taken.name!r}")
        for provider in (*backend.providers, *backend.namespace.providers):
            if provider not in kernels.PROVIDERS and provider not in backend.kernel_packages:
                raise ValueError(
                    f"register_backend: {backend.name!r} names the provider {provider!r}, but kernel_packages does not "
                    f"say which package registers its kernels"
                )
        kernels.require_new_providers(backend.kernel_packages)
        register_namespace(backend.namespace)
        kernels.PROVIDERS.update(backend.kernel_packages)
        BACKENDS[backend.name] = backend
        _by_any_name.update(dict.fromkeys(names, backend))


def load_plugins() -> None:
    """Register the backends of other distributions, once; one that fails becomes a row that says why.

    What this program has not imported is loaded in a process of its own first: it might never end.
    """
    if not _plugins_loaded:
        from tensorops.backends.probing import refuse_hanging_plugin

        with _lock:
            _load_plugins_once(_entry_points(), refuse_hanging_plugin)


def load_plugins_of(owner: str) -> None:
    """Register the backends of one distribution (``""`` for none) and no other's; in a process that tries one."""
    with _lock:
        _load_plugins_once((found for found in _entry_points() if found[0] == owner), lambda point: None)


def _load_plugins_once(found: Iterable[tuple[str, EntryPoint]], refuse: Callable[[EntryPoint], None]) -> None:
    global _plugins_loaded, _plugins_loading
    if _plugins_loaded or _plugins_loading:  # an entry point's module may itself ask for a backend
        return
    _plugins_loading = True
    try:
        for owner, point in found:
            try:
                refuse(point)
                backend = load_entry_point(point)
                register_backend(backend)
                plugins[backend.name] = owner
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # another author's code may raise anything
                _register_failure(point.name, owner, error)
        _plugins_loaded = True
    finally:
        _plugins_loading = False


def load_entry_point(point: EntryPoint) -> Backend:
    """Return the backend that an entry point names, or that the function does which it names."""
    found = point.load()
    if isinstance(found, Backend):
        return found
    if not callable(found):
        raise TypeError(f"the entry point is not a Backend, nor a function that returns one: {found!r}")
    return found()  # type: ignore[no-any-return]  # registering checks it


def _entry_points() -> Iterator[tuple[str, EntryPoint]]:
    """Return the entry points of this group and the distribution of each; broken ones of others are passed over."""
    from importlib.metadata import distributions

    seen = set()
    for distribution in distributions():
        try:
            if ENTRY_POINTS not in (distribution.read_text("entry_points.txt") or ""):
                continue
            owner = distribution.metadata["Name"]
            points = [point for point in distribution.entry_points if point.group == ENTRY_POINTS]
        except Exception:  # noqa: S112 - what cannot be read as a distribution is none
            continue
        if owner not in seen:  # the first on the path is the one that is imported
            seen.add(owner)
            yield from ((owner, point) for point in points)


def _register_failure(name: str, owner: str, error: BaseException) -> None:
    owner, name = printable(owner), printable(name)
    reason = f"the plug-in of {owner} failed to load: {describe_error(error)}"
    row = name if name not in _by_any_name else f"{name}@{owner}"
    nowhere = Namespace.unusable(row, reason)
    backend = Backend(row, nowhere, f"a plug-in of {owner}", missing=reason, remedy=f"pip install --upgrade {owner}")
    BACKENDS[row] = _by_any_name[row] = backend
    plugins[row], plugin_failures[row] = owner, reason


def describe_error(error: BaseException) -> str:
    """Return an exception as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {printable(lines[0]) if lines else 'no message'}"
