"""``tensorops config``: what it writes, what it shows, and what it refuses."""

import json
import os

import pytest

import support
from command_line import configuration_restored, run

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from tensorops.backends import config_file
from tensorops.cli._app import app

EVERYTHING = {
    "preferred_backend": "numpy",
    "backend_priority": ["dask", "cpu"],
    "force_backend": "numpy",
    "devices": {"cpu": {"num_threads": 1}},
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The path of a configuration file that does not exist yet; its settings end with the test."""
    path = tmp_path / "configuration" / "config.json"
    monkeypatch.setenv("TENSOROPS_CONFIG", str(path))
    with configuration_restored():
        yield path


def config(*arguments):
    return CliRunner().invoke(app, ["config", *arguments], env={"COLUMNS": "200"})


def written(path):
    return json.loads(path.read_text(encoding="utf-8"))


def write(path, entries):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(entries), encoding="utf-8")


# --- names that nobody means -------------------------------------------------------------------------

LONG = "/" + "x" * 5000


@pytest.mark.skipif(os.name == "nt", reason="Windows has other limits")
@pytest.mark.parametrize("arguments", [["--show"], ["--backend=numpy"]])
def test_a_path_that_is_too_long_is_one_line(file, monkeypatch, arguments):
    monkeypatch.setenv("TENSOROPS_CONFIG", LONG)
    by_option = config(*arguments, f"--file={LONG}")
    by_variable = config(*arguments)
    for result in (by_option, by_variable):
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: configuration file /xxxx")
        assert "Traceback" not in result.output
        assert len(result.stderr) < 1500


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_control_characters_reach_no_terminal(tmp_path):
    path = tmp_path / "\x1b[31mred\x07" / "config.json"
    for arguments in (["config", "--backend=numpy"], ["config"], ["doctor"], ["config", "--reset", "--json"]):
        result = run(*arguments, **support.only("numpy"), TENSOROPS_CONFIG=str(path), TENSOROPS_MODEL="\x1b[32m")
        assert result.returncode == 0, result.stderr
        for text in (result.stdout, result.stderr):
            assert "\x1b" not in text
            assert "\x07" not in text
    path.write_text("{")
    result = run("config", **support.only("numpy"), TENSOROPS_CONFIG=str(path))
    assert r"\x1b[31mred\x07" in result.stderr
    assert "\x1b" not in result.stderr


# --- writing -----------------------------------------------------------------------------------------


def test_an_alias_is_written_as_the_backend_in_a_folder_that_is_made(file):
    result = config("--backend=python")
    assert result.exit_code == 0, result.output
    assert written(file) == {"preferred_backend": "numpy", "backend_priority": [], "force_backend": None}
    assert f"Written: {file}" in result.stderr
    assert [entry.name for entry in file.parent.iterdir()] == ["config.json"]  # no temporary file remains


def test_everything_in_one_go(file):
    result = config("--backend", "numpy", "--force", "--priority", "dask, cpp")
    assert result.exit_code == 0, result.output
    assert written(file) == {key: value for key, value in EVERYTHING.items() if key != "devices"}


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["--no-force"], {"force_backend": None}),
        (["--priority="], {"backend_priority": []}),
        (["--priority=cpu"], {"backend_priority": ["cpu"]}),
        (["--backend=auto", "--no-force"], {"preferred_backend": "auto", "force_backend": None}),
        (["--force"], {}),
    ],
)
def test_what_was_not_named_is_kept(file, arguments, changed):
    write(file, EVERYTHING)
    result = config(*arguments)
    assert result.exit_code == 0, result.output
    assert written(file) == EVERYTHING | changed


def test_force_takes_the_preferred_backend_of_the_file(file):
    write(file, {"preferred_backend": "numpy"})
    assert config("--force").exit_code == 0
    assert written(file)["force_backend"] == "numpy"


@pytest.mark.parametrize("arguments", [["--backend=auto", "--force"], ["--force"]])
def test_auto_cannot_be_forced(file, arguments):
    result = config(*arguments)
    assert result.exit_code == 2
    assert "auto cannot be forced" in result.stderr
    assert not file.exists()


def test_another_preference_under_a_force_is_told_of(file):
    write(file, {"force_backend": "numpy"})
    result = config("--backend=array_api_strict")
    assert written(file)["force_backend"] == "numpy"
    assert "still forces 'numpy', whatever is preferred; --no-force undoes that" in result.stderr


def test_another_file_is_written_and_the_usual_one_stays(file, tmp_path):
    write(file, EVERYTHING)
    other = tmp_path / "other.json"
    result = config("--file", str(other), "--backend=numpy", "--json")
    assert result.exit_code == 0, result.output
    assert written(file) == EVERYTHING
    assert written(other)["preferred_backend"] == "numpy"
    assert f"set TENSOROPS_CONFIG={other}" in result.stderr
    assert json.loads(result.stdout)["sources"]["preferred_backend"] == str(other)
    assert os.environ["TENSOROPS_CONFIG"] == str(file)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend=nunpy"], "unknown backend 'nunpy' (did you mean 'numpy'?); valid names: "),
        (["--backend=nunpy"], ", auto"),
        (["--priority=cpu,nunpy"], "unknown backend 'nunpy' (did you mean 'numpy'?); valid names: "),
        (["--priority=numpy,python"], "backend 'numpy' is listed twice"),
        (["--priority=auto"], "unknown backend 'auto'"),
        (["--prefer=numpy"], "No such option"),
    ],
)
def test_what_means_nothing_is_a_usage_error_and_nothing_is_written(file, arguments, message):
    result = config(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not file.exists()


# --- what cannot be written --------------------------------------------------------------------------


def test_a_broken_file_is_not_overwritten_unless_told_to(file):
    file.parent.mkdir()
    file.write_text('{\n  "preferred": "numpy"\n}', encoding="utf-8")
    result = config("--backend=numpy")
    assert result.exit_code == 1
    assert f"{file}, line 2: unknown key 'preferred'" in result.stderr
    assert "--reset" in result.stderr
    assert file.read_text(encoding="utf-8") == '{\n  "preferred": "numpy"\n}'
    assert config("--backend=numpy", "--reset").exit_code == 0
    assert written(file)["preferred_backend"] == "numpy"


def test_reset_alone_writes_an_empty_configuration(file):
    write(file, EVERYTHING)
    assert config("--reset").exit_code == 0
    assert written(file) == {"preferred_backend": "auto", "backend_priority": [], "force_backend": None}


def test_a_folder_that_cannot_be_written_leaves_the_old_file(file, monkeypatch):
    write(file, EVERYTHING)

    opened = os.open

    def refuse(path, flags, *rest, **options):
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", str(file.parent))
        return opened(path, flags, *rest, **options)

    monkeypatch.setattr("os.open", refuse)  # root may write anywhere
    result = config("--no-force")
    assert result.exit_code == 1
    assert f"configuration file {file} cannot be written: " in result.stderr
    assert "Permission denied" in result.stderr
    assert written(file) == EVERYTHING


def test_a_folder_that_is_a_file_cannot_be_written(file, tmp_path):
    (tmp_path / "folder").write_text("no folder")
    path = tmp_path / "folder" / "config.json"
    result = config("--file", str(path), "--reset", "--backend=numpy")
    assert result.exit_code == 1
    assert f"configuration file {path} cannot be written: " in result.stderr
    assert (tmp_path / "folder").read_text() == "no folder"


def test_without_a_file_there_is_nothing_to_write(monkeypatch):
    monkeypatch.setenv("TENSOROPS_CONFIG", "")
    result = config("--backend=numpy")
    assert result.exit_code == 2
    assert "name one with --file PATH" in result.stderr


# --- showing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--show"]])
def test_it_shows_values_where_they_come_from_and_what_is_in_force(file, monkeypatch, arguments):
    write(file, {"preferred_backend": "array_api_strict", "devices": {"cpu": {"num_threads": 1}}})
    monkeypatch.setenv("TENSOROPS_BACKEND", "numpy")
    result = config(*arguments)
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in result.stdout.splitlines() if "│" in line]
    assert rows == [
        ["preferred backend", "numpy", "TENSOROPS_BACKEND"],
        ["forced backend", "none", "default"],
        ["priority", "none", "default"],
        ["devices", "cpu: num_threads=1", str(file)],
        ["threads", "none", "default"],
    ]
    assert f"file: {file} (exists)" in result.stdout
    assert "in force: numpy" in result.stdout


def test_it_shows_that_there_is_no_file(monkeypatch, file):
    monkeypatch.delenv("TENSOROPS_CONFIG")
    monkeypatch.setattr(config_file, "config_path", lambda: file)
    result = config()
    assert result.exit_code == 0, result.output
    assert f"file: {file} (does not exist)" in result.stdout
    assert "in force: auto: operators compute where their arrays live" in result.stdout


def test_json_for_programs(file):
    write(file, EVERYTHING)
    result = config("--json")
    shown = json.loads(result.stdout)
    assert {key: shown[key] for key in EVERYTHING} == EVERYTHING
    assert shown["sources"] == dict.fromkeys(EVERYTHING, str(file))
    assert (shown["file"], shown["file_exists"]) == (str(file), True)
    assert (shown["in_force"], shown["problem"], shown["num_threads"]) == ("numpy", None, None)


def test_a_named_file_that_is_not_there_is_an_error(file, tmp_path):
    result = config("--file", str(tmp_path / "none.json"))
    assert result.exit_code == 1
    assert f"configuration file {tmp_path / 'none.json'} does not exist" in result.stderr


def test_what_the_environment_overrides_is_told(file, monkeypatch):
    monkeypatch.setenv("TENSOROPS_BACKEND", "numpy")
    result = config("--backend=array_api_strict", "--force", "--json")
    assert written(file)["force_backend"] == "array_api_strict"
    assert json.loads(result.stdout)["preferred_backend"] == "numpy"
    for setting in ("preferred", "forced"):
        assert f"{setting} backend: TENSOROPS_BACKEND=numpy in the environment overrides the file" in result.stderr


def test_the_same_in_the_environment_overrides_nothing(file, monkeypatch):
    monkeypatch.setenv("TENSOROPS_BACKEND", "numpy")
    assert "overrides" not in config("--backend=numpy").stderr


def test_a_backend_that_is_unavailable_here_is_written_with_a_warning(file):
    result = config("--backend=nnpack", "--priority=numpy", "--json")
    assert result.exit_code == 0, result.output
    assert written(file)["preferred_backend"] == "nnpack"
    assert "Warning: backend 'nnpack' is not available: NNPACK is retired" in result.stderr
    assert "to fix it: use 'cpu'" in result.stderr
    assert "importing tensorops" not in result.stderr
    assert json.loads(result.stdout)["in_force"] == "numpy"


def test_forcing_an_unavailable_backend_says_that_importing_raises(file):
    result = config("--backend=nnpack", "--force")
    assert result.exit_code == 0, result.output
    assert written(file)["force_backend"] == "nnpack"
    assert "it is forced, so importing tensorops raises this from now on" in result.stderr
    assert "in force: none, importing tensorops raises: backend 'nnpack' is not available: NNPACK" in result.stdout


# --- as a process ------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [True, False])
def test_a_forced_backend_that_is_missing_is_mended_by_the_command(tmp_path, script):
    """From the first `import` that raises to the next that works."""
    path = str(tmp_path / "config.json")

    def run_here(*arguments):
        return run(*arguments, script=script, TENSOROPS_CONFIG=path)

    assert run_here("config", "--backend=nnpack", "--force").returncode == 0
    imported = support.python("import tensorops", TENSOROPS_CONFIG=path)
    assert "BackendUnavailableError: backend 'nnpack' is not available: NNPACK is retired" in imported.stderr

    shown = run_here("config")
    assert shown.returncode == 0, shown.stderr
    assert "in force: none, importing tensorops raises: backend 'nnpack'" in shown.stdout
    assert run_here("config", "--backend=numpy", "--force").returncode == 0
    imported = support.python("import tensorops; print(tensorops.get_backend())", TENSOROPS_CONFIG=path)
    assert (imported.returncode, imported.stdout.strip()) == (0, "numpy")


@pytest.mark.parametrize("script", [True, False])
def test_a_broken_file_is_shown_and_mended_by_the_command(tmp_path, script):
    path = tmp_path / "config.json"
    path.write_text("{")

    def run_here(*arguments):
        return run(*arguments, script=script, TENSOROPS_CONFIG=str(path))

    shown = run_here("config", "--show")
    assert shown.returncode == 1
    assert f"{path}, line 1, column 2: not valid JSON" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert run_here("config", "--reset").returncode == 0
    assert run_here("config").returncode == 0


def test_a_variable_that_means_nothing_is_an_error_of_the_command(tmp_path):
    shown = run("config", TENSOROPS_BACKEND="nunpy")
    assert shown.returncode == 1
    assert "environment variable TENSOROPS_BACKEND: unknown backend 'nunpy' (did you mean 'numpy'?)" in shown.stderr
    assert "Traceback" not in shown.stderr
