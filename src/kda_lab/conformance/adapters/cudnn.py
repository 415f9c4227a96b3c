"""The fused KDA kernel for Hopper in the cuDNN frontend (checked against the signatures and limits of 1.32.0).

Run with ``--impl kda_lab.conformance.adapters.cudnn:chunk_kda --device cuda``. Needs the package ``nvidia-cudnn-frontend``.
"""

import torch


def chunk_kda(
    q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, A_log=None, dt_bias=None, lower_bound=None, cu_seqlens=None,
):  # fmt: skip
    """``cudnn.linear_attention.kimi_delta_attention``, which takes packed tokens [tokens, H, D] and always cu_seqlens.

    Its bounded gate needs both A_log and dt_bias; a missing bias is a bias of zeros.
    """
    from cudnn.linear_attention import kimi_delta_attention as function

    B, T = q.shape[:2]
    if cu_seqlens is None:
        cu_seqlens = torch.arange(B + 1, device=q.device) * T
    gate = {}
    if use_gate_in_kernel:
        bias = torch.zeros(g.shape[2:], device=g.device) if dt_bias is None else dt_bias.reshape(g.shape[2:])
        gate = {"safe_gate": True, "gate_lower_bound": lower_bound, "a_log": A_log, "dt_bias": bias}
    o, S = function(
        *(x.flatten(0, 1) for x in (q, k, v, g, beta)), cu_seqlens, scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel, **gate,
    )  # fmt: skip
    return o.unflatten(0, (B, T)), S if output_final_state else None


# the limits that its engine states: one head size, bf16, chunks of 16, no unbounded gate, write gates up to 1
chunk_kda.capabilities = (
    "sizes=128x128, dtype=bfloat16, chunk=16, no-softplus-gate, no-beta-to-two, no-value-checks, no-shape-checks"
)
