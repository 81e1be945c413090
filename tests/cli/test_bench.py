"""``tensorops bench``: what it measures, what it reports, and what it refuses."""

from __future__ import annotations

import json
import shlex
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pytest

import support
from command_line import run

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.benchmarks import backends, measuring, reports
from tensorops.cli import bench
from tensorops.cli._app import app

QUICK = ("--seconds", "0.001")


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments, *QUICK], env={"COLUMNS": "100"})


def measured(*arguments, code=0):
    result = invoke(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


# --- what it measures --------------------------------------------------------------------------------


def test_one_operator_in_numbers():
    (row,) = measured("rms_norm", "--backend", "python", "--size", "3x64")["results"]
    assert (row["operator"], row["backend"], row["kernel"]) == ("rms_norm", "numpy", "generic")
    assert (row["rows"], row["features"], row["dtype"]) == (3, 64, "float32")
    assert row["bytes"] == (3 * 64 + 64 + 3 * 64) * 4  # x, weight and the result
    assert row["gigabytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
    assert row["speedup"] == 1.0
    assert row["quartiles"][0] <= row["seconds"] <= row["quartiles"][1]
    assert row["rounds"] >= measuring.LEAST_ROUNDS
    assert row["reason"] is None


def test_rows_that_nobody_looks_up_do_not_count():
    (row,) = measured("embedding", "--backend=numpy", "--size=2x64")["results"]
    assert row["bytes"] == 2 * 4 + 2 * (2 * 64 * 4)  # the indices, the rows of the table, and the result


def test_it_names_the_kernel_that_ran():
    support.require_provider("cpu")
    rows = measured("rms_norm", "silu", "--backend", "cpu", "--size", "small")["results"]
    expected = {"rms_norm": "cpu", "silu": "cpu" if "cpu" in OPERATORS["silu"].kernels else "generic"}
    assert {row["operator"]: row["kernel"] for row in rows} == expected


def test_operators_by_sizes_by_backends_each_once():
    support.require("array_api_strict")
    chosen = ("--backend", "numpy", "--backend", "array_api_strict", "--backend", "python")
    sizes = ("--size", "small", "--size", "2x32", "--size", "1x64")
    rows = measured("relu", "silu", "relu", *chosen, *sizes)["results"]
    expected = [
        (operator, rows, features, backend)
        for operator in ("relu", "silu")
        for rows, features in ((1, 64), (2, 32))
        for backend in ("numpy", "array_api_strict")
    ]
    assert [(r["operator"], r["rows"], r["features"], r["backend"]) for r in rows] == expected


def test_a_slower_body_is_seen_to_be_slower(monkeypatch):
    """The figures are those of the calls: one that sleeps takes that long, and NumPy's body is faster by as much."""

    def call_of(found, work):
        pause = {"numpy": 0.002, "array_api_strict": 0.02}[found.backend]
        return measuring.Contender(lambda: time.sleep(pause), found.backend)

    support.require("array_api_strict")
    monkeypatch.setattr(backends, "prepare", call_of)
    (row,) = measured("relu", "--backend", "array_api_strict", "--size", "small")["results"]
    assert 0.02 <= row["seconds"] < 0.2
    assert 0.01 < row["speedup"] < 0.9  # 0.1 on an idle machine


def test_bodies_are_timed_beside_the_kernels():
    support.require_provider("cpu")
    arguments = ("rms_norm", "--backend", "cpu", "--size", "small", "--bodies")
    kernel, body = measured(*arguments)["results"]
    assert [(r["backend"], r["kernel"], r["body"]) for r in (kernel, body)] == [
        ("cpu", "cpu", False),
        ("cpu", "generic", True),
    ]
    assert body["speedup_over_body"] == 1.0
    assert kernel["speedup_over_body"] == pytest.approx(body["seconds"] / kernel["seconds"])
    assert kernel["speedup"] > 0
    cells = [line for line in invoke(*arguments).stdout.splitlines() if "cpu" in line]
    assert any("cpu/generic" in line and line.rstrip(" │").endswith("1.00") for line in cells)


# --- what it says of it ------------------------------------------------------------------------------


def test_a_result_file_says_what_its_figures_mean(tmp_path):
    path = tmp_path / "result.json"
    arguments = ("bench", "relu", "--backend=numpy", "--size=small", "--seconds=0.001", f"--output={path}")
    result = run(*arguments, OMP_NUM_THREADS="1", **support.only("numpy"))
    assert result.returncode == 0, result.stderr
    report = json.loads(path.read_text(encoding="utf-8"))
    assert shlex.split(report["command"]) == ["tensorops", *arguments]
    assert report["versions"]["numpy"] == np.__version__
    assert report["versions"]["tensorops"] == tp.__version__
    assert report["environment"]["OMP_NUM_THREADS"] == "1"
    assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(report["date"]) < timedelta(minutes=5)
    assert report["hardware"]["cpu"]["logical_cores"] >= report["threads"] >= 1
    assert "median" in report["method"]
    assert len(report["results"]) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    # The table says the same.
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in result.stdout.splitlines() if "│" in line
    ]
    (row,) = report["results"]
    figures = [reports.duration(row["seconds"]), f"{row['gigabytes_per_second']:.2f}", "1.00"]
    assert cells == [["relu", "1x64", "numpy", "generic", *figures]]
    assert report["hardware"]["cpu"]["name"] in result.stdout
    assert f"numpy {np.__version__}" in result.stdout


def test_threads_are_those_that_the_kernels_may_use():
    support.require_provider("cpu")
    only = support.only("numpy")
    result = run("bench", "relu", "--backend=cpu", "--size=small", *QUICK, "--json", **only, TENSOROPS_NUM_THREADS="1")
    assert json.loads(result.stdout)["threads"] == 1


@pytest.mark.parametrize(
    ("seconds", "words"), [(2.5, "2.5 s"), (0.00123, "1.23 ms"), (4.56e-5, "45.6 µs"), (1e-9, "0.001 µs")]
)
def test_durations(seconds, words):
    assert reports.duration(seconds) == words


def test_by_default_what_is_available_but_for_tests():
    assert {b.name for b in bench._available()} == set(tp.get_available_backends()) - {"array_api_strict"}


def test_unsteady_times_are_told_of():
    row = partial(backends.Measurement, "relu", "numpy", 1, 64, "float32")

    def warning(*rows):
        return reports.on_backends(rows, (), "float32", 0.1).warning()

    words = "times vary by more than half between rounds, is the machine busy? relu 1x64 on numpy"
    assert warning(row(quartiles=(1.0, 1.6)), row(quartiles=(1.0, 1.1)), row()) == words
    assert warning(*[row(quartiles=(1.0, 1.6))] * 5) == f"{words}{', relu 1x64 on numpy' * 2} and 2 others"
    assert warning(row()) == ""


# --- what it refuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["rmsnorm"], 2, "unknown operator 'rmsnorm' (did you mean 'rms_norm'?); valid names: silu, "),
        (["--backend=nunpy"], 2, "unknown backend 'nunpy' (did you mean 'numpy'?)"),
        (["--backend=nnpack"], 1, "backend 'nnpack' is not available: NNPACK is retired"),
        (["--size=0x64"], 2, "'0x64' is not a size; valid: small, decode, prefill, large, or rows and features"),
        (["--size=prefil"], 2, "'prefil' is not a size (did you mean 'prefill'?); valid: small, decode, "),
        (["--dtype=flaot32"], 2, "unknown dtype 'flaot32' (did you mean 'float32'?); valid names: float16, bfloat16,"),
        (["--seconds=0"], 2, "0.0 is not in the range x>0"),
        (["--decode", "--size", "small"], 2, "--size has no meaning with --decode"),
        (["--decode", "--bodies"], 2, "--bodies has no meaning with --decode"),
        (["--decode", "silu"], 2, "--decode takes no OPERATORS"),
        (["--model", __file__], 2, "--model needs --decode"),
        (["gelu_tanh"], 2, "unknown operator 'gelu_tanh' (did you mean 'gelu'?)"),
    ],
)
def test_what_means_nothing_is_refused(arguments, code, message):
    result = CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "300"})
    assert result.exit_code == code
    assert message in result.stderr


def test_a_file_in_no_folder_is_refused_before_anything_is_measured(tmp_path):
    result = invoke("--output", str(tmp_path / "none" / "result.json"))
    assert result.exit_code == 2
    assert f"there is no folder {tmp_path / 'none'}" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_a_link_to_the_file_stays_a_link(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("before")
    link.symlink_to(target)
    assert invoke("relu", "--backend=numpy", "--size=small", "--output", str(link)).exit_code == 0
    assert link.is_symlink()
    assert json.loads(target.read_text(encoding="utf-8"))["results"]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("before")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("os.open", refuse)  # root may write anywhere
    result = invoke("relu", "--backend=numpy", "--size=small", "--output", str(path))
    assert result.exit_code == 1
    assert f"{path} cannot be written: " in result.stderr
    assert path.read_text() == "before"


@pytest.mark.parametrize(("operators", "code"), [(["rope"], 1), (["rope", "relu"], 0)])
def test_a_size_that_an_operator_cannot_have_is_a_row_with_the_reason(operators, code):
    """The exit code is 1 if nothing could be timed."""
    arguments = (*operators, "--backend=numpy", "--size=2x100")
    refused, *others = measured(*arguments, code=code)["results"]
    assert refused["seconds"] is None
    assert refused["reason"] == "its features must be a multiple of 64, got 100"
    assert all(row["seconds"] > 0 for row in others)
    result = invoke(*arguments)
    assert result.exit_code == code
    assert "rope 2x100 on numpy: its features must be a multiple of 64, got 100" in result.stdout


def test_without_a_baseline_there_is_no_speedup(monkeypatch):
    support.require("array_api_strict")
    prepare = backends.prepare

    def fails_on_numpy(found, work):
        if found.backend == "numpy":
            raise MemoryError("on purpose")
        return prepare(found, work)

    monkeypatch.setattr(backends, "prepare", fails_on_numpy)
    result = invoke("relu", "--backend=array_api_strict", "--backend=numpy", "--size=small")
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "array_api_strict" in line and "│" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[-1] == "-"
    assert cells[-3].endswith("s")
    assert "relu 1x64 on numpy: MemoryError: on purpose" in result.stdout


def test_a_dtype_that_a_library_lacks_is_a_row_with_the_reason():
    support.require("jax")
    rows = measured("relu", "--backend=jax", "--backend=numpy", "--size=small", "--dtype=float64")["results"]
    assert [row["seconds"] is None for row in rows] == [True, False]
    assert "jax holds float64 only if jax_enable_x64 is set" in rows[0]["reason"]
    assert rows[1]["reason"] is None
