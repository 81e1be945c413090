"""One network on several devices of JAX, and in several processes with MPI: parts, sums, and the same tokens."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

import tensorops as tp
from llama_reference import float64_logits
from make_gguf import llama_metadata, real_model, tokenizer_metadata, write_gguf, write_llama
from mpi_threads import World, world_of
from tensorops.models import Llama, LlamaConfig, architectures, open_gguf
from tensorops.models.files._open_file import OpenFile, watch_reads
from tensorops.models.files.blocks import Tensor
from tensorops.models.files.gguf_types import TensorType
from tensorops.models.ranks import divide, part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensorops.models.files.gguf import GGUFFile

# Of two ranks each has its own heads of keys and values; of four, two have the same one. The vocabulary divides.
CONFIG = LlamaConfig(
    blocks=2, context_length=300, dim=64, hidden_dim=128, heads=4, kv_heads=2, head_dim=32, vocab_size=264,
    eps=1e-5, rope_base=1000.0,
)  # fmt: skip
IDS = [int(i) for i in np.random.default_rng(5).integers(0, 264, 128)]  # as many as fit before the cache grows
SAMPLING = {"temperature": 1.0, "top_k": 50}


def random_arrays(config: LlamaConfig, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Random weights by their names in a file."""
    rng = np.random.default_rng(0)
    whole = (config.vocab_size, config.dim)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": whole, "output_norm": (config.dim,)}
    shapes |= {} if tied else {"output": whole}
    for block in range(config.blocks):
        shapes |= {
            f"blk.{block}.{weight.name.removesuffix('.weight')}": weight.shape
            for weight in architectures.block_weights(config, block)
            if not weight.is_optional
        }
    arrays = {
        f"{name}.weight": (
            1 + 0.1 * rng.standard_normal(shape) if len(shape) == 1 else 0.2 * rng.standard_normal(shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }
    return arrays | {"rope_freqs.weight": np.linspace(1, 4, config.head_dim // 2, dtype=np.float32)}


def reference(config: LlamaConfig, arrays: Mapping[str, np.ndarray], ids: list[int]) -> np.ndarray:
    return float64_logits(config, arrays, ids, arrays["rope_freqs.weight"])


def write(path: Path, kind: str, *, tied: bool = True) -> Path:
    metadata = {"general.name": "tiny"}
    return write_gguf(path, metadata, random_arrays(CONFIG, tied=tied), kind)


def values(file: GGUFFile) -> dict[str, np.ndarray]:
    return {name: tensor.dequantize() for name, tensor in file.tensors.items()}


# ------------------------------------------------------------------------------------------------ parts of weights


def test_a_rank_has_equal_parts_of_heads_and_hidden_features() -> None:
    def sizes(config: LlamaConfig) -> tuple[int, int, int]:
        return config.heads, config.kv_heads, config.hidden_dim

    assert sizes(divide(CONFIG, 1)) == (4, 2, 128)
    assert sizes(divide(CONFIG, 2)) == (2, 1, 64)
    assert sizes(divide(CONFIG, 4)) == (1, 1, 32)
    smollm = dataclasses.replace(CONFIG, heads=9, kv_heads=3, hidden_dim=1536)
    assert sizes(divide(smollm, 3)) == (3, 1, 512)
    with pytest.raises(
        ValueError, match=r"9 query heads cannot be divided among 2 ranks; possible numbers of ranks: 1, 3$"
    ):
        divide(smollm, 2)
    with pytest.raises(ValueError, match="1536 hidden features cannot be divided among 9 ranks"):
        divide(smollm, 9)
    with pytest.raises(ValueError, match="4 heads of keys and values can neither be divided among 6 ranks nor"):
        divide(dataclasses.replace(CONFIG, heads=12, kv_heads=4), 6)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_0", "Q4_1", "Q8_0"])
def test_the_part_of_a_tensor_reads_only_its_bytes(tmp_path: Path, kind: str) -> None:
    file = open_gguf(write(tmp_path / "model.gguf", kind))
    tensor = file.tensors["blk.1.ffn_down.weight"]
    whole = tensor.dequantize()
    for axis, length in ((0, 16), (1, 32)):
        found = []
        for rank in range(4):
            read: list[int] = []
            with watch_reads(read.append):
                found.append(part_of(tensor, tensor.name, axis, length, rank, 4).dequantize())
            assert sum(read) == tensor.nbytes // 4
        np.testing.assert_array_equal(np.concatenate(found, axis=axis), whole)


@pytest.mark.parametrize(("axis", "start", "stop"), [(0, 0, 3), (0, 1, 3), (1, 2, 5), (2, 32, 96)])
def test_blocks_of_experts_are_read_among_those_of_others(tmp_path: Path, axis: int, start: int, stop: int) -> None:
    stored = np.random.default_rng(0).integers(0, 60, (3, 6, 4, 34), dtype=np.uint8)  # no exponent of infinity
    (tmp_path / "stored").write_bytes(b"four" + stored.tobytes())
    whole = Tensor("w", TensorType.Q8_0, (3, 6, 128), OpenFile(tmp_path / "stored"), 4, stored.nbytes)
    part = whole.part(axis, start, stop)
    columns = part.shape[2] // 32 * 34
    place = np.full((part.shape[0], part.shape[1] + 5, columns), 255, np.uint8)
    part.blocks(place[:, 2 : 2 + part.shape[1]])
    block = {2: 32}.get(axis, 1)
    expected = stored[(slice(None),) * axis + (slice(start // block, stop // block),)].reshape(*part.shape[:2], columns)
    np.testing.assert_array_equal(place[:, 2 : 2 + part.shape[1]], expected)
    np.testing.assert_array_equal(part.blocks().blocks, expected)
    assert (place[:, :2] == 255).all()
    assert (place[:, 2 + part.shape[1] :] == 255).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_quantized_weight_is_divided_between_groups(tmp_path: Path, kind: str) -> None:
    tensor = open_gguf(write(tmp_path / "model.gguf", kind)).tensors["blk.0.ffn_down.weight"]
    weight = tensor.quantized()
    for axis, length in ((0, 32), (1, 64)):
        parts = [part_of(weight, "w", axis, length, rank, 2) for rank in range(2)]
        for part, read in zip(parts, [part_of(tensor, "w", axis, length, rank, 2) for rank in range(2)], strict=True):
            assert part.shape == read.shape
            np.testing.assert_array_equal(part.weight, read.quantized().weight)
            np.testing.assert_array_equal(part.scales, read.quantized().scales)
    for divided in (weight, tensor):
        message = "weight w: each of 8 ranks has 16 of 128 columns, which are not whole groups of 32"
        with pytest.raises(ValueError, match=message):
            part_of(divided, "w", 1, 16, 0, 8)


def test_neighbouring_ranks_have_the_same_keys_if_there_are_too_few() -> None:
    keys = np.repeat(np.arange(3), 4)[:, None] * np.ones(5)  # three heads of four features
    heads = [part_of(keys, "attn_k", 0, 4, rank, 6) for rank in range(6)]
    assert [head.shape for head in heads] == [(4, 5)] * 6
    assert [int(head[0, 0]) for head in heads] == [0, 0, 1, 1, 2, 2]


# ----------------------------------------------------------------------------------- MPI's contract, among threads


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], World]:
    return lambda size: world_of(monkeypatch, size)


def tokens(model: Llama, count: int = 5, **options: Any) -> list[int]:
    return list(model.generate_ids(IDS, max_new_tokens=count, **options))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q4_1", "Q8_0"])
def test_ranks_give_the_logits_and_tokens_of_one(
    tmp_path: Path, world: Callable[[int], World], kind: str, size: int
) -> None:
    file = open_gguf(write(tmp_path / "model.gguf", kind, tied=size == 2))
    expected = reference(CONFIG, values(file), IDS[:9])
    alone = Llama(CONFIG, file.tensors)
    ranks = world(size)

    def on_rank(rank: int) -> Any:
        model = Llama(CONFIG, file.tensors, world_size=size, mpi_rank=rank)
        assert (model.world_size, model.mpi_rank) == (size, rank)
        return model(IDS[:9]), tokens(model), tokens(model, seed=rank, **SAMPLING), model

    greedy, sampled = tokens(alone), tokens(alone, seed=0, **SAMPLING)
    for logits, *made, model in ranks.run(on_rank):
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
        assert made == [greedy, sampled]
        assert f"ranks {size}" in repr(model)


def test_a_block_has_two_sums_and_a_token_one_exchange_of_logits(world: Callable[[int], World]) -> None:
    arrays, ranks = random_arrays(CONFIG), world(2)

    def on_rank(rank: int) -> int:
        model = Llama(CONFIG, arrays, backend="numpy", world_size=2, mpi_rank=rank)
        return len(list(model.generate_ids(IDS[:3], max_new_tokens=2)))

    assert ranks.run(on_rank) == [2, 2]
    step = ["Allreduce"] * 2 * CONFIG.blocks + ["Allgather", "Bcast"]
    assert ranks.calls == ["allgather", *step, *step]


@pytest.mark.parametrize("size", [2, 4])
def test_plans_of_ranks_give_the_tokens_of_one(world: Callable[[int], World], size: int) -> None:
    arrays, ranks, count = random_arrays(CONFIG), world(size), 6
    prompts = [IDS[:5], IDS[20:29]]
    alone = Llama(CONFIG, arrays, backend="cpu")

    def on_rank(rank: int) -> Any:
        model = Llama(CONFIG, arrays, backend="cpu", world_size=size, mpi_rank=rank)
        first = model.persistent(mode="prefill", length=8, max_seq_length=16)
        then = model.persistent(max_seq_length=16, profile=True)
        whole = model.persistent(mode="onepass", length=8)
        logits = whole(np.asarray(IDS[:8], np.int32))
        cache = model.new_cache(16)
        start, length = (np.asarray([n], np.int32) for n in (0, 5))
        token, keys, values = first(np.asarray([*IDS[:5], 0, 0, 0], np.int32), start, length, cache.keys, cache.values)
        found = [int(token[0])]
        for position in range(5, 4 + count):
            token, keys, values = then(token, np.asarray([position], np.int32), keys, values)
            found.append(int(token[0]))
        together: list[list[int]] = [[], []]
        for number, each in model.generate_batch(prompts, max_new_tokens=count):
            together[number].append(each)
        assert all(isinstance(step, tp.PersistentKernel) for step in model._batch_steps.values())
        return found, together, logits, then.explain().in_python, [call.operator for call in then.profile().calls]

    expected = [list(alone.generate_ids(ids, max_new_tokens=count)) for ids in prompts]
    for found, together, logits, python, calls in ranks.run(on_rank):
        assert found == expected[0]
        assert together == expected
        np.testing.assert_allclose(logits, reference(CONFIG, arrays, IDS[:8]), rtol=1e-4, atol=1e-4)
        assert f"all_reduce over the ranks, {2 * CONFIG.blocks} times a run" in python
        assert "broadcast over the ranks, once a run" in python
        assert calls.count("all_reduce") == 2 * CONFIG.blocks
        assert calls.count("all_gather") == 1


def test_a_vocabulary_that_does_not_divide_is_whole_on_every_rank(world: Callable[[int], World]) -> None:
    config = dataclasses.replace(CONFIG, vocab_size=263)
    arrays, ranks = random_arrays(config), world(2)
    results = ranks.run(lambda rank: Llama(config, arrays, backend="numpy", world_size=2)(IDS[:4]))
    assert "Allgather" not in ranks.calls
    for logits in results:
        np.testing.assert_allclose(logits, reference(config, arrays, IDS[:4]), rtol=1e-4, atol=1e-4)


def test_a_rank_keeps_only_its_part(tmp_path: Path, world: Callable[[int], World]) -> None:
    file = open_gguf(write(tmp_path / "model.gguf", "Q8_0"))

    def size(tree: Any) -> int:
        if isinstance(tree, dict):
            return size(list(tree.values()))
        return sum(map(size, tree)) if isinstance(tree, list | tuple) else getattr(tree, "nbytes", 0)

    def of_blocks(model: Llama) -> int:
        return size([[w for name, w in block.items() if "norm" not in name] for block in model._weights["blocks"]])

    whole = of_blocks(Llama(CONFIG, file.tensors))
    parts = world(2).run(lambda rank: of_blocks(Llama(CONFIG, file.tensors, world_size=2)))
    assert parts == [whole // 2] * 2


def test_a_rank_that_cannot_read_its_part_ends_the_others(tmp_path: Path, world: Callable[[int], World]) -> None:
    arrays = random_arrays(CONFIG)
    arrays["blk.1.attn_q.weight"][-1, -1] = np.nan  # of the last rank
    file = open_gguf(write_gguf(tmp_path / "model.gguf", {"general.name": "tiny"}, arrays))
    first, last = world(2).run(lambda rank: Llama(CONFIG, file.tensors, world_size=2))
    assert "tensor blk.1.attn_q.weight: holds a number that is not finite" in str(last)
    assert isinstance(first, RuntimeError)
    assert str(first) == "rank 1 could not load its part of the network; it says why"


def test_a_rank_that_has_no_file_ends_the_others(tmp_path: Path, world: Callable[[int], World]) -> None:
    path = write_llama(tmp_path / "model.gguf")
    first, last = world(2).run(lambda rank: Llama.from_gguf(f"{path}{'?' * rank}", world_size=2))
    assert isinstance(last, FileNotFoundError)
    assert str(first) == "rank 1 could not load its part of the network; it says why"


def test_what_contradicts_mpi_is_refused(world: Callable[[int], World], monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = random_arrays(CONFIG)

    def refused(size: int, **options: Any) -> list[str]:
        return [str(error) for error in world(size).run(lambda rank: Llama(CONFIG, arrays, **options))]

    assert refused(1, world_size=2) == ["world_size is 2, but MPI has 1: start them by mpiexec -n 2"]
    assert refused(2, world_size=2, mpi_rank=1)[0] == "mpi_rank is 1, but MPI has given this process the rank 0"
    for wrong in ({"world_size": 0}, {"world_size": 2, "mpi_rank": 2}, {"mpi_rank": 1}):
        with pytest.raises(ValueError, match=r"world_size is \d and mpi_rank is .*, expected 0 <= mpi_rank < world_"):
            Llama(CONFIG, arrays, **wrong)
    with pytest.raises(ValueError, match="mesh is for JAX, world_size and mpi_rank are for MPI"):
        Llama(CONFIG, arrays, world_size=2, mesh=object())
    indivisible = "4 query heads cannot be divided among 3 ranks; possible numbers of ranks: 1, 2, 4"
    assert refused(3, world_size=3) == [indivisible] * 3
    if tp.is_backend_available("jax"):
        with pytest.raises(ValueError, match="only NumPy arrays are sent by MPI, not those of 'jax'"):
            Llama(CONFIG, arrays, backend="jax", world_size=2)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"needs the package 'mpi4py': pip install 'tensorops\[mpi\]'"):
        Llama(CONFIG, arrays, world_size=2)
    assert Llama(CONFIG, arrays, world_size=1, mpi_rank=0).world_size == 1  # needs no MPI


# ----------------------------------------------------------------------------------------------- MPI, for real


def mpiexec(count: int, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in so many processes; skip without MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("the package mpi4py is not installed")
    found = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None:
        pytest.skip("there is no mpiexec here")
    start = [found, "-n", str(count), sys.executable, "-W", "error", *command]
    environment = {**os.environ, "TENSOROPS_NUM_THREADS": "1"}
    return subprocess.run(start, capture_output=True, text=True, check=False, timeout=300, env=environment)


REPLAYED = """
import numpy as np

def replayed(model, ids, count):
    # The same tokens by persistent steps: a prompt in one piece, then one after another
    first = model.persistent(mode="prefill", length=128, max_seq_length=256)
    then = model.persistent(max_seq_length=256)
    cache, start = model.new_cache(256), np.zeros(1, np.int32)
    token, keys, values = first(np.asarray(ids, np.int32), start, start + len(ids), cache.keys, cache.values)
    found = [int(np.asarray(token)[0])]
    for position in range(len(ids), len(ids) + count - 1):
        ids = np.asarray([found[-1]], np.int32)
        token, keys, values = then(ids, np.asarray([position], np.int32), keys, values)
        found.append(int(np.asarray(token)[0]))
    return found
"""

OVER_MPI = (
    REPLAYED
    + """
import json, sys
from tensorops.models import Llama, LlamaConfig, open_gguf
job = json.loads(sys.argv[1])
model = Llama(LlamaConfig(**job["config"]), open_gguf(job["path"]).tensors, world_size=job["size"])
seed = model.mpi_rank  # that of the first applies
found = [list(model.generate_ids(job["ids"], max_new_tokens=5, seed=seed, **pick)) for pick in ({}, job["sampling"])]
found.append(replayed(model, job["ids"], 5))
with open(f"{job['path']}.{model.mpi_rank}", "w") as file:
    json.dump(found, file)
"""
)


def test_two_processes_of_mpi_give_the_tokens_of_one(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "Q4_1")
    job = {"config": dataclasses.asdict(CONFIG), "path": str(path), "size": 2, "ids": IDS, "sampling": SAMPLING}
    done = mpiexec(2, "-c", OVER_MPI, json.dumps(job))
    assert done.returncode == 0, done.stderr
    alone = Llama(CONFIG, open_gguf(path).tensors)
    for rank in range(2):
        found = json.loads(Path(f"{path}.{rank}").read_text())
        assert found == [tokens(alone), tokens(alone, seed=0, **SAMPLING), tokens(alone)]


def test_the_command_says_it_once_under_mpi(tmp_path: Path) -> None:
    pytest.importorskip("click")
    metadata = llama_metadata(feed_forward_length=128) | tokenizer_metadata()
    config = dataclasses.replace(CONFIG, head_dim=16, vocab_size=269)
    path = write_gguf(tmp_path / "model.gguf", metadata, random_arrays(config))
    options = ["--model", str(path), "--backend", "cpu", "--max-new-tokens", "5"]
    done = mpiexec(2, "-m", "tensorops", "generate", "hello", *options, "--tensor-parallel", "2")
    assert done.returncode == 0, done.stderr
    expected = "".join(Llama.from_gguf(path, "cpu").generate("hello", max_new_tokens=5))
    assert done.stdout == f"hello{expected}\n"
    assert done.stderr.count("tokens/s") == 1
    (lines := tmp_path / "lines.txt").write_text("hello\n")
    done = mpiexec(2, "-m", "tensorops", "generate", "--batch", str(lines), *options, "--tensor-parallel", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"prompt": "hello", "text": expected, "tokens": 5, "finish_reason": "length"}
    assert done.stderr.count("tokens/s") == 1


# ----------------------------------------------------------------------------------------------- a mesh of JAX

OVER_MESH = (
    REPLAYED
    + """
import json, re, sys
import jax, numpy as np
job = json.loads(sys.argv[1])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", job["devices"])
if "port" in job:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{job['port']}", 2, job["process"])
import tensorops as tp
from tensorops.models import Llama, LlamaConfig, open_gguf
from tensorops.models.ranks import WHOLE

config = LlamaConfig(**job["config"])
mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("ranks",))
model = Llama(config, open_gguf(job["path"]).tensors, mesh=mesh)
found = {"backend": model.backend, "ranks": [model.world_size, model.mpi_rank]}
with tp.trace() as log:
    found["logits"] = np.asarray(model(job["ids"][:9])).tolist()
found["kernels"] = sorted({record.kernel for record in log if record.operator == "quantized_linear"})
options = {"max_new_tokens": 5, "seed": job.get("process", 0)}
found["tokens"] = [list(model.generate_ids(job["ids"], **options, **pick)) for pick in ({}, job["sampling"])]
found["tokens"].append(replayed(model, job["ids"], 5))
ids = np.asarray(job["ids"][:9], np.int32)
found["whole"] = np.asarray(model.persistent(mode="onepass", length=9)(ids)).tolist()
try:
    model.persistent(page_size=4)
except ValueError as error:
    found["pages"] = str(error)

cache = model.new_cache()
model(job["ids"], cache)
model([1], cache)  # the cache grows
before = cache.keys[0]
model([1], cache)
found["deleted"] = before.is_deleted()
found["capacity"] = cache.capacity
found["cache"] = [cache.keys[0].shape, cache.keys[0].addressable_shards[0].data.shape]
leaves = jax.tree.leaves(model._weights["blocks"][0]["attn_qkv"])
found["rows"] = [leaves[0].shape[0], leaves[0].addressable_shards[0].data.shape[0]]

def collectives(program, *arguments):
    text = program.lower(*arguments).compile().as_text()
    return re.findall(r" (all-[a-z-]+|collective-[a-z-]+|reduce-scatter)\\\\(", text), " copy(" in text

one, places = model._move((np.asarray([1], np.int32), np.asarray([[1]], np.int32)))
found["network"] = collectives(model._network, model._weights, one, places, cache.keys, cache.values)
hidden = model._move(np.zeros((1, config.dim), np.float32))
(choose, *_) = model._choosers.values()
found["chooser"] = collectives(choose, hidden, model._output, None)
with open(job["result"], "w") as file:
    json.dump(found, file)
""".replace("\\\\", "\\")
)


def over_mesh(path: Path, devices: int, processes: int = 1) -> list[dict[str, Any]]:
    """Return what each process finds out."""
    pytest.importorskip("jax")
    if not tp.is_backend_available("jax"):
        pytest.skip("backend jax is not available")
    job = {"config": dataclasses.asdict(CONFIG), "path": str(path), "devices": devices, "ids": IDS}
    job |= {"sampling": SAMPLING}
    if processes > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            job["port"] = probe.getsockname()[1]
    started = []
    for process in range(processes):
        own = {**job, "process": process, "result": f"{path}.{process}"}
        command = [sys.executable, "-W", "error", "-c", OVER_MESH, json.dumps(own)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        said = [each.communicate(timeout=300)[0] for each in started]
    finally:
        for each in started:
            each.kill()
            each.communicate()  # a pipe left open would be reported by the next test
    assert [each.returncode for each in started] == [0] * processes, "\n".join(said)[-4000:]
    return [json.loads(Path(f"{path}.{process}").read_text()) for process in range(processes)]


def check_mesh(found: dict[str, Any], path: Path, size: int) -> None:
    file = open_gguf(path)
    assert found["backend"] == "jax"
    assert found["ranks"][0] == size
    np.testing.assert_allclose(found["logits"], reference(CONFIG, values(file), IDS[:9]), rtol=1e-4, atol=1e-4)
    alone = Llama(CONFIG, file.tensors)
    assert found["tokens"] == [tokens(alone), tokens(alone, seed=0, **SAMPLING), tokens(alone)]
    np.testing.assert_allclose(found["whole"], found["logits"], rtol=1e-4, atol=1e-4)
    assert found["pages"] == "the devices of a mesh share no pages: they take a sequence at a time"
    kv_heads = max(1, CONFIG.kv_heads // size)
    assert found["deleted"]
    assert found["capacity"] == 256
    assert found["cache"] == [[1, kv_heads * size, 256, 32], [1, kv_heads, 256, 32]]
    rows = (CONFIG.heads // size + 2 * kv_heads) * CONFIG.head_dim
    assert found["rows"] == [rows * size, rows]
    assert found["network"] == [["all-reduce"] * 2 * CONFIG.blocks, False]
    assert found["chooser"][0] == ["all-gather"] * (size > 1) + ["all-reduce"]


@pytest.mark.costly
@pytest.mark.parametrize(("size", "kind"), [(4, "Q4_1"), (2, "F32"), (2, "Q4_0"), (2, "Q8_0"), (1, "Q4_1")])
def test_devices_of_a_mesh_give_the_logits_and_tokens_of_one(tmp_path: Path, kind: str, size: int) -> None:
    path = write(tmp_path / "model.gguf", kind)
    (found,) = over_mesh(path, size)
    check_mesh(found, path, size)
    if kind != "F32" and tp.quantized_linear.kernels.get("jax_ffi"):
        assert "jax_ffi" in found["kernels"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("devices", [1, 2])
def test_two_processes_of_jax_give_the_tokens_of_one(tmp_path: Path, devices: int) -> None:
    path = write(tmp_path / "model.gguf", "Q4_1")
    for process, found in enumerate(over_mesh(path, devices, processes=2)):
        check_mesh(found, path, 2 * devices)
        assert found["ranks"][1] == process * devices


def test_what_contradicts_the_mesh_is_refused() -> None:
    jax = pytest.importorskip("jax")
    arrays = random_arrays(CONFIG)
    square = jax.sharding.Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    with pytest.raises(ValueError, match="mesh has the axes 'data', 'model', expected one"):
        Llama(CONFIG, arrays, backend="jax", mesh=square)
    line = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("model",))
    with pytest.raises(ValueError, match="mesh is for arrays of JAX, not those of the backend 'numpy'"):
        Llama(CONFIG, arrays, backend="numpy", mesh=line)


def test_too_few_devices_for_the_command_are_an_error(tmp_path: Path) -> None:
    pytest.importorskip("click")
    jax = pytest.importorskip("jax")
    from click.testing import CliRunner

    from tensorops.cli._app import app

    path = write_gguf(tmp_path / "m.gguf", llama_metadata() | tokenizer_metadata(), random_arrays(CONFIG))
    count = len(jax.devices()) + 1
    arguments = ["generate", "hello", "--model", str(path), "--backend", "jax", "--tensor-parallel", str(count)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    words = re.sub(r"\s+", " ", result.output)
    assert f"Error: there are not {count} devices of JAX, but {count - 1}; to try it on a processor" in words


# ----------------------------------------------------------------------------------------------- the real model

REAL = """
import json, sys
import jax, numpy as np
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)
from tensorops.models import Llama
mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("ranks",))
model = Llama.from_gguf(sys.argv[1], mesh=mesh)
print(json.dumps(list(model.generate_ids(json.loads(sys.argv[2]), max_new_tokens=24))))
"""
PARIS = [504, 3575, 282, 4649, 314]


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["mesh", "mpi"])
def test_three_ranks_give_the_real_models_tokens(way: str) -> None:
    path = real_model()
    expected = list(Llama.from_gguf(path).generate_ids(PARIS, max_new_tokens=24))
    if way == "mesh":
        pytest.importorskip("jax")
        command = [sys.executable, "-W", "error", "-c", REAL, str(path), json.dumps(PARIS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        code = "import json, sys; from tensorops.models import Llama; m = Llama.from_gguf(sys.argv[1], world_size=3); "
        code += "t = list(m.generate_ids(json.loads(sys.argv[2]), max_new_tokens=24)); m.mpi_rank or print(t)"
        done = mpiexec(3, "-c", code, str(path), json.dumps(PARIS))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize("size", [2, 4])
def test_sizes_of_the_real_model_that_do_not_divide_are_refused(size: int, world: Callable[[int], World]) -> None:
    path = real_model()
    error = world(size).run(lambda rank: Llama.from_gguf(path, world_size=size))[0]
    assert str(error) == f"9 query heads cannot be divided among {size} ranks; possible numbers of ranks: 1, 3"
