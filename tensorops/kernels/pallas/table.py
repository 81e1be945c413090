"""Operators as Pallas kernels.

Elementwise operators and products are not among them: there, XLA itself reads and writes each array once.
"""

from __future__ import annotations

from tensorops.kernels.pallas._launch import register
from tensorops.kernels.pallas.planners import PLANNERS
from tensorops.ops import activation, attention, linear, loss, normalization, positional, quantization, selection

for _operator in (
    normalization.rms_norm,
    normalization.add_rms_norm,
    normalization.layer_norm,
    normalization.l2_norm,
    activation.softmax,
    activation.log_softmax,
    activation.logsumexp,
    positional.rope,
    quantization.quantized_linear,
    linear.embedding,
    selection.top_k,
):
    register(_operator, PLANNERS[_operator.__name__], lambda declared: declared.sharing)
# A mapped axis would have to be added to the class numbers as well.
register(loss.cross_entropy, PLANNERS["cross_entropy"], lambda _: 0)
for _batched in (normalization.group_norm, normalization.instance_norm, attention.scaled_dot_product_attention):
    register(_batched, PLANNERS[_batched.__name__], lambda declared: declared.sharing, batched=True)
register(loss.linear_cross_entropy, PLANNERS["linear_cross_entropy"], lambda _: 0)
