"""Activations on the CPU; see ``native/cpu/activation.cpp`` and ``softmax.cpp``."""

from __future__ import annotations

from tensorops.kernels.cpu import _native
from tensorops.ops.activation import geglu, gelu, log_softmax, logsumexp, relu, sigmoid, silu, softmax, softplus, swiglu

relu.kernel("cpu", supports=_native.relu_supports, declines=True)(_native.relu)
sigmoid.kernel("cpu", supports=_native.sigmoid_supports, declines=True)(_native.sigmoid)
silu.kernel("cpu", supports=_native.silu_supports, declines=True)(_native.silu)
softplus.kernel("cpu", supports=_native.softplus_supports, declines=True)(_native.softplus)
gelu.kernel("cpu", supports=_native.gelu_supports, declines=True)(_native.gelu)
swiglu.kernel("cpu", supports=_native.swiglu_supports, declines=True)(_native.swiglu)
geglu.kernel("cpu", supports=_native.geglu_supports, declines=True)(_native.geglu)
softmax.kernel("cpu", supports=_native.softmax_supports, declines=True)(_native.softmax)
log_softmax.kernel("cpu", supports=_native.log_softmax_supports, declines=True)(_native.log_softmax)
logsumexp.kernel("cpu", supports=_native.logsumexp_supports, declines=True)(_native.logsumexp)
