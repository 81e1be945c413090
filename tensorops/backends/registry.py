"""The table of backends: what a user names in `set_backend` and in ``TENSOROPS_BACKEND``.

A backend is a namespace, a device of it, and the order of its providers of kernels. It is *available* when a
tiny computation on it came back right; a package that merely imports proves nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from tensorops._namespaces import NAMESPACES, Namespace


class BackendUnavailableError(RuntimeError):
    """A backend was asked for by name and cannot compute here; the message says why."""


@dataclass(frozen=True)
class Backend:
    """What a backend's name stands for.

    Parameters
    ----------
    name, aliases
        The names users may write.
    namespace_name
        The row of the table of namespaces whose arrays it computes with.
    providers
        The providers whose kernels it uses, best first; the generic body comes last.
    summary
        One line for people.
    """

    name: str
    namespace_name: str
    summary: str
    aliases: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()

    @property
    def namespace(self) -> Namespace:
        """The row of the namespace it computes with."""
        return NAMESPACES[self.namespace_name]


# Best first: the order of `get_available_backends`.
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("cuda", "cupy", "CuPy on an NVIDIA GPU", aliases=("nvidia",)),
        Backend(
            "cpu",
            "numpy",
            "NumPy with compiled kernels",
            aliases=("cpp", "openmp", "xeon"),
            providers=("cpu",),
        ),
        Backend("jax", "jax", "JAX on its default device"),
        Backend("mlx", "mlx", "MLX on its default device", aliases=("mps",), providers=("mlx",)),
        Backend("torch", "torch", "PyTorch tensors"),
        Backend("opencl", "pyopencl", "PyOpenCL arrays"),
        Backend("dask", "dask", "Dask arrays: chunked, lazy, larger than memory"),
        Backend("numpy", "numpy", "NumPy with generic bodies only", aliases=("python",)),
        Backend("array_api_strict", "array_api_strict", "the standard at its strictest, for tests"),
    )
}
_BY_ANY_NAME = {name: b for b in BACKENDS.values() for name in (b.name, *b.aliases)}


def resolve(name: object) -> Backend:
    """Return the backend called `name`, by its name or an alias.

    Raises
    ------
    ValueError
        If there is none: the valid names are listed, and the nearest is suggested.
    """
    backend = _BY_ANY_NAME.get(name) if isinstance(name, str) else None
    if backend is None:
        close = difflib.get_close_matches(str(name), _BY_ANY_NAME, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"unknown backend {name!r}{hint}; valid names: {', '.join(_BY_ANY_NAME)}")
    return backend


_reasons: dict[str, str] = {}


def unavailable_reason(backend: Backend, *, refresh: bool = False) -> str:
    """Return why a backend cannot compute here, or an empty string if it can; probed once and kept."""
    if refresh or backend.name not in _reasons:
        _reasons[backend.name] = _probe(backend)
    return _reasons[backend.name]


def first_available(backends: Iterable[Backend]) -> Backend:
    """Return the first backend that can compute here.

    Raises
    ------
    BackendUnavailableError
        If none can: each one's reason is named.
    """
    reasons = []
    for backend in backends:
        reason = unavailable_reason(backend)
        if not reason:
            return backend
        reasons.append(f"backend {backend.name!r} is not available: {reason}")
    raise BackendUnavailableError("; ".join(reasons))


def _probe(backend: Backend) -> str:
    """Compute something tiny on a backend and look at the result."""
    namespace = backend.namespace
    if namespace.missing:
        return namespace.missing
    if not namespace.is_installed():
        return f"{namespace.packages[0]} is not installed; pip install 'tensorops[{namespace.extra}]'"
    try:
        return _compute_and_compare(backend)
    except Exception as error:  # a broken installation may raise anything at all: it becomes the reason
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else 'no message'}"


def _compute_and_compare(backend: Backend) -> str:
    import numpy as np

    from tensorops.backends import settings
    from tensorops.ops.normalization import rms_norm

    with settings.activate(settings.Settings(backend=backend)):
        x = backend.namespace.from_numpy(np.asarray([[3.0, 4.0]], dtype=np.float32), None)
        chosen = rms_norm.explain(x)
        y = backend.namespace.to_numpy(rms_norm(x))
    if not np.allclose(y, np.asarray([[3.0, 4.0]]) / np.sqrt(12.5), rtol=1e-5):
        return f"rms_norm of (3, 4) came back as {y.tolist()}"
    if backend.name == "cpu" and chosen.kernel != "cpu":
        return chosen.refused["cpu"]
    return ""
