"""The tiny computation that tries a backend."""

from __future__ import annotations

from typing import Any

from tensorops import _providers
from tensorops._operator import OPERATORS, Operator
from tensorops.backends.settings import Settings, activate
from tensorops.libraries import Backend
from tensorops.ops.normalization import rms_norm

# Names of operators, with arguments and results; the first that the required provider has a kernel for is computed.
_TRIALS: tuple[tuple[str, str, tuple[Any, ...], list[list[float]]], ...] = (
    (rms_norm.__name__, "of (3, 4)", ([[3.0, 4.0]],), [[3.0 / 12.5**0.5, 4.0 / 12.5**0.5]]),
    ("linear", "of (3, 4) and (1, 2)", ([[3.0, 4.0]], [[1.0, 2.0]]), [[11.0]]),
)


def trial(backend: Backend) -> tuple[Operator[..., Any], str, tuple[Any, ...], list[list[float]]]:
    """Return an operator that shows whether a backend computes, what it is of, its arguments and the result."""
    if backend.requires and not _providers.load(backend.requires):
        for name, of_what, values, expected in _TRIALS:
            if OPERATORS[name].kernel_of(backend.requires) is not None:
                return OPERATORS[name], of_what, values, expected
    _, of_what, values, expected = _TRIALS[0]
    return rms_norm, of_what, values, expected


def wrong_result(backend: Backend) -> str:
    """Return what is wrong with a result that a backend computed, or an empty string."""
    import numpy as np

    operator, of_what, values, expected = trial(backend)
    with activate(Settings(backend=backend)), backend.library.reading():
        arrays = [backend.library.from_numpy(np.asarray(value, dtype=np.float32), None) for value in values]
        chosen = operator.explain(*arrays)
        y = backend.library.to_numpy(operator(*arrays))
    if not np.allclose(y, np.asarray(expected), rtol=1e-5):
        return f"{operator.__name__} {of_what} came back as {np.asarray(y).tolist()}"
    if backend.requires and chosen.kernel != backend.requires:
        return chosen.refused[backend.requires]
    return ""
