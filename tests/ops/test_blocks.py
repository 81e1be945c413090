"""multi_head_attention beside torch and ONNX, with a cache, and the kernels that it leads to."""

import numpy as np
import pytest

import support
import tensorops as tp
from support import close
from tensorops._operator import OPERATORS
from tensorops.testing import CASES, REFERENCES, assert_matches

FEATURES, HEADS = 16, 4
WEIGHTS = ("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight")


def reference(*args, **options):
    return REFERENCES["multi_head_attention"](*args, **options)[0]


# --- torch -------------------------------------------------------------------------------------------


def of_module(module):
    """Return the options that make the operator what a `torch.nn.MultiheadAttention` is."""
    parts = dict(module.named_parameters())
    if "in_proj_weight" in parts:
        joined = parts.pop("in_proj_weight").chunk(3)
        parts |= {f"{n}_proj_weight": part for n, part in zip("qkv", joined, strict=True)}
    if "in_proj_bias" in parts:
        joined = parts.pop("in_proj_bias").chunk(3)
        parts |= {f"{n}_proj_bias": part for n, part in zip("qkv", joined, strict=True)}
    options = {name.replace(".", "_"): part.detach().numpy() for name, part in parts.items()}
    return options | {"num_heads": module.num_heads}


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch


def module_of(torch, **options):
    module = torch.nn.MultiheadAttention(FEATURES, HEADS, batch_first=True, dtype=torch.float64, **options)
    for name, parameter in module.named_parameters():
        if "bias" in name:  # zeros by default
            torch.nn.init.normal_(parameter)
    return module.eval()


def both(torch, module, query, key, value, *, mask=None, torch_options=None):
    """Compare operator and reference with a module."""
    arrays = [torch.from_numpy(a) for a in (query, key, value)]
    expected, _ = module(*arrays, need_weights=False, **(torch_options or {}))
    expected = expected.detach().numpy()
    options = of_module(module)
    for call in (tp.multi_head_attention, tp.multi_head_attention.generic):
        close(call(query, key, value, mask=mask, **options)[0], expected, rtol=1e-10, atol=1e-12)
    close(reference(query, key, value, mask=mask, **options), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dims", [{}, {"kdim": 10}, {"kdim": 10, "vdim": 7}])
def test_torch_module(torch, bias, dims, rng):
    module = module_of(torch, bias=bias, **dims)
    query = rng.standard_normal((2, 5, FEATURES))
    key = rng.standard_normal((2, 6, dims.get("kdim", FEATURES)))
    both(torch, module, query, key, rng.standard_normal((2, 6, dims.get("vdim", FEATURES))))


def test_torch_masks(torch, rng):
    module, x = module_of(torch), rng.standard_normal((2, 5, FEATURES))
    hidden = rng.random((5, 5)) < 0.4
    hidden[:, 0] = False
    padding = np.asarray([[False] * 5, [False] * 3 + [True] * 2])
    added = rng.standard_normal((2 * HEADS, 5, 5))
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    for mask, options in (
        (~hidden, {"attn_mask": torch.from_numpy(hidden)}),
        (~padding[:, None, None, :], {"key_padding_mask": torch.from_numpy(padding)}),
        (~(hidden | padding[:, None, None, :]),
         {"attn_mask": torch.from_numpy(hidden), "key_padding_mask": torch.from_numpy(padding)}),
        (added.reshape(2, HEADS, 5, 5), {"attn_mask": torch.from_numpy(added)}),
        (np.tri(5, dtype=bool), {"attn_mask": causal, "is_causal": True}),
    ):  # fmt: skip
        both(torch, module, x, x, x, mask=mask, torch_options=options)
    expected, _ = module(*[torch.from_numpy(x)] * 3, attn_mask=causal, is_causal=True, need_weights=False)
    y = tp.multi_head_attention(x, is_causal=True, **of_module(module))[0]
    close(y, expected.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_lengths_are_a_padding_mask_of_torch(torch, name, rng):
    module, lengths = module_of(torch), np.asarray([2, 6])
    query, key = rng.standard_normal((2, 4, FEATURES)), rng.standard_normal((2, 6, FEATURES))
    padding = np.arange(6) >= lengths[:, None]
    arrays = [torch.from_numpy(a) for a in (query, key, key)]
    expected, _ = module(*arrays, key_padding_mask=torch.from_numpy(padding), need_weights=False)
    key[padding] = np.nan  # of no effect, whatever it is
    there, options = support.there(((query, key), {**of_module(module), "lengths": lengths}), name)
    for call in (tp.multi_head_attention, tp.multi_head_attention.generic):
        close(support.back(call(*there, **options)[0]), expected.detach().numpy(), rtol=1e-10, atol=1e-12)


# --- ONNX --------------------------------------------------------------------------------------------


def onnx_attention(
    q, k, v, attn_mask=None, past_key=None, past_value=None, *, q_num_heads, kv_num_heads, is_causal=0, scale=None,
    softcap=0.0,
):  # fmt: skip
    """The steps of ONNX's operator Attention-23 with inputs of three dimensions, as its specification lists them."""
    batch, queries = q.shape[:2]

    def split(x, heads):
        return x.reshape(batch, x.shape[1], heads, -1).transpose(0, 2, 1, 3)

    q, k, v = split(q, q_num_heads), split(k, kv_num_heads), split(v, kv_num_heads)
    past = 0
    if past_key is not None:
        past = past_key.shape[2]
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    present = k, v
    groups = q_num_heads // kv_num_heads
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    root = np.sqrt(1 / np.sqrt(q.shape[3]) if scale is None else scale)
    scores = (q * root) @ (k * root).transpose(0, 1, 3, 2)
    bias = np.zeros((queries, k.shape[2]))
    if is_causal:
        bias = np.where(np.tril(np.ones_like(bias), k=past) == 0, -np.inf, bias)
    if attn_mask is not None:
        bias = bias + (np.where(attn_mask, 0, -np.inf) if attn_mask.dtype == bool else attn_mask)
    scores = scores + bias
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    y = weights / weights.sum(axis=-1, keepdims=True) @ v
    return y.transpose(0, 2, 1, 3).reshape(batch, queries, -1), *present


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_onnx_attention(is_causal, past, mask, rng):
    q, k, v = (rng.standard_normal((2, 5, features)) for features in (24, 12, 8))
    cache = {}
    if past:
        cache = {"past_key": rng.standard_normal((2, 2, past, 6)), "past_value": rng.standard_normal((2, 2, past, 4))}
    keys = 5 + past
    given = {"none": None, "bool": support_mask(rng, 5, keys), "float": rng.standard_normal((2, 1, 5, keys))}[mask]
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    expected = onnx_attention(q, k, v, given, **cache, **heads, is_causal=int(is_causal), scale=0.3)
    own = {"num_heads": 4, "kv_num_heads": 2, "is_causal": is_causal, "scale": 0.3, "mask": given}
    for call in (tp.multi_head_attention, tp.multi_head_attention.generic, REFERENCES["multi_head_attention"]):
        for y, e in zip(call(q, k, v, **cache, **own), expected, strict=True):
            close(y, e, rtol=1e-10, atol=1e-12)


def support_mask(rng, *shape):
    mask = rng.random(shape) < 0.6
    mask[..., 0] = True
    return mask


def test_onnx_softcap(rng):
    x = rng.standard_normal((2, 5, 24))
    expected = onnx_attention(x, x, x, q_num_heads=4, kv_num_heads=4, softcap=0.7)[0]
    close(tp.multi_head_attention(x, num_heads=4, softcap=0.7)[0], expected, rtol=1e-10, atol=1e-12)


# --- the cache ---------------------------------------------------------------------------------------


@pytest.mark.costly(3)
@pytest.mark.parametrize("rotation", ["base", "tables", "none"])
def test_decoding_continues_a_text(library, rotation, rng):
    """One token after another gives what all at once give, with positions and causality counted from the cache."""
    x = rng.standard_normal((2, 6, FEATURES)).astype(np.float32)
    shapes = {
        "q_proj_weight": (16, 16),
        "k_proj_weight": (8, 16),
        "v_proj_weight": (8, 16),
        "out_proj_weight": (16, 16),
    }
    options = {name: rng.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    if rotation == "tables":
        angles = np.outer(np.arange(6), [1.0, 0.3]).astype(np.float32)
        options |= {"rope_cos": np.cos(angles), "rope_sin": np.sin(angles)}
    elif rotation == "base":
        options["rope_base"] = 50.0
    options |= {"num_heads": 4, "kv_num_heads": 2, "is_causal": True}
    expected = REFERENCES["multi_head_attention"](x, **options)
    there, options = support.there((x, options), library.name)
    y, key, value = tp.multi_head_attention(there[:, :3, :], **options)
    made = [y]
    for i in range(3, 6):
        y, key, value = tp.multi_head_attention(there[:, i : i + 1, :], past_key=key, past_value=value, **options)
        made.append(y)
    y = np.concatenate([support.back(part) for part in made], axis=1)
    for result, e in zip((y, support.back(key), support.back(value)), expected, strict=True):
        assert_matches(result, e, "float32", tolerance=64)


# --- what it is composed of --------------------------------------------------------------------------


def test_every_step_chooses_its_kernel():
    support.require_native()
    args, options = CASES["multi_head_attention"][0].build(dtype_name="float16")  # in float32, BLAS computes `linear`
    options |= {"q_norm_weight": np.ones(8, np.float16), "k_norm_weight": np.ones(8, np.float16)}
    explanation = tp.multi_head_attention.explain(*args, **options)
    assert explanation.kernel == "generic"
    assert explanation.calls == ("linear", "rms_norm", "rope", "scaled_dot_product_attention")
    with tp.trace() as log:
        tp.multi_head_attention(*args, **options)
    steps = ["linear", "rms_norm"] * 2 + ["linear", "rope", "rope", "scaled_dot_product_attention", "linear"]
    assert [(record.operator, record.kernel) for record in log[:-1]] == [(step, "cpu") for step in steps]
    assert (log[-1].operator, log[-1].kernel) == ("multi_head_attention", "generic")
    with tp.trace() as log:
        tp.multi_head_attention.generic(*args, **options)
    assert {record.kernel for record in log} == {"generic"}


def test_its_parameters_are_those_of_what_it_calls():
    """With the same defaults: an option that attention gets is passed on."""
    own = OPERATORS["multi_head_attention"]._defaults
    attention = OPERATORS["scaled_dot_product_attention"]._defaults
    # No pages and no blocks: the keys of the cache and the new ones are one array of numbers.
    left_out = ("q", "k", "v", "page_table", "kv_format")
    passed = {name: default for name, default in attention.items() if name not in left_out}
    assert {name: own.get(name, "missing") for name in passed} == passed
    rotation = {
        name: default for name, default in OPERATORS["rope"]._defaults.items() if name not in ("x", "positions")
    }
    assert {f"rope_{name}" for name in rotation} <= set(own)


def test_options_of_attention_are_refused_in_its_own_name():
    x = np.ones((1, 3, 8), np.float32)
    with pytest.raises(ValueError, match=r"^multi_head_attention: window is 0, expected at least 1$"):
        tp.multi_head_attention(x, num_heads=2, window=0)
    past = np.ones((1, 2, 2, 4), np.float32)
    with pytest.raises(ValueError, match=r"^multi_head_attention: lengths is given with past_key, .*pass a mask$"):
        tp.multi_head_attention(x, num_heads=2, lengths=np.asarray([3]), past_key=past, past_value=past)
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match=rf"lengths has the number {wrong}, outside 0 … 3$"):
            tp.multi_head_attention(x, num_heads=2, lengths=np.asarray([wrong]))
    with pytest.raises(ValueError, match=r"^multi_head_attention: mask has shape \(3, 4\), which does not broadcast"):
        tp.multi_head_attention(x, num_heads=2, mask=np.ones((3, 4), bool))


def test_positions_outside_the_tables_are_refused():
    x, table = np.ones((1, 3, 8), np.float32), np.ones((4, 2), np.float32)
    with pytest.raises(ValueError, match=r"positions has the index 4, outside 0 … 3$"):
        tp.multi_head_attention(x, num_heads=2, rope_cos=table, rope_sin=table, positions=np.asarray([0, 4, 1]))
    past = np.ones((1, 2, 2, 4), np.float32)
    with pytest.raises(ValueError, match=r"^multi_head_attention: rope_cos has 4 rows, expected 5, one for each pos"):
        tp.multi_head_attention(x, num_heads=2, rope_cos=table, rope_sin=table, past_key=past, past_value=past)


def test_dask_stays_lazy(rng):
    support.require("dask")
    import dask
    import dask.array as da

    x = rng.standard_normal((4, 6, FEATURES)).astype(np.float32)
    options = {name: rng.standard_normal((FEATURES, FEATURES)).astype(np.float32) / 4 for name in WEIGHTS}
    lazy = {name: da.from_array(weight) for name, weight in options.items()}

    def refuse(*_, **__):
        raise AssertionError("a graph was computed")

    with dask.config.set(scheduler=refuse):
        results = tp.multi_head_attention(
            da.from_array(x, chunks=(2, 3, -1)), num_heads=HEADS, rope_base=100.0, is_causal=True, **lazy
        )
    expected = REFERENCES["multi_head_attention"](x, num_heads=HEADS, rope_base=100.0, is_causal=True, **options)
    for y, e in zip(results, expected, strict=True):
        assert isinstance(y, da.Array)
        assert y.chunks[0] == (2, 2)
        assert_matches(y.compute(), e, "float32", tolerance=256)
