"""Data files of the package, and the lowest modules: where they lie, digests of sources, how files are written, on what
a run was made.

``configs/`` published model configs · ``recordings/`` results of GPU cells · ``benchmarks/`` documents of ``kda-lab
bench`` and of the machine · ``models.json``, ``gpus.json``, ``positions.json`` facts with sources ·
``fla_layer_names.json`` names of weights.
"""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CONFIGS, RECORDINGS, BENCHMARKS = (FOLDER / name for name in ("configs", "recordings", "benchmarks"))


def read(name):
    """A JSON file of this folder, by its path from here.

    >>> read("configs/kimi-linear-48b-a3b.json")["model_type"]
    'kimi_linear'
    """
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))
