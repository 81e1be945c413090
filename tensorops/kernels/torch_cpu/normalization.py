"""Normalization of torch tensors in host memory; see ``tensorops/kernels/cpu/normalization.py``."""

from tensorops.kernels.torch_cpu._launch import register
from tensorops.ops.normalization import add_rms_norm, layer_norm, rms_norm

for operator in (rms_norm, add_rms_norm, layer_norm):
    register(operator)
