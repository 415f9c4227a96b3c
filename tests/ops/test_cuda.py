"""Who answers a call, and that the answer is the same: the kernel, compiled for the CPU where there is no GPU, and
torch on a GPU.
"""

import sys

import pytest
import torch

from kda_lab import ops, rules
from kda_lab.ops import contract, run
from tests.compilers import needs_compiler
from tests.leaves import RULES, tensors

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def arguments(rule, device, T=100, dtype=torch.float32, B=1):
    return {name: y.to(device) for name, y in tensors(rule, T, B, K=8, V=5, dtype=dtype).items()}


def close(got, wanted, tolerance):
    for a, b in zip(got, wanted):
        assert (a.cpu().double() - b).norm() < tolerance * b.norm()


@needs_compiler
@pytest.mark.parametrize("lower_bound", [-5.0, None])
def test_the_kernel_is_told_all_of_a_call(lower_bound):
    named = arguments("kda", "cpu", T=70) | {
        "scale": 0.3,
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "A_log": torch.tensor([0.1, 0.4]),
        "dt_bias": torch.linspace(-1, 1, 16),
        "lower_bound": lower_bound,
        "cu_seqlens": torch.tensor([0, 0, 30, 66]),
        "initial_state": torch.randn(3, 2, 5, 8, generator=torch.Generator().manual_seed(1)),
    }
    # fp32 products and sums, in another order
    close(run.on_kernel(rules.RULES["kda"], contract.call_of(rules.RULES["kda"], named)), ops.naive_kda(**named), 1e-5)


@needs_compiler
def test_the_kernel_is_told_which_rule():
    for rule in (rules.RULES["gated_delta_rule"], rules.RULES["linear_attention"]):
        named = arguments(rule.name, "cpu") | {"output_final_state": True}
        close(run.on_kernel(rule, contract.call_of(rule, named)), getattr(ops, f"naive_{rule.name}")(**named), 1e-5)


def test_a_missing_package_is_named_once_and_torch_answers(monkeypatch):
    for name in [name for name in sys.modules if name == "cuda" or name.startswith("cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.warns(
        RuntimeWarning, match="the CUDA kernels need cuda-core and NVRTC, and cuda.* is missing; install them with pip"
    ):
        assert not run.kernel_packages.__wrapped__()


def test_a_tensor_on_the_cpu_is_not_for_the_kernel():
    assert not run.kernel_answers(contract.call_of(rules.RULES["kda"], arguments("kda", "cpu")))


def test_a_gate_that_the_kernels_do_not_know_is_not_for_them(monkeypatch):
    monkeypatch.setattr(run, "kernel_packages", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    answers = {name: run.kernel_answers(contract.call_of(rules.RULES[name], arguments(name, "cpu"))) for name in RULES}
    assert answers == dict.fromkeys(RULES, True) | {"gdn2": False}


@on_gpu
@pytest.mark.parametrize("rule", RULES)
def test_torch_on_a_gpu_agrees_in_float64(rule):
    named = arguments(rule, "cuda", dtype=torch.float64, B=2)
    wanted = getattr(ops, f"naive_{rule}")(**{name: x.cpu() for name, x in named.items()}, output_final_state=True)
    for form in ("chunk", "recurrent", "naive"):
        close(getattr(ops, f"{form}_{rule}")(**named, output_final_state=True), wanted, 1e-10)


@on_gpu
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_the_chunk_form_on_a_gpu_agrees(dtype, tolerance, rule):
    named = arguments(rule, "cuda", T=200, dtype=dtype)
    N = {
        "cu_seqlens": torch.tensor([0, 0, 130, 131, 190], device="cuda"),
        "initial_state": torch.randn(4, 2, 5, 8, device="cuda"),
    }
    wanted = getattr(ops, f"naive_{rule}")(
        **{name: x.cpu() for name, x in (named | N).items()}, output_final_state=True
    )
    close(getattr(ops, f"chunk_{rule}")(**(named | N), output_final_state=True), wanted, tolerance)


@on_gpu
def test_gradients_on_a_gpu_agree():
    here = {name: x.requires_grad_() for name, x in arguments("kda", "cpu", dtype=torch.float64).items()}
    there = {name: x.detach().cuda().requires_grad_() for name, x in here.items()}
    wanted = torch.autograd.grad(ops.naive_kda(**here)[0].sum(), list(here.values()))
    close(torch.autograd.grad(ops.chunk_kda(**there)[0].sum(), list(there.values())), wanted, 1e-9)


@on_gpu
def test_trusted_values_never_wait_and_can_be_captured():
    if not run.kernel_packages():
        pytest.skip("no cuda-core")
    named = arguments("kda", "cuda", dtype=torch.bfloat16)
    wanted, _ = ops.chunk_kda(**named)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with ops.trusted_values():
            ops.chunk_kda(**named)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _ = ops.chunk_kda(**named)
    graph.replay()
    assert torch.equal(o, wanted)
