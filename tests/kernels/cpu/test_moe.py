"""A mixture of experts in one call of C++: every target, option, format and layout, chunks of tokens, and refusals."""

import itertools

import numpy as np
import pytest

import support
import tensorops as tp
from support import normal
from tensorops.testing import CASES, DTYPES, INVALID, REFERENCES, assert_matches, experts as references

_native = support.require_native()
SHORT = ("float16", "bfloat16", "float32")
FORMATS = {"float32": None, "bfloat16": None, "4": (4, "affine"), "8": (8, "affine"), "8 symmetric": (8, "symmetric")}
OPTIONS = {
    "scoring_func": ("softmax", "sigmoid"),
    "renormalize": (True, False),
    "activation": ("swiglu", "geglu"),
    "routed_scaling_factor": (1.0, 2.5),
}


def check(args, options, dtype="float32", tolerance=64.0):
    """Compare the kernel with the reference, and with what the operator returns."""
    assert _native.moe_supports(*args, **options) is None
    expected = REFERENCES["moe"](*args, **options)
    assert_matches(_native.moe(*args, **options), expected, dtype, tolerance=tolerance)
    assert tp.moe.explain(*args, **options).kernel == "cpu"
    assert_matches(tp.moe(*args, **options), expected, dtype, tolerance=tolerance)


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("case", CASES["moe"], ids=lambda case: case.name)
def test_every_case(case, dtype):
    args, options = case.build(dtype_name=dtype)
    if case.name == "no_tokens":
        assert _native.moe_supports(*args, **options) == "x or router_logits is empty"
        assert tp.moe(*args, **options).shape == args[0].shape
        return
    if case.name == "blocks":
        assert _native.moe_supports(*args, **options) == "the weights are blocks, whose products are composed"
        return
    check(args, options, dtype, case.tolerance_for(dtype))


def layer(rng, form, tokens, *, experts=5, features=64, hidden=32, shared=False):
    """Return a call with weights in a format, whose scores are far enough from each other."""

    def parts(number, outputs, columns, prefix):
        if FORMATS[form] is None:
            stack = normal(rng, number or 1, outputs, columns, dtype=form, scale=columns**-0.5)
            return {f"{prefix}_proj": stack if number else stack[0]}
        bits, mode = FORMATS[form]
        weight = rng.integers(0, 256, (number or 1, outputs, columns * bits // 8), dtype=np.uint8)
        scales = ((0.5 + rng.random((*weight.shape[:2], columns // 32))) * 8.0 ** -(bits / 4 + 1)).astype(np.float32)
        found = {"proj": weight, "scales": scales}
        if mode == "affine":
            found["biases"] = -scales * np.float32(2 ** (bits - 1))
        return {f"{prefix}_{name}": a if number else a[0] for name, a in found.items()}

    options = parts(experts, 2 * hidden, features, "gate_up") | parts(experts, features, hidden, "down")
    if shared:
        options |= parts(0, 2 * hidden, features, "shared_gate_up") | parts(0, features, hidden, "shared_down")
    args = (normal(rng, *tokens, features), references._logits(rng, *tokens, experts).astype(np.float32))
    options |= {"top_k": 2}
    if FORMATS[form] is not None:
        options |= {"bits": FORMATS[form][0], "group_size": 32}
    return (*args, options.pop("gate_up_proj"), options.pop("down_proj")), options


@pytest.mark.parametrize("form", FORMATS)
def test_every_option(target, form, rng):
    tolerance = 256.0 if FORMATS[form] else 64.0
    for i, values in enumerate(itertools.product(*OPTIONS.values())):
        args, options = layer(rng, form, (3,), shared=i % 2 == 0)
        if i % 4 < 2:
            options["e_score_correction_bias"] = normal(rng, 5, dtype=SHORT[i % 3])
        if i % 4 == 0:
            options["shared_expert_gate"] = normal(rng, 1, 64, dtype=SHORT[i % 3], scale=0.1)
        check(args, options | dict(zip(OPTIONS, values, strict=True)), tolerance=tolerance)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", SHORT)
def test_rows_of_every_dtype_beside_float32_logits(dtype, form, rng):
    (x, *args), options = layer(rng, form, (2, 7), shared=form == "4")
    check((x.astype(DTYPES[dtype]), *args), options, dtype, tolerance=256.0 if dtype == "float32" else 4.0)


def test_logits_of_half_types_beside_float32(rng):
    (x, logits, *args), options = layer(rng, "float32", (7,))
    for dtype in ("float16", "bfloat16"):
        check((x, logits.astype(DTYPES[dtype]), *args), options)


# --- how many tokens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["float32", "bfloat16", "4"])
@pytest.mark.parametrize("tokens", [(), (1,), (40,), (20, 33), (3, 1, 2)])
def test_so_many_tokens(target, tokens, form, rng):
    """Of 2 experts, chunks have 256 tokens."""
    args, options = layer(rng, form, tokens, experts=2, features=32, shared=form != "float32")
    check(args, options, tolerance=512.0 if form == "4" else 64.0)


@pytest.mark.parametrize("form", ["float32", "4"])
def test_no_token_is_dropped_where_all_choose_one_expert(target, form, rng):
    (x, logits, *args), options = layer(rng, form, (600,), experts=4, features=32)
    logits[:] = [0.0, 9.0, 0.0, 8.0]
    check((x, logits, *args), options, tolerance=512.0)


def test_memory_does_not_grow_with_the_tokens(pool, rng):
    args, options = layer(rng, "float32", (4096,), experts=2, features=256, hidden=128)

    def peak(tokens):
        pool.empty_cache()
        pool.reset_peak()
        y = pool.moe(*(a[:tokens] for a in args[:2]), *args[2:], **options)
        return pool.memory_stats()["peak"] - y.nbytes

    assert peak(4096) <= 1.1 * peak(256)
    assert peak(128) <= 0.6 * peak(256)


# --- routers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scoring_func", OPTIONS["scoring_func"])
@pytest.mark.parametrize("renormalize", OPTIONS["renormalize"])
def test_ties_go_to_the_first_and_nan_comes_last(target, scoring_func, renormalize, rng):
    (x, logits, *args), options = layer(rng, "float32", (6,), features=16, hidden=8)
    logits[:] = [
        [1, 1, 1, 1, 1],
        [0, 2, 2, 2, 0],
        [np.nan, 0, 0, np.nan, 0],
        [-np.inf, 3, -np.inf, 3, 3],
        [-200, -201, -202, -203, -204],
        [3, 1, 3, 1, 3],
    ]
    logits = logits if renormalize or scoring_func == "sigmoid" else np.delete(logits, 2, axis=0)  # NaN for all scores
    args, options = (x[: len(logits)], logits, *args), options | {"scoring_func": scoring_func}
    if scoring_func == "softmax" and renormalize:
        y = _native.moe(*args, **options)  # the reference divides by a sum with NaN
        assert np.isfinite(y).all()
        others = [0, 1, 3, 4, 5]
        expected = REFERENCES["moe"](*(a[others] for a in args[:2]), *args[2:], **options)
        assert_matches(y[others], expected, "float32", tolerance=64)
        expected = REFERENCES["moe"](x[2:3], np.asarray([[-9.0, 0, 0, -9.0, 0]]), *args[2:], **options)
        assert_matches(y[2:3], expected, "float32", tolerance=64)
        return
    check(args, options | {"renormalize": renormalize})


def test_special_values_of_a_token_stay_there(target, rng):
    args, options = layer(rng, "4", (5,), shared=True)
    before = _native.moe(*args, **options)
    for value in (np.nan, np.inf, 1e33):
        args[0][2, 3] = value
        y = _native.moe(*args, **options)
        assert not np.isfinite(y[2]).all() or value == 1e33
        others = [0, 1, 3, 4]
        np.testing.assert_allclose(y[others], before[others], rtol=1e-4, atol=1e-5)


# --- layouts -----------------------------------------------------------------------------------------


def layouts(rng, form):
    """Yield calls whose arrays are parts of larger ones."""
    (x, logits, *weights), options = layer(rng, form, (4, 6), shared=True)
    options["shared_expert_gate"] = normal(rng, 3, 64)[1:2]
    options["e_score_correction_bias"] = normal(rng, 9)[2:7]
    yield (x[:, ::2], logits[:, 1::2], *weights), options
    yield (x.transpose(1, 0, 2)[:1], logits.transpose(1, 0, 2)[:1], *weights), options
    yield (x[::-2, :3], logits[::-2, :3], *weights), options
    yield (np.broadcast_to(x[:, :1], (4, 2, 64)), np.broadcast_to(logits[0, 0], (4, 2, 5)), *weights), options
    larger = [np.concatenate([w, w], axis=1)[:, : w.shape[1]] for w in weights]
    options = {
        name: np.concatenate([a, a], axis=a.ndim - 2).take(range(a.shape[-2]), axis=-2)
        if name.startswith("shared")
        else np.concatenate([a, a], axis=1)[:, : a.shape[1]]
        if name.endswith(("scales", "biases"))
        else a
        for name, a in options.items()
    }
    yield (x[0], logits[0], *larger), options


@pytest.mark.parametrize("form", ["bfloat16", "4", "8 symmetric"])
def test_layouts(form, rng):
    for args, options in layouts(rng, form):
        before = [a.tobytes() for a in args]
        check(args, options, tolerance=512.0)
        assert [a.tobytes() for a in args] == before


# --- refusals ----------------------------------------------------------------------------------------


def changed(**arguments):
    """Return a call of float32 arrays with some arguments replaced."""
    made = {
        "x": np.ones((2, 8), np.float32),
        "router_logits": np.ones((2, 3), np.float32),
        "gate_up_proj": np.ones((3, 8, 8), np.float32),
        "down_proj": np.ones((3, 8, 4), np.float32),
        "top_k": 2,
    }
    return made | arguments


def ones(*shape, dtype="float32"):
    return np.ones(shape, DTYPES[dtype])


SHARED = {"shared_gate_up_proj": ones(6, 8), "shared_down_proj": ones(8, 3)}
PACKED = {
    "x": ones(2, 64),
    "gate_up_proj": np.ones((3, 64, 32), np.uint8),
    "down_proj": np.ones((3, 64, 16), np.uint8),
    "gate_up_scales": ones(3, 64, 2),
    "gate_up_biases": ones(3, 64, 2),
    "down_scales": ones(3, 64, 1),
    "down_biases": ones(3, 64, 1),
}
REFUSED = {
    "x has dtype float64, whose products numpy.matmul computes": {"x": np.ones((2, 8))},
    "the last axis of x is not contiguous": {"x": ones(2, 16)[:, ::2]},
    "router_logits has dtype float64": {"router_logits": np.ones((2, 3))},
    "router_logits has a dtype without a kernel": {"router_logits": np.ones((2, 3), np.int32)},
    "router_logits does not have the rows of x": {"router_logits": ones(1, 3)},
    "the last axis of router_logits is not contiguous": {"router_logits": ones(2, 6)[:, ::2]},
    "x or router_logits is empty": {"x": ones(0, 8), "router_logits": ones(0, 3)},
    "top_k is not a number of experts": {"top_k": 4},
    "scoring_func is neither 'softmax' nor 'sigmoid'": {"scoring_func": "tanh"},
    "activation is neither 'swiglu' nor 'geglu'": {"activation": None},
    "renormalize is not a bool": {"renormalize": 1},
    "routed_scaling_factor is not a finite number": {"routed_scaling_factor": np.inf},
    "bits is neither 4 nor 8": {"bits": 5},
    "group_size does not fill whole bytes": {"group_size": 3},
    "gate_up_proj has dtype float64": {"gate_up_proj": np.ones((3, 8, 8))},
    "gate_up_proj has another shape than the other arrays need": {"gate_up_proj": ones(4, 8, 8)},
    "gate_up_proj does not have an even number of rows": {"gate_up_proj": ones(3, 7, 8)},
    "the matrices of gate_up_proj do not follow each other after whole rows": {"gate_up_proj": ones(3, 8, 8)[::-1]},
    "the last axis of gate_up_proj is not contiguous": {"gate_up_proj": ones(3, 8, 16)[:, :, ::2]},
    "down_proj does not have 3 dimensions": {"down_proj": ones(8, 4)},
    "down_proj does not have a row per feature": {"down_proj": ones(3, 7, 4)},
    "down_biases is given without scales": {"down_biases": ones(3, 8, 1)},
    "gate_up_proj does not have dtype uint8": {"gate_up_scales": ones(3, 8, 1)},
    "biases are missing": PACKED | {"gate_up_biases": None},
    "gate_up_scales has dtype float64": PACKED | {"gate_up_scales": np.ones((3, 64, 2))},
    "gate_up_biases has another dtype than the scales": PACKED | {"gate_up_biases": ones(3, 64, 2, dtype="float16")},
    "down_scales is not laid out as down_proj": PACKED | {"down_scales": ones(3, 128, 1)[:, :64]},
    "e_score_correction_bias has dtype float64": {"e_score_correction_bias": np.ones(3)},
    "e_score_correction_bias does not have 3 elements along a single axis": {"e_score_correction_bias": ones(4)},
    "e_score_correction_bias is not contiguous": {"e_score_correction_bias": ones(6)[::2]},
    "not both projections of the shared block are given": {"shared_down_proj": ones(8, 3)},
    "shared_gate_up_proj does not have 2 dimensions": SHARED | {"shared_gate_up_proj": ones(1, 6, 8)},
    "shared_expert_gate has shape (1, 7), not (1, 8)": SHARED | {"shared_expert_gate": ones(1, 7)},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    arguments = changed(**REFUSED[reason])
    assert _native.moe_supports(**arguments) == reason
    assert _native.moe(**arguments) is NotImplemented


@pytest.mark.parametrize("reason", [r for r in REFUSED if "float64" in r or "contiguous" in r or "laid out" in r])
def test_the_body_takes_what_the_operator_allows(reason):
    arguments = changed(**REFUSED[reason])
    assert tp.moe.explain(**arguments).refused["cpu"] == reason
    expected = REFERENCES["moe"](**arguments)
    for _ in range(2):
        np.testing.assert_allclose(tp.moe(arguments["x"], **{k: v for k, v in arguments.items() if k != "x"}), expected)


@pytest.mark.parametrize("wrong", INVALID["moe"], ids=str)
def test_what_the_operator_refuses_reaches_no_memory(wrong):
    args, options = wrong.build("float32")
    with pytest.raises(wrong.exception, match=wrong.message):
        tp.moe(*args, **options)
    args = [options.pop(name) for name in ("x", "router_logits", "gate_up_proj", "down_proj") if name in options]
    assert _native.moe(*args, **options) is NotImplemented


@pytest.mark.parametrize("dtype", SHORT)
def test_torch_tensors_share_the_kernel(dtype, rng):
    support.require("torch")
    (x, *args), options = layer(rng, "4", (5,), shared=True)
    args, options = support.there((x.astype(DTYPES[dtype]), *args), "torch"), support.there(options, "torch")
    assert tp.moe.explain(*args, **options).kernel == "torch_cpu"
    y = support.back(tp.moe(*args, **options))
    back, plain = (support.back(a) for a in args), {n: support.back(a) for n, a in options.items()}
    assert_matches(y, REFERENCES["moe"](*back, **plain), dtype, tolerance=256.0 if dtype == "float32" else 4.0)
