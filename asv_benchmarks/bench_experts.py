"""Operators of experts; and mixture of experts compared with the products of its experts' rows, one after another."""

import numpy as np

from asv_benchmarks.harness import DTYPES, Benchmark, family, implementations, normal, speed_in_turns
from tensorops import linear, moe, quantize, quantized_linear
from tensorops.testing._stored_blocks import FORMATS, random_blocks

OPERATORS = family("experts")
FORMAT = {"bits": 4, "group_size": 32}
# experts, experts of a token, features, hidden: between Mixtral and Phi-3.5-MoE in kind, and OLMoE
LAYERS = {"8 top 2": (8, 2, 2048, 4096), "64 top 8": (64, 8, 2048, 1024)}
WEIGHTS = ["float32", "bfloat16", "4 bits", "q4_k", "mxfp4"]
PREFIXES = ("gate_up", "down")


def stacks(experts, features, hidden, weights):
    """Return the arrays of both projections by name; all experts have the same numbers, each in memory of its own."""
    arrays = {}
    for prefix, (outputs, inputs) in zip(PREFIXES, ((2 * hidden, features), (features, hidden)), strict=True):
        if weights in FORMATS:
            part = random_blocks(np.random.default_rng(0), weights, outputs, inputs)
            arrays[f"{prefix}_proj"] = np.stack([part] * experts)
            continue
        matrix = normal(outputs, inputs) * np.float32(inputs**-0.5)
        parts = quantize(matrix, **FORMAT) if weights == "4 bits" else [matrix.astype(normal(1, dtype=weights).dtype)]
        for what, part in zip(("proj", "scales", "biases"), parts, strict=False):
            arrays[f"{prefix}_{what}"] = np.stack([part] * experts)
    return arrays


def calls_of(layer, tokens, weights):
    """Return a call of a whole layer, and one of `linear` or `quantized_linear` for the rows of each of its experts."""
    experts, top_k, features, hidden = LAYERS[layer]
    arrays = stacks(experts, features, hidden, weights)
    x = normal(tokens, features, dtype=weights if weights in DTYPES else "float32")
    logits = normal(tokens, experts)
    formats = {"gate_up_format": weights, "down_format": weights} if weights in FORMATS else {}
    options = {"format": weights} if weights in FORMATS else {}
    return {
        "moe": lambda: moe(x, logits, **arrays, **formats, top_k=top_k),
        "linears": products(x, np.argsort(-logits, axis=-1)[:, :top_k], arrays, hidden, options),
    }


def products(x, chosen, arrays, hidden, options):
    """Return a function that multiplies each expert's rows, already collected, by its two matrices."""
    calls = []
    for e in np.unique(chosen):
        rows = np.ascontiguousarray(x[(chosen == e).any(axis=1)])
        for prefix, a in zip(PREFIXES, (rows, normal(len(rows), hidden).astype(x.dtype)), strict=True):
            parts = [arrays[name][e] for name in arrays if name.startswith(prefix)]
            calls.append((quantized_linear if options or len(parts) > 1 else linear, a, *parts))

    def call():
        for product, *args in calls:
            product(*args, **options)

    return call


class ExpertOperators(Benchmark):
    """The rows of a shape are the tokens, each of which has experts of its own."""

    params = (OPERATORS, implementations(OPERATORS), [(1, 1024), (16, 1024), (128, 1024)], DTYPES)
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        self.prepare_workload(operator, implementation, shape, dtype)

    def time_expert_operators(self, operator, implementation, shape, dtype):
        self.call()


class Experts(Benchmark):
    """A whole layer, and `linear` or `quantized_linear` on the rows of each of its experts."""

    params = (list(LAYERS), [1, 4, 512], WEIGHTS, ["moe", "linears"])
    param_names = ("layer", "tokens", "weights", "what")

    def setup(self, layer, tokens, weights, what):
        self.call = calls_of(layer, tokens, weights)[what]
        self.call()

    def time_experts(self, layer, tokens, weights, what):
        self.call()


class ExpertsInTurns(Benchmark):
    """The speed of a layer as a multiple of that of its linears, by alternating calls."""

    params = (list(LAYERS), [1, 4, 64], WEIGHTS)
    param_names = ("layer", "tokens", "weights")
    unit = "times the speed of the linears"

    def setup(self, layer, tokens, weights):
        self.calls = calls_of(layer, tokens, weights)

    def track_speed(self, layer, tokens, weights):
        return speed_in_turns(*self.calls.values())
