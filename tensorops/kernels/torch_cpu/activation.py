"""Activations of torch tensors in host memory; see ``tensorops/kernels/cpu/activation.py``."""

from tensorops.kernels.torch_cpu._launch import register
from tensorops.ops.activation import geglu, gelu, log_softmax, logsumexp, relu, sigmoid, silu, softmax, softplus, swiglu

for operator in (relu, sigmoid, silu, softplus, gelu, swiglu, geglu, softmax, log_softmax, logsumexp):
    register(operator)
