"""Pallas kernels for TPUs: what XLA does not fuse into one pass over the rows.

They are compiled for TPUs and tested in Pallas' TPU interpreter; they have not yet run on a TPU.
"""

from __future__ import annotations

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
        "softmax",
        "log_softmax",
        "logsumexp",
        "rope",
        "cross_entropy",
        "scaled_dot_product_attention",
    ),
)
