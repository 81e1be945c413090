"""``tensorops bench --decode``: a model's steps on backends, each way in processes of its own, and the bound."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import support

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("gguf")

from click.testing import CliRunner

from make_gguf import write_llama
from tensorops.benchmarks import decode
from tensorops.benchmarks.decode import read_bandwidth, weight_bytes
from tensorops.cli._app import app
from tensorops.models import Llama


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_llama(path)
    return path


def test_all_threads_read_at_once(monkeypatch):
    together, sizes = threading.Barrier(2, timeout=60), []

    def dot(part, same):
        assert part is same
        sizes.append(part.nbytes)
        together.wait()  # breaks, and raises, unless there are two

    monkeypatch.setattr(np, "dot", dot)
    monkeypatch.setattr("tensorops.benchmarks.decode.BANDWIDTH_BYTES", 1 << 16)
    assert read_bandwidth(2) > 0
    assert set(sizes) == {1 << 15}


@pytest.mark.exhaustive
def test_speeds_beside_the_bound(model):
    support.require_provider("cpu")
    arguments = [
        "bench",
        "--decode",
        "--backend=cpu",
        "--backend=numpy",
        f"--model={model}",
        "--seconds=0.01",
        "--json",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["decode"]
    assert found["model"] == "tiny.gguf"
    assert found["weight_bytes"] == weight_bytes(model)
    assert found["bound"] == pytest.approx(found["read_bandwidth"] / found["weight_bytes"])
    slowest, *_, quickest = sorted(speed["read_bandwidth"] for speed in found["speeds"] if speed["read_bandwidth"])
    assert slowest <= found["read_bandwidth"] <= quickest
    speeds = {(speed["backend"], speed["way"]): speed for speed in found["speeds"]}
    assert set(speeds) == {(backend, way) for backend in ("cpu", "numpy") for way in decode.WAYS}
    refused = speeds.pop(("numpy", "persistent"))
    assert refused["tokens_per_second"] is None
    assert "no backend can replay this step: numpy" in refused["reason"]
    for speed in speeds.values():
        assert speed["reason"] is None
        assert speed["tokens_per_second"] == pytest.approx(1 / speed["seconds"])
        reading = found["weight_bytes"] / speed["read_bandwidth"]
        assert speed["of_bound"] == pytest.approx(reading / speed["seconds"])
        assert speed["read_bandwidth"] > 0
        assert speed["quartiles"][0] <= speed["seconds"] <= speed["quartiles"][1]
        assert speed["steps"] >= 2 * decode.ROUNDS


def test_both_ways_give_the_token_that_the_model_gives(model):
    """What is timed is the step: at the position of the benchmark, after a cache of numbers."""
    support.require_provider("cpu")
    llama = Llama.from_gguf(model, "cpu")
    cache = decode.filled_cache(llama)
    assert all(np.count_nonzero(block) == block.size for block in (*cache.keys, *cache.values))
    cache.length = decode.POSITION
    expected = int(np.argmax(np.asarray(llama([5], cache))[-1]))
    for way in decode.WAYS:
        assert decode.prepare(str(model), "cpu", way)() == [expected]
