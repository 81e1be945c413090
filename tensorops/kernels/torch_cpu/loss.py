"""Losses of torch tensors in host memory; see ``tensorops/kernels/cpu/loss.py``."""

from tensorops.kernels.torch_cpu._launch import register
from tensorops.ops.loss import cross_entropy

register(cross_entropy)
