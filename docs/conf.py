"""How Sphinx builds the documentation: pages in Markdown, the reference from docstrings, both in light and dark."""

from __future__ import annotations

from importlib.metadata import version as version_of

project = "tensordict-core"
author = "the authors of tensordict-core and its satellites"
project_copyright = f"2026, {author}"
release = version = version_of("tensordict-core")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "tensordict-core"

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# The reference follows the source: families of operations stand in the order in which they are written.
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_preprocess_types = True
