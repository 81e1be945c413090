"""Every architecture against transformers in float64: folders, their conversion to GGUF files, all kinds of steps."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from safetensors.numpy import load_file, save_file

import tensorops as tp
import tiny_networks
from make_gguf import write_gguf
from mpi_threads import world_of
from tensorops.models import GGUFError, LanguageModel, architectures, open_gguf
from tiny_networks import FOLDERS_ONLY, IDS, NETWORKS

# Backends, and the library whose absence a skip is about.
BACKENDS = {"numpy": "numpy", "array_api_strict": "array_api_strict", "jax": "jax", "mlx": "mlx.core", "torch": "torch",
            "opencl": "pyopencl"}  # fmt: skip
# Those that together have every feature, for the short run
VARIED = ("gemma3", "gpt-oss", "qwen3moe")


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(tp.to_backend(x, "numpy"))


def assert_close(logits: Any, exact: np.ndarray, error: float = 2e-5) -> None:
    np.testing.assert_allclose(to_numpy(logits), exact, rtol=0, atol=error * np.abs(exact).max())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folder_gives_the_logits_of_transformers(saved: Any, name: str) -> None:
    folder, exact = saved(name)
    model = LanguageModel.load(folder)
    assert model.tokenizer is None
    assert_close(model(IDS), exact)
    cache = model.new_cache()  # in pieces, through which windows pass
    pieces = [model(piece, cache) for piece in (IDS[:9], *([token] for token in IDS[9:14]), IDS[14:])]
    assert_close(np.concatenate([to_numpy(piece) for piece in pieces]), exact)


@pytest.mark.parametrize("name", ["llama", "qwen35", "gemma4 with inputs of blocks"])
def test_a_cache_forgets_what_follows(saved: Any, name: str) -> None:
    folder, exact = saved(name)
    model = LanguageModel.load(folder)
    cache = model.new_cache()
    model([*IDS[:10], 7, 8, 9], cache)
    kept = cache.truncate(10)
    assert kept == (0 if name == "qwen35" else 10) == cache.length
    assert_close(model(IDS[kept:], cache), exact[kept:])


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in FOLDERS_ONLY])
def test_a_gguf_file_gives_the_logits_of_its_folder(saved: Any, name: str, tmp_path: Path) -> None:
    folder, exact = saved(name)
    model = LanguageModel.load(tiny_networks.as_gguf(folder, tmp_path / "model.gguf"))
    assert_close(model(IDS), exact)


def test_blocks_that_predict_further_tokens_are_left_out(saved: Any, tmp_path: Path) -> None:
    folder, exact = saved("glm4moe")
    for each in folder.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    numpy_files = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "model.safetensors"
    weights = numpy_files.load_file(path)
    numpy_files.save_file(weights | {"model.layers.4.eh_proj.weight": np.ones((64, 128), np.float32)}, path)
    with pytest.raises(GGUFError, match=r"model\.layers\.4\.eh_proj\.weight: is not known"):
        LanguageModel.load(_with_changes(tmp_path, {"num_nextn_predict_layers": 0}))
    assert_close(LanguageModel.load(_with_changes(tmp_path, {"num_nextn_predict_layers": 1}))(IDS), exact)


def _with_changes(folder: Path, changes: dict[str, Any]) -> Path:
    """Change a folder's configuration, and return the folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize("kinds", [("Q4_0", "Q4_0", "Q4_0"), ("MXFP4", "MXFP4", "Q8_0"), ("Q8_0", "Q5_1", "Q4_1")])
@pytest.mark.parametrize("name", ["mixtral", "gpt-oss", "granitemoe with a shared expert", "glm4moe", "deepseek3"])
def test_experts_stay_quantized(saved: Any, name: str, kinds: tuple[str, str, str], tmp_path: Path) -> None:
    pytest.importorskip("tensorops.kernels.cpu._native")
    folder, _ = saved(name)
    of = dict(zip(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), kinds, strict=True))
    given = {f"blk.{block}.{part}.weight": kind for block in range(4) for part, kind in of.items()}
    path = tiny_networks.as_gguf(folder, tmp_path / "model.gguf", given)
    plain = {key: tensor.dequantize() for key, tensor in open_gguf(path).tensors.items()}
    model = LanguageModel.load(path, "cpu")
    with tp.trace() as log:
        logits = model(IDS)
    used = {record.operator: record.kernel for record in log}
    operator = "moe" if kinds[0] == "Q4_0" and name not in ("gpt-oss", "deepseek3") else "grouped_quantized_linear"
    assert used[operator] == "cpu"
    exact = LanguageModel(model.config, plain, backend="numpy")(IDS)
    assert_close(logits, to_numpy(exact))


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0"])
def test_latents_are_kept_and_their_matrices_stay_quantized(saved: Any, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorops.kernels.cpu._native")
    parts = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_k_b", "attn_v_b")
    given = {f"blk.{block}.{part}.weight": kind for block in range(4) for part in parts}
    path = tiny_networks.as_gguf(saved("deepseek3")[0], tmp_path / "model.gguf", given)
    plain = {key: tensor.dequantize() for key, tensor in open_gguf(path).tensors.items()}
    model = LanguageModel.load(path, "cpu")
    cache = model.new_cache(32)
    with tp.trace() as log:
        logits = model(IDS, cache)
    used = {record.operator: record.kernel for record in log}
    for operator in ("scaled_dot_product_attention", "grouped_linear" if kind == "F32" else "grouped_quantized_linear"):
        assert used[operator] == "cpu"
    assert {array.shape for array in cache.keys} == {(1, 1, 32, 32 + 8)}
    assert {array.shape for array in cache.values} == {(1, 1, 32, 32)}
    assert_close(logits, to_numpy(LanguageModel(model.config, plain, backend="numpy")(IDS)))


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_files_with_one_matrix_of_keys_and_values(saved: Any, kind: str, tmp_path: Path) -> None:
    folder, exact = saved("deepseek3")
    path = tmp_path / "model.gguf"
    new = open_gguf(tiny_networks.as_gguf(folder, path))
    arrays = {key: tensor.dequantize() for key, tensor in new.tensors.items()}
    for block in range(4):
        k, v = (arrays.pop(f"blk.{block}.attn_{part}_b.weight") for part in "kv")
        both = np.concatenate([k.swapaxes(1, 2), v], axis=1)
        arrays[f"blk.{block}.attn_kv_b.weight"] = both.reshape(-1, both.shape[2])
    lengths = {"head_count_kv": 4, "key_length": 32 + 8, "value_length": 16}
    metadata = {f"deepseek2.attention.{key}": length for key, length in lengths.items()}
    metadata = {key: value for key, value in new.metadata.items() if not key.endswith("_mla")} | metadata
    metadata = {key: getattr(value, "tolist", lambda value=value: value)() for key, value in metadata.items()}
    del metadata["general.architecture"]
    kinds = {f"blk.{block}.attn_kv_b.weight": kind for block in range(4)}
    model = LanguageModel.load(write_gguf(path, metadata, arrays, kinds, "deepseek2"))
    if kind == "F32":
        assert_close(model(IDS), exact)
        assert_close(LanguageModel(model.config, arrays, backend="numpy")(IDS), exact)
    else:
        plain = {key: tensor.dequantize() for key, tensor in open_gguf(path).tensors.items()}
        assert_close(model(IDS), to_numpy(LanguageModel(model.config, plain, backend="numpy")(IDS)))


@pytest.mark.costly
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_library_gives_the_same_logits(saved: Any, name: str, backend: str) -> None:
    pytest.importorskip(BACKENDS[backend])
    if not tp.is_backend_available(backend):
        pytest.skip(f"backend {backend} is not available")
    folder, exact = saved(name)
    model = LanguageModel.load(folder, backend)
    cache = model.new_cache()
    assert_close(np.concatenate([to_numpy(model(piece, cache)) for piece in (IDS[:15], IDS[15:16], IDS[16:])]), exact)


@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("compiler", ["jax.jit", "mlx.core.compile"])
def test_compiled_networks_give_the_same_tokens(saved: Any, name: str, compiler: str) -> None:
    module, _, function = compiler.rpartition(".")
    compile_ = getattr(pytest.importorskip(module), function)
    backend = module.partition(".")[0]
    if not tp.is_backend_available(backend):
        pytest.skip(f"backend {backend} is not available")
    folder, _ = saved(name)
    tokens = list(LanguageModel.load(folder, "numpy").generate_ids(IDS[:8], max_new_tokens=6))
    model = LanguageModel.load(folder, backend, compile=compile_)
    assert list(model.generate_ids(IDS[:8], max_new_tokens=6)) == tokens


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_without_python_and_batches_give_the_same_tokens(saved: Any, name: str) -> None:
    pytest.importorskip("tensorops.kernels.cpu._native")
    folder, _ = saved(name)
    model = LanguageModel.load(folder, "cpu")
    tokens, others = (list(model.generate_ids(ids, max_new_tokens=8)) for ids in (IDS[:12], IDS[:3]))
    assert without_python(model) == [tokens, tokens, others]


def without_python(model: LanguageModel) -> list[list[int]]:
    """Return what follows 12 tokens by persistent steps, and what follows 12 and 3 in a batch."""
    cache = model.new_cache(32)
    model(IDS[:11], cache)
    step = model.persistent(max_seq_length=32)
    keys, values = cache.keys, cache.values
    found, token = [], IDS[11]
    for position in range(11, 19):
        ids, keys, values = step(np.asarray([token], np.int32), np.asarray([position], np.int32), keys, values)
        token = int(ids[0])
        found.append(token)
    batch: list[list[int]] = [[], []]
    for number, token in model.generate_batch([IDS[:12], IDS[:3]], max_new_tokens=8, page_size=4):
        batch[number].append(token)
    return [found, *batch]


def test_states_and_tokens_without_effect(saved: Any) -> None:
    pytest.importorskip("tensorops.kernels.cpu._native")
    model = LanguageModel.load(saved("qwen35")[0], "cpu")
    with pytest.raises(ValueError, match="tokens without effect, but states keep all"):
        model.persistent(mode="prefill", length=8, max_seq_length=32)
    kernel = model.persistent(mode="onepass", length=len(IDS))
    assert_close(kernel(np.asarray(IDS, np.int32)), saved("qwen35")[1])


# Two ranks have a head of keys each; of four, two have the same one.
NORMS_OVER_HEADS = [("olmo2", 2), ("olmo2", 4), ("olmo3", 2), ("olmo3", 4)]


@pytest.mark.parametrize(("name", "size"), [*((name, 2) for name in NETWORKS), ("olmo2", 4), ("olmo3", 4)])
def test_ranks_give_the_tokens_of_one(saved: Any, name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, exact = saved(name)
    alone = LanguageModel.load(folder, "numpy")

    def on_rank(rank: int) -> Any:
        model = LanguageModel.load(folder, "numpy", world_size=size, mpi_rank=rank)
        return model(IDS), list(model.generate_ids(IDS[:9], max_new_tokens=5))

    tokens = list(alone.generate_ids(IDS[:9], max_new_tokens=5))
    for logits, made in world_of(monkeypatch, size).run(on_rank):
        assert_close(logits, exact)
        assert made == tokens


@pytest.mark.parametrize(("name", "size"), NORMS_OVER_HEADS)
def test_steps_without_python_of_ranks_give_the_tokens_of_one(
    saved: Any, name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorops.kernels.cpu._native")
    folder, exact = saved(name)

    def on_rank(rank: int) -> Any:
        model = LanguageModel.load(folder, "cpu", world_size=size, mpi_rank=rank)
        whole = model.persistent(mode="onepass", length=len(IDS))
        return without_python(model), whole(np.asarray(IDS, np.int32))

    alone = LanguageModel.load(folder, "numpy")
    tokens, others = (list(alone.generate_ids(ids, max_new_tokens=8)) for ids in (IDS[:12], IDS[:3]))
    for found, logits in world_of(monkeypatch, size).run(on_rank):
        assert found == [tokens, tokens, others]
        assert_close(logits, exact)


OVER_MESH = """
import json, sys
import jax, numpy as np
jax.config.update("jax_platforms", "cpu")
folder, ids, size = json.loads(sys.argv[1])
jax.config.update("jax_num_cpu_devices", size)
from tensorops.models import LanguageModel
model = LanguageModel.load(folder, mesh=jax.sharding.Mesh(np.asarray(jax.devices()), ("ranks",)))
cache = model.new_cache(32)
model(ids[:-1], cache)
arrays = [np.asarray([number], np.int32) for number in (ids[-1], len(ids) - 1)]
token, *_ = model.persistent(max_seq_length=32)(*arrays, cache.keys, cache.values)
tokens = list(model.generate_ids(ids, max_new_tokens=5))
print(json.dumps([np.asarray(model(ids)).tolist(), tokens, int(token[0])]))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "size"),
    [("gpt-oss", 2), ("gemma4 with experts", 2), ("gemma4 with inputs of blocks", 2), ("qwen35moe", 2),
     *NORMS_OVER_HEADS],
)  # fmt: skip
def test_devices_of_a_mesh_give_the_tokens_of_one(saved: Any, name: str, size: int) -> None:
    pytest.importorskip("jax")
    folder, exact = saved(name)
    command = [sys.executable, "-W", "error", "-c", OVER_MESH, json.dumps([str(folder), IDS[:9], size])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    logits, tokens, first = json.loads(done.stdout)
    assert_close(np.asarray(logits), exact[:9])
    assert tokens == list(LanguageModel.load(folder, "numpy").generate_ids(IDS[:9], max_new_tokens=5))
    assert first == tokens[0]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gemma3", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention: 'all' is not supported"),
        ("qwen3moe", {"decoder_sparse_step": 2}, "decoder_sparse_step: 2 is not supported"),
        ("gpt-oss", {"swiglu_limit": 5.0}, "swiglu_limit: 5.0 is not supported"),
        ("granitehybrid", {"time_step_limit": [0.1, 0.5]}, r"time_step_limit: \[0.1, 0.5\] is not supported"),
        ("granitehybrid", {"mamba_proj_bias": True}, "mamba_proj_bias: True is not supported"),
        ("granitehybrid", {"mamba_n_heads": 12}, "time_step_rank: 12 heads of 2 groups do not divide 128 features"),
        ("deepseek2", {"norm_topk_prob": True}, "norm_topk_prob: True is not supported"),
        ("deepseek2", {"n_group": 3}, "expert_group_count: 2 of 8 experts in 2 of 3 groups"),
        ("deepseek3", {"scoring_func": "softmax"}, "scoring_func: 'softmax' is not supported"),
        ("deepseek3", {"qk_nope_head_dim": 0}, "rope.dimension_count: 8 of the 8 features of a key"),
    ],
)
def test_what_would_change_the_network(
    saved: Any, name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder, _ = saved(name)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(GGUFError, match=message):
        LanguageModel.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "model_type: 'bert' is not supported, only .*llama"),
        ({"model_type": None}, "model_type: 'None' is not supported"),
        ({"hidden_size": "many"}, "embedding_length: 'many' is not a positive integer"),
        ({"hidden_act": "relu"}, "hidden_act: 'relu' is not supported"),
        ({"num_hidden_layers": 3}, "model.layers.3.input_layernorm.weight: is not known to the architecture llama"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not supported"),
        ({"model_type": "mistral", "layer_types": ["chunked_attention"] * 4}, "layer_types: .* is not supported"),
        ({"quantization_config": {"quant_method": "unknown"}}, "quantization_config: .*unknown"),
        ({"num_hidden_layers": 2**40}, r"config\.json: num_hidden_layers: 1099511627776 blocks, but only \d+ tensors"),
        ({"head_dim": 2**40, "rope_parameters": tiny_networks.LLAMA3}, r"json: head_dim: 1099511627776 is more"),
    ],
)  # fmt: skip
def test_what_a_folder_may_not_say(saved: Any, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder, _ = saved("llama")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(GGUFError, match=message):
        LanguageModel.load(tmp_path)


def copied(folder: Path, to: Path) -> dict[str, np.ndarray]:
    """Copy a folder, and return its tensors."""
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return load_file(to / "model.safetensors")


@pytest.mark.parametrize("is_split", [False, True])
def test_only_the_files_of_a_model_are_read(saved: Any, is_split: bool, tmp_path: Path) -> None:
    folder, exact = saved("llama")
    arrays = copied(folder, tmp_path)
    if is_split:
        (tmp_path / "model.safetensors").unlink()
        names = sorted(arrays)
        places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
        for place in set(places.values()):
            save_file({name: arrays[name] for name in names if places[name] == place}, tmp_path / place)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    save_file({"tok_embeddings.weight": np.ones((2, 2))}, tmp_path / "consolidated.safetensors")
    save_file({"base_model.model.lora_A.weight": np.ones((2, 2))}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "training.safetensors").write_bytes(b"damaged")
    assert_close(LanguageModel.load(tmp_path)(IDS), exact)


def test_a_folder_without_the_file_of_a_model(saved: Any, tmp_path: Path) -> None:
    copied(saved("llama")[0], tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "consolidated.safetensors")
    message = r"model\.safetensors: neither this file nor model\.safetensors\.index\.json is there"
    with pytest.raises(GGUFError, match=message):
        LanguageModel.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "theirs", "other", "message"),
    [
        ("llama", "model.norm.weight", "language_model.model.norm.weight", r"another one is output_norm\.weight, too"),
        ("qwen3moe", "model.layers.0.mlp.experts.1.up_proj.weight",
         "language_model.model.layers.0.mlp.experts.1.up_proj.weight", r"another one is .*ffn_up_exps\.weight, too"),
        ("qwen3moe", "model.layers.0.mlp.experts.1.up_proj.weight", "model.layers.0.mlp.experts.up_proj.weight",
         r"ffn_up_exps\.weight: is there for all experts, and for each"),
    ],
)  # fmt: skip
def test_two_tensors_of_one_name(saved: Any, name: str, theirs: str, other: str, message: str, tmp_path: Path) -> None:
    arrays = copied(saved(name)[0], tmp_path)
    save_file(arrays | {other: arrays[theirs]}, tmp_path / "model.safetensors")
    with pytest.raises(GGUFError, match=message):
        LanguageModel.load(tmp_path)


@pytest.mark.parametrize("prefix", ["mtp", "model.mtp", "model.language_model.mtp"])
def test_tensors_that_predict_further_tokens_are_not_used(saved: Any, prefix: str, tmp_path: Path) -> None:
    folder, exact = saved("qwen35")
    arrays = copied(folder, tmp_path)
    query = arrays["model.layers.3.self_attn.q_proj.weight"]
    extra = {f"{prefix}.fc.weight": query, f"{prefix}.layers.0.self_attn.q_proj.weight": query}
    save_file(arrays | extra, tmp_path / "model.safetensors")
    assert_close(LanguageModel.load(tmp_path)(IDS), exact)


@pytest.mark.filterwarnings("ignore:.* unknown keys are ignored")
def test_damaged_folders_are_refused(saved: Any, tmp_path: Path) -> None:
    folder, _ = saved("llama")
    rng = np.random.default_rng(0)
    loaded = 0
    for file in ("config.json", "model.safetensors"):
        for each in folder.iterdir():
            (tmp_path / each.name).write_bytes(each.read_bytes())
        for _ in range(150):
            content = bytearray((folder / file).read_bytes())
            place = int(rng.integers(0, min(len(content), 4000)))
            content[place] = int(rng.integers(0, 256))
            (tmp_path / file).write_bytes(
                content[: int(rng.integers(0, len(content)))] if rng.random() < 0.2 else content
            )
            with contextlib.suppress(ValueError):  # nothing else may be raised; GGUFError is one
                LanguageModel.load(tmp_path, "numpy")
                loaded += 1
    assert loaded < 150


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model.safetensors"])
def test_pipes_devices_and_links_to_themselves_are_refused(saved: Any, name: str, tmp_path: Path) -> None:
    for each in saved("llama")[0].iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    path = tmp_path / name
    kinds = {"not a regular file": [os.mkfifo, lambda p: p.symlink_to("/dev/zero"), Path.mkdir]}
    for reason, makers in (kinds | {"symbolic links": [lambda p: p.symlink_to(p.name)]}).items():
        for make in makers:
            path.unlink(missing_ok=True)
            make(path)
            with pytest.raises(ValueError, match=rf"{name}.*{reason}"):
                LanguageModel.load(tmp_path, "numpy")
            if path.is_dir():
                path.rmdir()


def test_an_architecture_of_ones_own(saved: Any, tmp_path: Path) -> None:
    class Doubled(architectures.Decoder):
        """What layers add counts twice."""

        names = ("doubled",)
        model_types = ("llama",)

        @staticmethod
        def block(layer: Any, x: Any, added: Any) -> tuple[Any, Any]:
            h, x = layer.add_and_normalize(added, x, "attn_norm")
            h, x = layer.add_and_normalize(layer.attention(h) * 2.0, x, "ffn_norm")
            return x, layer.feed_forward(h) * 2.0

    folder, exact = saved("llama")
    try:
        architectures.register(Doubled)
        assert "doubled" in architectures.names()
        file = importlib.import_module("tensorops.models.files.folder").open_folder(folder)
        metadata = {k.replace("llama.", "doubled."): v for k, v in file.metadata.items()}
        from make_gguf import tokenizer_metadata, write_gguf

        metadata = {k: v for k, v in metadata.items() if k != "general.architecture"} | tokenizer_metadata()
        arrays = {k: t.dequantize() for k, t in file.tensors.items()}
        doubled = LanguageModel.load(write_gguf(tmp_path / "d.gguf", metadata, arrays, architecture="doubled"))(IDS)
        for name in arrays:
            if name.endswith(("attn_output.weight", "ffn_down.weight")):
                arrays[name] = arrays[name] * 2.0
        with pytest.raises(AssertionError):
            assert_close(doubled, exact)
        same = write_gguf(tmp_path / "s.gguf", metadata, arrays, architecture="doubled")
        Doubled.block = architectures.Decoder.block
        assert_close(doubled, to_numpy(LanguageModel.load(same)(IDS)))
    finally:
        architectures._registered.clear()
