"""How Sphinx builds the documentation: pages in Markdown, the reference from docstrings, both in light and dark."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
import inventories  # noqa: E402 (in the folder of the line above)

project = "tensordict-core"
author = "the authors of tensordict-core and its satellites"
project_copyright = f"2026, {author}"
release = version = version_of("tensordict-core")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "reference",
    "tutorials",
    "migration",
]
exclude_patterns = ["_build", "_ext", "_templates"]
pygments_dark_style = "github-dark"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "_static" / "scorer.js")
html_title = "TensorDict packages"
html_favicon = "_static/logo.svg"
html_copy_source = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_logo": "logo.svg",
    "dark_logo": "logo.svg",
    "top_of_page_buttons": [],
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7db7f5", "color-brand-content": "#7db7f5"},
}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

intersphinx_mapping = inventories.mapping(HERE / "_build" / "inventories")
intersphinx_disabled_reftypes = ["std:*"]

# Every name in a signature or a docstring is a link; these are names of types that exist for annotations only.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|collections|asyncio|concurrent|multiprocessing)\..*"),  # what the inventories lack
    ("py:.*", r"tensordict_\w+\.\w+\..*"),  # type variables and types of private modules
    ("py:.*", "CastFilter|Dim|IsLeaf|KeyTransform|Always.*|Progress|Cancelled|RankError|CustomContainer"),
    ("py:(obj|meth|attr)", r"([a-z_]+|list\.\w+)"),  # parameters, and words of other libraries
]

# The reference has a page for each class and topic, which the extension `reference` writes before Sphinx reads.
default_role = "py:obj"  # `torch.sin` in a docstring
add_module_names = False
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 90
autodoc_class_signature = "mixed"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_preprocess_types = True
