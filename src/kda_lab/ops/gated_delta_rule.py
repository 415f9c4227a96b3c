"""Gated DeltaNet: S <- alpha S, then the delta rule; one decay for each head.

g is [B, T, HV], dt_bias [HV]. Arguments, results and errors: the package docstring.
Implements gdn-recurrence (Yang et al. 2024)."""

import torch

from kda_lab.data.doors import known
from kda_lab.ops import run
from kda_lab.rules import RULES

RULE = RULES["gated_delta_rule"]


@known
def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
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
    """A chunk of tokens at a time; on CUDA the kernel, where no gradient is needed and K, V <= 128.

    Implements gdn-recurrence by gdn-chunk and chunk-by-chunk.

    >>> x, g, beta = torch.ones(1, 2, 1, 1), torch.tensor([0.0, 0.5]).log().reshape(1, 2, 1), torch.tensor([[[1.0],
    ...     [0.0]]])
    >>> chunk_gated_delta_rule(x, x, 8 * x, g, beta, initial_state=torch.ones(1, 1, 1, 1))[0].flatten().tolist()
    [8.0, 4.0]
    """
    return run.chunk(RULE, locals())


@known
def recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
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
    """Token by token, as in decoding; arguments and results of ``chunk_gated_delta_rule``.

    >>> x, g, beta = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    >>> recurrent_gated_delta_rule(x, x, 3 * x, g, beta, output_final_state=True)[1].flatten().tolist()
    [3.0]
    """
    return run.recurrent(RULE, locals())


@known
def naive_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
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
    """The oracle: ``rules.gated_delta`` for each token, in ``dtype``, from which o and the state come back as they are.

    >>> x, g, beta = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    >>> naive_gated_delta_rule(x, x, 3 * x, g, beta)[0].dtype
    torch.float64
    """
    return run.naive(RULE, locals())
