"""Sphinx: python -m sphinx -W docs build/site"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_sphinx"))

import stpn  # noqa: E402

project = "stpn"
author = copyright = "the stpn contributors"
release = version = stpn.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "docstrings",
    "maze_data",
    "mathml",
    "repository",
]
exclude_patterns = ["_sphinx", "_static"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
default_role = "py:obj"  # single backticks in docstrings: a link if there is such a name, else code

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_use_type_comments = False
add_module_names = False
python_maximum_signature_line_length = 80
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"stpn {release}"
html_static_path = ["_static", "../src/stpn/report/assets/network.js"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1d4ed8", "color-brand-content": "#1d4ed8"},
    "dark_css_variables": {"color-brand-primary": "#8fb4ff", "color-brand-content": "#8fb4ff"},
}
html_math_renderer = "mathml"
