"""What a release consists of besides the package: one version everywhere, and a changelog that tools can read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
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


def test_workflows_pin_actions_by_hash():
    used = [
        line.split("uses:")[1].strip()
        for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(used) > 5
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_classifiers_name_the_pythons_that_wheels_are_built_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    built = re.findall(r"cp3(\d+)-", project["tool"]["cibuildwheel"]["build"])
    named = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["project"]["classifiers"]))
    assert built == named
    assert project["project"]["requires-python"] == f">=3.{built[0]}"
    for group, requirements in project["dependency-groups"].items():
        assert requirements == [f"tensorops[{group}]"]
        assert group in project["project"]["optional-dependencies"]


def test_a_release_names_the_repository_it_is_made_from(tmp_path):
    for name in ("pyproject.toml", "CITATION.cff", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    address = "https://example.org/somebody/tensorops"
    script = str(ROOT / ".ci" / "addresses")
    subprocess.run([sys.executable, script, address, str(tmp_path)], check=True)
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert set(urls) == {"Repository", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(address) for url in urls.values())
    assert f"\nrepository-code: {address}\n" in (tmp_path / "CITATION.cff").read_text(encoding="utf-8")
    before, after = ((folder / "README.md").read_text(encoding="utf-8") for folder in (ROOT, tmp_path))
    links = re.findall(r"^\[[\w-]+\]: (\S+)$", before, re.M)
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).exists()
        assert re.search(rf"^\[[\w-]+\]: {address}/(blob|raw)/main/{re.escape(link)}$", after, re.M)
    refused = subprocess.run([sys.executable, script, "tensorops"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "https://HOST/OWNER/NAME" in refused.stderr
