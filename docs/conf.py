"""Configuration of the documentation; build it with ``sphinx-build -W --keep-going -b html docs docs/_build/html``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import tensorops

project = "tensorops"
author = "The tensorops developers"
copyright = "The tensorops developers"
release = version = tensorops.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx_design",
    "asv_page",
    "capabilities",
    # Without the package that makes MathML, formulas need a script from another server.
    "mathml" if find_spec("latex2mathml") else "sphinx.ext.mathjax",
    "results",
]
exclude_patterns = ["_build", "results"]
source_suffix = {".md": "markdown"}

# `name` in a docstring is a link where it names something on the API page, and code where it does not.
default_role = "py:obj"
add_module_names = False
smartquotes = False  # messages and command lines are quoted verbatim
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more
numpydoc_show_class_members = False
autosummary_generate = False  # numpydoc loads it; api.md says what is documented
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4

html_theme = "pydata_sphinx_theme"
html_title = "tensorops"
html_static_path = ["_static"]
html_css_files = ["tensorops.css"]
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_align": "left",
    # No headings beside wide tables, nor where there are none.
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
html_sidebars = {"index": [], "search": [], "genindex": []}  # nothing is beside them: the page takes the room
