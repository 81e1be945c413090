"""The tiny computation that tries a backend."""

from __future__ import annotations

from tensorops.backends.settings import Settings, activate
from tensorops.libraries import Backend
from tensorops.ops.normalization import rms_norm


def wrong_result(backend: Backend) -> str:
    """Return what is wrong with a result that a backend computed, or an empty string."""
    import numpy as np

    with activate(Settings(backend=backend)):
        x = backend.library.from_numpy(np.asarray([[3.0, 4.0]], dtype=np.float32), None)
        chosen = rms_norm.explain(x)
        y = backend.library.to_numpy(rms_norm(x))
    if not np.allclose(y, np.asarray([[3.0, 4.0]]) / np.sqrt(12.5), rtol=1e-5):
        return f"rms_norm of (3, 4) came back as {np.asarray(y).tolist()}"
    if backend.requires and chosen.kernel != backend.requires:
        return chosen.refused[backend.requires]
    return ""
