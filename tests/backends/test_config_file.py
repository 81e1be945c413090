"""The environment and the configuration file: contents, precedence, and how mistakes are reported."""

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.backends import config_file
from tensorops.backends.config_file import Configuration, read_file, write_file
from tensorops.backends.probing import unavailable_reason
from tensorops.backends.process import process
from tensorops.backends.registry import BACKENDS
from tensorops.libraries import library_of

# --- who comes before whom ---------------------------------------------------------------------------

LEVELS = ("argument", "set_backend", "set_default_backend", "environment", "file", "auto")


def run(code, *arguments, file=None, folder=None, **environment):
    """Run code with a configuration file that has this content."""
    if file is not None:
        path = folder / "config.json"
        path.write_text(file if isinstance(file, str) else json.dumps(file))
        environment["TENSOROPS_CONFIG"] = str(path)
    return support.python(code, *arguments, **environment)


@pytest.fixture
def clean():
    """This process's configuration, put back afterwards."""
    yield
    for name in ("TENSOROPS_BACKEND", "TENSOROPS_PRIORITY", "TENSOROPS_FORCE", "TENSOROPS_NUM_THREADS"):
        os.environ.pop(name, None)
    os.environ["TENSOROPS_CONFIG"] = ""
    tp.set_default_backend(None)
    tp.reload_config()
    assert tp.get_backend() == "auto"


@pytest.fixture
def computing(clean, tmp_path, monkeypatch):
    """A function that lets each level name its backend, and returns those in force and that computed."""
    x = np.ones((2, 4), dtype=np.float32)

    def compute(levels):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"preferred_backend": levels["file"]} if "file" in levels else {}))
        monkeypatch.setenv("TENSOROPS_CONFIG", str(path))
        monkeypatch.setenv("TENSOROPS_BACKEND", levels.get("environment", ""))
        tp.reload_config()
        tp.set_default_backend(levels.get("set_default_backend"))
        with tp.set_backend(levels["set_backend"]) if "set_backend" in levels else contextlib.nullcontext():
            if "argument" in levels:
                name = levels["argument"]
                return tp.get_backend_info(name)["backend"], library_of(tp.to_backend(x, name)).name
            with tp.trace() as log:
                tp.silu(x)
            (record,) = log
            return tp.get_backend(), record.library

    return compute


@pytest.mark.parametrize(("higher", "lower"), list(itertools.combinations(LEVELS, 2)))
def test_the_order_of_precedence(higher, lower, computing):
    """Both name different backends; with the names swapped, the same one takes precedence."""
    support.require("array_api_strict")
    for first, second in (("array_api_strict", "numpy"), ("numpy", "array_api_strict")):
        levels = {higher: first} | ({lower: second} if lower != "auto" else {})
        assert computing(levels) == (first, first)


def test_without_anything_it_is_auto(computing, tmp_path):
    assert computing({}) == computing({"file": "auto"}) == ("auto", "numpy")
    for file in ({}, {"preferred_backend": "auto"}):
        assert run(IMPORT, file=file, folder=tmp_path).stdout.split() == ["auto", "True"]


@pytest.mark.parametrize(
    ("higher", "lower"),
    [("set_default_backend", "environment"), ("set_default_backend", "file"), ("environment", "file")],
)
def test_auto_is_a_choice_too(higher, lower, computing):
    support.require("array_api_strict")
    assert computing({higher: "auto", lower: "array_api_strict"}) == ("auto", "numpy")


def test_all_at_once(computing):
    names = ["array_api_strict", "numpy", "cpu", "dask", "numpy"]
    for name in names:
        support.require(BACKENDS[name].library.name)
    levels = dict(zip(LEVELS, names, strict=False))
    for name in names:
        assert computing(levels) == (name, BACKENDS[name].library.name)
        levels.pop(next(iter(levels)))


# --- force and preference ----------------------------------------------------------------------------

IMPORT = "import tensorops, sys; print(tensorops.get_backend(), 'tensorops' in sys.modules)"


def last_line(result):
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("how", ["file", "environment", "environment and file"])
def test_a_forced_backend_that_is_missing_is_an_error_at_import(how, unavailable, tmp_path):
    name, reason = unavailable
    file = {"file": {"force_backend": name}, "environment and file": {"preferred_backend": name}}.get(how)
    variables = {"environment": {"TENSOROPS_BACKEND": name, "TENSOROPS_FORCE": "1"}}
    variables["environment and file"] = {"TENSOROPS_FORCE": "1"}
    result = run("import tensorops", file=file, folder=tmp_path, **variables.get(how, {}))
    assert result.returncode != 0
    line, _, way_out = last_line(result).rpartition("; ")
    source = str(tmp_path / "config.json") if how == "file" else "TENSOROPS_FORCE"
    mend = "tensorops config --no-force" if how == "file" else "unset TENSOROPS_FORCE"
    assert way_out == f"{source} forces it, undo that with: {mend}"
    assert line.startswith(
        f"tensorops.backends.registry.BackendUnavailableError: backend '{name}' is not available: {reason}; to fix it: "
    )
    assert len(line.rpartition("to fix it: ")[2]) > 5


@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_forced_backend_that_works_is_in_force(source, tmp_path):
    support.require("array_api_strict")
    if source == "file":
        file = {"preferred_backend": "numpy", "force_backend": "array_api_strict"}
        result = run(IMPORT, file=file, folder=tmp_path)
    else:
        result = run(IMPORT, TENSOROPS_BACKEND="array_api_strict", TENSOROPS_FORCE="1")
    assert result.stdout.split() == ["array_api_strict", "True"], result.stderr


def test_the_environment_comes_before_a_forced_backend_of_the_file(unavailable, tmp_path):
    file = {"force_backend": unavailable[0]}
    for variables, expected in (
        ({"TENSOROPS_FORCE": "0"}, "auto"),
        ({"TENSOROPS_BACKEND": "numpy"}, "numpy"),
        ({"TENSOROPS_BACKEND": "numpy", "TENSOROPS_FORCE": "1"}, "numpy"),
    ):
        result = run(IMPORT, file=file, folder=tmp_path, **variables)
        assert result.stdout.split() == [expected, "True"], result.stderr


def test_naming_the_forced_backend_does_not_lift_the_force(unavailable, tmp_path):
    name, _ = unavailable
    for alias in (name, *BACKENDS[name].aliases):
        result = run(IMPORT, file={"force_backend": name}, folder=tmp_path, TENSOROPS_BACKEND=alias)
        assert f"BackendUnavailableError: backend '{name}' is not available" in last_line(result)


PROGRAMS = {
    "a package that gets our name as an argument": ("-m", "mypkg", "tensorops"),
    "a script that has our name": ("tensorops",),
}


@pytest.mark.parametrize("how", PROGRAMS)
def test_force_holds_in_every_program(how, unavailable, tmp_path):
    """The command line starts under a broken configuration. What only looks like it must not compute."""
    (tmp_path / "mypkg").mkdir()
    body = "import tensorops, numpy\ntensorops.silu(numpy.ones(3))\nprint('computed')"
    (tmp_path / "mypkg" / "__init__.py").write_text(body)
    (tmp_path / "mypkg" / "__main__.py").write_text("")
    (tmp_path / "tensorops").write_text(body)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TENSOROPS_")}
    clean |= {"TENSOROPS_CONFIG": "", "TENSOROPS_BACKEND": unavailable[0], "TENSOROPS_FORCE": "1"}
    clean |= {"PYTHONPATH": support.before_python_path(tmp_path)} if "-m" in PROGRAMS[how] else {}
    arguments = [str(tmp_path / "tensorops")] if how == "a script that has our name" else PROGRAMS[how]
    done = subprocess.run([sys.executable, *arguments], env=clean, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "computed" not in done.stdout
    assert "BackendUnavailableError: backend " in last_line(done)


def test_force_without_a_name_is_an_error():
    result = run("import tensorops", TENSOROPS_FORCE="1")
    assert "TENSOROPS_FORCE is 1, but no backend is named: set TENSOROPS_BACKEND" in last_line(result)


def test_a_block_comes_before_a_forced_backend():
    support.require("array_api_strict")
    code = "import tensorops as t\nwith t.set_backend('array_api_strict'): print(t.get_backend())"
    result = run(code, TENSOROPS_BACKEND="numpy", TENSOROPS_FORCE="1")
    assert result.stdout.split() == ["array_api_strict"]


FALLBACK = """
import sys, threading, warnings
import numpy as np
warnings.simplefilter("error", ResourceWarning)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import tensorops as tp
    assert not caught, "a warning at import"
    x = np.ones((2, 4), dtype=np.float32)
    with tp.trace() as log:
        for _ in range(3):
            tp.silu(x)  # line 11
    threads = [threading.Thread(target=tp.silu, args=(x,)) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
print(tp.get_backend(), {r.library for r in log}, len(caught))
for w in caught:
    print(w.category.__name__, w.lineno, w.message)
"""


@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_preferred_backend_that_is_missing_falls_back_along_the_priority(source, unavailable, tmp_path):
    support.require("array_api_strict")
    name, reason = unavailable
    other = next(b.name for b in BACKENDS.values() if unavailable_reason(b) and b.name != name)
    if source == "file":
        file = {"preferred_backend": name, "backend_priority": [name, other, "array_api_strict", "numpy"]}
        result = run(FALLBACK, file=file, folder=tmp_path)
        prefers = str(tmp_path / "config.json")
    else:
        variables = {"TENSOROPS_BACKEND": name, "TENSOROPS_PRIORITY": f"{other}, array_api_strict,numpy"}
        result = run(FALLBACK, **variables)
        prefers = "TENSOROPS_BACKEND"
    assert result.returncode == 0, result.stderr
    first, *warned = result.stdout.splitlines()
    assert first == "array_api_strict {'array_api_strict'} 1"
    (line,) = warned
    assert line.startswith(f"BackendFallbackWarning 10 backend '{name}' is not available: {reason}; to fix it: ")
    assert f"backend '{other}' is not available: {unavailable_reason(BACKENDS[other])}" in line
    assert line.endswith(f"; {prefers} prefers '{name}', and 'array_api_strict' computes instead")


def test_without_a_priority_the_best_that_is_available_computes(unavailable):
    result = run(FALLBACK, TENSOROPS_BACKEND=unavailable[0])
    assert result.returncode == 0, result.stderr
    best = next(n for n in tp.get_available_backends() if n != unavailable[0])
    assert result.stdout.split()[0] == best


def test_a_priority_of_missing_backends_only_is_an_error(unavailable):
    result = run(
        "import tensorops; tensorops.get_backend()", TENSOROPS_BACKEND=unavailable[0], TENSOROPS_PRIORITY=unavailable[0]
    )
    assert "BackendUnavailableError: backend " in last_line(result)
    assert last_line(result).endswith("; TENSOROPS_PRIORITY names no other")


def test_an_empty_variable_is_as_good_as_unset():
    names = ("TENSOROPS_BACKEND", "TENSOROPS_PRIORITY", "TENSOROPS_FORCE", "TENSOROPS_NUM_THREADS")
    result = run(IMPORT, **dict.fromkeys(names, ""))
    assert result.stdout.split() == ["auto", "True"], result.stderr


def test_a_priority_orders_the_available_backends():
    support.require("array_api_strict")
    code = "import tensorops; print(*tensorops.get_available_backends()[:2])"
    result = run(code, TENSOROPS_PRIORITY="array_api_strict,python", **support.only("numpy"))
    assert result.stdout.split() == ["array_api_strict", "numpy"], result.stderr


# --- mistakes ----------------------------------------------------------------------------------------


IN_THE_ENVIRONMENT = {
    "TENSOROPS_BACKEND": {"nunpy": "unknown backend 'nunpy' (did you mean 'numpy'?)"},
    "TENSOROPS_PRIORITY": {
        "numpy,jaxx": "unknown backend 'jaxx' (did you mean 'jax'?)",
        "numpy,auto": "unknown backend 'auto'",
        "numpy,,jax": "unknown backend ''",
        "numpy,python": "backend 'numpy' is listed twice",
    },
}
OF_THE_ENVIRONMENT = {
    "TENSOROPS_FORCE": {"yes": "environment variable TENSOROPS_FORCE is 'yes', valid: 1, 0"},
    "TENSOROPS_NUM_THREADS": {
        "0": "environment variable TENSOROPS_NUM_THREADS is '0', expected a number from 1 to 65536",
        "two": "environment variable TENSOROPS_NUM_THREADS is 'two', expected a number from 1 to 65536",
        "99999": "environment variable TENSOROPS_NUM_THREADS is '99999', expected a number from 1 to 65536",
    },
    "TENSOROPS_BACKND": {
        "numpy": "unknown environment variable TENSOROPS_BACKND (did you mean 'TENSOROPS_BACKEND'?); those that "
    },
    "TENSOROPS_SERVICES": {"x": "unknown environment variable TENSOROPS_SERVICES "},
    "TENSOROPS_CONFIG": {"/nowhere/at/all.json": "configuration file /nowhere/at/all.json does not exist; "},
}
for _name, _values in IN_THE_ENVIRONMENT.items():
    OF_THE_ENVIRONMENT[_name] = {v: f"environment variable {_name}: {message}" for v, message in _values.items()}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in OF_THE_ENVIRONMENT.items() for v in values])
def test_a_mistake_in_the_environment_is_an_error(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="^" + re.escape(OF_THE_ENVIRONMENT[name][value])):
        tp.reload_config()


def test_what_kubernetes_sets_is_nobodys_mistake():
    names = ("TENSOROPS_SERVICE_HOST", "TENSOROPS_SERVICE_PORT_HTTP", "TENSOROPS_PORT", "TENSOROPS_PORT_80_TCP_ADDR")
    result = run("import tensorops; print('imported')", **dict.fromkeys(names, "10.0.0.1"))
    assert result.stdout.split() == ["imported"], result.stderr


MISTAKES = {
    "broken": ('{\n  "preferred_backend": "numpy",\n}', "line 3, column 1: not valid JSON: "),
    "empty": ("", "line 1, column 1: not valid JSON: "),
    "a list": ('["numpy"]', "line 1: expected an object with the keys preferred_backend, "),
    "unknown key": (
        '{\n  "backend_priority": [],\n  "preferred_backed": "numpy"\n}',
        "line 3: unknown key 'preferred_backed' (did you mean 'preferred_backend'?); valid keys: preferred_backend, ",
    ),
    "key twice": ('{\n"force_backend": null,\n"force_backend": "numpy"}', "the key 'force_backend' is listed twice"),
    "unknown name": (
        '{\n\n"preferred_backend": "nunpy"}',
        "line 3: preferred_backend: unknown backend 'nunpy' (did you mean 'numpy'?); valid names: ",
    ),
    "name of the wrong type": ('{"preferred_backend": 3}', "line 1: preferred_backend: unknown backend 3"),
    "forced true": ('{"force_backend": true}', "line 1: force_backend: expected a backend name or null, got True"),
    "forced auto": ('{"force_backend": "auto"}', "line 1: force_backend: unknown backend 'auto'"),
    "priority of the wrong type": ('{"backend_priority": "numpy"}', "line 1: backend_priority: expected a list of "),
    "unknown name in the priority": (
        '{"preferred_backend": "auto",\n"backend_priority": ["numpy", "xyz"]}',
        "line 2: backend_priority: unknown backend 'xyz'",
    ),
    "name twice in the priority": ('{"backend_priority": ["cpp", "cpu"]}', "backend 'cpu' is listed twice"),
    "devices of the wrong type": ('{"devices": []}', "line 1: devices: expected an object"),
    "unknown device": ('{"devices": {"cqu": {}}}', "line 1: devices: unknown backend 'cqu' (did you mean 'cpu'?)"),
    "unknown option further down": (
        '{"devices": {\n"jax": {"precision": "high"},\n"cpu": {\n"num_threads": 1,\n"num_thread": 1}}}',
        "line 5: devices: ",
    ),
    "wrong value of an option": (
        '{"preferred_backend": "cpu", "devices": {\n"mlx": {"cache_bytes": 1},\n"cpu": {\n"cache_bytes": "x"}}}',
        "line 4: devices: cpu: cache_bytes is 'x', expected ",
    ),
    "option twice": (
        '{"devices": {"jax": {},\n"mlx": {"cache_bytes": 1},\n"cpu": {"cache_bytes": 2,\n"cache_bytes": 3}}}',
        "line 4: the key 'cache_bytes' is listed twice",
    ),
    "key twice, once with an escape": (
        '{\n"force_backend": null,\n"force\\u005fbackend": "numpy"}',
        "line 3: the key 'force_backend' is listed twice",
    ),
    "option twice, both with escapes": (
        '{"devices": {"cpu": {"\\u0063ache_bytes": 2,\n"cache\\u005Fbytes": 3},\n"mlx": {"cache_bytes": 1}}}',
        "line 2: the key 'cache_bytes' is listed twice",
    ),
    "unknown key with an escape": ('{"force_backend": null,\n"\\u0066orce": null}', "line 2: unknown key 'force'"),
    "a value that looks like a key": (
        '{"preferred_backend": "auto",\n"backend_priority": ["\\"nope\\":"],\n"nope": 1}',
        "line 2: backend_priority: unknown backend",
    ),
    "too large": (" " * (1 << 20) + "{}", "cannot be read: larger than 1048576 bytes"),
    "a number of 5000 digits": (
        '{"devices": {"cpu": {\n"num_threads": ' + "1" * 5000 + "}}}",
        "line 2: a number of 5000 digits is too long",
    ),
    "a key with control characters": ('{"\\u001b[31m": 1}', r"line 1: unknown key '\x1b[31m'"),
    "a name of 5000 characters": ('{"preferred_backend": "' + "x" * 5000 + '"}', "line 1: preferred_backend: unknown "),
    "nested deeply": ("[" * 100_000, "its lists and objects are nested too deeply"),
    "unknown option": ('{"devices": {"cpu": {"num_thread": 1}}}', "(did you mean 'num_threads'?)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_file_names_the_file_and_the_line(name, tmp_path):
    text, message = MISTAKES[name]
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^configuration file ") as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 2000
    assert str(caught.value).isprintable()


def test_keys_of_different_objects_may_be_equal(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"devices": {"cpu": {"cache_bytes": 2}, "mlx": {"cache_bytes": 3}, "jax": {}}}')
    assert read_file(path).devices == {"cpu": {"cache_bytes": 2}, "mlx": {"cache_bytes": 3}, "jax": {}}


@pytest.mark.parametrize("digits", [10, 5000])
def test_a_number_of_threads_with_many_digits_is_named(digits):
    result = run("import tensorops", TENSOROPS_NUM_THREADS="9" * digits)
    said = last_line(result)
    assert said.startswith("ValueError: environment variable TENSOROPS_NUM_THREADS is '99")
    assert said.endswith("expected a number from 1 to 65536")
    assert len(said) < 400


@pytest.mark.parametrize("path", ["/" + "x" * 5000, "x/" * 2500])
@pytest.mark.parametrize("variable", ["TENSOROPS_CONFIG", "XDG_CONFIG_HOME"])
def test_a_path_that_is_too_long_is_an_error_that_names_it(path, variable):
    if os.name == "nt" or (variable == "XDG_CONFIG_HOME" and sys.platform != "linux"):
        pytest.skip("another folder, or another limit")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TENSOROPS_")}
    command = [sys.executable, "-W", "error", "-c", "import tensorops"]
    done = subprocess.run(command, env=clean | {variable: path}, capture_output=True, text=True, check=False)
    assert last_line(done).startswith(f"ValueError: configuration file {path[:20]}")
    assert last_line(done).endswith("cannot be read: File name too long")
    assert len(last_line(done)) < 1200


CONTROL = "\x1b[31mred\x07"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
@pytest.mark.parametrize(
    "variable", ["TENSOROPS_CONFIG", f"TENSOROPS_{CONTROL}", "TENSOROPS_BACKEND", "TENSOROPS_CPU_TARGET"]
)
def test_control_characters_are_not_printed(variable):
    code = "import tensorops, numpy; tensorops.set_backend('cpu')"
    if variable == "TENSOROPS_CPU_TARGET":
        support.require_provider("cpu")
    said = last_line(run(code, **{variable: CONTROL}))
    assert r"\x1b[31mred\x07" in said
    assert said.isprintable()


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_target_of_the_kernels_is_as_good_as_unset(value):
    support.require_provider("cpu")
    code = "from tensorops.kernels.cpu import _native; print(_native.target() == _native.targets()[0])"
    result = run(code, TENSOROPS_CPU_TARGET=value)
    assert result.stdout.split() == ["True"], result.stderr


def test_a_mistake_in_the_file_is_an_error_at_import(tmp_path):
    result = run("import tensorops", file=MISTAKES["unknown key"][0], folder=tmp_path)
    path = tmp_path / "config.json"
    assert last_line(result).startswith(
        f"ValueError: configuration file {path}, line 3: unknown key 'preferred_backed'"
    )


def test_a_file_that_is_no_text_is_an_error(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(ValueError, match=r"cannot be read"):
        read_file(path)
    with pytest.raises(ValueError, match=r"cannot be read"):
        read_file(tmp_path)  # a folder


# --- the file ----------------------------------------------------------------------------------------


def test_a_file_says_what_it_says(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(
        b'\xef\xbb\xbf{"preferred_backend": "python", "backend_priority": ["cpp", "jax"], "force_backend": "openmp", '
        b'"devices": {"cpu": {"num_threads": 2}}}'
    )
    assert read_file(path) == Configuration(
        preferred_backend="numpy",
        backend_priority=("cpu", "jax"),
        force_backend="cpu",
        devices={"cpu": {"num_threads": 2}},
        sources=dict.fromkeys(config_file.KEYS, str(path)),
    )
    path.write_text("{}")
    assert read_file(path) == Configuration()


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "new" / "config.json"
    written = Configuration("numpy", ("jax", "cpu"), "numpy", {"cpu": {"num_threads": 3}})
    write_file(path, written)
    found = read_file(path)
    assert (found.preferred_backend, found.backend_priority, found.force_backend, found.devices) == (
        "numpy", ("jax", "cpu"), "numpy", {"cpu": {"num_threads": 3}},
    )  # fmt: skip
    assert [p.name for p in path.parent.iterdir()] == ["config.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_file(path, Configuration("numpy"))
    before = path.read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left"):
        write_file(path, Configuration("jax"))
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


WRITE = """
import os, pathlib, sys
from tensorops.backends.config_file import Configuration, write_file
os.umask(int(sys.argv[2], 8))
write_file(pathlib.Path(sys.argv[1]), Configuration("numpy"))
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize(("umask", "mode"), [("077", 0o600), ("027", 0o640), ("022", 0o644), ("002", 0o664)])
def test_a_new_file_has_the_permissions_that_the_umask_leaves(tmp_path, umask, mode):
    path = tmp_path / "config.json"
    result = support.python(WRITE, str(path), umask)
    assert result.returncode == 0, result.stderr
    assert oct(path.stat().st_mode & 0o777) == oct(mode)
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
def test_a_file_keeps_its_permissions_whatever_the_umask(tmp_path, mode):
    path = tmp_path / "config.json"
    path.write_text("{}")
    path.chmod(mode)
    result = support.python(WRITE, str(path), "027")
    assert result.returncode == 0, result.stderr
    assert oct(path.stat().st_mode & 0o777) == oct(mode)
    assert read_file(path).preferred_backend == "numpy"


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_linked_file_stays_a_link(tmp_path):
    target, link = tmp_path / "dotfiles.json", tmp_path / "config.json"
    target.write_text("{}")
    link.symlink_to(target)
    write_file(link, Configuration("numpy"))
    assert link.is_symlink()
    assert read_file(target).preferred_backend == "numpy"


def test_the_usual_place_is_the_users_configuration_folder(tmp_path):
    if sys.platform != "linux":
        pytest.skip("XDG folders are Linux's")
    folder = tmp_path / "tensorops"
    folder.mkdir()
    code = "import tensorops; print(tensorops.get_default_backend())"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TENSOROPS_")} | {"XDG_CONFIG_HOME": str(tmp_path)}

    def default():
        done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr

    assert default() == "auto"
    (folder / "config.json").write_text('{"preferred_backend": "numpy"}')
    assert default() == "numpy"
    (folder / "config.json").write_text('{"preferred_backend": "nunpy"}')
    assert (
        f"configuration file {folder / 'config.json'}, line 1: preferred_backend: unknown backend 'nunpy'" in default()
    )


def test_the_usual_place_is_the_one_that_platformdirs_gives(tmp_path, monkeypatch):
    platformdirs = pytest.importorskip("platformdirs")
    monkeypatch.delenv("TENSOROPS_CONFIG")
    for folder in (None, str(tmp_path), ""):
        if folder is None:
            monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        else:
            monkeypatch.setenv("XDG_CONFIG_HOME", folder)
        expected = platformdirs.user_config_path("tensorops", appauthor=False) / "config.json"
        assert config_file.config_path() == expected


# --- changes without a restart -----------------------------------------------------------------------


def test_reload_config_reads_the_file_and_the_environment_again(clean, tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text('{"preferred_backend": "numpy"}')
    assert tp.get_default_backend() == "auto"
    monkeypatch.setenv("TENSOROPS_CONFIG", str(path))
    assert tp.get_default_backend() == "auto"
    tp.reload_config()
    assert tp.get_default_backend() == tp.get_backend() == "numpy"
    monkeypatch.setenv("TENSOROPS_BACKEND", "auto")
    tp.reload_config()
    assert tp.get_default_backend() == "auto"


def test_reload_config_that_fails_changes_nothing(clean, tmp_path, monkeypatch, unavailable):
    path = tmp_path / "config.json"
    path.write_text('{"preferred_backend": "numpy"}')
    monkeypatch.setenv("TENSOROPS_CONFIG", str(path))
    tp.reload_config()
    before = process.configuration
    for text, error in (
        ('{"preferred_backend": "nunpy"}', ValueError),
        (json.dumps({"force_backend": unavailable[0]}), tp.BackendUnavailableError),
    ):
        path.write_text(text)
        with pytest.raises(error):
            tp.reload_config()
        assert process.configuration is before
        assert tp.get_backend() == "numpy"


def test_set_default_backend_outlives_reload_config_until_it_is_taken_back(clean, monkeypatch):
    tp.set_default_backend("python")
    assert tp.get_default_backend() == "numpy"
    monkeypatch.setenv("TENSOROPS_BACKEND", "auto")
    tp.reload_config()
    assert tp.get_default_backend() == "numpy"
    with tp.set_backend("cpu" if tp.is_backend_available("cpu") else "numpy"):
        assert tp.get_default_backend() == "numpy"
    tp.set_default_backend(None)
    assert tp.get_default_backend() == "auto"


def test_set_default_backend_refuses_what_it_cannot_do(clean, unavailable):
    tp.set_default_backend("numpy")
    with pytest.raises(tp.BackendUnavailableError, match=r"^backend .* is not available: .*; to fix it: "):
        tp.set_default_backend(unavailable[0])
    with pytest.raises(ValueError, match=r"^unknown backend 'nunpy' \(did you mean 'numpy'\?\)"):
        tp.set_default_backend("nunpy")
    assert tp.get_default_backend() == "numpy"


def test_threads_of_the_compiled_kernels_are_configured(clean, tmp_path, monkeypatch):
    support.require_provider("cpu")
    from tensorops.kernels.cpu import _native

    code = """
import numpy as np, tensorops as t
t.rms_norm(np.ones((2, 4)))
from tensorops.kernels.cpu import _native
print(_native.num_threads())"""
    file = {"devices": {"cpu": {"num_threads": 3}}}
    assert run(code, file=file, folder=tmp_path).stdout.split() == ["3"]
    assert run(code, file=file, folder=tmp_path, TENSOROPS_NUM_THREADS="1").stdout.split() == ["1"]
    before = _native.num_threads()
    monkeypatch.setenv("TENSOROPS_NUM_THREADS", "1")
    tp.reload_config()
    assert _native.num_threads() == 1
    monkeypatch.delenv("TENSOROPS_NUM_THREADS")
    tp.reload_config()
    assert _native.num_threads() == before


def test_a_refused_option_is_forgotten_when_it_is_gone(clean, tmp_path, monkeypatch):
    support.require("mlx")
    path = tmp_path / "config.json"
    monkeypatch.setenv("TENSOROPS_CONFIG", str(path))
    code = """
import os, sys, pathlib, tensorops as tp
path = pathlib.Path(os.environ["TENSOROPS_CONFIG"])
path.write_text('{"devices": {"mlx": {"max_memory_fraction": 0.5}}}')
tp.reload_config()
try:
    tp.set_backend("mlx")
except tp.BackendUnavailableError as error:
    print(error)
path.write_text("{}")
tp.reload_config()
with tp.set_backend("mlx"):
    print(tp.get_backend(), tp.is_backend_available("mlx"))
"""
    result = run(code, TENSOROPS_CONFIG=str(path), file="{}", folder=tmp_path)
    refused, worked = result.stdout.splitlines()
    assert "max_memory_fraction cannot be honoured" in refused
    assert worked == "mlx True"


def test_a_failed_reload_leaves_the_compiled_kernels_as_they_were(clean, tmp_path, monkeypatch):
    support.require("mlx")
    support.require_provider("cpu")
    from tensorops.kernels.cpu import _native

    path = tmp_path / "config.json"
    monkeypatch.setenv("TENSOROPS_CONFIG", str(path))
    monkeypatch.setenv("TENSOROPS_NUM_THREADS", "1")
    path.write_text('{"devices": {"cpu": {"cache_bytes": 1048576}}}')
    tp.reload_config()
    with tp.set_backend("mlx"):
        pass
    stats = _native.num_threads(), _native.memory_stats()["limit"]
    assert stats == (1, 1048576)
    path.write_text('{"devices": {"cpu": {"num_threads": 2}, "mlx": {"max_memory_fraction": 0.5}}}')
    with pytest.raises(tp.ConfigurationError):
        tp.reload_config()
    assert (_native.num_threads(), _native.memory_stats()["limit"]) == stats


def test_a_reload_while_a_backend_is_tried_reaches_its_device(clean, tmp_path, monkeypatch):
    support.require("mlx")
    from tensorops import _hooks
    from tensorops.backends import probing

    path = tmp_path / "config.json"
    monkeypatch.setenv("TENSOROPS_CONFIG", str(path))
    path.write_text('{"devices": {"mlx": {"cache_bytes": 1048576}}}')
    tp.reload_config()
    computing, reloaded = threading.Event(), threading.Event()
    (wrong_result,) = _hooks.wrong_result

    def slowly(backend):
        computing.set()
        assert reloaded.wait(60)
        return wrong_result(backend)

    monkeypatch.setattr(_hooks, "wrong_result", [slowly])
    thread = threading.Thread(target=lambda: probing._compute(BACKENDS["mlx"], None))
    thread.start()
    assert computing.wait(60)
    path.write_text('{"devices": {"mlx": {"cache_bytes": 2097152}}}')
    tp.reload_config()
    reloaded.set()
    thread.join(60)
    assert tp.get_config("mlx").cache_bytes == 2097152


def test_changed_options_of_a_device_reach_a_backend_in_use(clean, tmp_path, monkeypatch):
    support.require("mlx")
    path = tmp_path / "config.json"
    monkeypatch.setenv("TENSOROPS_CONFIG", str(path))
    with tp.set_backend("mlx"):
        limits = []
        for options in ({"cache_bytes": 2**20}, {"cache_bytes": 2**21}, {}):
            path.write_text(json.dumps({"devices": {"mlx": options}}))
            tp.reload_config()
            limits.append(tp.get_config("mlx").cache_bytes)
        assert limits == [2**20, 2**21, None]
        before = process.configuration
        path.write_text(json.dumps({"devices": {"mlx": {"max_memory_fraction": 0.5}}}))
        with pytest.raises(tp.ConfigurationError, match=r"^backend 'mlx': max_memory_fraction cannot be honoured"):
            tp.reload_config()
        assert process.configuration is before
