"""Plain Sphinx: the same _config.yml and _toc.yml as Jupyter Book 1, without the jupyter-book package."""

import sys
from pathlib import Path

import yaml

_root = Path(__file__).resolve().parent
_cfg = yaml.safe_load((_root / "_config.yml").read_text())
_local = _cfg["sphinx"].get("local_extensions", {})
sys.path[:0] = [str(_root / folder) for folder in _local.values()]

project = html_title = _cfg["title"]
author, copyright = _cfg["author"], _cfg["copyright"]
extensions = [
    "myst_nb",
    "sphinx_external_toc",
    "sphinx_book_theme",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_togglebutton",
    "sphinxcontrib.bibtex",
    "sphinx_multitoc_numbering",
    *_cfg["sphinx"]["extra_extensions"],
    *_local,
]
exclude_patterns = [*_cfg.get("exclude_patterns", []), "_build", "**/.ipynb_checkpoints"]
external_toc_path = "_toc.yml"
external_toc_exclude_missing = _cfg.get("only_build_toc_files", False)
bibtex_bibfiles = _cfg["bibtex_bibfiles"]
html_theme = "sphinx_book_theme"
html_sourcelink_suffix = ""
myst_enable_extensions = _cfg["parse"]["myst_enable_extensions"]
nb_execution_mode = _cfg["execute"]["execute_notebooks"]
nb_execution_timeout = _cfg["execute"]["timeout"]
nb_execution_allow_errors = _cfg["execute"]["allow_errors"]
nb_output_stderr = _cfg["execute"]["stderr_output"]
globals().update(_cfg["sphinx"]["config"])
