"""Ctrl-C while the command starts: no traceback, from the first import on."""

from __future__ import annotations

import pytest

import support

pytest.importorskip("click")
pytest.importorskip("rich")

PRESSING = """
import importlib.abc, signal, sys

class Pressing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == pressed:
            signal.raise_signal(signal.SIGINT)

pressed, ignored = sys.argv[1], sys.argv[2:]
signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
sys.meta_path.insert(0, Pressing())
sys.argv = ["tensorops", "backends", "--help"]
from tensorops_command import main
main()
"""


@pytest.mark.parametrize("module", ["tensorops", "tensorops.ops.sampling", "click", "tensorops.cli.backends", "rich"])
def test_ctrl_c_while_a_module_is_imported(module: str) -> None:
    result = support.python(PRESSING, module)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "Interrupted.\n")


def test_a_job_in_the_background_goes_on() -> None:
    result = support.python(PRESSING, "tensorops", "ignored")
    assert (result.returncode, result.stderr) == (0, "")
    assert "List the backends" in result.stdout
