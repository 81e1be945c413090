"""Configuration of the documentation; build it with ``sphinx-build -W --keep-going -b html docs docs/_build/html``."""

from __future__ import annotations

import sys
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
    "sphinx.ext.mathjax",
    "numpydoc",
    "capabilities",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

# `name` in a docstring is a link where it names something on the API page, and code where it does not.
default_role = "py:obj"
add_module_names = False
smartquotes = False  # messages and command lines are quoted verbatim
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more
numpydoc_show_class_members = False
autosummary_generate = False  # numpydoc loads it; api.md says what is documented
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_title = "tensorops"
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}
