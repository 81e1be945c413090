"""The documentation: every snippet runs, and every public name is documented. The site itself is in `test_site.py`.

The Python blocks of a page run from top to bottom in one namespace, in a separate process: a page may register
operators and choose backends without affecting other tests. Blocks with prompts are doctests; the others must not
raise. A comment directly before a block, which readers do not see, may state what it needs:

    <!-- needs: jax, mlx.core -->         the modules can be imported
    <!-- needs: model.gguf -->            `TENSOROPS_MODEL` names a file, or the default model has been downloaded
    <!-- not run: the reason -->

A block whose needs are not met is skipped, with the reason. ``python tests/test_docs.py PAGE`` runs one page.
"""

from __future__ import annotations

import code
import contextlib
import doctest
import functools
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import traceback
import types
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
MODEL = "model.gguf"  # in the folder in which a page runs
FENCE = re.compile(r"^(?P<indent> *)```(?:python|pycon)\b[^\n]*\n(?P<source>.*?)^(?P=indent)```", re.M | re.S)
MARKER = re.compile(r"<!-- (?:needs: (?P<needs>.+)|not run: (?P<reason>.+)) -->\s*\Z")


@dataclass(frozen=True)
class Snippet:
    page: Path
    line: int
    source: str
    needs: tuple[str, ...]
    not_run: str

    def __str__(self):
        return f"{self.page.name}:{self.line}"

    def reason_to_skip(self):
        if self.not_run:
            return self.not_run
        for need in self.needs:
            if need == MODEL:
                if not Path(MODEL).exists():
                    return "there is no model: set TENSOROPS_MODEL, or run `tensorops generate` once to fetch it"
                continue
            try:
                importlib.import_module(need)
            except ImportError as error:
                return f"{need} cannot be imported: {error}"
        return ""

    def run(self, namespace):
        """Return how the snippet failed, or an empty string."""
        if ">>> " in self.source:
            test = doctest.DocTestParser().get_doctest(self.source, namespace, str(self), str(self.page), self.line)
            test.globs = namespace  # the parser made a copy
            report = io.StringIO()
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
            runner.run(test, out=report.write, clear_globs=False)
            return report.getvalue()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * self.line + self.source, str(self.page), "exec", dont_inherit=True), namespace)
        except Exception:
            return traceback.format_exc()
        return ""


def snippets(page):
    text = page.read_text(encoding="utf-8")
    found = []
    for block in FENCE.finditer(text):
        before = text[: block.start()]
        marker = MARKER.search(before)
        found.append(
            Snippet(
                page,
                before.count("\n") + 1,
                textwrap.dedent(block["source"]),
                tuple(marker["needs"].split(", ")) if marker and marker["needs"] else (),
                marker["reason"] if marker and marker["reason"] else "",
            )
        )
    return found


def run_here(page):
    """Run a page's snippets in this process; return (skipped because, failed because) by line."""
    sys.path.insert(0, str(page.parent))  # a page may import the file that it shows
    sys.modules["__main__"] = page_module = types.ModuleType("__main__")  # where pickle finds the page's classes
    namespace = vars(page_module)
    outcomes = {}
    for snippet in snippets(page):
        skipped = snippet.reason_to_skip()
        outcomes[snippet.line] = (skipped, "" if skipped else snippet.run(namespace))
    return outcomes


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(run_here(Path(sys.argv[1]))) + "\n")
    sys.exit()


import pytest  # noqa: E402 - a page's process must not need it

import tensorops  # noqa: E402
from tensorops._operator import OPERATORS  # noqa: E402


def model_path():
    """Return the model that pages may load, if there is one."""
    with contextlib.suppress(ImportError):  # the extra for models is not installed
        from tensorops.models.files.download import cached_model_path

        path = Path(os.environ.get("TENSOROPS_MODEL") or cached_model_path())
        return path if path.exists() else None


GRADIENTS = ("-W", "ignore:rms_norm")  # a warning that gradients are recorded, which the pages tell of


def run_page(page, tmp):
    if MODEL in {need for snippet in snippets(page) for need in snippet.needs} and (path := model_path()):
        (tmp / MODEL).symlink_to(path.resolve())
    process = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:Non-empty compiler output", *GRADIENTS, __file__, str(page)],
        cwd=tmp,
        env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=900,
    )
    assert process.returncode == 0, process.stderr
    return {int(line): outcome for line, outcome in json.loads(process.stdout.splitlines()[-1]).items()}


PASTED = [page for page in PAGES if "Paste the blocks" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("snippet", [s for page in PASTED for s in snippets(page)], ids=str)
def test_blocks_to_paste_are_statements_of_an_interpreter(snippet):
    """Their button copies them without prompts and results; a blank line must end each function there."""
    prompted = re.findall(r"^(?:>>>|\.\.\.)(?: (.*)|)$", snippet.source, re.M)
    console = code.InteractiveConsole({})
    console.runcode = lambda _: None  # is compiled only
    console.showsyntaxerror = lambda *_, **__: pytest.fail(f"{snippet}: {sys.exc_info()[1]}")
    waiting = [console.push(line) for line in [*(prompted or snippet.source.splitlines()), ""]]
    assert waiting[-1] is False


def test_there_are_blocks_to_paste():
    assert "persistent-kernel.md" in {page.name for page in PASTED}


@pytest.mark.parametrize("page", [*filter(snippets, PAGES)], ids=lambda page: page.name)
def test_snippets(page, tmp_path):
    outcomes = run_page(page, tmp_path)
    assert not any(failure for _, failure in outcomes.values()), "\n".join(failure for _, failure in outcomes.values())
    if skipped := [f"{page.name}:{line}: {reason}" for line, (reason, _) in outcomes.items() if reason]:
        pytest.skip(f"{len(outcomes) - len(skipped)} blocks are right, {'; '.join(skipped)}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_python_block_is_overlooked(page):
    text = page.read_text(encoding="utf-8")
    assert len(snippets(page)) == len(re.findall(r"```\s*\{?(?:code-block\} *)?py", text))
    assert text.count(">>> ") == sum(s.source.count(">>> ") for s in snippets(page))
    marked = [s for s in snippets(page) if s.needs or s.not_run]
    assert len(re.findall(r"(?:needs|not run): ", text, re.I)) == len(marked), (
        "what a block needs is in a comment before it"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_clones_are_installed_so_that_python_finds_the_kernels_in_them(page):
    """Without -e, Python started in the clone imports its sources, which have no compiled module."""
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"pip install (?:--editable )?'?\.(?:\[.*\]|'|\s|$)", text) == []
    assert page.name != "README.md" or len(re.findall(r"^pip install -e '\.\[", text, re.M)) == 2


def git(*arguments):
    process = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return process.stdout if process.returncode == 0 else ""


def test_commits_to_read_are_there_and_changed_files_that_still_exist():
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("the tests run outside of a clone, or in one without the history")
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ git log((?:.*\\\n)*.*)$", text, re.M)
    titles = [word for word in shlex.split(command) if word.startswith("--grep=")]
    assert titles
    for title in titles:
        changed = git("log", "--format=", "--name-only", "--diff-filter=d", title).split()
        code = [name for name in changed if name.startswith(("native/", "tensorops/", "tests/"))]
        assert code, title
        assert [name for name in code if not (ROOT / name).exists()] == [], title


def test_the_pages_that_teach_have_snippets():
    least_of = {"five-minutes.md": 10, "any-array.md": 10, "array-api.md": 10, "extending.md": 4, "architecture.md": 2}
    for name, least in least_of.items():
        page = next(p for p in PAGES if p.name == name)
        assert len(snippets(page)) >= least


def test_a_wrong_snippet_fails_and_a_marked_one_is_skipped(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(
        textwrap.dedent(
            """\
            ```python
            x = 1
            ```

            ```python
            >>> x + 1
            2
            >>> x = 5
            ```

            ```python
            >>> x
            1
            ```

            ```python
            assert x == 1, "x is " + str(x)
            ```

            <!-- needs: json, no_such_module -->

            ```python
            raise ValueError
            ```

            <!-- needs: model.gguf -->
            ```python
            raise ValueError
            ```

            <!-- not run: it takes a day -->

            ```python
            raise ValueError
            ```

            <!-- needs: json -->

            ```python
            assert x == 5
            ```
            """
        )
    )
    monkeypatch.setenv("TENSOROPS_MODEL", str(tmp_path / "none.gguf"))
    outcomes = list(run_page(page, tmp_path).values())
    assert [bool(skipped) for skipped, _ in outcomes] == [False] * 4 + [True] * 3 + [False]
    assert [bool(failure) for _, failure in outcomes] == [False, False, True, True] + [False] * 4
    assert "Expected:\n    1\nGot:\n    5" in outcomes[2][1]
    assert "AssertionError: x is 5" in outcomes[3][1]
    assert "page.md" in outcomes[3][1]
    assert "No module named 'no_such_module'" in outcomes[4][0]
    assert "set TENSOROPS_MODEL, or run `tensorops generate`" in outcomes[5][0]
    assert outcomes[6][0] == "it takes a day"


def documented_names():
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("api*.md"))]
    lists = re.findall(r"^\.\. autosummary::\n(?:   :.+\n)+\n((?:   \w.*\n)+)", "\n".join(texts), re.M)
    families = " ".join(re.findall(r"^\.\. families:: (.+)", "\n".join(texts), re.M)).split()
    return [*"".join(lists).split(), *(name for f in families for name in getattr(tensorops.ops, f).__all__)]


def test_every_public_name_is_in_the_api_reference_once():
    names = [name for name in documented_names() if name in tensorops.__all__]
    assert sorted(names) == sorted(tensorops.__all__)


OPERATORS_PAGE = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")


def test_every_operator_is_on_the_page_of_operators_once():
    assert sorted(re.findall(r"^\| \{py:obj\}`~tensorops\.(\w+)`", OPERATORS_PAGE, re.M)) == sorted(OPERATORS)


@pytest.mark.parametrize(
    ("prefix", "module"),
    [
        ("F", "torch.nn.functional"),
        ("torch", "torch"),
        ("mx", "mlx.core"),
        ("nn", "mlx.nn"),
        ("jax", "jax"),
    ],
)
def test_other_libraries_have_the_functions_on_the_page_of_operators(prefix, module):
    root = pytest.importorskip(module)
    named = re.findall(rf"`{prefix}\.([\w.]+)`", OPERATORS_PAGE)
    assert named
    for name in named:
        functools.reduce(getattr, name.split("."), root)
