"""Pallas kernels for TPUs: what XLA does not fuse into one pass over the rows.

They are compiled for TPUs and tested in Pallas' TPU interpreter; they have not yet run on a TPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from tensorops._providers import Provider

PROVIDER = Provider(
    name="pallas",
    libraries=("jax",),
    kernels="tensorops.kernels.pallas.table",
    summary="Pallas kernels in programs that XLA compiles for TPUs; not yet run on a TPU",
    rank=1,  # asked after what computes on the CPU
    devices={"jax": "tpu"},
    operators=(
        "rms_norm",
        "add_rms_norm",
        "layer_norm",
        "l2_norm",
        "group_norm",
        "instance_norm",
        "softmax",
        "log_softmax",
        "logsumexp",
        "rope",
        "cross_entropy",
        "scaled_dot_product_attention",
        "quantized_linear",
        "linear_cross_entropy",
        "embedding",
        "top_k",
    ),
)


def compiling_for(generation: str) -> AbstractContextManager[None]:
    """Compile what is traced in a ``with`` block for TPUs of a generation, on a machine that need not have one.

    Kernels are then chosen as on such a TPU, with its blocks, and in gradients as well; `jax.export` alone finds only
    the kernels of calls, as it tells which platform it exports for after the program is traced. A function that
    `jax.jit` traced before keeps the kernels it was traced with.

    Parameters
    ----------
    generation : str
        ``"v4"``, ``"v5e"``, ``"v5p"``, ``"v6e"`` or ``"v7"``.

    Returns
    -------
    context manager
        Can be entered once.

    Raises
    ------
    ValueError
        If there is no such generation.
    """
    from tensorops.kernels.pallas._launch import compiling_for

    return compiling_for(generation)
