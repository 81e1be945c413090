"""Attention of torch tensors in host memory; see ``tensorops/kernels/cpu/attention.py``."""

from tensorops.kernels.torch_cpu._launch import register
from tensorops.ops.attention import scaled_dot_product_attention

register(scaled_dot_product_attention)
