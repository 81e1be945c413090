"""Pictures of reports: which points they show, that they can be read on white and on black, and what is refused."""

from __future__ import annotations

import itertools
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from asv_benchmarks import pictures
from asv_benchmarks.__main__ import app

BESIDE_PEERS = {
    "dtype": "float32",
    "versions": {"numpy": "2"},
    "rows": [
        {
            "task": task,
            "bytes": size,
            "seconds": {"tensorops": size / 50e9, "copy": size / 60e9, "torch <2>": size / 10e9},
        }
        for task in ("rms_norm", "silu")
        for size in (512, 1 << 20, 1 << 28)
    ],
}
ON_BACKENDS = {
    "dtype": "bfloat16",
    "results": [
        {
            "operator": "silu",
            "backend": backend,
            "body": body,
            "bytes": size,
            "gigabytes_per_second": speed,
            "copy_gigabytes_per_second": 9.0,
        }
        for size in (1024, 4096)
        for backend, body, speed in (("cpu", False, 8.0), ("cpu", True, 2.0), ("jax", False, None))
    ],
}
DECODE = {
    "decode": {
        "model": "model.gguf",
        "bound": 370.0,
        "speeds": [
            {"backend": "cpu", "way": "persistent", "tokens_per_second": 282.0},
            {"backend": "cpu", "way": "from Python", "tokens_per_second": 257.0},
            {"backend": "torch", "way": "persistent", "tokens_per_second": None},
        ],
    }
}


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


# --- what is drawn -----------------------------------------------------------------------------------


def test_curves_beside_peers():
    first, second = pictures.panels(BESIDE_PEERS)
    assert (first.title, second.title) == ("rms_norm", "silu")
    assert [curve.name for curve in first.curves] == ["tensorops", "torch <2>", "copy"]  # the ceiling comes last
    for curve, speed in zip(first.curves, (50, 10, 60), strict=True):
        assert curve.points == [
            (512, pytest.approx(speed)),
            (1 << 20, pytest.approx(speed)),
            (1 << 28, pytest.approx(speed)),
        ]


def test_curves_on_backends():
    (panel,) = pictures.panels(ON_BACKENDS)
    assert {curve.name: curve.points for curve in panel.curves} == {
        "cpu": [(1024, 8.0), (4096, 8.0)],
        "cpu, body": [(1024, 2.0), (4096, 2.0)],
        "copy": [(1024, 9.0), (4096, 9.0)],
    }


def test_decoding_beside_the_bound():
    bars, bound, model = pictures.bars(DECODE)
    assert [(bar.name, bar.speed) for bar in bars] == [("cpu, persistent", 282.0), ("cpu, from Python", 257.0)]
    assert (bound, model) == (370.0, "model.gguf")


def test_decoding_beside_llama_cpp():
    bars, bound, _ = pictures.bars(
        {"model": {"model": "m", "bound": 9.0, "decode": {"tensorops": 8.0, "llama.cpp": 7.0}}}
    )
    assert [(bar.name, bar.speed) for bar in bars] == [("tensorops", 8.0), ("llama.cpp", 7.0)]
    assert bound == 9.0


@pytest.mark.parametrize("places", [[0.5] * 5, [0.1, 0.9], [0.1, 0.12, 0.14, 0.9, 0.91], [0.0, 0.05, 0.2]])
def test_labels_do_not_overlap(places):
    moved = pictures.spread(places, 0.075)
    assert len(moved) == len(places)
    assert all(b - a >= 0.075 - 1e-9 for a, b in itertools.pairwise(moved))
    assert sum(moved) == pytest.approx(sum(places))
    if all(b - a >= 0.075 for a, b in itertools.pairwise(places)):
        assert moved == places


# --- how it looks ------------------------------------------------------------------------------------


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colour", [pictures.TEXT, *pictures.COLOURS])
@pytest.mark.parametrize("page", ["#ffffff", "#121212"])
def test_colours_can_be_told_from_both_pages(colour, page):
    """4.5 is what the accessibility guidelines ask for text; browsers invert the colours on dark pages."""
    shown = colour if page == "#ffffff" else inverted(colour)
    darker, lighter = sorted((luminance(shown), luminance(page)))
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def inverted(colour):
    """Return what ``invert(1) hue-rotate(180deg)`` makes of a colour, by the matrix of CSS's filters."""
    weights = np.array([0.213, 0.715, 0.072])
    parts = 255 - np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return "#" + "".join(f"{round(part):02x}" for part in np.clip(2 * weights @ parts - parts, 0, 255))


def test_a_vector_picture_names_its_curves_and_has_no_background():
    pytest.importorskip("matplotlib")
    svg = pictures.draw(BESIDE_PEERS, Path("x.svg")).decode()
    said = texts(svg)
    assert said.count("tensorops") == said.count("torch <2>") == said.count("copy") == 2
    assert {"rms_norm, float32", "silu, float32", "512 B", "1 MiB", "256 MiB", "GB/s"} <= set(said)
    assert re.findall(r"fill: #(?:ffffff|000000)", svg) == []
    assert svg.count("prefers-color-scheme: dark") == 1
    assert svg == pictures.draw(BESIDE_PEERS, Path("x.svg")).decode()  # the same figures, the same file
    curves = {colour for colour in pictures.COLOURS if f"stroke: {colour}" in svg}
    assert curves == set(pictures.COLOURS[:2])


def test_decoding_in_a_vector_picture():
    pytest.importorskip("matplotlib")
    said = texts(pictures.draw(DECODE, Path("x.svg")))
    assert {"cpu, persistent", "282", "257", "bound: 370, the weights are only read"} <= set(said)


def test_a_page_is_complete_and_quotes_names():
    pytest.importorskip("matplotlib")
    page = pictures.draw(BESIDE_PEERS | {"command": "tensorops bench <all>"}, Path("x.HTML")).decode()
    assert page.startswith("<!doctype html>")
    assert "tensorops bench &lt;all&gt;" in page
    assert 'content="light dark"' in page
    assert page.count("<svg") == page.count("</svg>") == 1
    assert "<?xml" not in page


def test_pixels_are_transparent():
    pytest.importorskip("matplotlib")
    import io

    from matplotlib.image import imread

    pixels = imread(io.BytesIO(pictures.draw(DECODE, Path("x.png"))))
    assert pixels.shape[-1] == 4
    assert pixels[0, 0, 3] == 0
    assert pixels[..., 3].max() == 1


# --- the command -------------------------------------------------------------------------------------


def invoke(*arguments):
    return CliRunner().invoke(app, ["draw", *map(str, arguments)], env={"COLUMNS": "300"})


@pytest.fixture
def result_file(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(BESIDE_PEERS))
    return path


@pytest.mark.parametrize("name", ["out.svg", "out.png", "out.html"])
def test_a_picture_of_an_earlier_result(result_file, name):
    pytest.importorskip("matplotlib")
    plot = result_file.with_name(name)
    result = invoke(result_file, plot)
    assert result.exit_code == 0, result.output
    assert plot.read_bytes() == pictures.draw(BESIDE_PEERS, plot)


@pytest.mark.parametrize(
    ("picture", "message"),
    [("out.gif", "must be .svg, .png, .html; got 'out.gif'"), ("result.json/out.svg", "cannot be written")],
)
def test_a_picture_that_cannot_be_is_an_error(result_file, picture, message):
    pytest.importorskip("matplotlib")
    result = invoke(result_file, result_file.parent / picture)
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_file_without_figures(tmp_path):
    pytest.importorskip("matplotlib")
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    result = invoke(empty, tmp_path / "out.svg")
    assert result.exit_code == 1
    assert "there is nothing to draw: the file has no figures of --output" in result.stderr


def test_without_matplotlib_the_command_says_what_to_install(result_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke(result_file, result_file.with_name("out.svg"))
    assert result.exit_code == 1
    assert "pictures need matplotlib: pip install matplotlib" in result.stderr
    assert not result_file.with_name("out.svg").exists()


# --- committed pictures ------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", sorted(path.stem for path in (DOCS / "pictures").glob("*.svg")))
def test_committed_pictures_show_committed_results(name):
    report = json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))
    said = texts((DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8"))
    if "decode" in report:
        bars, bound, _ = pictures.bars(report)
        assert {f"{bar.speed:.3g}" for bar in bars} | {f"bound: {bound:.3g}, the weights are only read"} <= set(said)
    else:
        found = pictures.panels(report)
        assert sorted(c.name for panel in found for c in panel.curves) == sorted(
            text for text in said if text in {c.name for panel in found for c in panel.curves}
        )
