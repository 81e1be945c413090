"""``tensorops bench --peers``: what is compared, the time ratios, and what is missing or refused."""

from __future__ import annotations

import importlib.util
import json
import math
import sys

import numpy as np
import pytest

import support

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from asv_benchmarks import __main__ as command, _llama_cpp, comparison, model as benchmark, peers
from asv_benchmarks.peers import ATTENTION, PEERS, ROWS, PeerDiffersError, PeerMissingError
from tensorops._operator import OPERATORS
from tensorops.benchmarks import decode, measuring
from tensorops.testing import DTYPES, REFERENCES, assert_matches

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def compiled():
    support.require_provider("cpu")


@pytest.fixture
def small(monkeypatch):
    """Shorten a run: two sizes, small attention, and one task of each kind."""
    monkeypatch.setattr(command, "BENCHMARK_SHAPES", ((1, 64), (3, 48)))
    tiny = peers._attention(4, 4, 32, is_causal=True), peers._attention(1, 8, 8)
    monkeypatch.setattr(peers, "ATTENTION", dict(zip(("prefill", "decode"), tiny, strict=True)))
    monkeypatch.setattr(measuring, "REST", 0.0)


@pytest.fixture
def alone(monkeypatch):
    """No peer is installed."""
    for package in ("torch", "numexpr", "jax"):
        monkeypatch.setitem(sys.modules, package, None)


@pytest.fixture
def stubbed(monkeypatch):
    """Nothing is timed: all contenders take the same seconds in each line, times the number of the line."""
    seconds = {"tensorops": 2.0, "copy": 1.0, "torch": 3.0, "torch out=": 1.0, "numexpr": 8.0, "jax.jit": 5.0}
    lines = []

    def fill_in(line, calls, _):
        lines.append(line)
        for name in calls:
            line.seconds[name] = seconds[name] * (len(lines) if name == "torch" else 1)
            line.quartiles[name] = (line.seconds[name], line.seconds[name])

    monkeypatch.setattr(comparison, "fill_in", fill_in)


def invoke(*arguments):
    return CliRunner().invoke(command.app, ["peers", *arguments, "--seconds", "0.001"], env={"COLUMNS": "140"})


def compared(*arguments):
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# --- the peers ---------------------------------------------------------------------------------------


# The tasks that each peer lacks, so a lost form is noticed.
TORCH_OUT_LACKS = {"rms_norm", "add_rms_norm", "group_norm", "instance_norm", "selu", "top_k", *ATTENTION}
LACKS = {
    "torch": set(),
    "torch out=": TORCH_OUT_LACKS,
    "numexpr": {*ROWS, *ATTENTION} - {"silu", "sigmoid", "softplus", "gelu_tanh"},
    "jax.jit": set(ATTENTION),
}


def small_task(name):
    tiny = {"prefill": peers._attention(5, 5, 32, is_causal=True), "decode": peers._attention(1, 9, 8)}
    return tiny.get(name) or ROWS[name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("peer", PEERS)
def test_peers_compute_what_the_reference_does(peer, dtype):
    """Also the second time: some write into their previous result. The arguments are unchanged."""
    if importlib.util.find_spec(PEERS[peer][0]) is None:
        pytest.skip(f"{peer} is not installed")
    if (peer, dtype) in {("numexpr", "float16"), ("numexpr", "bfloat16"), ("jax.jit", "float64")}:
        pytest.skip("a dtype that it lacks, see below")
    lacking = set()
    for name in (*ROWS, *ATTENTION):
        task = small_task(name)
        arrays = task.work(5, 64, dtype).args
        expected = REFERENCES[task.operator](*arrays, **task.options)
        parts = expected if isinstance(expected, tuple) else (expected,)
        rounded = tuple(y.astype(DTYPES[dtype]) if y.dtype == np.float64 else y for y in parts)
        ours = rounded if isinstance(expected, tuple) else rounded[0]
        before = [np.copy(a) for a in arrays]
        try:
            call = peers.prepare(peer, name, arrays, ours)
        except PeerMissingError as error:
            if str(error):  # otherwise the function merely does not exist
                raise
            lacking.add(name)
            continue
        peers.require_same(call(), ours, "again")
        for array, same in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, same)
    assert lacking == LACKS[peer]


@pytest.mark.parametrize("name", [*ROWS, *ATTENTION])
def test_every_task_is_an_operators_own(name):
    task = small_task(name)
    assert (task.operator, task.options) == ((ROWS | ATTENTION)[name].operator, (ROWS | ATTENTION)[name].options)
    work = task.work(3, 32, "float32")
    result = OPERATORS[task.operator](*work.args, **task.options)
    expected = REFERENCES[task.operator](*work.args, **task.options)
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (result, expected)), strict=True):
        assert_matches(a, b, "float32" if b.dtype == np.float64 else b.dtype.name, tolerance=64)


def test_the_copy_moves_as_many_bytes():
    """Counted from the arrays; a vector of weights is left out, and so are the few results of top_k."""
    for name, task in (ROWS | ATTENTION).items():
        shapes = task.shapes or tuple(a.shape for a in task.work(16, 64, "float32").args)
        sizes = [math.prod(shape) for shape in shapes if len(shape) > 1]
        results = {"add_rms_norm": 2, "top_k": 0}.get(name, 1)
        moved = sum(sizes) + results * sizes[0]
        assert task.copies == pytest.approx(moved / 2 / max(sizes)), name


LAST_ROW_DIFFERS = np.ones((1000, 4), np.float32)
LAST_ROW_DIFFERS[-1, -1] = 2


@pytest.mark.parametrize(
    ("shape", "theirs", "reason"),
    [
        ((4, 8), np.ones((4, 8)), r"^silu of them gives float64 of shape \(4, 8\), the operator float32 of \(4, 8\)$"),
        ((4, 8), np.ones((8, 4), np.float32), r"gives float32 of shape \(8, 4\), the operator float32 of \(4, 8\)$"),
        ((1, 8), np.full((1, 8), 1.001, np.float32), r"is off by 0\.001, more than 1e-05: it computes something else$"),
        ((4, 8), np.full((4, 8), np.nan, np.float32), r"is off by nan"),
        ((1000, 4), LAST_ROW_DIFFERS, r"is off by 1,"),
    ],
)
def test_a_peer_that_computes_something_else_is_an_error(shape, theirs, reason):
    ours = np.ones(shape, np.float32)
    peers.require_same(ours + np.float32(1e-6), ours, "silu of them")
    with pytest.raises(PeerDiffersError, match=reason):
        peers.require_same(theirs, ours, "silu of them")
    with pytest.raises(PeerDiffersError, match=reason):
        peers.require_same((ours, theirs), (ours, ours), "silu of them")


def test_the_two_forms_of_gelu_are_not_the_same():
    support.require("torch")
    x = ROWS["gelu"].work(4, 4096, "float32").args
    other = OPERATORS["gelu"](*x, approximate="tanh")
    with pytest.raises(PeerDiffersError, match=r"^gelu of torch is off by"):
        peers.prepare("torch", "gelu", x, other)


def test_a_wrong_peer_ends_the_command(small, monkeypatch):
    support.require("torch")
    known = peers._torch()
    monkeypatch.setattr(peers, "_torch", lambda: known | {"silu": known["sigmoid"]})
    result = invoke("silu")
    assert result.exit_code == 1
    assert "Error: silu of torch is off by" in result.stderr


def test_the_copy_is_torchs():
    support.require("torch")
    call = measuring.prepare_copy(160)
    there = call()
    assert type(there).__module__ == "torch"
    assert there.nbytes == 160
    assert call().data_ptr() == there.data_ptr()  # into the same memory every time


def test_without_torch_the_copy_is_numpys(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    copied = []
    monkeypatch.setattr(np, "copyto", lambda there, x: copied.append((there.nbytes, x.nbytes, there is x)))
    measuring.prepare_copy(160)()
    assert copied == [(160, 160, False)]


@pytest.mark.parametrize(("name", "arrays"), [("silu", 1), ("add_rms_norm", 2), ("swiglu", 1.5)])
def test_the_copy_beside_an_operator_moves_what_it_moves(monkeypatch, name, arrays):
    asked = []
    monkeypatch.setattr(comparison, "prepare_copy", lambda nbytes: asked.append(nbytes) or (lambda: None))
    comparison.compare(name, ROWS[name], 3, 48, "float32", 0.01)
    assert asked == [arrays * 3 * 48 * 4]


# --- ratios ------------------------------------------------------------------------------------------


def test_ratios_are_those_of_the_times():
    line = comparison.Line("swiglu", "1x64", "cpu", {"tensorops": 2.0, "copy": 1.5, "torch": 5.0, "jax.jit": 1.0})
    assert line.of_copy == 0.75
    assert line.ratios == {"torch": 2.5, "jax.jit": 0.5}
    again = comparison.Line("swiglu", "1x4096", "cpu", {"tensorops": 1.0, "copy": 1.0, "torch": 10.0})
    other = comparison.Line("silu", "1x64", "cpu", {"tensorops": 1.0, "copy": 1.0})
    assert comparison.summarize([line, again, other]) == {
        "swiglu": {
            "torch": {"geometric_mean": pytest.approx(5.0), "least": 2.5},
            "jax.jit": {"geometric_mean": pytest.approx(0.5), "least": 0.5},
        },
        "silu": {},
    }


def test_the_table_in_numbers(small, stubbed):
    support.require("torch")
    report = compared("silu", "swiglu", "silu")
    assert [(row["task"], row["shape"]) for row in report["rows"]] == [
        ("silu", "1x64"), ("silu", "3x48"), ("swiglu", "1x64"), ("swiglu", "3x48")
    ]  # fmt: skip
    assert {row["kernel"] for row in report["rows"]} == {"cpu"}
    assert [row["of_copy"] for row in report["rows"]] == [0.5] * 4
    assert [row["ratios"]["torch"] for row in report["rows"]] == [1.5, 3.0, 4.5, 6.0]
    assert report["summary"]["silu"]["torch"] == {"geometric_mean": pytest.approx(math.sqrt(4.5)), "least": 1.5}
    assert report["summary"]["swiglu"]["torch out="] == {"geometric_mean": pytest.approx(0.5), "least": 0.5}
    assert "numexpr" not in report["summary"]["swiglu"]
    assert report["dtype"] == "float32"
    assert {"torch", "numpy", "tensorops"} <= set(report["versions"])
    assert "attention" not in report
    assert "model" not in report


def test_a_size_leaves_out_attention(small, stubbed, tmp_path):
    path = tmp_path / "result.json"
    report = compared("--size", "2x32", "--output", str(path))
    assert [row["task"] for row in report["rows"]] == list(ROWS)
    assert all(math.prod(map(int, row["shape"].split("x"))) == 64 for row in report["rows"])
    assert "attention" not in report
    assert json.loads(path.read_text(encoding="utf-8")) == report


def test_the_table_for_people(small, stubbed):
    support.require("torch")
    result = invoke("silu", "--section", "rows", "--section", "attention")
    assert result.exit_code == 0, result.output
    rows = [[c.strip() for c in line.strip("│┃").split("│")] for line in result.stdout.splitlines() if "│" in line]
    assert [row[:3] for row in rows] == [
        ["silu", "1x64", "cpu"], ["", "3x48", "cpu"], ["", "mean/least", ""],
        ["prefill", "1x32x4x128 on 1x32x4x128", "cpu"], ["decode", "1x32x1x128 on 1x8x8x128", "cpu"],
    ]  # fmt: skip
    assert rows[0][3:7] == ["2 s", "50%", "1.50", "0.50"]
    assert rows[2][3:7] == ["", "", "2.12/1.50", "0.50/0.50"]
    assert rows[3][3:] == ["2 s", "50%", "4.50"]
    assert "above 1 if ours is faster" in " ".join(result.stdout.split())


def test_no_digit_is_cut_off(small, stubbed):
    support.require("torch")
    result = CliRunner().invoke(command.app, ["peers", "silu"], env={"COLUMNS": "60"})
    assert "…" not in result.stdout
    assert "2.12/1.50" in result.stdout


def test_times_that_vary_are_marked(small, monkeypatch):
    def fill_in(line, calls, _):
        for name in calls:
            line.seconds[name] = 1.0
            line.quartiles[name] = (1.0, 1.6 if name == "copy" and line.shape == "3x48" else 1.4)

    monkeypatch.setattr(comparison, "fill_in", fill_in)
    assert [row["unsteady"] for row in compared("silu")["rows"]] == [False, True]
    result = invoke("silu")
    assert "3x48 ~" in result.stdout
    assert "1x64 ~" not in result.stdout
    assert "times vary by more than half between rounds, is the machine busy? silu 3x48" in result.stderr


@pytest.mark.exhaustive
def test_a_whole_run_is_sound(small):
    """Actually timed, on small arrays: every figure is present, and none is checked against a clock."""
    report = compared()
    assert [row["task"] for row in report["rows"]] == [name for name in ROWS for _ in range(2)]
    assert [row["task"] for row in report["attention"]] == list(ATTENTION)
    for row in report["rows"] + report["attention"]:
        assert row["seconds"]["tensorops"] > 0
        assert row["seconds"]["copy"] > 0
        assert set(row["seconds"]) | set(row["missing"]) == {"tensorops", "copy", *PEERS}
        assert set(row["seconds"]) & set(row["missing"]) == set()
        for name, (lower, upper) in row["quartiles"].items():
            assert row["quickest"][name] <= lower <= row["seconds"][name] <= upper
        assert row["of_copy"] == row["seconds"]["copy"] / row["seconds"]["tensorops"]


# --- who takes no part, and what is refused ----------------------------------------------------------


def test_without_peers_there_is_a_copy(small, alone, stubbed):
    report = compared("silu")
    assert [set(row["seconds"]) for row in report["rows"]] == [{"tensorops", "copy"}] * 2
    assert report["rows"][0]["missing"] == dict.fromkeys(PEERS, "not installed")
    assert report["summary"] == {"silu": {}}
    result = invoke("silu")
    assert result.exit_code == 0, result.output
    for peer in PEERS:
        assert result.stdout.count(f"{peer}: not installed") == 1


def test_a_form_that_a_peer_lacks_is_a_blank(small, stubbed):
    support.require("torch")
    report = compared("rms_norm")
    assert report["rows"][0]["missing"]["torch out="] == ""
    assert "torch out=:" not in invoke("rms_norm").stdout


@pytest.mark.parametrize(("peer", "dtype"), [("numexpr", "bfloat16"), ("jax.jit", "float64")])
def test_a_dtype_that_a_peer_lacks_is_said(peer, dtype):
    arrays = ROWS["silu"].work(2, 32, dtype).args
    with pytest.raises(PeerMissingError, match=rf"not installed|it (has no|holds) {dtype}"):
        peers.prepare(peer, "silu", arrays, arrays[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("sillu",),
            "unknown operator 'sillu' (did you mean 'silu'?); valid names: rms_norm, add_rms_norm",
        ),
        (("rope",), "unknown operator 'rope'; valid names: rms_norm"),
        (("--dtype", "float23"), "unknown dtype 'float23'"),
        (("--section", "model"), "the section model and --model GGUF_FILE need each other"),
        (
            ("--section", "rows", "--model", __file__),
            "the section model and --model GGUF_FILE need each other",
        ),
        (("--section", "attention", "silu"), "operators and sizes are of the section rows"),
        (("--section", "attention", "--size", "small"), "operators and sizes are of the section rows"),
        (("--section", "rest"), "'rest' is not one of 'rows', 'attention', 'model'"),
        (("--model", "no_such_file.gguf"), "'no_such_file.gguf' does not exist"),
    ],
)
def test_usage_errors_are_exit_code_2(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


# --- the model ---------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    pytest.importorskip("gguf")
    import make_gguf

    path = tmp_path / "tiny.gguf"
    make_gguf.write_llama(path)
    return path


@pytest.fixture
def quick_bandwidth(monkeypatch):
    monkeypatch.setattr(decode, "BANDWIDTH_BYTES", 1 << 16)
    monkeypatch.setattr(benchmark, "NEW_TOKENS", 3)
    monkeypatch.setattr(benchmark, "PREFILL", 9)


def test_speeds_are_medians_of_rounds():
    """All runners decode and read in every round; the time of a prompt before decoding does not count."""
    turns, steps = [], {"tensorops": iter([0.1, 0.4, 0.2]), "llama.cpp": iter([0.3, 0.1, 0.2])}

    def runner(name):
        def run(prompt, count):
            turns.append((name, len(prompt), count))
            if count == 2:
                return [9.0, 9.0, 9.0]
            if count == 0:
                return [0.5 if name == "tensorops" else 2.0]
            step = next(steps[name])
            return [7.0, step, step, 10 * step]

        return run

    line = benchmark.ModelLine("m", weight_bytes=100, read_bandwidth=1000.0, new_tokens=3, prefill_tokens=8)
    benchmark.take_turns(line, {name: runner(name) for name in steps}, [1, 2], list(range(8)))
    assert line.decode == {"tensorops": pytest.approx(5.0), "llama.cpp": pytest.approx(5.0)}
    assert line.prefill == {"tensorops": 16.0, "llama.cpp": 4.0}
    one_round = [(name, *what) for name in steps for what in ((2, 3), (8, 0))]
    assert turns == [("tensorops", 2, 2), ("llama.cpp", 2, 2), *one_round * 3]
    assert line.bound == 10.0
    found = line.to_dict()
    assert found["of_bound"] == {"tensorops": pytest.approx(0.5), "llama.cpp": pytest.approx(0.5)}
    assert found["ratios"] == {"decode": pytest.approx(1.0), "prefill": 4.0}


def test_of_a_table_of_embeddings_one_row_is_read(model):
    from tensorops.models.files.gguf import open_gguf

    tensors = open_gguf(model).tensors
    total = sum(tensor.nbytes for tensor in tensors.values())
    table = tensors["token_embd.weight"].nbytes if "output.weight" in tensors else 0
    assert benchmark.weight_bytes(model) == total - table


def test_steps_of_our_model_are_counted(model):
    from tensorops.models import Llama

    llama = Llama.from_gguf(model, "cpu")
    assert len(benchmark.run(llama, [5, 6, 7], 4)) == 5
    assert len(benchmark.run(llama, [5, 6, 7], 0)) == 1
    assert all(t > 0 for t in benchmark.run(llama, [5], 2))


def test_a_model_without_llama_cpp(model, quick_bandwidth, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    from tensorops.models import Llama

    line = benchmark.compare_model(Llama.from_gguf(model, "cpu"), model, 1)
    assert line.missing == {"llama.cpp": "not installed"}
    assert list(line.decode) == list(line.prefill) == ["tensorops"]
    assert line.to_dict()["ratios"] == {"decode": None, "prefill": None}


def test_a_process_that_ends_says_why(model, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: object())
    process = benchmark.Process(model, 64, 1)
    process._command = [sys.executable, "-c", "import sys; sys.stderr.write('no such model\\n\\n'); sys.exit(3)"]
    with process:
        assert process.problem == "llama.cpp ended with code 3: no such model"


def test_llama_cpp_answers_from_its_process(model):
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama_cpp is not installed")
    with benchmark.Process(model, 64, 1) as process:
        if process.problem:  # it does not accept so small a model
            assert process.problem.startswith("llama.cpp ended with code ")
        else:
            assert len(process.run([5, 6], 3)) == 4
    assert process._process.poll() is not None


def test_the_model_section(model, quick_bandwidth, monkeypatch):
    def run(self, prompt, count):
        return [0.5] * (count + 1)

    monkeypatch.setattr(benchmark.Process, "__enter__", lambda self: self)
    monkeypatch.setattr(benchmark.Process, "run", run)
    whole = compared("--section", "model", "--model", str(model))
    assert not {"rows", "attention"} & set(whole)
    report = whole["model"]
    assert report["model"] == "tiny.gguf"
    assert (report["new_tokens"], report["prefill_tokens"]) == (3, 9)
    assert report["decode"]["llama.cpp"] == 2.0
    assert report["prefill"]["llama.cpp"] == 18.0
    assert report["ratios"]["decode"] == pytest.approx(report["decode"]["tensorops"] / 2.0)
    assert report["bound"] == report["read_bandwidth"] / report["weight_bytes"]
    assert "8 bits" in report["note"]
    result = invoke("--section", "model", "--model", str(model))
    assert "decode, 3 tokens" in result.stdout
    assert "prefill, 9 tokens" in result.stdout
    assert "8 bits" in result.stdout


def test_a_file_that_is_no_model_is_named(tmp_path):
    pytest.importorskip("gguf")
    path = tmp_path / "text.gguf"
    path.write_text("no model")
    result = invoke("--section", "model", "--model", str(path))
    assert result.exit_code == 1
    assert str(path) in result.stderr.replace("\n", "")
    assert "Traceback" not in result.stderr


def test_llama_cpp_adds_the_likeliest_token():
    """On a fake module, because every version names the real one differently."""
    import ctypes

    class Model:
        def __init__(self):
            self.seen, self._ctx = [], self

        def reset(self):
            self.seen.clear()

        def n_vocab(self):
            return 4

        def eval(self, tokens):
            self.seen.append(list(tokens))

        def get_logits(self):
            values = [0.0] * 4
            values[(self.seen[-1][-1] + 1) % 4] = 1.0
            return (ctypes.c_float * 4)(*values)

    made = Model()
    made.get_logits = lambda: ctypes.cast(Model.get_logits(made), ctypes.POINTER(ctypes.c_float))
    assert len(_llama_cpp.run(made, [0, 1], 3)) == 4
    assert made.seen == [[0, 1], [2], [3], [0]]
