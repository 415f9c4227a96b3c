"""Linear attention without its denominator: add v k^T, read with q.

No g, no beta, and no norm option: apply a feature map (``features.elu_plus_one``) or a norm to q and k before the call.
Arguments, results and errors: the package docstring. Implements linear-recurrence (Katharopoulos et al. 2020)."""

import torch

from kda_lab.data.doors import known
from kda_lab.ops import run
from kda_lab.rules import RULES

RULE = RULES["linear_attention"]


@known
def chunk_linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A chunk of tokens at a time; on CUDA the kernel, where no gradient is needed and K, V <= 128.

    Implements linear-recurrence by linear-chunk and chunk-by-chunk.

    >>> x, v = torch.ones(1, 2, 1, 1), torch.tensor([5.0, 7.0]).reshape(1, 2, 1, 1)
    >>> chunk_linear_attention(x, x, v)[0].flatten().tolist()              # the same key twice: the values add up
    [5.0, 12.0]
    """
    return run.chunk(RULE, locals())


@known
def recurrent_linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token by token, as in decoding; arguments and results of ``chunk_linear_attention``.

    >>> x = torch.ones(1, 3, 1, 1)
    >>> recurrent_linear_attention(x, x, x, cu_seqlens=torch.tensor([0, 1, 3]))[0].flatten().tolist()
    [1.0, 1.0, 2.0]
    """
    return run.recurrent(RULE, locals())


@known
def naive_linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The oracle: ``rules.linear`` for each token, in ``dtype``, from which o and the state come back as they are.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> naive_linear_attention(x, x, x, scale=0.0)[0].flatten().tolist()
    [0.0, 0.0]
    """
    return run.naive(RULE, locals())
