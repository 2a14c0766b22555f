"""How Sphinx builds this documentation: Markdown pages, and a reference made from docstrings."""

import sys
from pathlib import Path

from weft import __version__

sys.path.insert(0, str(Path(__file__).parent))

project = "Weft"
author = "The Weft authors"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "catalogue",
]
exclude_patterns = ["_build", "_templates"]
html_static_path = ["_static"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

smartquotes = False  # so that commands can be copied

default_role = "code"  # docstrings write `name`
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"Weft {release}"
html_show_copyright = False
html_search_scorer = str(Path(__file__).parent / "scorer.js")
