"""``tensorops bench --busy``: the loads, what is measured under them, and what is missing or refused."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import support

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from asv_benchmarks import _busy_child, busy, quota, reports
from asv_benchmarks.__main__ import app
from asv_benchmarks.processes import Child, Spinners
from tensorops.benchmarks import measuring
from tensorops.benchmarks.measuring import CannotMeasureError
from tensorops.hardware.machine import Machine


@pytest.fixture
def compiled():
    support.require_provider("cpu")


def invoke(*arguments, columns=140):
    return CliRunner().invoke(app, ["busy", *arguments], env={"COLUMNS": str(columns)})


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- the loads ---------------------------------------------------------------------------------------


def test_spinners_compute_and_end_with_the_block():
    with Spinners(2) as spinners:
        pids = [process.pid for process in spinners.processes]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        if sys.platform == "linux":
            before = _processor_time(pids[0])
            while _processor_time(pids[0]) <= before:
                time.sleep(0.01)
    assert not any(map(is_running, pids))


def _processor_time(pid):
    """Return the time that a process has computed, in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.skipif(sys.platform != "linux", reason="ends the process by a signal")
def test_spinners_end_with_a_process_that_is_killed():
    program = (
        "from asv_benchmarks.processes import Spinners\n"
        "import time\n"
        "with Spinners(1) as s:\n"
        "    print(s.processes[0].pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        assert is_running(pid)
        process.send_signal(signal.SIGKILL)
    for _ in range(1000):
        if not is_running(pid) or _is_zombie(pid):
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the spinning process outlived its parent")


def _is_zombie(pid):  # where nobody collects orphans
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_child_that_ends_says_why():
    command = [sys.executable, "-c", "import sys; sys.stderr.write('no such thing\\n\\n'); sys.exit(3)"]
    with pytest.raises(CannotMeasureError, match=r"^the child ended with code 3: no such thing$"):  # noqa: SIM117
        with Child("the child", command) as child:
            child.ask([1])


def test_a_quota_limits_a_process():
    start = "from asv_benchmarks._busy_child import main; main()"
    try:
        with quota.control_group(0.25) as move, Child("the child", [sys.executable, "-c", start]) as child:
            child.ask(["prepare", [], None, 1, False])
            move(child.pid)
            had = child.ask(["spin", 0.6])
    except CannotMeasureError as error:
        pytest.skip(str(error))
    assert had < 0.6
    assert not [group for folder in _own_groups() for group in folder.glob(f"tensorops-bench-{os.getpid()}-*")]


def _own_groups():
    from tensorops.hardware.cpu import control_groups

    machine = Machine.here()
    return [machine.root / folder for folder in control_groups(machine, "cpu")]


def test_no_quota_without_control_groups(tmp_path):
    machine = Machine("Linux", "x86_64", root=tmp_path)
    with pytest.raises(CannotMeasureError, match="has no control groups"), quota.control_group(0.5, machine):
        pass
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/mine\n")
    with pytest.raises(CannotMeasureError, match="mine is not a control group"), quota.control_group(0.5, machine):
        pass


def test_a_group_whose_quota_cannot_be_set_is_removed(tmp_path):
    machine = Machine("Linux", "x86_64", root=tmp_path)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("")
    (group / "cgroup.subtree_control").write_text("")
    with pytest.raises(CannotMeasureError, match=r"cpu\.max"), quota.control_group(0.5, machine):
        pass
    assert sorted(path.name for path in group.iterdir()) == ["cgroup.procs", "cgroup.subtree_control"]
    assert (group / "cgroup.subtree_control").read_text() == "+cpu"


def test_an_ignored_quota_is_not_reported_as_one():
    class Boundless:
        def ask(self, request):
            return 0.99

    with pytest.raises(CannotMeasureError, match=r"no effect: the process had 0\.99 processors"):
        busy._require_quota(Boundless())


# --- a child's times ---------------------------------------------------------------------------------


def test_a_call_of_torch_is_outside_the_clock():
    order = []

    def call():
        order.append("ours")

    def first():
        order.append("first")
        time.sleep(0.01)

    task = _busy_child.Timed(lambda: call, first)
    _busy_child.seconds_of_calls(task, 0.03)
    assert order[:3] == ["ours", "first", "ours"]
    assert order.count("first") == task.calls == len(task.seconds)
    assert task.summary()["median"] < 0.005


def test_calls_of_several_threads_share_the_wall_time():
    task = _busy_child.Timed(lambda: lambda: time.sleep(0.01))
    _busy_child.seconds_of_threads(task, 4, 0.15)
    summary = task.summary()
    assert summary["one_python_thread"] >= 0.01
    assert summary["mean"] < 0.01  # sleeping threads do not wait for each other
    assert summary["calls"] >= 4


def test_throughput_compares_with_one_python_thread():
    assert busy.Cell("silu", "default", "cpu", 5, mean=0.5, one_python_thread=1.0).throughput == 2.0
    assert busy.Cell("silu", "default", "cpu", 5, mean=0.5).throughput is None


# --- the command -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiled")
def test_a_small_run(monkeypatch):
    started = []

    class Seen(Spinners):
        def __enter__(self):
            super().__enter__()
            started.append([process.pid for process in self.processes])
            return self

    monkeypatch.setattr(busy, "Spinners", Seen)
    monkeypatch.setattr(busy, "ROUNDS", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # not for the children
    loads = ("--scenario", "idle", "--scenario", "spinners")
    result = invoke("layer_norm", "quantized_linear", *loads, "--seconds", "0.02", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [r["scenario"] for r in found["results"]] == ["idle", "spinners"]
    assert [len(pids) for pids in started] == [0, measuring.processors()]
    assert not any(map(is_running, started[1]))
    for scenario in found["results"]:
        assert scenario["reason"] is None
        means = {}
        for cell in scenario["cells"]:
            means.setdefault(cell["task"], {})[cell["configuration"]] = cell["mean"]
            assert cell["kernel"] == "cpu"
            assert cell["calls"] >= 1
            assert 0 < cell["median"] <= cell["longest"]
            assert cell["mean"] <= cell["longest"]
        assert list(means) == ["layer_norm 16x4096", "quantized_linear 1x2048"]
        for task, by_configuration in means.items():
            one = by_configuration.pop("one thread")
            ratios = scenario["of_one_thread"][task]
            assert ratios == pytest.approx({name: mean / one for name, mean in by_configuration.items()})
            assert set(ratios) == {"default", "passive waits"}


@pytest.mark.parametrize("name", busy.CONFIGURATIONS)
def test_configurations_are_environment_variables(name, monkeypatch):
    for variable in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS", "TENSOROPS_NUM_THREADS"):
        monkeypatch.setenv(variable, "7")
    ours = ("OMP_", "OPENBLAS_", "TENSOROPS_NUM")
    given = busy._child(name, busy.SCENARIOS["idle"])._environment
    assert {n: v for n, v in given.items() if n.startswith(ours)} == busy.CONFIGURATIONS[name]
    given = busy._child(name, busy.SCENARIOS["openmp-threads"])._environment
    assert given["OMP_NUM_THREADS"] == str(4 * measuring.processors())


def test_torch_is_imported_first_in_turns_with_it():
    *_, start = busy._child("default", busy.SCENARIOS["torch"])._command
    assert start.startswith("import torch; ")


def test_missing_things_say_why(monkeypatch, tmp_path):
    support.require_provider("cpu")
    download = pytest.importorskip("tensorops.models.files.download")
    monkeypatch.setattr(download, "cached_model_path", lambda: tmp_path / "none.gguf")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    result = invoke("decode", "--scenario", "torch")
    assert result.exit_code == 1, result.output  # nothing was timed
    assert "alternating with torch: torch is not installed" in result.stdout
    assert "none.gguf; `tensorops generate` downloads it" in result.stdout


def test_slow_tasks_are_not_repeated(monkeypatch):
    asked = []

    class Slow:
        def ask(self, request):
            asked.append(request)
            time.sleep(0.02)
            return {"calls": 1, "mean": 0.02, "median": 0.02, "longest": 0.02}

    monkeypatch.setattr(busy, "PATIENCE", 0.01)
    monkeypatch.setattr(busy, "REST", 0.0)
    (cell,) = busy._in_turns(["silu"], {"default": Slow()}, {"default": {"silu": "cpu"}}, 0.0)
    assert asked == [["time", "silu", 0.0]]
    assert cell.few


def test_the_table_of_fabricated_times():
    support.require_provider("cpu")
    from rich.console import Console

    from tensorops.backends.registry import resolve

    seconds = {"default": (0.004, 400), "passive waits": (0.002, 5), "one thread": (0.001, 400)}
    cells = [busy.Cell("decode", name, "cpu", n, t, t, t) for name, (t, n) in seconds.items()]
    found = [
        busy.Result("idle", busy.SCENARIOS["idle"], cells),
        busy.Result("torch", busy.SCENARIOS["torch"], reason="torch is not installed"),
    ]
    report = reports.under_loads(found, resolve("cpu"), 0.1, [])
    assert list(report.reasons) == ["alternating with torch: torch is not installed"]
    console = Console(width=120, record=True, file=io.StringIO())
    for table in report.tables:
        console.print(table)
    times, ratios = (line for line in console.export_text().splitlines() if "decode, tokens/s" in line)
    assert [word for word in times.split() if word != "│"][2:] == [
        *("250.0", "250.0", "4.00"),
        *("500.0", "~", "500.0", "2.00"),
        *("1000.0", "1000.0"),
    ]
    assert "4.00 / 2.00" in ratios


def test_the_table_compares_several_callers_with_one():
    from rich.console import Console

    cells = [busy.Cell("silu", name, "cpu", 400, 0.5, 0.5, 0.5, 0.75) for name in busy.CONFIGURATIONS]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(reports._under_load(busy.Result("python-threads", busy.SCENARIOS["python-threads"], cells)))
    (line,) = (line for line in console.export_text().splitlines() if "silu" in line)
    assert [word for word in line.split() if word != "│"][1:] == [
        *("500", "ms", "1.50", "1.00") * 2,
        "500",
        "ms",
        "1.50",
    ]


def test_an_unknown_scenario_lists_the_known_ones():
    result = invoke("--scenario", "spiners")
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    assert "unknown scenario 'spiners'" in said
    assert all(name in said for name in busy.SCENARIOS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("relu",), "valid names: rms_norm, silu"),
        (("silu", "--model", __file__), "--model needs decode among the OPERATORS"),
    ],
)
def test_refused(arguments, said):
    if "--model" in arguments:
        support.require_provider("cpu")
    result = invoke(*arguments, columns=200)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
