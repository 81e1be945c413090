"""The command that measures what it takes to load a model."""

import sys

import pytest

from asv_benchmarks import loading

pytest.importorskip("gguf")

from make_gguf import write_llama


@pytest.mark.skipif(sys.platform != "linux", reason="the system is asked what Linux knows")
def test_a_file_has_a_line_of_ratios(tmp_path, monkeypatch, capsys):
    path = tmp_path / "tiny.gguf"
    write_llama(path)
    monkeypatch.setattr(sys, "argv", ["loading", str(path), "--rounds", "1"])
    loading.main()
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["MiB", "cold", "warm", "memory"]
    name, _, *ratios = line.split()
    assert name == "tiny"
    assert all(float(ratio) > 0 for ratio in ratios)
    assert len(ratios) == 3
