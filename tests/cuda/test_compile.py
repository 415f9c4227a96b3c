"""The CUDA sources compile for a Hopper on any machine that has the pip packages, and nothing spills."""

import concurrent.futures
import ctypes
import re
import sys

import pytest
import torch

from kda_lab.cuda import __main__ as cuda_main
from kda_lab.cuda import chunk, hopper
from kda_lab.cuda import compile as cuda_compile
from kda_lab.cuda.accept import trial
from kda_lab.cuda.kernels import KERNELS

pytest.importorskip("cuda.core", reason="the CUDA pip packages are not installed")


def every_variant(module, variants=None):
    """Each variant of a launching module's source, or those given, compiled side by side -> {name: Build}."""
    variants = variants or module.EXAMPLES
    with concurrent.futures.ThreadPoolExecutor() as pool:
        builds = pool.map(lambda v: cuda_compile.build(module.SOURCE, v.defines(), "sm_90a"), variants.values())
        return dict(zip(variants, builds))


@pytest.fixture(scope="module")
def built():
    return every_variant(chunk)


@pytest.mark.parametrize("name", chunk.EXAMPLES)
def test_every_kernel_compiles_without_spills(name, built):
    table = cuda_compile.resources(built[name])
    assert set(table) == set(chunk.THREADS)
    for kernel, r in table.items():
        assert r.spill_stores == r.spill_loads == r.stack == 0, (kernel, r)
        # two blocks on a multiprocessor of 65,536 registers
        assert 2 * chunk.THREADS[kernel] * r.registers <= 65536, (kernel, r)


# and the steps on the way there, and the build for checkers
HOPPER = hopper.EXAMPLES | {
    "a warp a block": hopper.Constants(team=1),
    "four of them": hopper.Constants(team=1, warps=4),
    "one slice in hand": hopper.Constants(team=1, warps=4, abreast=1),
    "every lane arrives": hopper.Constants(every_lane=True),
}


@pytest.fixture(scope="module")
def built_for_hopper():
    return every_variant(hopper, HOPPER)


@pytest.mark.parametrize("name", HOPPER)
def test_every_hopper_kernel_compiles_without_spills_and_without_waits_between_products(name, built_for_hopper):
    kind, report = HOPPER[name], built_for_hopper[name].report
    (r,) = cuda_compile.resources(built_for_hopper[name]).values()
    # the assembler's words for products of the tensor cores that wait for each other: C7510, C7512 and their like
    assert "serialized" not in report, report
    assert r.spill_stores == r.spill_loads == r.stack == 0, r
    assert hopper.THREADS * r.registers <= 65536 and kind.shared_bytes[hopper.NAME] <= hopper.SHARED_LIMIT


def test_two_blocks_of_16_bit_inputs_fit_the_shared_memory_of_a_multiprocessor():
    # 228 KB, and 1 KB of each block is the system's
    assert all(2 * (size + 1024) <= 228 * 1024 for size in chunk.Constants().shared_bytes.values())
    # a block alone may take 227 KB
    assert all(size <= 227 * 1024 for size in chunk.Constants(inputs=torch.float32).shared_bytes.values())


def test_the_table_has_a_row_for_each_kernel_of_each_variant(monkeypatch, capsys):
    modules = [kernel.module for kernel in KERNELS.values()]
    names = {module.SOURCE: module.NAMES for module in modules}

    def build_all(sources):
        reports = (
            "".join(f"Compiling entry function '{name}' : Used 40 registers" for name in names[s]) for s, _ in sources
        )
        return [cuda_compile.Build(b"", report, "sm_90a") for report in reports]

    monkeypatch.setattr(trial, "build_all", build_all)
    cuda_main.main()
    # a column begins behind two spaces, or two columns would touch
    rows = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [
        [kernel, name] for module in modules for name in module.EXAMPLES for kernel in sorted(module.NAMES)
    ]
    shared = {row[1]: row[-1] for row in rows if row[0] == hopper.NAME}
    assert shared == {name: str(kind.shared_bytes[hopper.NAME]) for name, kind in hopper.EXAMPLES.items()}
    assert {path.name for path in cuda_compile.HERE.glob("*.cu")} == set(names)


@pytest.mark.parametrize("module", [chunk, hopper])
def test_a_wrong_size_does_not_compile(module):
    constants = dict(module.Constants().defines()) | {"ARGS_BYTES": ctypes.sizeof(module.Args) - 64}
    with pytest.raises(Exception, match="another argument block"):
        cuda_compile.build(module.SOURCE, constants, "sm_90a")


def test_a_wrong_amount_of_shared_memory_does_not_compile():
    constants = dict(hopper.Constants().defines()) | {"SHARED_BYTES": hopper.Constants().shared_bytes[hopper.NAME] - 16}
    with pytest.raises(Exception, match="another amount of shared memory"):
        cuda_compile.build(hopper.SOURCE, constants, "sm_90a")


def test_missing_packages_are_named_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.setitem(sys.modules, "cuda.core.experimental", None)
    with pytest.raises(RuntimeError, match="needs cuda.core and NVRTC.*pip install"):
        cuda_compile.build(chunk.SOURCE, {"NEVER": 1}, "sm_90a")


def test_what_the_kernel_cannot_do_is_refused():
    def call(K=16, V=16, dtype=torch.float32, **changed):
        q, k, v, g = (torch.zeros(1, 2, 1, d, dtype=dtype) for d in (K, K, V, K))
        return chunk.kda_chunk_forward(**(dict(q=q, k=k, v=v, g=g, beta=torch.zeros(1, 2, 1)) | changed))

    with pytest.raises(ValueError, match="K and V from 1 to 128, got K=129"):
        call(K=129)
    with pytest.raises(ValueError, match="K and V from 1 to 128, got K=16 and V=200"):
        call(V=200)
    with pytest.raises(ValueError, match="must share"):
        call(dtype=torch.float64)
    with pytest.raises(ValueError, match="gate must be one of"):
        call(gate="raw")
