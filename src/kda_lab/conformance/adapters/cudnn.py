"""The fused KDA kernels for Hopper in the cuDNN frontend (checked against the sources of 1.32.0).

Run with ``--impl kda_lab.conformance.adapters.cudnn:chunk_kda --device cuda``. Needs the package
``nvidia-cudnn-frontend``.
"""

import functools
import importlib

import torch

from kda_lab.conformance.adapters import versions

_ran = []  # engines, in the order of their launches


# the contract's arguments without those that the kernel lacks: the suite reads abilities from the signature
def chunk_kda(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    A_log=None,
    dt_bias=None,
    lower_bound=None,
    cu_seqlens=None,
):
    """``cudnn.linear_attention.kimi_delta_attention``, which takes packed tokens [tokens, H, D] and always cu_seqlens.

    Its bounded gate needs both A_log and dt_bias on Hopper; a missing bias is a bias of zeros. Its backward kernel
    there takes g and beta in float32 alone: where a gradient is asked for, both are converted first, and autograd
    converts their gradients back.
    """
    from cudnn.linear_attention import kimi_delta_attention as function

    listen()
    if torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in (q, k, v, g, beta, initial_state)
    ):
        g, beta = g.float(), beta.float()
    B, T = q.shape[:2]
    if cu_seqlens is None:
        cu_seqlens = torch.arange(B + 1, device=q.device) * T
    gate = {}
    if use_gate_in_kernel:
        bias = (
            torch.zeros(g.shape[2:], device=g.device, dtype=torch.float32)
            if dt_bias is None
            else dt_bias.reshape(g.shape[2:])
        )
        gate = {"safe_gate": True, "gate_lower_bound": lower_bound, "a_log": A_log, "dt_bias": bias}
    o, S = function(
        *(x.flatten(0, 1) for x in (q, k, v, g, beta)),
        cu_seqlens,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        **gate,
    )
    return o.unflatten(0, (B, T)), S if output_final_state else None


@functools.cache
def listen():
    """Note the engine of every graph that the package executes from now on; of a version that does it elsewhere, none
    is known.
    """
    try:
        module = importlib.import_module("cudnn.linear_attention.ops.kda")
        execute = module.execute_graph
    except (ImportError, AttributeError):
        return

    def noted(graph, *arguments, **options):
        result = execute(graph, *arguments, **options)
        _ran.append(getattr(getattr(graph, "selected_engine", None), "name", "cuDNN backend"))
        return result

    module.execute_graph = noted


def engines():
    """Names of the engines that ran since this was last asked, one for each launch.

    >>> engines()
    []
    """
    ran = _ran.copy()
    _ran.clear()
    return ran


def libraries():
    """Versions of the package, of the cuDNN library behind it, and of what its engines need."""
    found = versions("nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "cuda-tile", "cuda-bindings")
    try:
        package = importlib.import_module("cudnn")
        found["cudnn (module)"] = package.__version__
        found["cuDNN"] = package.backend_version_string()
        importlib.import_module("cudnn.linear_attention.ops.kda")
    except (ImportError, AttributeError, TypeError, RuntimeError, OSError) as error:
        found["cuDNN"] = found.get("cuDNN", f"not known ({type(error).__name__})")
    return found


# what its engines for Hopper state (hopper/cuda_engine.py): one head size, bf16, chunks of 16, no unbounded gate, write
# gates up to 1; a backward for given gates, given write gates and keys as they are. Grouped heads have no backward
# there and are refused
chunk_kda.capabilities = (
    "sizes=128x128, dtype=bfloat16, chunk=16, no-softplus-gate, no-beta-to-two, no-fused-backward, "
    "no-value-checks, no-shape-checks"
)
chunk_kda.engines, chunk_kda.libraries = engines, libraries
