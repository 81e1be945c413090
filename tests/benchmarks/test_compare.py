"""``python -m asv_benchmarks.compare``: what it reads, and its statistics on made-up samples."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("click")

from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
if not (ROOT / "asv_benchmarks").is_dir():
    pytest.skip("the benchmarks are in the repository, not in a distribution", allow_module_level=True)

sys.path.insert(0, str(ROOT))
try:
    compare = importlib.import_module("asv_benchmarks.compare")
finally:
    sys.path.remove(str(ROOT))


def figure(samples, *, control=False):
    lower, median, upper = np.percentile(samples, [25, 50, 75]).tolist()
    return compare.Figure(median, lower, upper, control)


def samples(rng, scale=1.0, spread=0.05, count=15):
    return scale * np.exp(spread * rng.standard_normal(count))


def figures(rng, scales, *, controls=(), **options):
    found = {f"ours {i}": figure(samples(rng, scale, **options)) for i, scale in enumerate(scales)}
    return found | {f"control {i}": figure(samples(rng, s, **options), control=True) for i, s in enumerate(controls)}


# --- statistics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.3])
def test_the_same_distribution_has_rarely_moved(spread):
    rng = np.random.default_rng(1)
    judged = compare.judge(*(figures(rng, [1.0] * 2000, spread=spread) for _ in range(2)))
    assert judged.compared == 2000
    assert len(judged.moves) <= 1


@pytest.mark.parametrize(("ratio", "spread"), [(1.2, 0.05), (0.8, 0.05), (1.06, 0.005), (2.0, 0.2)])
def test_what_moved_is_found(ratio, spread):
    rng = np.random.default_rng(2)
    before, after = (figures(rng, [scale] * 500, spread=spread) for scale in (1.0, ratio))
    judged = compare.judge(before, after)
    assert len(judged.moves) >= 450  # nine of ten
    assert len(judged.worse) == (len(judged.moves) if ratio > 1 else 0)
    assert np.median([move.ratio for move in judged.moves]) == pytest.approx(ratio, rel=0.02)


def test_less_than_the_threshold_has_not_moved_however_steady_it_is():
    before, after = ({"ours": compare.Figure(x, x, x)} for x in (1.0, 1.04))
    assert compare.judge(before, after).moves == []
    assert len(compare.judge(before, after, 0.03).moves) == 1
    assert len(compare.judge(after, before, 0.03).moves) == 1


def test_a_slower_machine_is_no_slower_library():
    rng = np.random.default_rng(3)
    before = figures(rng, [1.0] * 200, controls=[1.0] * 40)
    after = figures(rng, [1.3] * 199 + [2.0], controls=[1.3] * 40)
    judged = compare.judge(before, after)
    assert judged.drift == pytest.approx(0.3, abs=0.05)
    assert "ours 199" in {move.name for move in judged.worse}
    assert len(judged.worse) <= 60  # of 200; half of 1.3 is above its own median, and quartiles must be apart
    without = compare.judge(*({n: f for n, f in each.items() if not f.control} for each in (before, after)))
    assert len(without.worse) == 200


def test_few_controls_tell_nothing():
    rng = np.random.default_rng(4)
    before, after = figures(rng, [1.0], controls=[1.0] * 3), figures(rng, [1.5], controls=[2.0] * 3)
    assert compare.judge(before, after).drift == 0
    assert [move.name for move in compare.judge(before, after).worse] == ["ours 0"]


def test_controls_are_not_judged():
    rng = np.random.default_rng(5)
    before, after = figures(rng, [], controls=[1.0]), figures(rng, [], controls=[3.0])
    assert (compare.judge(before, after).moves, compare.judge(before, after).compared) == ([], 0)


def test_repeated_runs_widen_what_counts_as_noise():
    runs = [{"ours": compare.Figure(x, x - 0.01, x + 0.01)} for x in (1.0, 1.2, 1.1)]
    found = compare.together(runs)["ours"]
    assert (found.median, found.lower, found.upper) == (1.1, 0.99, 1.21)
    assert compare.judge({"ours": found}, runs[1]).moves == []
    assert len(compare.judge(runs[0], runs[1]).moves) == 1


def test_the_worst_comes_first():
    before = {name: compare.Figure(1.0, 1.0, 1.0) for name in "abc"}
    after = {name: compare.Figure(x, x, x) for name, x in zip("abc", (1.5, 0.5, 3.0), strict=True)}
    judged = compare.judge(before, after)
    assert [(move.name, move.ratio) for move in judged.moves] == [("c", 3.0), ("a", 1.5), ("b", 0.5)]
    assert [move.name for move in judged.worse] == ["c", "a"]


# --- files -------------------------------------------------------------------------------------------


def bench_report(seconds):
    names = {"tensorops": seconds, "copy": 1.0, "torch": 2.0}
    quartiles = {name: (0.99 * x, 1.01 * x) for name, x in names.items()}
    return {"dtype": "float32", "rows": [{"task": "silu", "shape": "1x64", "seconds": names, "quartiles": quartiles}]}


def asv_report(seconds, memory=100.0):
    columns = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b"]
    columns += ["stats_q_25", "stats_q_75"]
    spread = [0.99 * seconds, None], [1.01 * seconds, None]
    params = [["'silu'"], ["'numpy/cpu'", "'jax/generic'"]]
    row = [[seconds, None], params, "v", 0, 0, *spread, *spread]
    lists = [[float("nan"), 2.0], [["1", "2"]], "v", 0, 0, *spread, *spread]
    track = [[3.0], [], "v", 0, 0]
    return {
        "commit_hash": "abc",
        "result_columns": columns,
        "results": {
            "bench_activation.Activation.time_activation": row,
            "bench_memory.peakmem_import_tensorops": [[memory], [], "v", 0, 0],
            "bench_attention.Pages.track_speed": track,
            "bench_loss.Loss.time_loss": lists,
            "bench_peers.Copy.time_copy": [[1.0], [], "v", 0, 0, [1.0], [1.0], [1.0], [1.0]],
        },
    }


@pytest.fixture
def write(tmp_path):
    def written(name, report):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(report))
        return path

    return written


def test_a_file_of_bench(write):
    assert compare.read(write("a.json", bench_report(1.0))) == {
        "silu 1x64 float32: tensorops": compare.Figure(1.0, 0.99, 1.01),
        "silu 1x64 float32: copy": compare.Figure(1.0, 0.99, 1.01, control=True),
        "silu 1x64 float32: torch": compare.Figure(2.0, 1.98, 2.02, control=True),
    }


def test_a_file_of_asv(write):
    """Neither what has no value or no quartiles, nor a number whose direction is unknown."""
    assert compare.read(write("a.json", asv_report(2.0))) == {
        "bench_activation.Activation.time_activation('silu', 'numpy/cpu')": compare.Figure(2.0, 1.98, 2.02),
        "bench_memory.peakmem_import_tensorops": compare.Figure(100.0, 100.0, 100.0),
        "bench_peers.Copy.time_copy": compare.Figure(1.0, 1.0, 1.0, control=True),
    }


def test_committed_results_can_be_read():
    results = ROOT / "asv_benchmarks" / "results"
    files = [file for file in results.glob("*/*.json") if file.name != "machine.json"]
    assert files
    for file in [*files, ROOT / "docs" / "results" / "rows.json"]:
        found = compare.read(file)
        assert all(0.99 * f.lower <= f.median <= 1.01 * f.upper for f in found.values())
        assert any(f.control for f in found.values())


def test_committed_results_name_no_folder_of_the_machine():
    results = ROOT / "asv_benchmarks" / "results"
    for file in [*results.rglob("*.json"), *(ROOT / "docs" / "results").glob("*.json")]:
        text = file.read_text(encoding="utf-8")
        assert not [folder for folder in ("/work/", "/root", "/home/", "/tmp/") if folder in text], file


def invoke(*arguments):
    return CliRunner().invoke(compare.main, [str(argument) for argument in arguments])


def test_the_exit_status_tells_what_became_slower(write):
    before, after = write("a.json", bench_report(1.0)), write("b.json", bench_report(1.5))
    slower = invoke(before, after)
    assert slower.exit_code == 1
    said = "worse  x  1.50  1 (0.99 to 1.01) -> 1.5 (1.485 to 1.515)  silu 1x64 float32: tensorops"
    assert slower.output.splitlines()[0] == said
    assert "of 1 figures, 1 became worse and 0 better" in slower.output
    faster = invoke(after, before)
    assert faster.exit_code == 0
    assert "0 became worse and 1 better" in faster.output
    assert invoke(before, after, "--threshold", "0.6").exit_code == 0
    assert invoke(before, after, "--bench", "gelu").exit_code == 1
    assert "no figure in common" in invoke(before, after, "--bench", "gelu").output


def test_more_memory_is_worse(write):
    before, after = (write(f"{memory}.json", asv_report(1.0, memory)) for memory in (100.0, 120.0))
    result = invoke(before, after)
    assert result.exit_code == 1
    assert "peakmem_import_tensorops" in result.output


def test_folders_are_repeated_runs(write, tmp_path):
    for i, seconds in enumerate((1.0, 1.5)):
        write(f"before/{i}.json", bench_report(seconds))
    write("before/machine.json", {"machine": "no result"})
    after = write("after/0.json", bench_report(1.4))
    assert invoke(tmp_path / "before", after.parent).exit_code == 0
    assert invoke(tmp_path / "before" / "0.json", after).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-commit", "HEAD"], "no-such-commit is neither a file nor a folder nor a commit"),
        (["HEAD", "HEAD~0"], "are the same commit"),
        ([__file__, "HEAD"], "compare two of a kind"),
        ([__file__, __file__], "is not JSON"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, message):
    if "HEAD" in arguments and not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    result = invoke(*arguments)
    assert result.exit_code
    assert message in result.output


def test_commits_are_measured_in_turns_with_results_that_are_not_kept(monkeypatch):
    """asv itself is replaced: it is given both commits, and what it writes is read and removed."""
    pytest.importorskip("asv")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    try:
        hashes = [compare.commit_of(name) for name in ("HEAD", "HEAD~1")]
    except Exception as error:  # a shallow clone
        pytest.skip(str(error))
    run, seen = subprocess.run, []

    def instead(command, **options):
        if "continuous" not in command:
            return run(command, **options) if command[0] == "git" else None
        seen.append(command)
        configuration = json.loads(Path(command[command.index("--config") + 1]).read_text())
        assert Path(configuration["repo"]) == ROOT
        assert not Path(configuration["results_dir"]).is_relative_to(ROOT)
        folder = Path(configuration["results_dir"], "here")
        folder.mkdir(parents=True)
        for commit, seconds in zip(command[-2:], (1.0, 2.0), strict=True):
            (folder / f"{commit[:8]}-virtualenv-py3.json").write_text(json.dumps(asv_report(seconds)))
        return None

    monkeypatch.setattr(subprocess, "run", instead)
    result = invoke("HEAD~1", "HEAD", "--bench", "silu")
    assert result.exit_code == 1, result.output
    assert "time_activation('silu', 'numpy/cpu')" in result.output
    ((*_, first, last),) = seen
    assert [last, first] == hashes
    assert "--interleave-rounds" in seen[0]
    configuration = Path(seen[0][seen[0].index("--config") + 1])
    assert not configuration.exists()
