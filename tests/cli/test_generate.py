"""``tensorops generate``: texts that end a text, penalties, JSON, samples, and prompts kept in files."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import make_gguf
from command_line import installed_script

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("gguf")
pytest.importorskip("safetensors")

from click.testing import CliRunner
from safetensors.numpy import save_file

from tensorops.cli import _memory, _options, _progress
from tensorops.cli._app import app
from tensorops.models import LanguageModel, load_safetensors, memory, save_safetensors
from tensorops.models.files._open_file import watch_reads

PROMPT = "hello worldhello"  # three tokens


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_gguf.write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path):
    return LanguageModel.load(path, "numpy")


def generate(path, *options, prompt=PROMPT, count=12):
    arguments = ["generate", prompt, "--model", str(path), "--backend=numpy", "--temperature=0", f"-n{count}", *options]
    return CliRunner().invoke(app, arguments)


def answers(path, *options, **others):
    result = generate(path, "--json", *options, **others)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.split("\n")[:-1]]


# --- what ends a text, and what is in it ---------------------------------------------------------------


def test_a_text_ends_before_a_stop(path, model):
    text = "".join(model.generate(PROMPT, max_new_tokens=12))
    stop = text[len(text) // 2]
    result = generate(path, "--stop", stop, "--stop", "zzz")
    assert result.stdout == f"{PROMPT}{text.partition(stop)[0]}\n"
    assert ", stopped by --stop\n" in result.stderr
    (answer,) = answers(path, "--stop", stop)
    assert (answer["text"], answer["finish_reason"]) == (text.partition(stop)[0], "stop")
    assert stop in model.tokenizer.decode(answer["ids"])
    last = text[-1]
    if last not in text[:-1]:  # the stop is complete with the last token that is allowed
        assert answers(path, "--stop", last)[0]["finish_reason"] == "stop"


def test_penalties_are_passed_on(path, model):
    for name, value in (("repeat_penalty", 0.01), ("presence_penalty", -50.0)):  # which make tokens likelier
        expected = list(model.generate_ids(model.tokenizer.encode(PROMPT), max_new_tokens=12, **{name: value}))
        (answer,) = answers(path, f"--{name.replace('_', '-')}={value}")
        assert answer["ids"] == expected != answers(path)[0]["ids"]


def test_json_says_all_about_a_continuation(path, model):
    ids = model.tokenizer.encode(PROMPT)
    added = list(model.generate_ids(ids, max_new_tokens=12))
    (answer,) = answers(path, "--logprobs=3")
    assert answer["prompt"] == PROMPT
    assert (answer["ids"], answer["tokens"], answer["finish_reason"]) == (added, 12, "length")
    assert answer["text"] == model.tokenizer.decode(added)
    timings = answer["timings"]
    assert (timings["prompt_tokens"], timings["cached_tokens"]) == (len(ids), 0)
    assert timings["seconds_to_first_token"] > 0 < timings["tokens_per_second"]
    expected = model.logprobs([*ids, *added], top=3)
    found = answer["logprobs"]
    assert [record["id"] for record in found] == added
    assert [record["text"] for record in found] == [model.tokenizer.decode([i], skip_special=False) for i in added]
    np.testing.assert_allclose([record["logprob"] for record in found], expected.chosen[len(ids) - 1 :], rtol=1e-4)
    likeliest = [[other["id"] for other in record["top"]] for record in found]
    np.testing.assert_array_equal(likeliest, expected.top_ids[len(ids) - 1 :])
    assert all(record["top"][0] == {**record["top"][0], "id": record["id"]} for record in found)  # it was greedy
    (one,) = answers(path, count=1)
    assert one["timings"]["tokens_per_second"] is None
    assert "logprobs" not in one
    assert "nan" not in generate(path, count=1).stderr  # no rate of a single token


def test_samples_have_seeds_of_their_own(path):
    found = answers(path, "--samples=3", "--seed=7", "--temp=1")
    assert [answer["seed"] for answer in found] == [7, 8, 9]
    assert len({answer["text"] for answer in found}) == 3
    for answer in found:
        assert answers(path, f"--seed={answer['seed']}", "--temp=1")[0]["ids"] == answer["ids"]
    assert [answer["timings"]["cached_tokens"] for answer in found] == [0, 2, 2]  # of three: the last is read again
    by_chance = answers(path, "--samples=2", "--temp=1", count=3)
    assert by_chance[1]["seed"] == by_chance[0]["seed"] + 1
    result = generate(path, "--samples=2", "--seed=7", "--temp=1")
    assert result.stdout == "".join(f"{PROMPT}{answer['text']}\n" for answer in found[:2])


def test_a_context_limits_texts(path, model):
    arguments = ["generate", PROMPT, "--model", str(path), "--backend=numpy", "--context=9", "--temperature=0"]
    result = CliRunner().invoke(app, arguments)
    room = 9 - len(model.tokenizer.encode(PROMPT))
    assert re.search(rf"written {room} \(.*/s\), stopped by the context of 9 tokens\n", result.stderr)
    result = CliRunner().invoke(app, [*arguments, "--max-new-tokens=20"])
    assert result.exit_code == 1
    assert "more than the chosen context length of 9: shorten the prompt, or lower --max-new-tokens" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--logprobs=2"], "--logprobs needs --json"),
        (["--samples=2", "--temperature=0"], "--samples needs --temperature, which is 0"),
        (["--repeat-penalty=0"], "0.0 is not in the range x>0"),
        (["--presence-penalty=nan"], "nan is not a finite number"),
        (["--stop="], "the text is empty"),
        (["--prompt-cache=file", "--tensor-parallel=2"], "--prompt-cache has no parts of several processes"),
    ],
)
def test_options_without_a_meaning_are_refused(path, options, words):
    result = generate(path, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_a_batch_refuses_what_it_cannot_do(path):
    arguments = ["generate", "--batch=-", "--model", str(path), "--samples=2", "--json"]
    result = CliRunner().invoke(app, arguments, input="hello")
    assert result.exit_code == 2
    assert result.stderr.endswith("Error: --batch does not take --samples, --json: give one prompt\n")


def test_lines_of_a_batch_end_as_texts_do(path, model):
    options = {"max_new_tokens": 12, "repeat_penalty": 1.2, "presence_penalty": 0.1}
    texts = {line: "".join(model.generate(line, **options)) for line in (PROMPT, "world")}
    stop = texts[PROMPT][len(texts[PROMPT]) // 2]
    given = ["--stop", stop, "--stop=zzz", "--repeat-penalty=1.2", "--presence-penalty=0.1", "--max-new-tokens=12"]
    arguments = ["generate", "--batch=-", "--model", str(path), "--backend=numpy", "--temperature=0", *given]
    result = CliRunner().invoke(app, arguments, input="\n".join(texts))
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.split("\n")[:-1]]
    assert [answer["text"] for answer in found] == [text.partition(stop)[0] for text in texts.values()]
    assert found[0]["finish_reason"] == "stop"
    assert found[0]["tokens"] < 12


# --- how tokens are chosen by default --------------------------------------------------------------------


def plain(path, *options, prompt=PROMPT):
    """What generate says of a prompt, and the seed that it shows."""
    result = CliRunner().invoke(app, ["generate", prompt, "-m", str(path), "--backend=numpy", "-n12", *options])
    assert result.exit_code == 0, result.output
    seed = re.search(r"; seed (\d+)\n", result.stderr)
    return result.stdout, None if seed is None else int(seed[1])


def test_by_default_it_samples_with_a_seed_that_is_shown(path, model):
    (text, seed), (other, another) = plain(path), plain(path)
    assert seed != another
    assert text != other
    options = {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 12}
    assert text == PROMPT + "".join(model.generate(PROMPT, seed=seed, **options)) + "\n"
    assert (text, seed) == plain(path, f"--seed={seed}")
    assert plain(path, f"--seed={seed}", "--top-k=0") == (text, seed)
    greedy = PROMPT + "".join(model.generate(PROMPT, max_new_tokens=12)) + "\n"
    assert plain(path, "--temp=0") == plain(path, "--temperature=0", "--seed=3") == (greedy, None)
    (answer,) = [json.loads(line) for line in plain(path, "--json", f"--seed={seed}")[0].splitlines()]
    assert answer["seed"] == seed


def test_what_the_files_recommend_is_the_default(tmp_path, model):
    sampling = {"general.sampling.temp": 1.5, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.5}
    metadata = make_gguf.llama_metadata() | make_gguf.tokenizer_metadata() | sampling
    path = make_gguf.write_gguf(tmp_path / "model.gguf", metadata, make_gguf.llama_arrays())
    for given, changed in (
        ([], {}),
        (["--top-k=0"], {"top_k": None}),
        (["--top-p=0.5"], {"top_p": 0.5}),
        (["--repeat-penalty=1", "--frequency-penalty=0.5"], {"repeat_penalty": 1.0, "frequency_penalty": 0.5}),
        (["--repeat-last-n=2"], {"repeat_last_n": 2}),
        (["--logit-bias=17+30", "--logit-bias=9-inf"], {"logit_bias": {17: 30.0, 9: float("-inf")}}),
    ):
        options = {"temperature": 1.5, "top_k": 20, "repeat_penalty": 1.5, "max_new_tokens": 12, "seed": 4, **changed}
        expected = PROMPT + "".join(model.generate(PROMPT, **options)) + "\n"
        assert plain(path, "--seed=4", *given) == (expected, 4)
    sampling = {"general.sampling.temp": 0.0}
    path = make_gguf.write_gguf(tmp_path / "greedy.gguf", metadata | sampling, make_gguf.llama_arrays())
    assert plain(path)[1] is None
    result = CliRunner().invoke(app, ["generate", PROMPT, "-m", str(path), "--samples=2"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--samples needs --temperature, which is 0" in result.stderr


def test_a_bias_is_of_a_token(path):
    result = generate(path, "--logit-bias=269+1")
    assert result.exit_code == 1
    assert result.stderr == "Error: token id 269 is outside the vocabulary of 269 tokens\n"
    for value in ("5", "5=1", "5+x", "5+inf", "5-nan", "hello+1"):
        result = generate(path, f"--logit-bias={value}")
        assert result.exit_code == 2
        assert f"{value!r} is no token id with a number, such as 15043+1" in result.stderr


# --- Ctrl-C ------------------------------------------------------------------------------------------------


@pytest.fixture
def pressing(monkeypatch, interruptible):
    """Press Ctrl-C before the step of this number."""
    read, steps = LanguageModel._read_piece, []

    def press(number):
        def pressing(self, ids, cache):
            steps.append(len(ids))
            if len(steps) == number:
                signal.raise_signal(signal.SIGINT)
            return read(self, ids, cache)

        monkeypatch.setattr(LanguageModel, "_read_piece", pressing)

    return press


def test_ctrl_c_ends_a_text_with_the_line_about_it(path, model, pressing):
    text = model.tokenizer.decode(list(model.generate_ids(model.tokenizer.encode(PROMPT), max_new_tokens=12))[:4])
    pressing(4)
    result = generate(path, "--json", "--samples=1")
    assert result.exit_code == 130
    assert re.search(r"written 4 \(.*/s\), stopped by Ctrl-C\n", result.stderr)
    answer = json.loads(result.stdout)
    assert (answer["text"], answer["tokens"], answer["finish_reason"]) == (text, 4, "interrupted")


def test_ctrl_c_while_the_prompt_is_read(path, pressing):
    pressing(1)
    result = generate(path)
    assert (result.exit_code, result.stdout) == (130, f"{PROMPT}\n")
    assert result.stderr == "numpy: tokens read 3, written 0, stopped by Ctrl-C\n"


# --- run ---------------------------------------------------------------------------------------------------


def test_run_is_chat_or_generate(path):
    options = ["--backend=numpy", "--temp=0", "-n6"]

    def said(*arguments, **others):
        result = CliRunner().invoke(app, [*arguments, *options], **others)
        assert result.exit_code == 0, result.output
        return result.stdout

    one = said("generate", "--chat", "hello world", "-m", str(path))
    assert said("run", str(path), "hello", "world") == said("run", "-m", str(path), "hello world") == one
    assert said("run", str(path), "-", input="hello world") == one
    assert said("run", str(path), input="hello world\n") == said("chat", str(path), input="hello world\n") == one
    assert said("run", input="hello world\n", env={"TENSOROPS_MODEL": str(path)}) == one
    assert said("chat", "-m", str(path), input="hello world\n") == one
    result = CliRunner().invoke(app, ["chat", str(path), "-m", str(path)])
    assert result.exit_code == 2
    assert "give MODEL or --model" in result.stderr


# --- what is no model -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama3.2", "one of ollama's, pass the GGUF file that `ollama show llama3.2 --modelfile` has after FROM"),
        ("qwen3:0.6b", "`ollama show qwen3:0.6b --modelfile` has after FROM"),
        (
            "google/gemma-3-270m-it",
            "`hf download google/gemma-3-270m-it --local-dir gemma-3-270m-it` fetches it: then pass gemma-3-270m-it",
        ),
        ("none.gguf", "Path 'none.gguf' does not exist."),
        ("./none", "Path './none' does not exist."),
        ("/none/model", "Path '/none/model' does not exist."),
    ],
)
@pytest.mark.parametrize("command", ["generate hello -m", "chat", "run", "embed hello -m", "models"])
def test_a_name_that_is_no_path_says_what_to_do(command, name, words):
    result = CliRunner().invoke(app, [*command.split(), name])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].endswith(words)


def test_a_file_of_another_kind_says_what_to_do(path, tmp_path):
    empty, torchs, with_file = (tmp_path / name for name in ("empty", "torch", "with_file"))
    for folder in (empty, torchs, with_file):
        folder.mkdir()
    (torchs / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2}))
    (torchs / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    shutil.copy(path, with_file / "tiny.gguf")
    pointer, page = tmp_path / "pointer.gguf", tmp_path / "page.gguf"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    page.write_text("<!doctype html>\n<html>")
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 8)
    for file, words in (
        (empty, "config.json: missing, so this is not the folder of a model: `hf download OWNER/NAME --local-dir "),
        (with_file, f"pass the GGUF file, {with_file / 'tiny.gguf'}"),
        (torchs, "pytorch_model.bin has weights of PyTorch, which may run programs: take the model's safetensors"),
        (torchs / "pytorch_model.bin", "a zip archive, as are weights of PyTorch"),
        (pointer, "a pointer of Git LFS without the content, which `git lfs pull` in its folder fetches"),
        (page, "a page of HTML: download the file itself"),
        (tmp_path / "model.safetensors", f"file: of a folder: pass that, {tmp_path}"),
    ):
        result = generate(file)
        assert (result.exit_code, result.stdout) == (1, ""), result.output
        assert words in result.stderr
        assert result.stderr.count("\n") == 1


# --- encodings -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="arguments are Unicode there")
@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"PYTHONIOENCODING": "latin-1"}, "caf\xe9 \\u2192".encode("latin-1")),
        ({"PYTHONIOENCODING": "cp1252"}, "caf\xe9 \\u2192".encode("cp1252")),
        ({"PYTHONIOENCODING": "ascii"}, b"caf\\xe9 \\u2192"),
        ({"PYTHONIOENCODING": "", "LC_ALL": "C", "PYTHONUTF8": "0"}, b"caf\\xe9 \\u2192"),
        ({"PYTHONIOENCODING": "", "LC_ALL": "C"}, "caf\xe9 \u2192".encode()),
    ],
)
def test_what_an_encoding_lacks_is_written_with_backslashes(path, environment, shown):
    arguments = ["caf\xe9 \u2192".encode(), b"--temp=0", b"-n3", b"--backend=numpy", b"-m", os.fsencode(path)]

    def said(*more):
        command = [*installed_script(), b"generate", *arguments, *more]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("TENSOROPS_", "LC_"))}
        process = subprocess.run(command, env=clean | {"TENSOROPS_CONFIG": ""} | environment, capture_output=True)
        assert process.returncode == 0, process.stderr
        return process.stdout

    assert said().startswith(shown)
    assert json.loads(said(b"--json"))["prompt"] == "caf\xe9 \u2192"


# --- prompts in files ------------------------------------------------------------------------------------


def test_a_prompt_in_a_file_is_not_read_again(path, tmp_path, monkeypatch):
    file = tmp_path / "prompt.safetensors"
    option = f"--prompt-cache={file}"
    plain = generate(path).stdout
    first = generate(path, option)
    assert (first.exit_code, first.stdout) == (0, plain)
    assert load_safetensors(file, "numpy")["keys"][0].shape == (1, 2, 3, 16)
    before = file.stat().st_mtime_ns
    counts, read = [], LanguageModel._read_piece

    def counting(self, ids, cache):
        counts.append(len(ids))
        return read(self, ids, cache)

    monkeypatch.setattr(LanguageModel, "_read_piece", counting)
    again = generate(path, option)
    assert again.stdout == plain
    assert f"2 of 3 tokens of the prompt are in {file}" in again.stderr
    assert counts == [1] * 12
    assert file.stat().st_mtime_ns == before
    longer = generate(path, option, prompt=f"{PROMPT} hello")
    assert longer.stdout == generate(path, prompt=f"{PROMPT} hello").stdout
    assert f"3 of 5 tokens of the prompt are in {file}" in longer.stderr
    assert load_safetensors(file, "numpy")["ids"].shape == (5,)  # the file has the last prompt
    assert answers(path, option, prompt=f"{PROMPT} hello")[0]["timings"]["cached_tokens"] == 4


def test_a_file_of_another_text_or_model_is_replaced_with_a_word(path, tmp_path):
    file = tmp_path / "prompt.safetensors"
    option = f"--prompt-cache={file}"
    generate(path, option)
    other = generate(path, option, prompt="world")
    assert f"{file} is of another text: the prompt is read anew" in other.stderr
    copy = tmp_path / "copy.gguf"
    shutil.copy(path, copy)
    os.utime(copy, ns=(1, 1))
    result = generate(copy, option, prompt="world")
    assert f"{file} is of another model, or of another version of its file" in result.stderr
    assert result.stdout == other.stdout
    assert "tokens of the prompt are in" not in result.stderr
    assert "is of another" not in generate(copy, option, prompt="world").stderr


def test_a_file_of_another_kind_is_not_overwritten(path, tmp_path):
    mine = tmp_path / "mine.safetensors"
    save_safetensors({"a": np.ones(3)}, mine)
    text = tmp_path / "letter.txt"
    text.write_text("Dear reader")
    for file in (mine, text):
        content = file.read_bytes()
        result = generate(path, f"--prompt-cache={file}")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "is no prompt cache" in result.stderr
        assert result.stderr.count("\n") == 1
        assert file.read_bytes() == content
    result = generate(path, f"--prompt-cache={tmp_path / 'none' / 'file'}")
    assert result.exit_code == 1
    assert "cannot be written: FileNotFoundError" in result.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_is_no_prompt_cache(path, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in (("pipe", "not a regular file"), ("loop", "symbolic links"), ("x" * 300, "too long")):
        result = generate(path, f"--prompt-cache={tmp_path / name}")
        assert (result.exit_code, result.stdout) == (1, "")
        assert re.search(rf"is no prompt cache \(.*{reason}", result.stderr)
        assert result.stderr.count("\n") == 1


def test_keys_of_other_sizes_are_refused(path, model, tmp_path):
    file = tmp_path / "keys"
    kept = model.new_prompt_cache()
    list(model.generate_ids([1, 2, 3], max_new_tokens=1, prompt_cache=kept))
    kept.save(file, 2)
    again = model.new_prompt_cache()
    again.load(file, "numpy")
    assert again.ids == (1, 2)
    assert again.cache.capacity == 128  # no other than that of a new cache: compilers have seen it
    other = LanguageModel.load(make_gguf.write_llama(tmp_path / "one.gguf", context_length=99), "numpy")
    other_kept = other.new_prompt_cache()
    halves = LanguageModel.load(path, "numpy", kv_dtype="float16").new_prompt_cache()
    with pytest.raises(ValueError, match="of a model with other sizes, or in another dtype"):
        halves.load(file, "numpy")
    tree = load_safetensors(file, "numpy")
    save_safetensors({**tree, "keys": tree["keys"][:1]}, file)
    with pytest.raises(ValueError, match="keys and values of a model with other sizes"):
        other_kept.load(file, "numpy")


# --- memory and progress -----------------------------------------------------------------------------------


def test_memory_that_is_lacking_is_told_of_before_it_is_used(path, model, monkeypatch):
    tensors = memory.weights_bytes(_open(path).tensors, "numpy")
    assert tensors == sum(4 * np.prod(tensor.shape) for tensor in _open(path).tensors.values())
    of_128, of_300 = (memory.cache_bytes(model.config, tokens) for tokens in (128, 300))
    assert (of_128, of_300) == (2 * 2 * 2 * 128 * 16 * 4, 4 * of_128)
    monkeypatch.setattr(_memory, "available_memory", lambda: tensors - 1)
    result = generate(path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        f"Error: the weights of {path} need {tensors / 1e6:.1f} MB of memory on numpy, and "
    )
    assert result.stderr.endswith(
        "are available: take a file with smaller weights, such as Q4_K_M, or a smaller model\n"
    )
    monkeypatch.setattr(_memory, "file_bytes", lambda path: 0)
    monkeypatch.setattr(_memory, "available_memory", lambda: of_300 - 1)
    result = CliRunner().invoke(app, ["generate", PROMPT, "--model", str(path), "--backend=numpy"])
    assert result.exit_code == 0
    assert result.stderr.startswith("Warning: keys and values of 300 tokens would need 0.3 MB of memory, and ")
    assert "--context N limits the number of tokens" in result.stderr
    monkeypatch.setattr(_memory, "available_memory", lambda: of_128 - 1)
    result = generate(path)
    assert result.exit_code == 1
    assert "Error: the keys and values of 3 tokens need 0.1 MB of memory" in result.stderr
    assert "shorten the prompt, or give --kv-dtype q8_0" in result.stderr
    assert generate(path, "--kv-dtype=float16").exit_code == 0
    assert memory.cache_bytes(model.config, 128, "q8_0") * 32 * 4 == of_128 * 34 * 2  # of 16 features, 32 are kept
    monkeypatch.setattr(_memory, "available_memory", lambda: of_128 // 2 - 1)
    assert generate(path, "--kv-dtype=float16").exit_code == 1


def _open(path):
    from tensorops.models import open_gguf

    return open_gguf(path)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "F16"])
def test_packed_weights_take_what_they_take_in_the_file(tmp_path, kind):
    from tensorops import get_available_backends

    tensors = _open(make_gguf.write_llama(tmp_path / "model.gguf", kind)).tensors
    floats = sum(4 * np.prod(tensor.shape) for tensor in tensors.values())
    # Norms are kept as float32, and are in the file.
    stored = floats if kind == "F16" else sum(tensor.nbytes for tensor in tensors.values())
    assert memory.weights_bytes(tensors, "numpy") == floats
    if "cpu" in get_available_backends():
        assert memory.weights_bytes(tensors, "cpu") == stored


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_what_a_model_says_controls_no_terminal(stream, monkeypatch):
    said = "a\x1b]0;title\x07\x9b31m\x7f\r\n\tb \N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}"
    shown = r"a\x1b]0;title\x07\x9b31m\x7f\r" + "\n\tb \N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}"
    monkeypatch.setattr("sys.stdout", stream())
    _options.write(said)
    assert sys.stdout.getvalue() == (shown if stream is Terminal else said)


def test_what_a_file_says_controls_no_terminal(path, tmp_path):
    """Its tokens, in JSON, and its keys, in errors."""
    tokens = make_gguf.llama_metadata() | make_gguf.tokenizer_metadata()
    names = tokens["tokenizer.ggml.tokens"]
    kinds = tokens["tokenizer.ggml.token_type"]
    names[3:] = [f"\x1b]0;{i}\x07\x9b\x7f" for i in range(3, len(names))]
    kinds[3:] = [4] * (len(kinds) - 3)  # as they are
    names[5] = names[3] + names[4]
    tokens["tokenizer.ggml.merges"] = [f"{names[3]} {names[4]}"]
    hostile = make_gguf.write_gguf(tmp_path / "hostile.gguf", tokens, make_gguf.llama_arrays())
    result = generate(hostile, "--json", prompt=names[6])
    assert result.exit_code == 0, result.stderr
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.stdout) is None
    assert json.loads(result.stdout)["text"].startswith("\x1b]0;")
    key = "\x1b[31m\x9bkey"
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    config = {"model_type": "llama", "num_hidden_layers": 1, "head_dim": 2, key: 5} | dict.fromkeys(sizes, 4)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({key: np.ones((4, 4), np.float32)}, tmp_path / "model.safetensors")
    for command in (["generate", "a", f"--model={tmp_path}", "--backend=numpy"], ["models", str(tmp_path)]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1
        assert r"tensor \x1b[31m\x9bkey" in result.output
        assert re.search(r"[\x1b\x9b]", result.output) is None


def test_a_full_memory_is_one_line(path, monkeypatch):
    def full(*_):
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr(LanguageModel, "_read_piece", full)
    result = generate(path)
    assert result.exit_code == 1
    assert "Error: the memory is full (Unable to allocate 9 GiB): --context N" in result.stderr


def test_bars_are_on_a_terminal_only_and_gone_in_the_end(path, monkeypatch):
    from rich.console import Console

    long = "a b " * 70
    monkeypatch.setattr(_progress, "LARGE", 0)
    quiet = generate(path, prompt=long, count=1)
    assert "reading the prompt" not in quiet.stderr
    terminal = Console(force_terminal=True, width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    monkeypatch.setattr(_progress, "messages", terminal)
    shown = generate(path, prompt=long, count=1)
    terminal.file.close()
    assert shown.stdout == quiet.stdout
    said = terminal.export_text()
    assert "tiny.gguf" in said
    assert "reading the prompt" in said
    assert "256/" in said


def test_the_bytes_of_a_file_are_counted_as_they_are_read(path):
    counts = []
    with watch_reads(counts.append):
        LanguageModel.load(path, "numpy")
    assert (
        path.stat().st_size * 0.9 < sum(counts) < path.stat().st_size + (1 << 20)
    )  # of metadata, more is read at once
    del counts[:]
    LanguageModel.load(path, "numpy")
    assert counts == []
