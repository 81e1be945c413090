"""The asv benchmarks: each operator is measured by every implementation, in every dtype; peers skip when absent."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import tensorops as tp
from asv_benchmarks import harness as asv, peers
from tensorops._operator import OPERATORS
from tensorops.benchmarks.workloads import workload
from tensorops.testing import BENCHMARK_SHAPES, DTYPES, REFERENCES
from tensorops.testing._libraries import arrays_in

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "asv_benchmarks"
if not FOLDER.is_dir():
    pytest.skip("the benchmarks are in the repository, not in a distribution", allow_module_level=True)

NAMES = sorted(path.stem for path in FOLDER.glob("bench_*.py"))
KINDS = ("time_", "timeraw_", "peakmem_", "track_")


@pytest.fixture(scope="module")
def modules():
    sys.path.insert(0, str(ROOT))
    try:
        return {name: importlib.import_module(f"asv_benchmarks.{name}") for name in NAMES}
    finally:
        sys.path.remove(str(ROOT))


def classes(modules):
    """Return the classes with benchmarks, each once, by their full name."""
    found = {}
    for name, module in modules.items():
        for cls in vars(module).values():
            if (
                isinstance(cls, type)
                and cls.__module__ == module.__name__
                and any(a.startswith(KINDS) for a in dir(cls))
            ):
                found[f"{name}.{cls.__name__}"] = cls
    return found


def values(cls, **fixed):
    """Return combinations of a class's parameters: every operator and dtype, one implementation, else the first."""
    chosen = []
    for name, known in zip(cls.param_names, cls.params, strict=True):
        if name in fixed:
            chosen.append([value for value in known if value == fixed[name]])
        else:
            chosen.append(list(known) if name in ("operator", "dtype") else list(known)[:1])
    return itertools.product(*chosen)


def test_every_operator_is_timed_by_every_implementation_in_every_dtype(modules, monkeypatch):
    dtypes, implementations = defaultdict(set), defaultdict(set)

    def prepare(self, operator, implementation, args, **options):
        prepared.append(operator)
        arrays = arrays_in((list(args), options))
        dtypes[operator] |= {a.dtype.name for a in arrays} & set(DTYPES)
        implementations[operator] |= set(of_class)

    monkeypatch.setattr(asv.Benchmark, "prepare", prepare)
    for full_name, cls in classes(modules).items():
        if "implementation" not in cls.param_names or not any(name.startswith("time_") for name in dir(cls)):
            continue
        of_class = cls.params[cls.param_names.index("implementation")]
        for combination in values(cls, implementation="numpy/generic"):
            prepared = []
            cls().setup(*combination)
            assert len(prepared) == 1, f"{full_name} {combination}"
    assert set(dtypes) == set(OPERATORS)
    assert {name: found for name, found in dtypes.items() if found != set(DTYPES)} == {}
    missing = {name: set(asv.implementations([name])) - found for name, found in implementations.items()}
    assert {name: lacking for name, lacking in missing.items() if lacking} == {}


def test_operators_of_rows_are_timed_in_all_sizes(modules):
    for name in ("activation.Activation", "normalization.Normalization", "loss.Loss", "positional.Positional"):
        family, _, cls = name.partition(".")
        benchmark = getattr(modules[f"bench_{family}"], cls)
        assert tuple(benchmark.params[benchmark.param_names.index("shape")]) == BENCHMARK_SHAPES


def test_peak_memory_of_every_operator(modules):
    assert set(modules["bench_memory"].Memory.params[0]) == set(OPERATORS)
    benchmark = modules["bench_memory"].Memory()
    before = tp.get_backend()
    benchmark.setup("rms_norm", "numpy/generic", (2, 64), "float32")
    expected = REFERENCES["rms_norm"](*workload("rms_norm", 2, 64).args)
    np.testing.assert_allclose(benchmark.call(), expected, rtol=1e-5)
    benchmark.teardown()
    assert tp.get_backend() == before


@pytest.mark.parametrize("way", ["with set_backend", "with providers", "with a fallback", "nested", "decorator"])
def test_a_scope_is_left(modules, way):
    before = tp.get_backend()
    scope = modules["bench_backends"].Scope()
    scope.setup(way)
    scope.time_scope(way)
    assert tp.get_backend() == before


def test_a_transfer_arrives_in_the_named_library(modules):
    transfer = modules["bench_transfers"].Transfer()
    try:
        transfer.setup("numpy to jax", (1, 64), "float32")
    except NotImplementedError as error:
        pytest.skip(str(error))
    assert transfer.target == "jax"
    assert type(transfer.x) is np.ndarray


def test_every_pair_of_libraries_is_converted(modules):
    backends = asv.computing_backends()
    assert {"numpy", "jax", "mlx", "torch", "cupy", "pyopencl"} <= set(backends)
    assert len(modules["bench_transfers"].PAIRS) == len(backends) * (len(backends) - 1)


def test_short_calls_are_timed_in_batches(modules):
    """Of single calls, the samples would tell the clock's time: asv_runner 0.3 makes them so where there is a setup."""
    time = pytest.importorskip("asv_runner.benchmarks.time")
    calls = modules["bench_dispatch"].TypicalCase()
    calls.repeat, calls.warmup_time, calls.sample_time = 2, 0.001, 0.001
    benchmark = time.TimeBenchmark("time_call", calls.time_call, [calls])
    benchmark._current_params = ("relu",)
    assert benchmark.do_setup() is not True
    result = benchmark.run("relu")
    assert result["number"] > 10
    assert len(result["samples"]) == 2


# --- peers -------------------------------------------------------------------------------------------


def test_peers_are_classes_of_their_own(modules):
    found = {
        cls.peer for name, cls in classes(modules).items() if name.startswith("bench_peers.") and hasattr(cls, "peer")
    }
    assert found == {"", *peers.PEERS}  # "" is the copy


@pytest.mark.parametrize("name", ["Torch", "TorchOut", "Numexpr", "Jax"])
def test_an_absent_peer_is_no_figure(modules, monkeypatch, name):
    cls = getattr(modules["bench_peers"], name)
    package, _ = peers.PEERS[cls.peer]
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(NotImplementedError, match=rf"^{cls.peer}: "):
        cls().setup("silu", (1, 64), "float32")


def test_the_copy_needs_no_peer(modules, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    copied = []
    monkeypatch.setattr(np, "copyto", lambda target, source: copied.append((target.nbytes, source.nbytes)))
    copy = modules["bench_peers"].Copy()
    copy.setup("swiglu", (2, 64), "float32")
    copy.time_copy("swiglu", (2, 64), "float32")
    assert copied == [(768, 768)]  # reads two arrays of 512 bytes and writes one: as many as a copy of one and a half


# --- the published page ------------------------------------------------------------------------------


@pytest.fixture
def asv_page():
    pytest.importorskip("sphinx")
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        return importlib.import_module("asv_page")
    finally:
        sys.path.pop(0)


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.exhaustive
def test_the_committed_results_are_published(asv_page, tmp_path):
    pytest.importorskip("asv")
    if not (ROOT / ".git").exists() or git("rev-parse", "--verify", "--quiet", "main").returncode:
        pytest.skip("not a git repository with the branch main")
    if git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        pytest.skip("a clone without history, in which asv finds no commit")
    assert asv_page.publish(tmp_path / "asv") == ""
    index = json.loads((tmp_path / "asv" / "index.json").read_text())
    machines = {path.parent.name for path in (FOLDER / "results").glob("*/machine.json")}
    assert machines
    assert set(index["params"]["machine"]) == machines
    assert any(name.startswith("bench_dispatch.") for name in index["benchmarks"])


def test_results_of_commits_that_are_not_in_the_history_are_missed(asv_page, tmp_path, monkeypatch):
    """Such as after a rebase, or in a shallow clone: asv then writes a page without a single figure."""
    pytest.importorskip("asv")
    shutil.copytree(FOLDER / "results", tmp_path / "asv_benchmarks" / "results")
    shutil.copy(ROOT / "asv.conf.json", tmp_path)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q", "-b", "main"], [*author, "commit", "-q", "--allow-empty", "-m", "unrelated"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(asv_page, "ROOT", tmp_path)
    assert "no committed result is of a commit in the history" in asv_page.publish(tmp_path / "asv")


def test_without_asv_the_page_says_so(asv_page, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = asv_page.publish(tmp_path)
    assert reason == "asv is not installed where this page was built: pip install asv"
    asv_page.excuse(tmp_path / "asv", "<reason>")
    page = (tmp_path / "asv" / "index.html").read_text()
    assert "&lt;reason&gt;" in page
    assert f"<code>{asv_page.COMMAND}</code>" in page
