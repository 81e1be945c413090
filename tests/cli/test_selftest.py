"""``tensorops selftest``: what it runs, what it reports, and its exit codes."""

import json

import pytest

import support
import tensorops as tp
from command_line import run as run_command
from tensorops._operator import OPERATORS
from tensorops.backends.registry import resolve
from tensorops.testing.conformance import subjects

pytest.importorskip("rich")
CliRunner = pytest.importorskip("click.testing").CliRunner

from tensorops.cli import selftest as command  # noqa: E402 - it needs the packages that may be missing


def run(*arguments, columns=120):
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(command.selftest, arguments)


@pytest.fixture
def broken(monkeypatch):
    """Make one operator wrong by one part in a thousand."""
    body = OPERATORS["silu"]._body
    monkeypatch.setattr(OPERATORS["silu"], "_body", lambda x: body(x) * 1.001)


@pytest.fixture
def few(monkeypatch):
    """Let few operators be checked: what is reported of them does not depend on the others."""

    few = {name: OPERATORS[name] for name in ("silu", "relu", "quantized_linear")}
    monkeypatch.setattr("tensorops.testing.conformance.OPERATORS", few)


def planned(backend, **options):
    return sum(map(len, subjects(backend, **options)))


def test_all_right_is_exit_code_0():
    result = run("--backend", "numpy", "--backend", "python")
    assert result.exit_code == 0, result.output
    row = next(line for line in result.stdout.splitlines() if "numpy" in line)
    assert [cell.strip() for cell in row.split("│")][1:6] == ["numpy", "generic", str(planned("numpy")), "0", "0"]
    assert "All right on 1 backends." in result.stdout
    assert "quick run" not in result.stdout


@pytest.mark.exhaustive  # a whole run in a program of its own
def test_bodies_need_no_compiled_kernels():
    support.require_provider("cpu")
    result = run_command("selftest", "--backend", "numpy", TENSOROPS_CPU_TARGET="z80")
    assert result.returncode == 0, result.stdout[-2000:]
    result = run_command("selftest", "--backend", "cpu", TENSOROPS_CPU_TARGET="z80")
    assert result.returncode == 1
    assert "TENSOROPS_CPU_TARGET is z80" in result.stderr


@pytest.mark.usefixtures("few")
def test_the_table_fits_a_narrow_terminal():
    result = run("--backend", "numpy", columns=80)
    assert "implementation" in result.stdout
    assert "…" not in result.stdout


def test_every_available_backend_runs_by_default(monkeypatch):
    """Which checks run, and in which order; the other tests cover what each does."""
    asked = []

    def run_backend(backend, full, bar):
        asked.append((backend.name, full))
        return command.Result(backend.name)

    monkeypatch.setattr(command, "_run_backend", run_backend)
    result = run("--full")
    assert asked == [(name, True) for name in tp.get_available_backends()]
    assert result.exit_code == 1  # a backend that passed nothing is not all right


def test_where_nothing_computes_nothing_is_right(monkeypatch):
    monkeypatch.setattr("tensorops.backends.listing.get_available_backends", lambda: ())
    result = run()
    assert result.exit_code == 1
    assert result.stderr == "Error: no backend can compute here; `tensorops doctor` says why\n"


@pytest.mark.usefixtures("few")
def test_json_counts_implementations():
    support.require_provider("cpu")
    result = run("--backend", "cpu", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["ok"], report["full"], report["left_out"]) == (True, False, "")
    (row,) = report["backends"]
    assert row["name"] == "cpu"
    assert [i["name"] for i in row["implementations"]] == ["generic", "cpu"]
    assert row["passed"] + row["refused"] == planned("cpu")
    assert row["refused"] == sum(i["refused"] for i in row["implementations"]) > 0
    assert row["failures"] == []
    assert row["seconds"] >= 0


@pytest.mark.usefixtures("broken", "few")
def test_a_failure_is_exit_code_1_and_listed():
    result = run("--backend", "numpy")
    assert result.exit_code == 1
    assert "numpy: silu generic float32 typical: failed: 256 of 256 elements differ" in result.stdout
    assert "relu" not in result.stdout
    assert "All right" not in result.stdout
    listed = [line for line in result.stdout.splitlines() if line.startswith("numpy: silu")]
    assert len(listed) == command.SHOWN
    assert "more failures; --json lists all" in result.stdout


@pytest.mark.usefixtures("broken", "few")
def test_json_lists_all_failures():
    result = run("--backend", "numpy", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    (row,) = report["backends"]
    assert (report["ok"], row["ok"]) == (False, False)
    assert len(row["failures"]) == row["failed"] > command.SHOWN
    assert {failure["operator"] for failure in row["failures"]} == {"silu"}
    assert row["failures"][0].keys() == {"operator", "implementation", "dtype", "case", "status", "message"}


def test_a_quick_run_says_what_it_leaves_out():
    for library in ("dask", "jax"):
        support.require(library)
        assert 0 < planned(library, quick=True) < planned(library) / 3
    assert planned("numpy", quick=True) == planned("numpy")
    backends = tuple(map(resolve, ("numpy", "jax", "dask")))
    said = command.describe_quick(backends)
    assert said.startswith("quick run: on jax and dask, ")
    assert said.endswith("--full runs all")
    assert command.describe_quick((resolve("numpy"),)) == ""


def test_every_operator_is_in_a_quick_run():
    support.require("dask")
    chosen = subjects("dask", quick=True, dtypes=["float32"])
    assert list(dict.fromkeys(subject.operator.__name__ for subject in chosen)) == list(OPERATORS)
    assert all(not subject.cases[0].tags for subject in chosen)
    assert all(subject.invalid for subject in chosen)


def test_a_quick_run_on_a_slow_library(monkeypatch):
    support.require("dask")
    monkeypatch.setattr("tensorops.testing.conformance.OPERATORS", {"relu": OPERATORS["relu"]})
    result = run("--backend", "dask")
    assert result.exit_code == 0, result.output
    assert "quick run: on dask, " in result.stdout
    full = run("--backend", "dask", "--full", "--json")
    assert json.loads(full.stdout)["backends"][0]["passed"] == planned("dask")


@pytest.mark.usefixtures("few")
def test_an_unavailable_backend_is_exit_code_1_with_its_reason(unavailable):
    name, reason = unavailable
    result = run("--backend", "numpy", "--backend", name)
    assert result.exit_code == 1
    assert f"backend '{name}' is not available: {reason}" in result.output


def test_a_backend_that_fails_only_here_is_a_row(monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr("tensorops.testing.conformance.subjects", fails)
    result = run("--backend", "numpy")
    assert result.exit_code == 1
    assert "not tested" in result.stdout
    assert "numpy: RuntimeError: the driver is gone" in result.stdout


def test_kernels_that_do_not_load_are_named(monkeypatch):
    support.require_provider("cpu")
    monkeypatch.setattr("tensorops.testing.conformance.OPERATORS", {"rms_norm": OPERATORS["rms_norm"]})
    monkeypatch.setattr("tensorops.testing.conformance._providers.load", lambda provider: "no compiler was found")
    result = run("--backend", "cpu")
    assert "skipped" in result.stdout
    assert result.stdout.count("cpu: cpu skipped: no compiler was found") == 1


@pytest.mark.parametrize("arguments", [["--backend", "nunpy"], ["--fast"], ["numpy"]])
def test_usage_errors_are_exit_code_2(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_an_unknown_backend_is_named_with_the_nearest():
    assert "did you mean 'numpy'?" in run("--backend", "nunpy").stderr


@pytest.mark.usefixtures("few")
def test_settings_in_force_change_nothing():
    support.require("array_api_strict")
    with tp.set_backend("array_api_strict"):
        result = run("--backend", "numpy", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["backends"][0]["passed"] == planned("numpy")
