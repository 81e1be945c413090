"""Run the command line in a separate process, as users do, without this process's configuration."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tensorops.backends import probing, process_default


def run(*arguments: str, script: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m tensorops`` or the installed script, with only these tensorops variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENSOROPS_")}
    defaults = {"TENSOROPS_CONFIG": "", "COLUMNS": "200", "JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [*(installed_script() if script else (sys.executable, "-m", "tensorops")), *arguments],
        env=clean | defaults | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


def installed_script() -> tuple[str]:
    """Return the path of the script that installing tensorops creates."""
    name = "tensorops.exe" if sys.platform == "win32" else "tensorops"
    return (str(Path(sysconfig.get_path("scripts")) / name),)


@contextlib.contextmanager
def configuration_restored() -> Iterator[None]:
    """Undo the settings made by a command that runs in this process."""
    process = process_default.process
    before = {name: getattr(process, name) for name in ("configuration", "settings", "problem")}
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(process, name, value)
        process_default._replace_default(process.settings)
        for name in probing._used:
            probing._apply(name, process.configuration)
