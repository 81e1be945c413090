"""Pictures of reports: bytes per second over size, and tokens per second, each below what limits them.

A picture is drawn from what a report says in JSON, so it can be made from a file of long ago. Nothing has a background.
The colours are for white pages; on dark ones, SVG inverts their lightness and keeps their hue.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUFFIXES = (".svg", ".png", ".html")
TEXT = "#666666"
# Okabe and Ito's colours, made lighter or darker where needed: for people who confuse red and green as well.
COLOURS = ("#0a6cab", "#b85000", "#007d5b", "#a4507f", "#86600f", "#6a5fc4", "#487272")
ON_DARK = "<style>@media (prefers-color-scheme: dark) { svg { filter: invert(1) hue-rotate(180deg) } }</style>"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
CEILING = "copy"
WIDTH, HEIGHT = 5.4, 3.1  # inches of a panel
COLUMNS = 2
TICK_GAP, LABEL_GAP = 0.12, 0.075  # parts of an axis that a text takes


class CannotDrawError(Exception):
    """There is no picture; the message says why."""


@dataclass
class Curve:
    """Points of an implementation: bytes that a call moves, and gigabytes per second."""

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Panel:
    """The implementations of an operator."""

    title: str
    curves: list[Curve]


@dataclass
class Bar:
    """The tokens per second of a way to decode."""

    name: str
    speed: float


# --- what to draw ------------------------------------------------------------------------------------


def panels(report: dict[str, Any]) -> list[Panel]:
    """Return the operators of a report; the copy is the last curve of each."""
    found: dict[str, dict[str, Curve]] = {}

    def add(operator: str, name: str, moved: float, gigabytes_per_second: float) -> None:
        curve = found.setdefault(operator, {}).setdefault(name, Curve(name))
        point = (moved, gigabytes_per_second)
        if point[0] not in [known for known, _ in curve.points]:
            curve.points.append(point)

    for row in report.get("rows", []):  # beside peers
        for name, seconds in row["seconds"].items():
            add(row["task"], name, row["bytes"], row["bytes"] / seconds / 1e9)
    for row in report.get("results", []):  # on backends
        if not row.get("gigabytes_per_second"):
            continue
        name = f"{row['backend']}, body" if row["body"] else row["backend"]
        add(row["operator"], name, row["bytes"], row["gigabytes_per_second"])
        if row.get("copy_gigabytes_per_second"):
            add(row["operator"], CEILING, row["bytes"], row["copy_gigabytes_per_second"])
    return [
        Panel(title, sorted(curves.values(), key=lambda curve: curve.name == CEILING))
        for title, curves in found.items()
    ]


def bars(report: dict[str, Any]) -> tuple[list[Bar], float, str]:
    """Return the ways to decode of a report, the bound, and what it is that decodes."""
    if decoding := report.get("decode"):
        speeds = [speed for speed in decoding["speeds"] if speed["tokens_per_second"]]
        found = [Bar(f"{speed['backend']}, {speed['way']}", speed["tokens_per_second"]) for speed in speeds]
        return found, decoding["bound"], decoding["model"]
    if "model" not in report:
        raise CannotDrawError("there is nothing to draw: the file has no figures of --output")
    model = report["model"]
    return [Bar(name, speed) for name, speed in model["decode"].items()], model["bound"], model["model"]


# --- drawing -----------------------------------------------------------------------------------------


def require_drawable(path: Path) -> None:
    """Raise `CannotDrawError` if nothing can be drawn to a path: its suffix is unknown, or matplotlib is missing."""
    if path.suffix.lower() not in SUFFIXES:
        raise CannotDrawError(
            f"the picture's format is told by its suffix, which must be {', '.join(SUFFIXES)}; got {path.name!r}"
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise CannotDrawError(f"pictures need matplotlib: pip install matplotlib ({error})") from None


def draw(report: dict[str, Any], path: Path) -> bytes:
    """Return the picture of a report in the format that a path's suffix tells.

    Raises
    ------
    CannotDrawError
        If the report has nothing to draw, the suffix is unknown, or matplotlib is missing.
    """
    require_drawable(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    settings: dict[str, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "tensorops",
        "font.size": 9,
        "font.family": "sans-serif",
    }
    for what in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        settings[what] = TEXT
    with rc_context(settings):
        figure = Figure(layout=ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.1))
        figure.patch.set_alpha(0)
        if found := panels(report):
            _draw_panels(figure, found, report.get("dtype", ""))
        else:
            _draw_bars(figure, *bars(report))
        return _written(figure, report, path.suffix.lower())


def _draw_panels(figure: Any, found: Sequence[Panel], dtype: str) -> None:
    columns = min(COLUMNS, len(found))
    rows = math.ceil(len(found) / columns)
    figure.set_size_inches(WIDTH * columns, HEIGHT * rows)
    styles = _styles(found)
    for i, panel in enumerate(found):
        axes = figure.add_subplot(rows, columns, i + 1)
        _bare(axes)
        axes.set_title(f"{panel.title}, {dtype}" if dtype else panel.title, loc="left", fontweight="bold")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for curve in panel.curves:
            axes.plot(*zip(*sorted(curve.points), strict=True), **styles[curve.name])
        _size_ticks(axes, {x for curve in panel.curves for x, _ in curve.points})
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes.set_ylabel("GB/s")
        if i + columns >= len(found):
            axes.set_xlabel("bytes read and written by a call")
        axes.grid(axis="y", color=TEXT, alpha=0.25, linewidth=0.6)
        _label_ends(axes, panel.curves, styles)


def _styles(found: Iterable[Panel]) -> dict[str, dict[str, Any]]:
    """Return how each curve is drawn, the same in all panels; the copy, which limits the others, is dashed."""
    names = dict.fromkeys(curve.name for panel in found for curve in panel.curves if curve.name != CEILING)
    styles: dict[str, dict[str, Any]] = {
        name: {
            "color": COLOURS[i % len(COLOURS)],
            "marker": MARKERS[i % len(MARKERS)],
            "linewidth": 2.2 if i == 0 else 1.4,
            "markersize": 5 if i == 0 else 4,
        }
        for i, name in enumerate(names)
    }
    styles[CEILING] = {"color": TEXT, "linestyle": (0, (4, 2)), "linewidth": 1.4}
    return styles


def _size_ticks(axes: Any, sizes: Iterable[float]) -> None:
    """Mark the measured sizes, from the largest, leaving out those too close to it."""
    known = sorted(sizes, reverse=True)
    apart = (known[0] / known[-1]) ** TICK_GAP
    ticks: list[float] = []
    for size in known:
        if not ticks or ticks[-1] >= size * apart:
            ticks.append(size)
    axes.set_xticks(ticks, [_bytes(tick) for tick in ticks])
    axes.minorticks_off()


def _bytes(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:g} B"


def _label_ends(axes: Any, curves: Sequence[Curve], styles: dict[str, dict[str, Any]]) -> None:
    """Name the curves at their right ends, moved apart where they would overlap."""
    low, high = (math.log(y) for y in axes.get_ylim())
    ends = sorted((max(curve.points)[1], curve.name) for curve in curves)
    places = spread([(math.log(y) - low) / (high - low) for y, _ in ends], LABEL_GAP)
    for place, (_, name) in zip(places, ends, strict=True):
        text = {"color": styles[name]["color"], "va": "center", "fontweight": "bold" if name != CEILING else "normal"}
        axes.annotate(name, (1.02, place), xycoords="axes fraction", annotation_clip=False, **text)


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Return ascending places at least a gap apart, moved as little as it takes, each group around its middle.

    Examples
    --------
    >>> [round(place, 3) for place in spread([0.1, 0.5, 0.52], gap=0.1)]
    [0.1, 0.46, 0.56]
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and _around(groups[-1], gap)[0] - _around(groups[-2], gap)[-1] < gap:
            last = groups.pop()
            groups[-1] += last
    return [place for group in groups for place in _around(group, gap)]


def _around(group: Sequence[float], gap: float) -> list[float]:
    middle = sum(group) / len(group)
    return [middle + (i - (len(group) - 1) / 2) * gap for i in range(len(group))]


def _draw_bars(figure: Any, found: Sequence[Bar], bound: float, model: str) -> None:
    if not found:
        raise CannotDrawError("there is nothing to draw: nothing could be timed")
    found = sorted(found, key=lambda bar: bar.speed)
    figure.set_size_inches(1.4 * WIDTH, 0.9 + 0.32 * len(found))
    axes = figure.add_subplot()
    _bare(axes)
    places = range(len(found))
    axes.barh(places, [bar.speed for bar in found], height=0.65, color=COLOURS[0])
    axes.set_yticks(places, [bar.name for bar in found])
    for place, bar in zip(places, found, strict=True):
        axes.annotate(
            f"{bar.speed:.3g}", (bar.speed, place), xytext=(4, 0), textcoords="offset points", va="center", color=TEXT
        )
    axes.axvline(bound, color=COLOURS[1], linestyle=(0, (4, 2)))
    said = f"bound: {bound:.3g}, the weights are only read"
    axes.annotate(said, (bound, 1.01), xycoords=("data", "axes fraction"), ha="right", color=COLOURS[1])
    axes.set_xlim(0, 1.08 * max(bound, found[-1].speed))
    axes.set_xlabel(f"tokens per second, {model}")


def _bare(axes: Any) -> None:
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)


# --- files -------------------------------------------------------------------------------------------


def _written(figure: Any, report: dict[str, Any], suffix: str) -> bytes:
    made = io.BytesIO()
    if suffix == ".png":
        figure.savefig(made, format="png", dpi=160, transparent=True)
        return made.getvalue()
    # Without a date: the same report gives the same file.
    about = {"Date": None, "Creator": "python -m asv_benchmarks draw"}
    figure.savefig(made, format="svg", transparent=True, metadata=about)
    svg = made.getvalue().decode().replace(" <metadata>", f" {ON_DARK}\n <metadata>", 1)
    return (svg if suffix == ".svg" else _page(svg, report)).encode()


def _page(svg: str, report: dict[str, Any]) -> str:
    """Return a page with the picture and the circumstances, which needs no other file."""
    picture = svg[svg.index("<svg") :]
    versions = ", ".join(f"{name} {version}" for name, version in report.get("versions", {}).items())
    name = report.get("hardware", {}).get("cpu", {}).get("name", "")
    lines = [
        report.get("command", ""),
        f"{name}, {report.get('threads', '')} threads; {report.get('date', '')}",
        versions,
    ]
    said = "".join(f"<p>{html.escape(line)}</p>\n" for line in lines if line)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<meta name="color-scheme" content="light dark">\n'
        "<title>tensorops bench</title>\n"
        "<style>body { font: 15px sans-serif; margin: 2em } svg { max-width: 100%; height: auto }</style>\n"
        f"</head>\n<body>\n{picture}\n{said}</body>\n</html>\n"
    )
