"""The asv page: ``asv publish`` of the committed results, in the folder ``asv`` of the HTML.

Without asv or the repository's history the folder has a page that says so: links to it never break.
"""

from __future__ import annotations

import html
import importlib.util
import subprocess
import sys
from pathlib import Path

from sphinx.util import logging

ROOT = Path(__file__).parents[2]
COMMAND = "asv publish --html-dir docs/_build/html/asv"


def publish(target: Path) -> str:
    """Write the page to a folder; return why it cannot be written, or an empty string."""
    if importlib.util.find_spec("asv") is None:
        return "asv is not installed where this page was built: pip install asv"
    if not (ROOT / ".git").exists():
        return "this page was built outside of the git repository, whose history asv shows"
    command = [sys.executable, "-m", "asv", "publish", "--no-pull", "--html-dir", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"asv publish failed: {(done.stderr or done.stdout).strip()[-2000:]}"
    if not (target / "graphs").is_dir():  # asv leaves out results of commits that it does not find, and says nothing
        return "no committed result is of a commit in the history of main where this page was built"
    return ""


def excuse(target: Path, reason: str) -> None:
    """Write a page that says why there is none."""
    target.mkdir(parents=True, exist_ok=True)
    said = f"<p>There are no results of asv here. {html.escape(reason)}</p><p>Then: <code>{COMMAND}</code></p>"
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>asv</title>{said}</html>\n'
    (target / "index.html").write_text(page, encoding="utf-8")


def build(app, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    target = Path(app.outdir) / "asv"
    if reason := publish(target):
        logging.getLogger(__name__).info("no asv page: %s", reason)
        excuse(target, reason)


def setup(app) -> dict[str, bool]:
    app.connect("build-finished", build)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
