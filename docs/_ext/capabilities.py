"""Tables of what tensorops can do, read from its own registries when the documentation is built.

Three directives without arguments: ``operators`` (operator × provider of kernels), ``libraries`` (array library ×
what installs it × floating dtypes) and ``backends``. ``families`` names modules of `tensorops.ops` and lists their
operators, with a page for each. No list is kept by hand, so none can fall behind the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.errors import ExtensionError
from sphinx.ext.autosummary import Autosummary

from tensorops import _providers
from tensorops._dtypes import dtype_name
from tensorops._kernel import BY_BODY
from tensorops._operator import OPERATORS
from tensorops.backends.probing import Probe, probe_all
from tensorops.backends.registry import BACKENDS
from tensorops.libraries import LIBRARIES, Backend, Library
from tensorops.testing import DTYPES

Cell = nodes.Node | str


def code(text: str) -> nodes.literal:
    return nodes.literal(text, text)


def codes(names: Iterable[str]) -> nodes.inline:
    """Return names formatted as code and separated by commas, or a dash if there are none."""
    cell = nodes.inline()
    for name in names:
        if cell.children:
            cell += nodes.Text(", ")
        cell += code(name)
    return cell if cell.children else nodes.inline("", "–")


def operator_link(name: str) -> nodes.reference:
    """Return a link to an operator, whose name may be broken after underscores: the column is narrow on a phone."""
    cell = nodes.literal(name)
    for part in re.findall("[^_]*_?", name):
        if cell.children and part:
            cell += nodes.raw("", "<wbr>", format="html")
        cell += nodes.Text(part)
    return nodes.reference("", "", cell, internal=True, refuri=f"generated/tensorops.{name}.html")


def table(head: Sequence[Cell], rows: Iterable[Sequence[Cell]], name: str = "") -> nodes.table:
    def row(cells: Sequence[Cell]) -> nodes.row:
        made = nodes.row()
        for cell in cells:
            content = nodes.Text(cell) if isinstance(cell, str) else cell
            made += nodes.entry("", nodes.paragraph("", "", content))
        return made

    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    group += nodes.thead("", row(head))
    group += nodes.tbody("", *[row(cells) for cells in rows])
    return nodes.table("", group, classes=["colwidths-auto", *name.split()])


class Operators(Directive):
    """Every operator and the providers that have a kernel for it; not loaded: in parentheses; never run: a ring.

    Kernels with gradients of their own have a ∂.
    """

    def run(self) -> list[nodes.Node]:
        reasons = {name: _providers.load(name) for name in _providers.PROVIDERS}
        if reasons["cpu"]:  # a dash for every compiled kernel would be untrue
            raise ExtensionError(f"the compiled kernels must be listed, but do not load: {reasons['cpu']}")
        kernels = {name: operators_of(name, loaded=not reason) for name, reason in reasons.items()}
        ticks = {name: "○" if "not yet run on" in p.summary else "✓" for name, p in _providers.PROVIDERS.items()}
        ticks |= {name: f"({ticks[name]})" for name, reason in reasons.items() if reason}
        rows = [
            [operator_link(name), *(ticks[p] + derived(name, p) if name in kernels[p] else "–" for p in kernels)]
            for name in sorted(OPERATORS)
        ]
        head = ["Operator", *(code(name) for name in kernels)]
        legend = (
            "✓: run and tested. ○: compiled and emulated or interpreted, but never run on the hardware it is for. "
            "(✓) and (○): the same, but the provider does not load where this page was built; the reasons are below. "
            "∂: gradients by kernels, too, or by the library's own functions; elsewhere by its operations of the body. "
            "–: no kernel; the generic body computes."
        )
        shown = table(head, rows, "matrix")
        return [nodes.paragraph("", legend), shown, *self.note({p: why for p, why in reasons.items() if why})]

    @staticmethod
    def note(reasons: dict[str, str]) -> list[nodes.Node]:
        if not reasons:
            return []
        said = nodes.paragraph(
            "", "In parentheses: the kernel exists, but its provider could not be loaded where this page was built."
        )
        items = [
            nodes.list_item("", nodes.paragraph("", "", code(name), nodes.Text(f": {reason}")))
            for name, reason in reasons.items()
        ]
        return [nodes.note("", said, nodes.bullet_list("", *items))]


def derived(operator: str, provider: str) -> str:
    """Return the mark of a kernel whose gradients are not those of the operator's body."""
    kernel = OPERATORS[operator].kernel_of(provider)
    return " ∂" if kernel is not None and kernel.derivative not in ("", BY_BODY) else ""


def operators_of(provider: str, *, loaded: bool) -> set[str]:
    """Return the names of the operators that a provider has kernels for, even if it could not be loaded."""
    if loaded:
        return {name for name, operator in OPERATORS.items() if provider in operator.kernels}
    if provider == "cuda":  # its kernels are those that have a planner
        from tensorops.kernels._gpu.planners import PLANNERS

        return {operator.__name__ for operator in PLANNERS}
    return set(_providers.PROVIDERS[provider].operators)


class Families(Autosummary):
    """The operators of some families, in the order of their definition."""

    required_arguments, final_argument_whitespace, has_content = 1, True, False

    def run(self) -> list[nodes.Node]:
        families = {f"tensorops.ops.{name}" for name in self.arguments[0].split()}
        self.content = [name for name, operator in OPERATORS.items() if operator.__module__ in families]
        self.options = {"toctree": "generated", "nosignatures": None}
        return super().run()


def write_list(folder: Path) -> None:
    """Write a page that lists all operators: autosummary makes a page of each name in a source that it can read."""
    names = "".join(f"   tensorops.{name}\n" for name in OPERATORS)
    text = f".. autosummary::\n   :toctree: .\n\n{names}"
    (folder / "operators.rst").write_text(text, encoding="utf-8")


class Libraries(Directive):
    """Every array library, how to install it, its providers, and the floating dtypes that it supports."""

    def run(self) -> list[nodes.Node]:
        head = ["Library", "Installed by", "Standard", "Kernels of", "Floating dtypes"]
        rows = [
            [
                code(row.name),
                self.installed_by(row),
                code(row.standard),
                codes(_providers.serving_library(row.name)),
                floating_dtypes(row),
            ]
            for row in LIBRARIES.values()
        ]
        return [table(head, rows)]

    @staticmethod
    def installed_by(row: Library) -> Cell:
        if row is LIBRARIES["numpy"]:
            return "tensorops itself"
        return code(f"pip install 'tensorops[{row.extra}]'" if row.extra else f"pip install {row.packages[0]}")


class Backends(Directive):
    """Every name that `tensorops.set_backend` accepts."""

    def run(self) -> list[nodes.Node]:
        head = ["Backend", "Aliases", "Computes with", "Kernels of", "Tested", "Verified where this page was built"]
        rows = [self.row(b, probe) for b, probe in self.tried()]
        return [table(head, rows)]

    @staticmethod
    def tried() -> list[tuple[Backend, Probe]]:
        probes = probe_all(BACKENDS.values())
        return [(b, probes[b.name]) for b in BACKENDS.values()]

    @staticmethod
    def row(backend: Backend, probe: Probe) -> list[Cell]:
        verdict = f"no: {probe.reason}" if probe.verified is None else f"yes, {probe.verified:%Y-%m-%d}"
        return [
            code(backend.name),
            codes(backend.aliases),
            backend.summary,
            codes(_providers.serving(backend)),
            backend.tested or "no",
            verdict,
        ]


def floating_dtypes(row: Library) -> Cell:
    """Return the dtypes that arrays keep when moved to a library, or why that was not tried."""
    if row.missing:
        return row.missing
    if not row.is_installed():
        return "not installed where this page was built"
    probes = [probe for backend, probe in Backends.tried() if backend.library is row]
    if probes and not any(probe.verified for probe in probes):  # a driver may end the process that asks it
        return "could not be determined where this page was built"
    try:
        return codes(name for name in DTYPES if holds(row, name))
    except Exception as error:  # whatever a library without its device raises
        return f"could not be determined where this page was built ({type(error).__name__})"


def holds(row: Library, name: str) -> bool:
    try:
        x = row.from_numpy(np.ones(1, dtype=DTYPES[name]), None)
    except TypeError:
        return False
    return dtype_name(x) == name and dtype_name(x + x) == name


def setup(app) -> dict[str, bool]:
    app.add_directive("operators", Operators)
    app.add_directive("families", Families)
    app.add_directive("libraries", Libraries)
    app.add_directive("backends", Backends)
    # The tables describe the code, not the page's source: read the page again on every build.
    app.connect("env-get-outdated", lambda *_: ["capabilities"])
    # Before any page imports a library: those are tried in this process, which a driver may end.
    app.connect("builder-inited", lambda *_: Backends.tried())
    return {"parallel_read_safe": True}
