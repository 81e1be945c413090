"""Figures on the pages, read from the files in ``docs/results`` when the documentation is built.

A result file is what a command printed: lines of text and tables in boxes. The directive ``measured`` shows some
columns of some rows of its tables, the role ``measured`` one cell, and the directive ``result-files`` links all files.

    ```{measured} peers-avx512-float32.txt
    :where: shape=2048x4096
    :columns: operator, ours as time, of copy, torch
    :bar: of copy
    ```

    {measured}`peers-avx512-float32.txt; torch; operator=silu*; shape=1x4096*`

Rows have further columns: ``title`` and ``dtype``, of their table; ``weights``, of the model in its title; ``threads``,
of the machine; and ``command``, if the file has it. A first column without a name is called ``row``. ``where`` compares
cells; ``*`` stands for any characters. ``pivot: backend`` makes one row of those that differ in the backend, with
columns such as ``GB/s cpu``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.parsers.rst.states import Inliner
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

FOLDER = Path(__file__).parents[1] / "results"
UNSURE = "~"
"""Marks a shape whose times vary by more than half between rounds."""

Row = dict[str, str]


def read(text: str) -> list[Row]:
    """Return the rows of all tables in a result file, as mappings of column names to cells."""
    rows: list[Row] = []
    facts = {"title": "", "dtype": "", "weights": "", "threads": "", "command": ""}
    names: list[str] = []
    before: list[str] = []
    for line in text.splitlines():
        if line.startswith("┃"):
            names = [name or "row" for name in cells_of(line, "┃")]
            before = []
        elif line.startswith("│"):
            before = inherit(cells_of(line, "│"), before)
            rows.append(facts | dict(zip(names, before, strict=True)))
        elif match := re.match(r"[#$] (.+)", line):
            facts["command"] = match[1]
        elif match := re.match(r".*?, (\d+) threads;", line):
            facts["threads"] = match[1]
        elif line.startswith("  ") and line.strip():
            facts["title"] = line.strip()
            facts["dtype"] = "".join(re.findall(r"b?float\d+", line)[:1])
            facts["weights"] = "".join(re.findall(r"\.(\w+)\.gguf", line)[:1])
    return rows


def cells_of(line: str, edge: str) -> list[str]:
    return [cell.strip() for cell in line.strip(edge).split(edge)]


def inherit(cells: list[str], before: Sequence[str]) -> list[str]:
    """Return a row whose empty first cells, which repeat those above, are filled in."""
    filled = list(cells)
    for index, above in enumerate(before):
        if filled[index]:
            break
        filled[index] = above
    return filled


def matches(row: Row, conditions: Iterable[tuple[str, str]]) -> bool:
    return all(fnmatchcase(row[name].removesuffix(UNSURE).strip(), value) for name, value in conditions)


def conditions_of(text: str, separator: str = ",") -> list[tuple[str, str]]:
    pairs = (part.partition("=") for part in text.split(separator) if part.strip())
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def select(name: str, conditions: Sequence[tuple[str, str]]) -> list[Row]:
    """Return the rows of a file that meet the conditions.

    Raises
    ------
    ValueError
        If there are none, or the file has no such column.
    """
    rows = read((FOLDER / name).read_text(encoding="utf-8"))
    for column, _ in conditions:
        rows = [row for row in rows if column in row]
    found = [row for row in rows if matches(row, conditions)]
    if not found:
        raise ValueError(f"{name} has no row with {', '.join('='.join(c) for c in conditions)}")
    return found


def pivot(rows: Sequence[Row], keys: Sequence[str], column: str) -> list[Row]:
    """Return a row for each value of the keys; of every other name, one column for each value of `column`."""
    grouped: dict[tuple[str, ...], Row] = {}
    for row in rows:
        made = grouped.setdefault(tuple(row[key] for key in keys), {key: row[key] for key in keys})
        made |= {f"{name} {row[column]}": cell for name, cell in row.items() if name not in (*keys, column)}
    return list(grouped.values())


def doubted(row: Row) -> Row:
    """Return a row that is marked as unsure in its operator, which pages show, if its shape is."""
    if "operator" in row and any(cell.endswith(UNSURE) for cell in row.values()):
        return row | {"operator": f"{row['operator']} {UNSURE}"}
    return row


def share(cell: str) -> float | None:
    """Return the number in a cell such as ``87%`` or ``1.2``, a percentage as a fraction."""
    match = re.fullmatch(r"([\d.]+)( ?%?)", cell)
    return None if match is None else float(match[1]) / (100 if "%" in match[2] else 1)


class Measured(Directive):
    """Some columns of some rows of a result file, with bars if asked for."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = False
    option_spec: ClassVar[dict[str, object]] = {
        "where": directives.unchanged,
        "columns": directives.unchanged_required,
        "bar": directives.unchanged,
        "pivot": directives.unchanged,
        "caption": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        names = self.arguments[0].split()
        self.state.document.settings.record_dependencies.add(*(str(FOLDER / name) for name in names))
        try:
            return [self.table([row for name in names for row in self.rows(name)])]
        except (OSError, ValueError, KeyError) as error:
            raise self.error(f"{self.arguments[0]}: {error}") from error

    def columns(self) -> list[tuple[str, str]]:
        """Return names of columns and their headings."""
        pairs = (part.strip().partition(" as ") for part in self.options["columns"].split(","))
        return [(name.strip(), heading.strip() or name.strip()) for name, _, heading in pairs]

    def rows(self, name: str) -> list[Row]:
        rows = select(name, conditions_of(self.options.get("where", "")))
        if "pivot" in self.options:
            wanted = {column for column, _ in self.columns()}
            rows = pivot(rows, [key for key in rows[0] if key in wanted], self.options["pivot"])
        return rows

    def table(self, rows: Sequence[Row]) -> nodes.table:
        columns = self.columns()
        bars = [name for name in (part.strip() for part in self.options.get("bar", "").split(",")) if name]
        most = max((share(row.get(name, "")) or 0.0 for row in rows for name in bars), default=0.0)
        group = nodes.tgroup(cols=len(columns))
        group += [nodes.colspec(colwidth=1) for _ in columns]
        group += nodes.thead("", row_of(nodes.Text(heading) for _, heading in columns))
        group += nodes.tbody(
            "",
            *(
                row_of(cell_of(row.get(name, "–"), most if name in bars else 0.0) for name, _ in columns)
                for row in map(doubted, rows)
            ),
        )
        made = nodes.table("", classes=["colwidths-auto", "measured"])
        if "caption" in self.options:
            made += nodes.title("", self.options["caption"])
        made += group
        return made


def row_of(cells: Iterable[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))


def cell_of(text: str, most: float) -> nodes.Node:
    """Return the text of a cell; in a column with bars, behind it a bar in proportion to the largest."""
    value = share(text)
    if not most or value is None:
        return nodes.Text(text)
    bar = f'<span class="bar" style="--share: {value / most:.3f}">{text}</span>'
    return nodes.raw("", bar, format="html")


def measured(
    name: str, rawtext: str, text: str, lineno: int, inliner: Inliner, options: object = None, content: object = None
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Role: one cell of a result file, ``FILE; COLUMN; column=value; …``."""
    file, column, *where = (part.strip() for part in text.split(";"))
    try:
        (row,) = select(file, conditions_of(";".join(where), ";"))
        return [nodes.Text(row[column])], []
    except (OSError, ValueError, KeyError) as error:
        message = inliner.reporter.error(f"{text}: {error}", line=lineno)
        return [inliner.problematic(rawtext, rawtext, message)], [message]


class ResultFiles(SphinxDirective):
    """A list of all result files, each a download, with the first command that it has."""

    def run(self) -> list[nodes.Node]:
        made = nodes.bullet_list()
        for path in sorted(path for path in FOLDER.iterdir() if path.suffix in (".json", ".txt")):
            link = addnodes.download_reference("", "", nodes.literal("", path.name), reftarget=f"results/{path.name}")
            item = nodes.paragraph("", "", link)
            item += [nodes.Text(": "), nodes.literal("", command)] if (command := first_command(path)) else []
            made += nodes.list_item("", item)
        return [made]


def first_command(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text).get("command", "")
    return next(iter(commands_of(text)), "")


def commands_of(text: str) -> Iterator[str]:
    """Yield the commands in a result file; a backslash continues one on the next line."""
    for match in re.finditer(r"^[#$] ((?:.*\\\n)*.*)$", text, re.M):
        yield re.sub(r"\s*\\\n\s*", " ", match[1])


def setup(app) -> dict[str, bool]:
    app.add_directive("measured", Measured)
    app.add_directive("result-files", ResultFiles)
    app.add_role("measured", measured)
    return {"parallel_read_safe": True}
