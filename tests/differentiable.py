"""Small arguments of every operator, to differentiate and transform calls of them."""

import numpy as np

from tensorops._operator import OPERATORS
from tensorops.testing import CASES, REFERENCES
from tensorops.testing._stored_blocks import random_blocks

rng = np.random.default_rng(11)


def normal(*shape, scale=1.0):
    return scale * rng.standard_normal(shape)


def attention(queries=3, keys=4, heads=4, kv_heads=2):
    return normal(1, heads, queries, 3), normal(1, kv_heads, keys, 3), normal(1, kv_heads, keys, 2)


def heads(tokens, key_heads=1, heads=2):
    """Return what `gated_delta_rule` takes; the lengths of keys are about 1."""
    q, k, v = normal(1, key_heads, tokens, 3), normal(1, key_heads, tokens, 3, scale=0.5), normal(1, heads, tokens, 2)
    return q, k, v, -rng.random((1, heads, tokens)), rng.random((1, heads, tokens))


# A row that may attend to nothing is among them.
MASK = np.asarray([[True, False, True, True], [False, False, False, False], [True, True, False, True]])
PACKED, SCALES, BIASES = REFERENCES["quantize"](normal(3, 8), bits=4, group_size=4)

BLOCKS = [random_blocks(np.random.default_rng(12), "q8_0", 1, 1, 4, n) for n in (32, 64)]

# Small arguments by name of the operator, a dash and a remark. Floating arrays are differentiated, all of them.
DIFFERENTIABLE = {
    "rms_norm": ((normal(2, 5), normal(5)), {}),
    "rms_norm-axis": ((normal(3, 2), normal(3)), {"axis": 0, "weight_offset": 1.0, "eps": 1e-2}),
    "rms_norm-large": ((1e4 * normal(2, 5), None), {}),
    "add_rms_norm": ((normal(2, 4), normal(2, 4), normal(4)), {}),
    "layer_norm": ((normal(2, 5), normal(5), normal(5)), {}),
    "add_layer_norm": ((normal(2, 4), normal(2, 4), normal(4), normal(4)), {}),
    "linear_activation": ((normal(2, 4), normal(3, 4), normal(3)), {"activation": "gelu"}),
    "layer_norm-axes": ((normal(2, 3, 2), normal(2, 2), normal(2, 2)), {"axis": (0, 2)}),
    "group_norm": ((normal(2, 4, 3), 2, normal(4), normal(4)), {}),
    "group_norm-channels_last": ((normal(2, 3, 4), 2, normal(4), normal(4)), {"channel_axis": -1, "eps": 1e-2}),
    "instance_norm": ((normal(2, 3, 4), normal(3), normal(3)), {}),
    "l2_norm": ((normal(2, 5),), {}),
    "l2_norm-axes": ((normal(2, 3, 2),), {"axis": (0, 2)}),
    "l2_norm-below_eps": ((1e-2 * normal(2, 3),), {"eps": 0.5}),
    "gelu-tanh": ((normal(9, scale=3),), {"approximate": "tanh"}),
    "hard_sigmoid": ((normal(9, scale=3),), {}),  # the cases have a number at a kink
    "hard_swish": ((normal(9, scale=3),), {}),
    "softmax": ((normal(2, 5),), {}),
    "softmax-where": ((normal(3, 4),), {"where": MASK}),
    "log_softmax": ((normal(2, 5),), {}),
    "logsumexp": ((normal(2, 5),), {"axis": 0}),
    "rope": ((normal(1, 2, 3, 6), np.arange(3)), {}),
    "rope-freqs": ((normal(1, 2, 3, 6), np.arange(3)), {"freqs": normal(2), "dims": 4, "interleaved": True}),
    "rope-tables": (
        (normal(2, 2, 3, 6), np.asarray([[4, 0, 4], [1, 2, 3]])),
        {"cos": normal(5, 2), "sin": normal(5, 2), "dims": 4, "attention_factor": 1.5},
    ),
    "rope-gathered": ((normal(2, 2, 3, 4),), {"cos": normal(2, 3, 2), "sin": normal(2, 3, 2), "interleaved": True}),
    "scaled_dot_product_attention": (attention(), {}),
    "scaled_dot_product_attention-causal": (
        attention(4, 3),
        {"is_causal": True, "window": 2, "softcap": 2.0, "sinks": normal(4)},
    ),
    "scaled_dot_product_attention-mask": (attention(), {"mask": MASK}),
    "scaled_dot_product_attention-bias": (attention(), {"mask": normal(4, 3, 4)}),
    "scaled_dot_product_attention-lengths": (
        (normal(2, 2, 3, 3), normal(2, 1, 6, 3), normal(2, 1, 6, 2)),
        {"is_causal": True, "window": (2, None), "lengths": np.asarray([6, 2])},
    ),
    "scaled_dot_product_attention-pages": (
        (normal(2, 2, 3, 3), normal(5, 1, 2, 3), normal(5, 1, 2, 2)),
        {"sinks": normal(2), "lengths": np.asarray([3, 5]), "page_table": np.asarray([[4, 1, -1], [0, 2, 3]])},
    ),
    "scaled_dot_product_attention-blocks": (  # no gradient flows to them
        (normal(1, 2, 3, 32), *BLOCKS),
        {"is_causal": True, "sinks": normal(2), "kv_format": "q8_0"},
    ),
    "multi_head_attention": (
        (normal(1, 3, 4),),
        {
            "num_heads": 2,
            "kv_num_heads": 1,
            "is_causal": True,
            "rope_base": 10.0,
            "q_proj_weight": normal(4, 4),
            "k_proj_weight": normal(2, 4),
            "v_proj_weight": normal(2, 4),
            "out_proj_weight": normal(3, 4),
            "out_proj_bias": normal(3),
            "q_norm_weight": normal(2),
            "past_key": normal(1, 1, 2, 2),
            "past_value": normal(1, 1, 2, 2),
        },
    ),
    "multi_head_attention-lengths": (
        (normal(2, 3, 4), normal(2, 5, 4)),
        {"num_heads": 2, "window": (1, 2), "lengths": np.asarray([5, 2]), "q_proj_weight": normal(4, 4)},
    ),
    "moe-sigmoid": (
        (normal(3, 4), 3.0 * normal(3, 5), normal(5, 6, 4), normal(5, 4, 3)),
        {"top_k": 2, "scoring_func": "sigmoid", "renormalize": False},
    ),
    "multi_head_attention-cross": (
        (normal(1, 2, 4), normal(1, 3, 6), normal(1, 3, 4)),
        {"num_heads": 2, "k_proj_weight": normal(4, 6), "k_proj_bias": normal(4), "mask": normal(2, 3)},
    ),
    "linear": ((normal(2, 3), normal(4, 3), normal(4)), {}),
    "causal_conv1d": ((normal(2, 3, 2), normal(2, 4), normal(2), normal(2, 3, 2)), {"activation": "silu"}),
    "causal_conv1d-without_state": ((normal(1, 4, 2), normal(2, 2)), {}),
    "gated_delta_rule": (heads(3), {"state": normal(1, 2, 3, 2)}),
    "gated_delta_rule-chunk": (heads(6, key_heads=2), {"state": normal(1, 2, 3, 2), "scale": 0.7}),
    "gated_delta_rule-without_beta": (heads(3)[:4], {"state": normal(1, 2, 3, 2)}),
    "gated_delta_rule-chunk_without_beta": (heads(6, key_heads=2)[:4], {}),
    "linear_cross_entropy-mean": ((normal(5, 3), normal(4, 3), np.asarray([2, 0, 3, -100, 1]), normal(4)), {}),
    "linear_cross_entropy-weighted": (
        (normal(5, 3), normal(4, 3), np.asarray([2, 0, 3, 1, 1]), None, np.asarray([0.5, 2.0, 1.0, 0.25])),
        {"label_smoothing": 0.2},
    ),
    "linear_cross_entropy-probabilities": (
        (normal(2, 3), normal(4, 3), np.asarray([[0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 0.0]]), normal(4)),
        {"reduction": "sum", "z_loss": 0.1},
    ),
    "embedding": ((np.asarray([[2, 0], [2, 1]]), normal(4, 3)), {}),
    "dequantize": ((PACKED, SCALES, BIASES), {"bits": 4, "group_size": 4}),
    "quantized_linear": ((normal(2, 8), PACKED, SCALES, BIASES), {"bits": 4, "group_size": 4}),
    "cross_entropy": ((normal(4, 5), np.asarray([1, -100, 4, 0])), {}),
    "cross_entropy-weight": (
        (normal(3, 5), np.asarray([1, 2, -100]), np.asarray([0.5, 2.0, 0.1, 1.0, 0.7])),
        {"label_smoothing": 0.1, "z_loss": 0.1},
    ),
    "cross_entropy-probabilities": (
        (normal(2, 3), np.asarray([[0.2, 0.5, 0.3], [0.0, 0.9, 0.1]]), np.asarray([0.5, 2.0, 0.1])),
        {"z_loss": 0.2, "label_smoothing": 0.1, "reduction": "sum"},
    ),
    "cross_entropy-smoothed": ((normal(3, 5), np.asarray([1, 2, -100])), {"label_smoothing": 0.2, "reduction": "sum"}),
}
NOT_DIFFERENTIABLE = {
    "quantize": ((normal(3, 8),), {"bits": 4, "group_size": 4}),
    "quantize-symmetric": ((normal(3, 8),), {"bits": 8, "group_size": 4, "mode": "symmetric"}),
    "sample": ((normal(4, 7),), {"rng": np.asarray([0.1, 0.5, 0.7, 0.95]), "top_k": 5, "top_p": 0.9}),
    "sample-greedy": ((normal(4, 7),), {"temperature": 0.0, "rng": np.zeros(4)}),
}
# The others by their smallest plain case in which an array has several elements.
for _name in [name for name in OPERATORS if name not in DIFFERENTIABLE | NOT_DIFFERENTIABLE]:
    _calls = [case.build() for case in CASES[_name] if not case.tags]
    _args, _options = min(_calls, key=lambda call: abs(max(map(np.size, call[0])) - 7))
    _results = REFERENCES[_name](*_args, **_options)
    _floating = all(y.dtype == np.float64 for y in (_results if isinstance(_results, tuple) else (_results,)))
    (DIFFERENTIABLE if _floating else NOT_DIFFERENTIABLE)[_name] = (_args, _options)
ALL = DIFFERENTIABLE | NOT_DIFFERENTIABLE


def is_floating(a):
    return isinstance(a, np.ndarray) and a.dtype == np.float64


def places_of(name, provided):
    """Return where a call has floating-point arguments of these names."""
    args, _ = DIFFERENTIABLE[name]
    names = OPERATORS[name.partition("-")[0]].parameters
    return [i for i, (n, a) in enumerate(zip(names, args, strict=False)) if n in provided and is_floating(a)]
