"""Positional encodings of torch tensors in host memory; see ``tensorops/kernels/cpu/positional.py``."""

from tensorops.kernels.torch_cpu._launch import register
from tensorops.ops.positional import rope

register(rope)
