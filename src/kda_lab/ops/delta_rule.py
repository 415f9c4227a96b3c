"""DeltaNet: read what the key holds, write beta times the difference; no decay, so no g and no gate options.

Arguments, results and errors: the package docstring. Implements delta-recurrence (Schlag et al. 2021)."""

import torch

from kda_lab.data.doors import known
from kda_lab.ops import run
from kda_lab.rules import RULES

RULE = RULES["delta_rule"]


@known
def chunk_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A chunk of tokens at a time; on CUDA the kernel, where no gradient is needed and K, V <= 128.

    Implements delta-recurrence by delta-chunk and chunk-by-chunk.

    >>> x, beta = torch.ones(1, 2, 1, 1), torch.ones(1, 2, 1)
    >>> v = torch.tensor([5.0, 7.0]).reshape(1, 2, 1, 1)
    >>> chunk_delta_rule(x, x, v, beta)[0].flatten().tolist()  # the same key twice: the new value replaces the old
    [5.0, 7.0]
    """
    return run.chunk(RULE, locals())


@known
def recurrent_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token by token, as in decoding; arguments and results of ``chunk_delta_rule``.

    >>> x, beta = torch.ones(1, 1, 1, 1), torch.full((1, 1, 1), 2.0)
    >>> recurrent_delta_rule(x, x, x, beta, initial_state=3 * x)[0].item()            # beta = 2 reflects: 2 v - S k
    -1.0
    """
    return run.recurrent(RULE, locals())


@known
def naive_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The oracle: ``rules.delta`` for each token, in ``dtype``, from which o and the state come back as they are.

    >>> x, beta = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1)
    >>> naive_delta_rule(x, x, 3 * x, beta, dtype=torch.float32)[0]
    tensor([[[[3.]]]])
    """
    return run.naive(RULE, locals())
