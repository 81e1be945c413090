"""Configuration of the documentation; build it with ``sphinx-build -W --keep-going -b html docs docs/_build/html``."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import capabilities
import inventories

import tensorops


def repository() -> str:
    """Return the address of the repository that these pages are built from, if it has one on the web."""
    if found := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ['GITHUB_SERVER_URL']}/{found}"
    command = ["git", "-C", str(Path(__file__).parent), "config", "remote.origin.url"]
    try:
        url = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        return ""
    return url.removesuffix(".git") if url.startswith("https://") and "@" not in url else ""


project = "tensorops"
author = "The tensorops developers"
copyright = "The tensorops developers"
release = version = tensorops.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "asv_page",
    "capabilities",
    # Without the package that makes MathML, formulas need a script from another server.
    "mathml" if find_spec("latex2mathml") else "sphinx.ext.mathjax",
    "results",
]
exclude_patterns = ["_build", "generated/operators.rst", "results"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}  # the latter for what autosummary generates
templates_path = ["_templates"]

# `name` in a docstring is a link where it names something on the API page, and code where it does not.
default_role = "py:obj"
add_module_names = False
smartquotes = False  # messages and command lines are quoted verbatim
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more
autodoc_default_options = {"exclude-members": "unplanned"}  # which only the compiled module calls
numpydoc_show_class_members = False
# What others document is linked: by their inventories or, where they cannot be reached, by ours of the names used here.
inventories.write(Path(__file__).parent / "generated")
capabilities.write_list(Path(__file__).parent / "generated")
# One page for each name that these list.
autosummary_generate = ["api.md", "api-backends.md", "api-extending.md", "generated/operators.rst"]
intersphinx_mapping = {
    name: (address, (None, f"generated/{name}.inv")) for name, address in inventories.ADDRESSES.items()
}
intersphinx_timeout = 5
copybutton_prompt_text = r">>> |\.\.\. |\$ |> "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = False
copybutton_exclude = ".linenos, .go"  # and no results
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4

html_theme = "pydata_sphinx_theme"
html_title = f"tensorops {release}"
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["tensorops.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": f"tensorops {release}"},
    "icon_links": [{"name": "Repository", "url": address, "icon": "fa-solid fa-code-branch"}]
    if (address := repository())
    else [],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_align": "left",
    # No headings next to wide tables, nor where there are none.
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        "index": [],
        "capabilities": [],
        "operators": [],
        "search": [],
        "genindex": [],
    },
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "search": [], "genindex": []}  # nothing is next to them: the page takes the room
