"""What a run is made on, as plain data without paths."""

import hashlib
import importlib.metadata
import shutil
import subprocess

import torch

from kda_lab.data.provenance import provenance
from kda_lab.data.sources import PACKAGE, digest

PACKAGES = (
    "torch",
    "triton",
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "fla-core",
    "flash-linear-attention",
    "nvidia-cudnn-frontend",
    "kda_lab",
)
CLOCKS = {"sm": "clocks.sm", "sm_max": "clocks.max.sm", "memory": "clocks.mem"}


def environment(rate):
    """Device, driver, versions and the digest of the sources; rate: bytes a second of a copy.

    >>> sorted(environment(1e12)["versions"])[-1]
    'torch'
    """
    chip = torch.cuda.get_device_properties(torch.cuda.current_device()) if torch.cuda.is_available() else None
    return provenance() | {
        "sms": chip and chip.multi_processor_count,
        "l2_bytes": chip and chip.L2_cache_size,
        "copy_rate": rate,
        "versions": versions(),
        "sources": sources(),
        "clocks_mhz": None,
    }


def versions():
    """Of the packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def sources():
    """A digest of what a time of ours depends on, comments and docstrings left out: kernels, launches and this package.

    >>> len(sources())
    16
    """
    found = [p for folder in ("cuda", "bench") for p in sorted((PACKAGE / folder).rglob("*.*"))]
    aside = ("accept", "on_cpu")
    paths = [p for p in found if p.suffix in (".py", ".cu", ".cuh") and not any(x in p.as_posix() for x in aside)]
    lines = [f"{p.relative_to(PACKAGE).as_posix()} {digest(p)}" for p in paths]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def clocks():
    """Clocks in MHz as they are at this moment, only read -> {sm, sm_max, memory}, or None without nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return None
    query = f"--query-gpu={','.join(CLOCKS.values())}"
    command = [tool, query, "--format=csv,noheader,nounits", f"--id={torch.cuda.current_device()}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    words = [x.strip() for x in shown.stdout.split("\n")[0].split(",")]
    readable = len(words) == len(CLOCKS) and all(map(str.isdigit, words))
    return {name: int(x) for name, x in zip(CLOCKS, words)} if readable else None
