"""The site: pages build without warnings, links lead somewhere, figures are those of result files, colours contrast.

Whatever `tensorops doctor` can say is on the page about it, so that nobody searches for a message in vain.
"""

import ast
import html
import importlib
import itertools
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import support
import tensorops
from tensorops import _providers
from tensorops._operator import OPERATORS
from tensorops.backends import registry

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
DEFINITION = re.compile(r"^\[[\w-]+\]: (\S+)$", re.M)

# --- links of the Markdown files that Sphinx does not read ---------------------------------------------------------

READ_BY_OTHERS = [
    *ROOT.glob("*.md"),
    *itertools.chain.from_iterable((ROOT / f).rglob("*.md") for f in ("tensorops", "native", "shims")),
]


def links(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return [*LINK.findall(text), *DEFINITION.findall(text)]


def slug(heading):
    return re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).strip().replace(" ", "-")


def broken(path, link):
    """Return why a relative link of a Markdown file leads nowhere, or an empty string."""
    target, anchor = urldefrag(link)
    file = (path.parent / target).resolve() if target else path
    if not file.exists():
        return f"{link}: there is no {file}"
    if anchor and file.suffix == ".md":
        text = file.read_text(encoding="utf-8")
        known = {slug(found) for found in re.findall(r"^#+ (.+)$", text, re.M)} | set(
            re.findall(r"^\((.+)\)=$", text, re.M)
        )
        if anchor not in known:
            return f"{link}: {file} has no such heading"
    return ""


@pytest.mark.parametrize("path", READ_BY_OTHERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(path):
    relative = [link for link in links(path.read_text(encoding="utf-8")) if "://" not in link]
    assert [found for link in relative if (found := broken(path, link))] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading, of words\n\n[a](#a-heading-of-words) [b](#b) [c](none.md)\n\n```\n[d](d.md)\n```\n")
    assert [bool(broken(page, link)) for link in links(page.read_text())] == [False, True, True]


def test_links_of_the_readme_have_one_place_where_an_address_can_be_put_in_front():
    """Package indexes show the README elsewhere, where relative links lead nowhere."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [link for link in LINK.findall(text) if "://" not in link] == []
    defined = re.findall(r"^\[([\w-]+)\]: ", text, re.M)
    assert len(defined) > 10
    assert sorted(set(re.findall(r"\]\[([\w-]+)\]", text))) == sorted(defined)


# --- what doctor says ---------------------------------------------------------------------------------------------

MESSAGES = {
    "tensorops/cli/doctor.py": ("examine_*", "problem*", "why_unused", "notes_on_opencl", "_note_on_intels_driver"),
    "tensorops/backends/probing.py": ("_try", "_compute*", "_what_is_tried", "_run", "refuse_hanging_plugin"),
    "tensorops/backends/registry.py": ("why_unused",),
    "tensorops/backends/config_file.py": ("_[a-z]*", "backend_name", "priority", "read_file"),
    "tensorops/hardware/nvidia.py": ("*",),
    "tensorops/hardware/accelerator.py": ("visible",),
    "tensorops/hardware/accelerators.py": ("detect_amd", "detect_tpu", "detect_apple"),
    "tensorops/hardware/cpu.py": ("_linux",),
    "tensorops/hardware/opencl.py": ("listing",),
    "tensorops/hardware/machine.py": ("*",),
    "tensorops/kernels/cpu/table.py": ("try",),
}
"""Functions by their names; ``*`` is a whole module, and ``try`` the statement in which it loads what it needs."""


def test_every_message_of_doctor_is_on_its_page():
    page = plain((DOCS / "troubleshooting.md").read_text(encoding="utf-8"))
    missing = [piece for text in said() for piece in pieces(text) if piece not in page]
    assert missing == []


def test_the_search_for_messages_finds_them():
    found = {piece for text in said() for piece in pieces(text)}
    assert "the compiled kernels do not load" in found
    assert "gave no answer within" in found
    assert "an NVIDIA GPU is on the PCI bus, but no NVIDIA driver responds for it" in found
    assert "NNPACK is retired: its authors archived it, and nothing replaces it here" in found
    assert len(found) > 60


def said():
    """Return what doctor can say, in parts between what is filled in: rows of backends, and strings in the source."""
    rows = [backend for name, backend in registry.all_backends().items() if name not in registry.plugins]
    texts = [[text] for row in rows for text in (row.missing, row.remedy) if text]
    for name, functions in MESSAGES.items():
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        texts += [parts for scope in scopes(tree, functions) for parts in strings(scope)]
    return texts


def scopes(tree, patterns):
    """Return the parts of a module that patterns of `MESSAGES` describe."""
    if patterns == ("*",):
        return [tree]
    if patterns == ("try",):
        return [node for node in tree.body if isinstance(node, ast.Try)]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = {pattern: [f for f in functions if fnmatchcase(f.name, pattern)] for pattern in patterns}
    assert all(found.values()), found
    return list(itertools.chain.from_iterable(found.values()))


def strings(scope):
    """Yield the constant parts of each string and f-string, docstrings left out."""
    if isinstance(scope, ast.Expr) and isinstance(scope.value, ast.Constant):
        return
    if isinstance(scope, ast.Constant) and isinstance(scope.value, str):
        yield [scope.value]
    elif isinstance(scope, ast.JoinedStr):
        yield [part.value for part in scope.values if isinstance(part, ast.Constant)]
    else:
        for node in ast.iter_child_nodes(scope):
            yield from strings(node)


def pieces(parts):
    """Return the parts of a message that readers could search for: those of at least three words."""
    trimmed = (plain(part).strip(" :;,()") for part in parts)
    return [part for part in trimmed if len(part.split()) >= 3]


def plain(text):
    return re.sub(r"\s+", " ", re.sub(r"[*`]", "", text))


# --- what is installed -------------------------------------------------------------------------------------------


def test_the_page_on_installation_lists_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(r"^\| (`.+?) \|", (DOCS / "install.md").read_text(encoding="utf-8"), re.M)
    assert sorted(re.findall(r"`([\w]+)`", " ".join(rows))) == sorted(project["optional-dependencies"])


def test_the_page_on_installation_lists_every_target():
    listed = re.findall(r"^\| (?:x86-64|AArch64) \| (.+) \|$", (DOCS / "install.md").read_text(encoding="utf-8"), re.M)
    build = (ROOT / "native" / "kernels" / "CMakeLists.txt").read_text(encoding="utf-8")
    assert re.findall(r"`(v\d\w*|neon\w*)`", " ".join(listed)) == re.findall(r"add_target\(((?:v|neon)\w*)", build)


# --- figures from result files -----------------------------------------------------------------------------------

PRINTED = """\
$ tensorops bench one \\
    two
AMD EPYC, 2 threads; 2026-11-22T15:29:26+00:00
                    NumPy arrays, float32
┏━━━━━━━━━━┳━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━┳━━━━━━━┓
┃ operator ┃ shape       ┃ backend ┃ of copy ┃ torch ┃
┡━━━━━━━━━━╇━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━╇━━━━━━━┩
│ rms_norm │ 1x64        │ cpu     │    133% │ 17.79 │
│          │             │ jax     │     50% │     - │
│          │ 128x4096 ~  │ cpu     │     55% │  2.64 │
└──────────┴─────────────┴─────────┴─────────┴───────┘
# TENSOROPS_CPU_TARGET=v3 tensorops bench --model M.Q4_1.gguf
AMD EPYC, 1 threads; 2026-11-22T15:29:26+00:00
        M.Q4_1.gguf, tokens per second
┏━━━━━━━━┳━━━━━━━━━━━┓
┃        ┃ tensorops ┃
┡━━━━━━━━╇━━━━━━━━━━━┩
│ decode │     224.0 │
└────────┴───────────┘
"""


SPEED = re.compile(r"(?<![\w.])\d+(?:\.\d+)? ?(?:µs|ns|ms|GB/s|tokens/s|tokens per second)\b")
CHOSEN = {"every 50 ms", "awake for 200 µs", "periods of 100 ms", "wait 100 µs"}
"""Times that the code has chosen: everything else was measured, and is read from a file."""


def typed_speeds(text):
    """Return the speeds in the prose and tables of a page, which are neither read from files nor chosen."""
    text = re.sub(r"^ *```.*?^ *```|\{measured\}`[^`]*`", "", text, flags=re.M | re.S)
    text = " ".join(text.split())
    for chosen in CHOSEN:
        text = text.replace(chosen, "")
    return SPEED.findall(text)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda p: p.name)
def test_speeds_are_read_from_result_files(page):
    assert typed_speeds(page.read_text(encoding="utf-8")) == []


def test_a_typed_speed_is_found():
    assert typed_speeds("a call takes\n0.4 µs, a wait 100\nµs; {measured}`a; 3 ms`\n```\n5 ms\n```\n") == ["0.4 µs"]


@pytest.fixture
def results(tmp_path, monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    module = importlib.import_module("results")
    (tmp_path / "printed.txt").write_text(PRINTED, encoding="utf-8")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return module


def test_tables_of_results_are_read(results):
    rows = results.read(PRINTED)
    assert [row.get("operator") for row in rows] == ["rms_norm"] * 3 + [None]
    assert [row.get("shape") for row in rows] == ["1x64", "1x64", "128x4096 ~", None]
    assert [(row["dtype"], row["weights"], row["threads"]) for row in rows] == [("float32", "", "2")] * 3 + [
        ("", "Q4_1", "1")
    ]
    assert rows[3]["row"] == "decode"
    assert list(results.commands_of(PRINTED)) == [
        "tensorops bench one two",
        "TENSOROPS_CPU_TARGET=v3 tensorops bench --model M.Q4_1.gguf",
    ]


def test_rows_of_results_are_selected(results):
    chosen = results.conditions_of("shape=128x*, backend=cpu")
    (row,) = results.select("printed.txt", chosen)
    assert row["torch"] == "2.64"
    assert results.doubted(row)["operator"] == "rms_norm ~"
    with pytest.raises(ValueError, match=r"printed.txt has no row with shape=2x2"):
        results.select("printed.txt", [("shape", "2x2")])
    (made,) = results.pivot(results.select("printed.txt", [("shape", "1x64")]), ["operator", "shape"], "backend")
    assert (made["operator"], made["of copy cpu"], made["of copy jax"]) == ("rms_norm", "133%", "50%")
    assert [results.share(cell) for cell in ("133%", "0.5", "-", "1.2 ms")] == [1.33, 0.5, None, None]


def test_every_result_file_with_tables_is_read():
    sphinx = pytest.importorskip("sphinx")
    assert sphinx
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        results = importlib.import_module("results")
    finally:
        sys.path.remove(str(DOCS / "_ext"))
    for path in (DOCS / "results").glob("*.txt"):
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.startswith("│")]
        assert len(results.read(text)) == len(lines), path.name


# --- the built pages ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built pages; warnings are errors."""
    for module in (
        "sphinx",
        "myst_parser",
        "numpydoc",
        "pydata_sphinx_theme",
        "sphinx_click",
        "sphinx_copybutton",
        "sphinx_design",
        "gguf",
        "tokenizers",
    ):
        pytest.importorskip(module)
    tmp = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(tmp / "doctrees")]
    process = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(tmp / "html")],
        cwd=tmp,  # Python puts it on its path, but the installed package is to be documented
        env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=900,
    )
    assert process.returncode == 0, process.stderr
    return tmp / "html"


@pytest.mark.exhaustive
def test_formulas_need_no_script_and_no_other_server(site):
    pytest.importorskip("latex2mathml")
    found = pages(site)
    assert sum(text.count("<math ") for text in found.values()) > 100
    assert [name for name, text in found.items() if re.search(r'(?:src|<link[^>]* href)="(?:https?:)?//', text)] == []


@pytest.mark.parametrize(
    ("formula", "spaces"),
    [(r"x \tanh(y)", 1), (r"a_t \log p_t", 2), (r"\log_2 x", 1), (r"\max(x, 0)", 0), (r"-\sin p", 1)],
)
def test_formulas_keep_the_spaces_around_functions(monkeypatch, formula, spaces):
    pytest.importorskip("latex2mathml")
    pytest.importorskip("docutils")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    made = importlib.import_module("mathml").converted(formula)
    assert made.count("<mspace") == spaces
    assert re.search("<m[io][^>]*>(tanh|log|max|sin)</m[io]>", made)


def test_a_build_without_the_compiled_kernels_fails(monkeypatch):
    """Rather than listing none."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    capabilities = importlib.import_module("capabilities")
    monkeypatch.setitem(_providers._reasons, "cpu", "there was no compiler")
    with pytest.raises(capabilities.ExtensionError, match="do not load: there was no compiler"):
        capabilities.Operators.run(None)


def test_kernels_that_never_ran_on_their_hardware_are_marked(monkeypatch):
    pytest.importorskip("sphinx")
    support.require_provider("cpu")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    capabilities = importlib.import_module("capabilities")
    legend, made, *_ = capabilities.Operators.run(capabilities.Operators)
    rows = {
        row[0].astext().replace("<wbr>", ""): [cell.astext() for cell in row[1:]]
        for row in made.findall(capabilities.nodes.row)
    }
    marks = dict(zip(rows["Operator"], rows["rms_norm"], strict=True))
    assert marks["cpu"] == "✓"
    assert marks["cuda"].strip("()") == "○"
    assert marks["pallas"].replace(" ∂", "").strip("()") == "○"
    used = {mark for cells in rows.values() if cells != rows["Operator"] for cell in cells for mark in cell.split()}
    assert {"✓", "∂", "–"} <= used
    assert [mark for mark in used if mark not in legend.astext()] == []


@pytest.mark.exhaustive
def test_the_first_page_and_that_of_the_command_line(site):
    found = pages(site)
    first = found["index.html"]
    assert f"tensorops {tensorops.__version__}" in first
    assert "pip install -e" in re.sub("<[^>]+>", "", first)
    assert 'rel="icon" href="_static/logo.svg"' in first
    assert "copybutton.js" in first
    for command in ("backends", "bench", "config", "demo", "doctor", "generate", "selftest"):
        assert f'id="tensorops-{command}"' in found["command-line.html"]
    assert len([name for name in found if name.startswith("generated/tensorops.")]) > 100
    python = {link for text in found.values() for link in re.findall(r'href="(https://docs.python.org[^"]+)"', text)}
    assert "https://docs.python.org/3/library/exceptions.html#ValueError" in python


def pages(site):
    by_others = {"_static", "asv"}
    paths = [path for path in site.rglob("*.html") if not by_others & set(path.relative_to(site).parts)]
    return {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def internal_links(site, name, text):
    """Yield each link to this site as it is written, the path of its page and its anchor."""
    for link in set(re.findall(r'<a\b[^>]*\bhref="([^"]+)"', text)):
        target, anchor = urldefrag(html.unescape(link))
        if "://" not in target and not target.startswith("mailto:"):
            path = (site / name).parent / unquote(target) if target else site / name
            yield link, os.path.relpath(path, site), unquote(anchor)


@pytest.mark.exhaustive  # .ci/run builds the pages as well
def test_the_reference_has_every_name_and_the_tables_link_to_it(site):
    reference = "".join(path.read_text(encoding="utf-8") for path in site.glob("generated/*.html"))
    capabilities = (site / "capabilities.html").read_text(encoding="utf-8")
    for name in tensorops.__all__:
        assert f'id="tensorops.{name}"' in reference
    signature = re.search(r'id="tensorops.rms_norm">(.*?)</dt>', reference, re.S)
    assert "weight_offset" in signature[1]
    for name in set(OPERATORS) & set(tensorops.__all__):
        assert f'href="generated/tensorops.{name}.html"' in capabilities


@pytest.mark.exhaustive
def test_names_beside_the_reference_are_different(site):
    sidebar = re.findall(r'<li class="toctree-l2">.*?<a [^>]*>(.*?)</a>', pages(site)["api.html"])
    names = [re.sub("<[^>]+>", "", name) for name in sidebar]
    assert "linear" in names
    assert sorted(set(names)) == sorted(names)


@pytest.mark.exhaustive
def test_links_between_pages_lead_to_pages_and_anchors(site):
    found = pages(site)
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in found.items()}
    wrong = [
        f"{name}: {link}"
        for name, text in found.items()
        for link, path, anchor in internal_links(site, name, text)
        if not (site / path).exists() or (anchor and path in anchors and anchor not in anchors[path])
    ]
    assert wrong == []
    assert len(found) > 25


@pytest.mark.exhaustive
def test_every_page_is_reached_from_the_first_and_has_a_link_past_its_navigation(site):
    found = pages(site)
    reached, waiting = set(), ["index.html"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting += {path for _, path, _ in internal_links(site, name, found[name])} & set(found) - reached
    assert set(found) - reached <= {"genindex.html", "search.html", "py-modindex.html"}
    assert [name for name, text in found.items() if 'id="pst-skip-link"' not in text] == []
    header = re.search(r'<ul class="bd-navbar-elements.*?</ul>', found["index.html"], re.S)[0]
    titles = re.findall(r"nav-internal[^>]*>\s*([\w ]+?)\s*<", header)
    assert titles == ["Start", "Guides", "Reference", "Performance", "Project"]


def luminance(colour):
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """Return the contrast ratio of the Web Content Accessibility Guidelines."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_guidelines():
    assert contrast("#fff", "#000000") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_and_code_can_be_read(site, mode):
    """Text, links and every kind of token have a contrast of 4.5 with each background that they are on."""
    sheets = [site / "_static" / "styles" / "pydata-sphinx-theme.css", site / "_static" / "tensorops.css"]
    values = {}
    for sheet in sheets:
        text = sheet.read_text(encoding="utf-8")
        for block in re.findall(rf'html\[data-theme="?{mode}"?\]\s*\{{([^}}]*)\}}', text):
            values |= dict(re.findall(r"(--pst-color-[\w-]+):\s*([^;}]+)", block))

    def colour(name):
        value = values[f"--pst-color-{name}"].strip()
        while match := re.fullmatch(r"var\((--[\w-]+)\)", value):
            value = values[match[1]].strip()
        return value

    backgrounds = [colour(name) for name in ("background", "surface", "on-background")]
    for name in ("text-base", "text-muted", "link", "link-hover", "primary", "inline-code"):
        assert min(contrast(colour(name), behind) for behind in backgrounds) >= 4.5, name
    assert contrast(colour("text-base"), colour("primary-bg")) >= 4.5  # figures on bars
    style = (site / "_static" / "pygments.css").read_text(encoding="utf-8")
    tokens = re.findall(rf'html\[data-theme="{mode}"\] \.highlight (\.\w+) \{{ color: (#\w+)', style)
    assert len(tokens) > 20
    assert [kind for kind, shade in tokens if contrast(shade, colour("surface")) < 4.5] == []
