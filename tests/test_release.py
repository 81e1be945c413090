"""What a release consists of besides the package: one version everywhere, and a changelog that tools can read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import tensorops

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def of_pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def of_citation():
    return re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)[1]


def of_changelog():
    return re.search(r"^## \[(.+?)\]", CHANGELOG, re.M)[1]


@pytest.mark.parametrize("version", [of_pyproject, of_citation, of_changelog], ids=lambda f: f.__name__)
def test_the_version_is_the_same_everywhere(version):
    assert version() == tensorops.__version__


def test_the_changelog_keeps_its_form():
    releases = re.findall(r"^## (.+)$", CHANGELOG, re.M)
    assert releases
    for release in releases:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - (unreleased|\d{4}-\d\d-\d\d)", release)
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limitations"]
    for section in re.split(r"^## ", CHANGELOG, flags=re.M)[1:]:
        found = re.findall(r"^### (.+)$", section, re.M)
        assert found == [kind for kind in kinds if kind in found]  # each at most once, in this order


def test_the_citation_has_what_the_format_requires():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for key in ("cff-version: 1.2.0", "message: ", "title: tensorops", "authors:", "license: BSD-3-Clause"):
        assert re.search(f"^{re.escape(key)}", text, re.M), key
