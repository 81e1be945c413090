"""Displayed output: tables as text and HTML, and escaping of untrusted text."""

import re

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._display import Table, printable, wrapped
from tensorops.backends import probing
from tensorops.backends.listing import can_be_had, list_backends
from tensorops.backends.registry import BACKENDS
from tensorops.hardware import CPU, Hardware

X = np.ones((2, 4), dtype=np.float32)
HOSTILE = "<script>alert('&')</script>\x1b[31m"
ESCAPED = r"&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;\x1b[31m"


def test_text_is_broken_between_words_and_commands():
    text = "install a driver, or: pip install --upgrade 'tensorops[opencl]', and a_word_that_is_longer_than_the_line"
    assert wrapped(text, 24) == [
        "install a driver, or:",
        "pip install --upgrade 'tensorops[opencl]',",
        "and",
        "a_word_that_is_longer_than_the_line",
    ]
    assert wrapped("", 10) == [""]


@pytest.mark.parametrize("width", [None, 80, 60, 30, 10])
def test_a_table_loses_nothing_at_any_width(width):
    table = Table(
        "Title", ("name", "what"), (("one", "some words and\nanother line"), ("two", "unset TENSOROPS_X")), ("n",)
    )
    text = table.to_text(width)
    for words in ("Title", "one", "some", "words", "another", "two", "unset TENSOROPS_X", "n"):
        assert words in text
    if width is not None and width >= 30:
        assert max(map(len, text.splitlines())) <= width


def shown():
    """Everything that must be readable, with a fragment that it must contain."""
    with tp.set_backend("numpy"), tp.trace() as log:
        tp.silu(X)
    yield list_backends(), "NumPy with generic bodies only"
    yield tp.validate(tp.silu, X, backends=["numpy"]), "silu, compared with the float64 reference of silu"
    yield tp.top_k.explain(X, 1, axis=0), "top_k: generic on numpy"
    yield log, "silu: generic on numpy, float32(2, 4)"
    yield tp.detect_hardware(), "processor: "


def test_repr_is_what_is_printed_and_a_notebook_gets_a_table():
    for value, fragment in shown():
        name = type(value).__name__
        assert fragment in repr(value), name
        assert repr(value) == str(value), name
        html = value._repr_html_()
        assert html.startswith("<table>"), name
        assert html.count("<tr>") == html.count("</tr>") >= 2, name
        assert not re.search("color|background|#[0-9a-f]{3}\\b", html), name  # readable in a dark theme as well


def test_an_empty_trace_says_so():
    with tp.trace() as log:
        pass
    assert repr(log) == "<trace: no operator has run>"
    assert log._repr_html_().startswith("<table>")


def test_html_is_escaped():
    for table in (
        Table(HOSTILE, (HOSTILE,), ((HOSTILE,),), (HOSTILE,)).to_html(),
        Hardware(device_name=HOSTILE, cpu=CPU(name=HOSTILE))._repr_html_(),
        tp.Trace([tp.Record(HOSTILE, HOSTILE, HOSTILE, (), ())])._repr_html_(),
        tp.Explanation(HOSTILE, HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, ())._repr_html_(),
    ):
        assert ESCAPED in table
        assert "<script" not in table
        assert "\x1b" not in table
    assert "\x1b" not in printable(HOSTILE)


def test_the_list_is_still_a_text():
    listed = tp.list_backends()
    assert isinstance(listed, str)
    assert "numpy" in listed
    assert listed.splitlines()[0].split()[0] in ("backend", "backend:")


@pytest.mark.parametrize(("columns", "verbose"), [(200, True), (80, False), (60, True), (60, False)])
def test_the_list_has_reasons_and_fits(monkeypatch, columns, verbose):
    monkeypatch.setenv("COLUMNS", str(columns))
    listed = tp.list_backends(verbose)
    hidden = [b.name for b in BACKENDS.values() if not can_be_had(b, probing.probe(b))]
    assert "nnpack" in hidden
    assert ("NNPACK" in listed) == verbose
    assert (f"{len(hidden)} more are known" in listed) != verbose
    for backend in BACKENDS.values():
        found = probing.probe(backend)
        if found.reason and (verbose or backend.name not in hidden):
            assert " ".join(found.reason.split()) in " ".join(listed.split())
    assert all(len(line) <= columns or " " not in line.strip() for line in listed.splitlines())


def test_what_needs_hardware_can_be_had_where_that_is(monkeypatch):
    from tensorops import hardware
    from tensorops.hardware.accelerator import Accelerator
    from tensorops.hardware.nvidia import NO_DRIVER

    missing = probing.Probe("cupy is not installed", "pip install 'tensorops[cuda]'")
    gpu = Accelerator("cuda", "a GPU", None, "a test")
    for machine, expected in (
        (Hardware(), False),
        (Hardware(accelerators=(gpu,)), True),
        (Hardware(notes=(NO_DRIVER,)), True),
    ):
        monkeypatch.setattr(hardware, "detect_hardware", lambda machine=machine: machine)
        assert can_be_had(BACKENDS["cuda"], missing) == expected
        assert can_be_had(BACKENDS["jax"], probing.Probe("jax is not installed", "pip install 'tensorops[jax]'"))
        assert not can_be_had(BACKENDS["nnpack"], probing.Probe("retired", "use 'cpu'"))


def test_a_model_says_what_it_is(tmp_path):
    pytest.importorskip("gguf")
    import make_gguf
    from tensorops.models import Llama

    path = tmp_path / "tiny.gguf"
    make_gguf.write_llama(path)
    model = Llama.from_gguf(path, backend="numpy")
    assert repr(model).startswith(f"<LanguageModel: architecture llama, blocks {model.config.blocks}, ")
    assert repr(model).endswith("backend numpy>")
    assert f">{model.config.vocab_size}</td>" in model._repr_html_()


def test_a_notebook_shows_the_table():
    pytest.importorskip("IPython")
    code = """
from IPython.core.formatters import DisplayFormatter
import tensorops as tp
data, _ = DisplayFormatter().format(tp.detect_hardware())
print(data["text/html"].startswith("<table>"), data["text/plain"] == str(tp.detect_hardware()))
"""
    result = support.python(code)
    assert result.stdout.split() == ["True", "True"], result.stderr
