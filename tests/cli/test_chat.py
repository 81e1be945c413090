"""``tensorops chat``: conversations on one cache, driven by standard input and by a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import make_gguf
from command_line import run

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("gguf")

from click.testing import CliRunner

from tensorops.cli import chat as module
from tensorops.cli._app import app
from tensorops.models import LanguageModel

OPTIONS = ("--backend", "numpy", "--temperature", "0", "--max-new-tokens", "6")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_gguf.write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


def talk(model, *lines, options=OPTIONS):
    return CliRunner().invoke(app, ["chat", str(model), *options], input="".join(f"{line}\n" for line in lines))


def replies(model, *messages, system=None):
    """What the model says if each conversation is read as a whole, and how many tokens there are in the end."""
    network = LanguageModel.load(model, "numpy")
    said, used = [], 0
    talked = [] if system is None else [{"role": "system", "content": system}]
    for message in messages:
        talked.append({"role": "user", "content": message})
        ids = network.tokenizer.encode_prompt(talked)
        found = list(network.generate_ids(ids, max_new_tokens=6))
        said.append("".join(network.tokenizer.stream(found)))
        talked.append({"role": "assistant", "content": said[-1]})
        used = len(ids) + len(found)
    return said, used


def test_each_message_is_answered_in_the_light_of_those_before(model):
    result = talk(model, "hello", "", "world")
    assert result.exit_code == 0, result.output
    expected, used = replies(model, "hello", "world")
    assert result.stdout == "".join(f"{reply}\n" for reply in expected)
    first, second = result.stderr.splitlines()
    number = r"[\d.]+"
    assert re.fullmatch(
        rf"tokens read \d+ \({number}/s\), written 6 \({number}/s\), stopped by --max-new-tokens; "
        rf"first after {number} s, context \d+ of 300 tokens",
        first,
    )
    assert second.endswith(f"context {used} of 300 tokens")
    assert talk(model, "world").stdout != result.stdout.splitlines(keepends=True)[-1]


def test_only_new_tokens_are_read(model, monkeypatch):
    counts = []
    read = LanguageModel._read_piece

    def counting(self, ids, cache):
        counts.append(len(ids))
        return read(self, ids, cache)

    monkeypatch.setattr(LanguageModel, "_read_piece", counting)
    network = LanguageModel.load(model, "numpy")
    end = 2  # <|im_end|>
    monkeypatch.setattr(
        LanguageModel, "_pick", lambda *_: np.asarray([68])
    )  # the letter "A", which is encoded as it was made
    talk(model, "hello", "hello", "hello", options=(*OPTIONS, "--system", "hello"))
    turn = len(network.tokenizer.encode_prompt([{"role": "user", "content": "hello"}]))
    before = len(network.tokenizer.encode("<|im_start|>system\nhello<|im_end|>\n", add_special=False))
    prompts = [count for count in counts if count > 1]
    # Later prompts begin with the last token of the reply, its end, and a line feed.
    assert prompts == [before + turn, 3 + turn, 3 + turn]
    assert counts.count(1) == 3 * 5
    assert end in network.tokenizer.end_ids


def test_the_system_message_and_commands(model, tmp_path):
    path = tmp_path / "saved messages.json"
    options = (*OPTIONS, "--system", "or ö")
    lines = [
        "hello",
        f"/save {path}",
        "/reset",
        "world",
        "/none",
        "/save",
        f"/save {tmp_path / 'no' / 'file'}",
        "/help",
    ]
    result = talk(model, *lines, "/exit", "hello", options=options)
    assert result.exit_code == 0, result.output
    (first,), _ = replies(model, "hello", system="or ö")
    (second,), _ = replies(model, "world", system="or ö")
    assert result.stdout == f"{first}\n{second}\n"
    said = json.loads(path.read_text(encoding="utf-8"))
    assert said == [
        {"role": "system", "content": "or ö"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first},
    ]
    assert "or ö" in path.read_text(encoding="utf-8")
    for words in (
        "3 messages are in ",
        "there is no command /none: /help lists them",
        "/save needs the name of a file",
        f"{tmp_path / 'no' / 'file'} cannot be written: FileNotFoundError",
        "/reset, /clear     begin a new",
    ):
        assert words in result.stderr
    assert "Traceback" not in result.output


def saved(model, path, *lines, options=OPTIONS):
    """The messages after some lines, as (role, content), and what was said on standard error."""
    result = talk(model, *lines, f"/save {path}", options=options)
    assert result.exit_code == 0, result.output
    found = [tuple(message.values()) for message in json.loads(path.read_text(encoding="utf-8"))]
    return found, result.stderr


def test_messages_are_undone_regenerated_and_loaded(model, tmp_path):
    path = tmp_path / "messages.json"
    (first, second), _ = replies(model, "hello", "world")
    both = [("user", "hello"), ("assistant", first), ("user", "world"), ("assistant", second)]
    assert saved(model, path, "hello", "world")[0] == both
    found, _ = saved(model, tmp_path / "loaded.json", f"/load {path}", "/regen")  # greedily, so it is the same again
    assert found == both
    assert saved(model, path, "hello", "world", "/undo")[0] == both[:2]
    found, said = saved(model, path, "/undo", "/regen", "/load", f"/load {tmp_path / 'none'}")
    assert found == []
    assert said.count("there is no message") == 2
    assert "/load needs the name of a file" in said
    assert "cannot be used: FileNotFoundError" in said
    for content in ("{", "{}", '["a"]', '[{"role": "user"}]'):
        path.write_text(content)
        assert "messages.json cannot be used: " in talk(model, f"/load {path}").stderr


def test_replies_have_seeds_that_are_shown(model, tmp_path):
    options = ("--backend=numpy", "--temp=1.5", "-n6")
    path = tmp_path / "messages.json"
    found, said = saved(model, path, "hello", "/regen", options=(*options, "--seed=7"))
    assert re.findall(r"seed (\d+)", said) == ["7", "8"]
    again, _ = saved(model, path, "hello", options=(*options, "--seed=8"))
    other, _ = saved(model, path, "hello", options=(*options, "--seed=7"))
    assert found == again != other
    one, two = (re.findall(r"seed (\d+)", talk(model, "hello", options=options).stderr) for _ in range(2))
    assert one != two
    assert "seed" not in talk(model, "hello").stderr  # the likeliest tokens have none


def test_options_are_set_as_on_the_command_line(model, tmp_path):
    lines = ["/set", "/set seed 5", "/set temp 2", "/set parameter max-new-tokens 3", "/set stop zzz", "hello", "/set"]
    found, said = saved(model, tmp_path / "a", *lines)
    options = ("--backend=numpy", "--seed=5", "--temperature=2", "-n3", "--stop=zzz")
    assert found == saved(model, tmp_path / "a", "hello", options=options)[0]
    before, _, after, *_ = said.splitlines()
    assert before == "max_new_tokens 6, temperature 0.0"
    assert after == "max_new_tokens 3, temperature 2.0, top_p 0.95, seed 6, stop ('zzz',)"
    found, _ = saved(model, tmp_path / "a", "hello", "/set system be brief")
    assert found[0] == ("system", "be brief")
    assert len(found) == 3
    bad = ("/set top_p 7", "/set temperature", "/set temprature 1", "/set seed x", "/set logit_bias 5")
    said = talk(model, *bad).stderr.splitlines()
    assert "7.0 is not in the range 0<x<=1" in said[0]
    assert "/set NAME VALUE, where NAME is one of frequency_penalty, " in said[1]
    assert said[2].endswith("(did you mean 'temperature'?)")
    assert "'x' is not a valid integer" in said[3]
    assert "'5' is no token id with a number, such as 15043+1" in said[4]


def test_a_message_may_have_several_lines(model, tmp_path):
    path = tmp_path / "messages.json"
    for lines, expected in (
        (['"""', "a", " b", '"""'], "a\n b"),
        (['"""a', 'b"""'], "a\nb"),
        (['"""a b"""'], "a b"),
        (["a \\", "\\", "b"], "a \n\nb"),
        (['"""a\\', 'b"""'], "a\\\nb"),
    ):
        found, _ = saved(model, path, *lines)
        assert found[0] == ("user", expected)
    assert talk(model, '"""hello').stdout == talk(model, "hello").stdout  # the end of the input ends a message
    assert talk(model, "hello\r").stdout == talk(model, "hello").stdout


@pytest.mark.parametrize(("end", "anew"), [("/bye", "/clear"), ("/exit", "/reset")])
def test_commands_have_the_names_that_people_type(model, end, anew):
    (first,), _ = replies(model, "hello")
    (other,), _ = replies(model, "world")
    assert talk(model, "world", anew, "hello", end, "hello").stdout == f"{other}\n{first}\n"


def test_a_full_context_says_what_to_do_and_can_be_left(model):
    options = ("--backend", "numpy", "--temperature", "0", "--context", "60")
    result = talk(model, "hello " * 40, "hello", "world", "/reset", "hello", options=options)
    assert result.exit_code == 0
    long, short, *rest = result.stderr.splitlines()
    assert "the context 60: /reset begins a new conversation" in long
    assert short.endswith("context 60 of 60 tokens: /reset begins a new conversation")
    assert "the context 60: /reset begins a new conversation" in rest[0]
    assert "context 60 of 60" in rest[1]
    first, second, _ = result.stdout.split("\n")
    assert first == second  # the long message, which had no reply, is not part of the conversation


def test_sampling_options_are_those_of_generate(model):
    seeded, again, other = (talk(model, "hello", options=(*OPTIONS, "--temp=1", "--seed", s)).stdout for s in "112")
    assert seeded == again != other
    assert talk(model, "hello", options=(*OPTIONS, "--presence-penalty", "-99")).stdout != talk(model, "hello").stdout
    (whole,), _ = replies(model, "hello")
    stop = whole[1]
    assert talk(model, "hello", options=(*OPTIONS, "--stop", stop)).stdout == whole.partition(stop)[0] + "\n"


def test_a_message_that_is_no_text_is_refused(model):
    result = CliRunner().invoke(app, ["chat", str(model), *OPTIONS], input=b"caf\xe9\nhello")
    (reply,), _ = replies(model, "hello")
    assert (result.exit_code, result.stdout) == (0, f"{reply}\n")
    assert "is not UTF-8" in result.stderr.splitlines()[0]


# --- models that cannot talk ---------------------------------------------------------------------------


def test_a_model_without_a_template_is_one_line(tmp_path):
    metadata = make_gguf.llama_metadata() | make_gguf.tokenizer_metadata()
    del metadata["tokenizer.chat_template"]
    path = make_gguf.write_gguf(tmp_path / "model.gguf", metadata, make_gguf.llama_arrays())
    result = talk(path, "hello")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        f"Error: {path} has no chat template: `tensorops generate` continues texts with it; "
    )
    assert result.stderr.count("\n") == 1
    result = CliRunner().invoke(app, ["generate", "--chat", "hello", "--model", str(path)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {path} has no chat template: leave out --chat")


def test_a_template_that_takes_no_system_message_is_one_line(tmp_path):
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    metadata = make_gguf.llama_metadata() | make_gguf.tokenizer_metadata(chat_template=template)
    path = make_gguf.write_gguf(tmp_path / "model.gguf", metadata, make_gguf.llama_arrays())
    result = talk(path, "hello", options=(*OPTIONS, "--system", "hello"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("the template failed: TemplateError: no system role\n")


def test_a_context_that_the_model_lacks_is_refused(model):
    result = talk(model, "hello", options=("--context", "301"))
    assert result.exit_code == 2
    assert result.stderr.endswith("Invalid value for '--context': the model's context has 300 tokens\n")


# --- Ctrl-C and the terminal ---------------------------------------------------------------------------


def test_ctrl_c_ends_a_reply_and_not_the_conversation(model, monkeypatch, interruptible):
    watch = module._model.Stopwatch.watch

    def interrupted(self, tokens):
        for number, token in enumerate(watch(self, tokens)):
            if number == 2 and not interrupts:
                interrupts.append(signal.raise_signal(signal.SIGINT))
            yield token

    interrupts = []
    monkeypatch.setattr(module._model.Stopwatch, "watch", interrupted)
    before = signal.getsignal(signal.SIGINT)
    result = talk(model, "hello", "/reset", "hello")
    assert result.exit_code == 0, result.output
    (whole,), _ = replies(model, "hello")
    first, second, _ = result.stdout.split("\n")
    assert len(first) < len(whole)
    assert whole.startswith(first)
    assert second == whole
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_a_message_is_read_leaves_it_out(model, monkeypatch, interruptible):
    read, pressed = LanguageModel._read_piece, []

    def interrupting(self, ids, cache):
        if not pressed:
            pressed.append(signal.raise_signal(signal.SIGINT))
        return read(self, ids, cache)

    monkeypatch.setattr(LanguageModel, "_read_piece", interrupting)
    result = talk(model, "world", "hello")
    (reply,), _ = replies(model, "hello")
    assert (result.exit_code, result.stdout) == (0, f"{reply}\n")
    assert "stopped before the message was read" in result.stderr


def test_the_second_ctrl_c_ends_the_program(model, monkeypatch, interruptible):
    def interrupting(self, ids, cache):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LanguageModel, "_read_piece", interrupting)
    assert talk(model, "hello").exit_code == 130


@pytest.mark.skipif(sys.platform == "win32", reason="it has no pseudo-terminals")
@pytest.mark.parametrize("editor", ["prompt_toolkit", "readline"])
def test_on_a_terminal(model, editor):
    fdpexpect = pytest.importorskip("pexpect.fdpexpect")
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    pytest.importorskip(editor)
    hidden = "" if editor == "prompt_toolkit" else "sys.modules['prompt_toolkit'] = None"
    # The terminal becomes the one that Ctrl-C reaches the process from; `pexpect.spawn` would fork, which JAX warns of.
    code = f"""
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background, it is ignored
{hidden}
from tensorops.cli import main
sys.argv = ["tensorops", *sys.argv[1:]]
main()
"""
    environment = os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "200", "LINES": "40"}
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (40, 200))
    arguments = [sys.executable, "-c", code, "chat", str(model), *OPTIONS]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = subprocess.Popen(arguments, env=environment, start_new_session=True, **streams)
    os.close(theirs)
    child = fdpexpect.fdspawn(ours, timeout=60)
    child.expect("tiny.gguf on numpy; /help lists the commands, Ctrl-D ends")
    child.expect(">")
    child.sendline("hello")
    child.expect("written 6 .*/s.*; first after .* s, context")
    child.expect(">")
    child.send("\x03")  # Ctrl-C
    child.expect("Ctrl-D or /exit ends the conversation")
    child.expect(">")
    child.send("\x1b[A")  # what was typed before
    child.expect("hello")
    child.send("\r")
    child.expect("written 6 ")
    child.expect(">")
    child.send("\x04")  # Ctrl-D
    assert process.wait(60) == 0
    os.close(ours)


def test_as_a_process(model):
    result = run("chat", str(model), *OPTIONS)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")  # there is no message
