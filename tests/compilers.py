"""What a test needs that runs a CUDA source through the host's C++ compiler."""

import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler on this machine"
)
