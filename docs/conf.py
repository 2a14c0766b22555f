"""How Sphinx builds this documentation: Markdown pages, and a reference made from docstrings."""

from weft import __version__

project = "Weft"
author = "The Weft authors"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_click",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

default_role = "code"  # docstrings write `name`
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"Weft {release}"
html_show_copyright = False
