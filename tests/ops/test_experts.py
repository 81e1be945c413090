"""Mixture of experts: the references by hand, the blocks of known models, routers, and experts out of range."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import support
import tensorops as tp
from tensorops._dtypes import INTEGER
from tensorops.testing import DTYPES, REFERENCES, assert_matches, cast, experts as references


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def silu(x):
    return x / (1.0 + np.exp(-x))


def test_references_by_hand():
    weight = [[[1.0, 2.0]], [[3.0, 4.0]]]
    y = references.grouped_linear([[1.0, 1.0], [1.0, -1.0]], [1, 0], weight, [[10.0], [20.0]])
    assert_array_equal(y, [[27.0], [9.0]])
    assert_array_equal(references.grouped_linear([[[1.0, 1.0]]], [[1, 0, 1]], weight), [[[7.0], [3.0], [7.0]]])
    # One feature, one hidden number: expert e is (e + 1) * silu(2 x) * 3 x.
    gate_up, down = np.tile([[2.0], [3.0]], (3, 1, 1)), np.arange(1.0, 4.0).reshape(3, 1, 1)
    block = silu(2.0 * 0.5) * 3.0 * 0.5
    y = references.moe([[0.5]], [[0.0, np.log(3.0), -9.0]], gate_up, down, top_k=2)
    assert_allclose(y, [[block * (0.25 * 1 + 0.75 * 2)]], rtol=1e-15)
    y = references.moe([[0.5]], [[0.0, 1.0, 2.0]], gate_up, down, top_k=1, renormalize=False)
    assert_allclose(y, [[block * 3 * softmax(np.array([0.0, 1.0, 2.0]))[2]]], rtol=1e-15)


# --- the blocks of known models, as they are written in torch ----------------------------------------


TOKENS, FEATURES, HIDDEN, EXPERTS, TOP_K = 9, 32, 24, 6, 2


def layer(torch, seed=0):
    """Return tokens, the router's matrix and the experts' projections."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator) * shape[-1] ** -0.5

    return (
        normal(TOKENS, FEATURES) * 6,
        normal(EXPERTS, FEATURES),
        normal(EXPERTS, 2 * HIDDEN, FEATURES),
        normal(EXPERTS, FEATURES, HIDDEN),
    )


def expert_of(torch, x, gate_up, down):
    gate, up = torch.nn.functional.linear(x, gate_up).chunk(2, dim=-1)
    return torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, down)


def sum_of_experts(torch, x, weights, chosen, gate_up, down):
    """Add to each token what its experts make of it, expert by expert, as transformers does."""
    y = torch.zeros_like(x)
    for e in range(len(gate_up)):
        tokens, place = torch.where(chosen == e)
        y.index_add_(0, tokens, expert_of(torch, x[tokens], gate_up[e], down[e]) * weights[tokens, place, None])
    return y


@pytest.fixture
def torch():
    support.require("torch")
    import torch

    return torch


def test_the_block_of_mixtral(torch):
    x, router, gate_up, down = layer(torch)
    weights = torch.softmax(x @ router.T, dim=1, dtype=torch.float)
    weights, chosen = torch.topk(weights, TOP_K, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    expected = sum_of_experts(torch, x, weights, chosen, gate_up, down)
    y = tp.moe(x, tp.linear(x, router), gate_up, down, top_k=TOP_K)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_the_block_of_qwen3_moe(torch, norm_topk_prob):
    x, router, gate_up, down = layer(torch, 1)
    weights = torch.softmax(x @ router.T, dim=-1, dtype=torch.float)
    weights, chosen = torch.topk(weights, 4, dim=-1)
    if norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    expected = sum_of_experts(torch, x, weights, chosen, gate_up, down)
    y = tp.moe(x, tp.linear(x, router), gate_up, down, top_k=4, renormalize=norm_topk_prob)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def test_the_block_of_qwen2_moe(torch):
    x, router, gate_up, down = layer(torch, 2)
    _, _, (shared_gate_up, *_), (shared_down, *_) = layer(torch, 3)
    gate = torch.linspace(-1.0, 1.0, FEATURES)[None, :]
    weights, chosen = torch.topk(torch.softmax(x @ router.T, dim=1), TOP_K, dim=-1)
    expected = sum_of_experts(torch, x, weights, chosen, gate_up, down)
    expected += torch.sigmoid(x @ gate.T) * expert_of(torch, x, shared_gate_up, shared_down)
    y = tp.moe(
        x,
        tp.linear(x, router),
        gate_up,
        down,
        shared_gate_up_proj=shared_gate_up,
        shared_down_proj=shared_down,
        shared_expert_gate=gate,
        top_k=TOP_K,
        renormalize=False,
    )
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def test_the_block_of_deepseek_v3_with_one_group(torch):
    x, router, gate_up, down = layer(torch, 4)
    correction = torch.tensor([0.5, -0.5, 0.0, 0.3, -0.1, 0.2])
    scores = (x @ router.T).sigmoid()
    chosen = torch.topk(scores + correction, 3, dim=-1).indices
    weights = scores.gather(1, chosen)
    weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * 2.5
    expected = sum_of_experts(torch, x, weights, chosen, gate_up, down)
    y = tp.moe(
        x,
        tp.linear(x, router),
        gate_up,
        down,
        e_score_correction_bias=correction,
        top_k=3,
        scoring_func="sigmoid",
        routed_scaling_factor=2.5,
    )
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


# --- routers -----------------------------------------------------------------------------------------


def chosen_experts(logits, **options):
    """Return the sum of the experts that a token passes, where expert e gives 10**e."""
    logits = np.asarray([logits], dtype=np.float32)
    number = logits.shape[-1]
    gate_up = np.tile(np.array([[[50.0], [1.0 / 50.0]]], dtype=np.float32), (number, 1, 1))  # silu(50) = 50
    down = (10.0 ** np.arange(number)).astype(np.float32).reshape(number, 1, 1)
    x = np.ones((1, 1), dtype=np.float32)
    arrays = (x, logits, gate_up, down)
    return [function(*arrays, **options).item() for function in (tp.moe, tp.moe.generic)]


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.0], 0.5 + 5.0),
        ([0.0, 2.0, 2.0, 2.0], 5.0 + 50.0),
        ([2.0, 0.0, 0.0, 2.0], 0.5 + 500.0),
        ([np.nan, 0.0, 0.0, np.nan], 5.0 + 50.0),
        ([-np.inf, np.nan, 7.0, -np.inf], 100.0),
    ],
)
def test_ties_go_to_the_first_and_nan_comes_last(logits, expected):
    for y in chosen_experts(logits, top_k=2):
        assert_allclose(y, expected, rtol=1e-6)


def test_scores_that_underflow_have_shares():
    for y in chosen_experts([-200.0, -200.0, -300.0], top_k=2, scoring_func="sigmoid"):
        assert_allclose(y, 5.5, rtol=1e-6)


def small(rng, tokens=5, dtype="float32"):
    case = references._layer(rng, (tokens,), 4, 16, 8, top_k=2)
    return cast(case, dtype)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", support.HALVES)
def test_float32_weights_beside_half_types(library, dtype, rng):
    if dtype not in support.dtypes_of(library.name):
        pytest.skip(f"{library.name} holds no {dtype}")
    (x, logits, *weights), options = small(rng)
    x = x.astype(DTYPES[dtype])
    there = support.there((x, logits, *weights), library.name)
    for call in (tp.moe, tp.moe.generic):
        y = support.back(call(*there, **options))
        assert_matches(y, REFERENCES["moe"](x, logits, *weights, **options), dtype, tolerance=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_in_a_token_stays_there(dtype, rng):
    args, options = small(rng, dtype=dtype)
    args[0][2, 3] = np.nan
    y = tp.moe(*args, **options)
    assert np.isnan(y[2].astype(np.float64)).all()
    others = np.arange(5) != 2
    expected = tp.moe(args[0][others], args[1][others], *args[2:], **options)
    assert np.isfinite(expected.astype(np.float64)).all()
    assert_allclose(y[others].astype(np.float64), expected.astype(np.float64), rtol=1e-2 if "16" in dtype else 1e-6)


def test_all_calls_of_a_layer_choose_their_kernels_where_its_own_refuses(rng):
    support.require_provider("cpu")
    args, options = references._with_shared(rng, references._layer(rng, (9,), 4, 16, 8, top_k=2), 12)
    args, options = cast((args, options), "float32")
    options["shared_gate_up_proj"] = np.asfortranarray(options["shared_gate_up_proj"])
    assert "last axis of shared_gate_up_proj" in tp.moe.explain(*args, **options).refused["cpu"]
    with tp.trace() as log:
        y = tp.moe(*args, **options)
    assert_matches(y, REFERENCES["moe"](*args, **options), "float32", tolerance=64)
    assert [(r.operator, r.kernel) for r in log] == [
        ("top_k", "cpu"),
        ("softmax", "cpu"),
        ("grouped_linear", "cpu"),
        ("swiglu", "cpu"),
        ("grouped_linear", "cpu"),
        ("linear", "generic"),
        ("swiglu", "cpu"),
        ("linear", "cpu"),
        ("moe", "generic"),
    ]


def test_weights_of_the_format_are_passed_by_name(rng):
    args, options = small(rng)
    with pytest.raises(TypeError, match=r"^moe: too many positional arguments$"):
        tp.moe(*args, np.ones((4, 16, 1), np.float32), **options)


# --- experts of every dtype, and out of range --------------------------------------------------------


NUMBERS = np.array([[2, 0, 1], [1, 1, 2]])


@pytest.mark.costly(3)
@pytest.mark.parametrize("dtype", INTEGER)
def test_experts_of_every_dtype(library, dtype, rng):
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 5), (3, 4, 5)))
    numbers = support.integers_there(NUMBERS, dtype, library)
    expected = REFERENCES["grouped_linear"](x, NUMBERS, w)
    for call in (tp.grouped_linear, tp.grouped_linear.generic):
        y = call(support.there(x, library.name), numbers, support.there(w, library.name))
        assert_allclose(support.back(y), expected, rtol=1e-4, atol=1e-5)


def quantized(rng):
    return references._stack(rng, 3, 4, 32)


@pytest.mark.parametrize("wrong", [-1, 3, 2**40])
@pytest.mark.parametrize("rows", [2, 40])
def test_an_expert_out_of_range_is_refused_by_name(wrong, rows, rng):
    numbers = np.zeros(rows, dtype=np.int64)
    numbers[-1] = wrong
    x = rng.standard_normal((rows, 32)).astype(np.float32)
    w = rng.standard_normal((3, 4, 32)).astype(np.float32)
    message = rf"experts has the index {wrong}, outside 0 … 2"
    for call in (tp.grouped_linear, tp.grouped_linear.generic):
        with pytest.raises(ValueError, match=f"^grouped_linear: {message}"):
            call(x, numbers, w)
    parts = cast(quantized(rng), "float32")
    for call in (tp.grouped_quantized_linear, tp.grouped_quantized_linear.generic):
        with pytest.raises(ValueError, match=f"^grouped_quantized_linear: {message}"):
            call(x, numbers, *parts)


@pytest.mark.parametrize("name", ["jax", "mlx"])
@pytest.mark.parametrize("rows", [2, 40])
def test_rows_whose_expert_nobody_can_check_are_nan(name, rows, rng):
    support.require(name)
    numbers = np.arange(rows) % 3
    x = rng.standard_normal((rows, 32)).astype(np.float32)
    w = rng.standard_normal((3, 4, 32)).astype(np.float32)
    expected = REFERENCES["grouped_linear"](x, numbers, w)
    for wrong in (-1, 3):
        numbers[1] = wrong
        y = support.back(tp.grouped_linear.generic(*support.there((x, numbers, w), name)))
        assert np.isnan(y[1]).all()
        others = np.arange(rows) != 1
        assert_allclose(y[others], expected[others], rtol=1e-4, atol=1e-5)


# --- transformations ---------------------------------------------------------------------------------


def test_tokens_on_dask_stay_in_their_blocks(rng):
    support.require("dask")
    import dask.array as da

    args, options = small(rng, 8)
    lazy = [da.from_array(a, chunks=(3, -1)) for a in args[:2]] + [da.from_array(a, chunks=-1) for a in args[2:]]
    assert tp.moe.explain(*lazy, **options).kernel == "dask"
    y = tp.moe(*lazy, **options)
    assert y.chunks[0] == (3, 3, 2)
    assert_allclose(y.compute(), REFERENCES["moe"](*args, **options), rtol=1e-4, atol=1e-5)


def test_tokens_of_which_dask_knows_no_number(rng):
    support.require("dask")
    import dask.array as da

    args, options = small(rng, 8)
    kept = np.array([True, False, True, True, True, False, True, False])
    x, logits = (da.from_array(a, chunks=(3, -1))[da.from_array(kept, chunks=3)] for a in args[:2])
    y = tp.moe(x, logits, *(da.from_array(a, chunks=-1) for a in args[2:]), **options)
    expected = REFERENCES["moe"](args[0][kept], args[1][kept], *args[2:], **options)
    assert_allclose(y.compute(), expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_the_router_in_torch(torch, rng):
    x, router, gate_up, down = layer(torch, 5)
    router.requires_grad_()
    (actual,) = torch.autograd.grad(tp.moe(x, tp.linear(x, router), gate_up, down, top_k=TOP_K).square().sum(), router)
    weights, chosen = torch.topk(torch.softmax(x @ router.T, dim=1), TOP_K, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    expected = torch.stack([expert_of(torch, x, g, d) for g, d in zip(gate_up, down, strict=True)], dim=1)
    chosen_of = torch.gather(expected, 1, chosen[:, :, None].expand(-1, -1, FEATURES))
    (wanted,) = torch.autograd.grad((chosen_of * weights[:, :, None]).sum(dim=1).square().sum(), router)
    assert wanted.abs().max() > 1e-2
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
