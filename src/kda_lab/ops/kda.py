"""Kimi Delta Attention: S <- S Diag(alpha), then the delta rule; one decay for each key channel.

Arguments, results and errors: the package docstring. Implements kda-recurrence (Kimi Linear, eq. 1)."""

import torch

from kda_lab.data.doors import known
from kda_lab.ops import run
from kda_lab.rules import RULES

RULE = RULES["kda"]
# the signatures are written out, here and in the modules of the other rules: help(), editors and type checkers read
# them, and a keyword that a rule does not know is an error. Everything behind them is shared


@known
def chunk_kda(
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

    Implements kda-recurrence by chunk-by-chunk.

    >>> q = k = torch.nn.functional.normalize(torch.ones(1, 4, 1, 2), dim=-1)
    >>> v, g, beta = torch.ones(1, 4, 1, 3), torch.full((1, 4, 1, 2), -0.5), torch.ones(1, 4, 1)
    >>> o, S = chunk_kda(q, k, v, g, beta, scale=1.0, output_final_state=True)
    >>> o.shape, S.shape, o[0, :, 0, 0].round(decimals=4).tolist()  # beta = 1 and unit keys: what was written is read
    (torch.Size([1, 4, 1, 3]), torch.Size([1, 1, 3, 2]), [1.0, 1.0, 1.0, 1.0])
    """
    return run.chunk(RULE, locals())


@known
def recurrent_kda(
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
    """Token by token, as in decoding; arguments and results of ``chunk_kda``.

    >>> x, g, beta, S = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), torch.full((1, 1, 1), 0.5), None
    >>> for step in range(3):
    ...     o, S = recurrent_kda(x, x, 8 * x, g, beta, initial_state=S, output_final_state=True)
    ...     print(o.item())                                                # each step writes half of what is missing
    4.0
    6.0
    7.0
    """
    return run.recurrent(RULE, locals())


@known
def naive_kda(
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
    """The oracle: ``rules.kda`` for each token, in ``dtype``, from which o and the state come back as they are.

    >>> x, beta = torch.ones(1, 2, 1, 1), torch.tensor([[[1.0], [0.0]]])
    >>> g = torch.tensor([0.0, -torch.inf]).reshape(1, 2, 1, 1)
    >>> naive_kda(x, x, x, g, beta)[0].flatten().tolist()                  # -inf clears the channel
    [1.0, 0.0]
    """
    return run.naive(RULE, locals())
