"""Gated DeltaNet-2: S <- S Diag(alpha), read with b . k, write w . v less what was read along k; gates have channels.

b: [B, T, HV, K], the erase gate, 0 to 2   w: [B, T, HV, V], the write gate. With unit keys KDA never grows what it
holds, and this rule can, even with b within 0..1 (gdn2-growth). use_beta_sigmoid_in_kernel applies to both gates. Torch
answers on every device: the CUDA kernels know beta alone. As a layer: ``KimiDeltaAttention(..., rule="gdn2")``, whose
parameters with HV = H are those of flash-linear-attention's GatedDeltaNet2.

Other arguments, results and errors: the package docstring. Implements gdn2-recurrence (Hatamizadeh et al. 2026)."""

import torch

from kda_lab.data.doors import known
from kda_lab.ops import run
from kda_lab.rules import RULES

RULE = RULES["gdn2"]


@known
def chunk_gdn2(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    b: torch.Tensor,
    w: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A chunk of tokens at a time.   Implements gdn2-recurrence by gdn2-chunk and chunk-by-chunk, and gdn2-backward.

    >>> x, g, S = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), torch.tensor([[[[4.0, 8.0]]]])
    >>> v, b, w = torch.full((1, 1, 1, 1), 6.0), torch.tensor([[[[1.0, 0.0]]]]), torch.full((1, 1, 1, 1), 0.5)
    >>> chunk_gdn2(x, x, v, g, b, w, initial_state=S, output_final_state=True)[1].flatten().tolist()
    [3.0, 7.0]
    """
    return run.chunk(RULE, locals())


@known
def recurrent_gdn2(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    b: torch.Tensor,
    w: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token by token, as in decoding; arguments and results of ``chunk_gdn2``.

    >>> x, g, half = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), torch.full((1, 1, 1, 1), 0.5)
    >>> recurrent_gdn2(x, x, 8 * x, g, half, half, initial_state=4 * x)[0].item()  # both gates equal: as kda
    6.0
    """
    return run.recurrent(RULE, locals())


@known
def naive_gdn2(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    b: torch.Tensor,
    w: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The oracle: ``rules.gated_delta_2`` for each token, in ``dtype``, in which o and the state come back.

    >>> x, g = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    >>> naive_gdn2(x, x, 3 * x, g, 0 * x, x, initial_state=4 * x)[0].item()  # nothing is erased: the values add up
    7.0
    """
    return run.naive(RULE, locals())
