"""Which instructions compiled kernels use: what a plan, or who prepares weights for one, may depend on."""

from __future__ import annotations

__all__ = ["has_vnni"]


def has_vnni(backend: str) -> bool:
    """Return whether a backend's kernels multiply integers of 8 bits by AVX-512 VNNI.

    Parameters
    ----------
    backend : str
        The name of an available backend.

    Returns
    -------
    bool
        False for all but ``cpu``.
    """
    if backend != "cpu":
        return False
    from tensorops.kernels.cpu import _native

    return _native.target() in ("v4_vnni", "v4_bf16")
