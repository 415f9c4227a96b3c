"""The implementations of this package, each path by name: the oracle, torch, the CUDA kernel, decoding."""

import torch

from kda_lab import ops
from kda_lab.conformance.adapters import versions
from kda_lab.ops import gradient, run
from kda_lab.ops.contract import KDA, Call, check
from kda_lab.ops.prepare import prepare, working_dtype


def _as_asked(result, v):
    """float64 results in the dtypes of the contract."""
    o, S = result
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    return o.to(v.dtype), None if S is None else S.to(wide)


def naive_kda(q, k, v, g, beta, **options):
    """``ops.naive_kda``, the oracle itself, with results in v's dtype. It has no chunks, and any gradient.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> naive_kda(x, x, x, 0 * x, x[..., 0])[0].dtype
    torch.float32
    """
    return _as_asked(ops.naive_kda(q, k, v, g, beta, **options), v)


def naive_gated_delta_rule(q, k, v, g, beta, **options):
    """``ops.naive_gated_delta_rule`` with results in v's dtype.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> naive_gated_delta_rule(x, x, x, 0 * x[..., 0], x[..., 0])[0].dtype
    torch.float32
    """
    return _as_asked(ops.naive_gated_delta_rule(q, k, v, g, beta, **options), v)


def naive_delta_rule(q, k, v, beta, **options):
    """``ops.naive_delta_rule`` with results in v's dtype.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> naive_delta_rule(x, x, x, x[..., 0])[0].dtype
    torch.float32
    """
    return _as_asked(ops.naive_delta_rule(q, k, v, beta, **options), v)


def torch_kda(q, k, v, g, beta, **options):
    """The chunk form in torch, on a GPU too, where ``ops.chunk_kda`` would take the kernel.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> torch_kda(x, x, x, 0 * x, x[..., 0])[0].flatten().tolist()
    [1.0, 1.0]
    """
    call = Call(q, k, v, g, beta, **options)
    check(KDA, call)
    with run.full_precision(call):
        o, S = gradient.run(prepare(KDA, call, working_dtype(q)), call.chunk_size or run.CHUNK)
    return run.finish(call, o, S, v.dtype)


def cuda_kda(q, k, v, g, beta, **options):
    """``ops.chunk_kda``, refusing what the CUDA kernel does not answer, so that nothing else is examined in its place.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> cuda_kda(x, x, x, 0 * x, x[..., 0])
    Traceback (most recent call last):
    NotImplementedError: the CUDA kernel takes no such call; it needs a CUDA device, K and V up to 128, chunks of 64, no gradients
    """
    call = Call(q, k, v, g, beta, **options)
    check(KDA, call)
    # an empty call launches nothing, in the kernel as well
    if v.numel() and not run.kernel_answers(call):
        raise NotImplementedError(
            "the CUDA kernel takes no such call; it needs a CUDA device, K and V up to 128, chunks of 64, no gradients"
        )
    return ops.chunk_kda(q, k, v, g, beta, **options)


cuda_kda.capabilities = "no-backward, no-chunk-size, dtype=float32+float16+bfloat16"


def decode_kda(q, k, v, g, beta, initial_state=None, output_final_state=False, cu_seqlens=None, **options):
    """``ops.recurrent_kda`` as a server calls it: one token of every sequence a call, the states handed over.

    On a GPU it refuses what the decode kernel does not answer, so that nothing else is examined in its place.

    >>> x = torch.ones(1, 3, 1, 1)
    >>> decode_kda(x, x, x, 0 * x, 0.5 * x[..., 0])[0].flatten().tolist()
    [0.5, 0.75, 0.875]
    """
    given = {"initial_state": initial_state, "output_final_state": output_final_state, "cu_seqlens": cu_seqlens}
    check(KDA, Call(q, k, v, g, beta, **given, **options))
    B, T = q.shape[:2]
    S = initial_state
    if S is None:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        S = torch.zeros(B if cu_seqlens is None else len(cu_seqlens) - 1, *v.shape[2:], q.shape[-1], dtype=wide, device=q.device)
    S = S.clone()
    if cu_seqlens is None:
        rows = []
        for t in range(T):
            o, S = one_token(*(x[:, t : t + 1] for x in (q, k, v, g, beta)), S, options)
            rows.append(o)
        return torch.cat([v[:, :0], *rows], 1), S if output_final_state else None
    starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
    o = torch.zeros_like(v, memory_format=torch.contiguous_format)
    for t in range(int((ends - starts).max()) if len(starts) else 0):
        # a batch of the requests that still have a token
        now = (starts + t < ends).nonzero()[:, 0]
        at = starts[now] + t
        o_t, S[now] = one_token(*(x[0, at][:, None] for x in (q, k, v, g, beta)), S[now], options)
        o[0, at] = o_t[:, 0]
    return o, S if output_final_state else None


def one_token(q, k, v, g, beta, S, options):
    """(o, state) after one token of each row, by the decode kernel on a GPU. Raises NotImplementedError where it does not answer."""
    call = Call(q, k, v, g, beta, initial_state=S, output_final_state=True, **options)
    if q.is_cuda and not run.decode_answers(KDA, call):
        raise NotImplementedError(
            "the decode kernel takes no such call; it needs K and V up to 128, K a multiple of 4, no float64, no gradients"
        )
    return ops.recurrent_kda(q, k, v, g, beta, initial_state=S, output_final_state=True, **options)


def libraries():
    """Versions of what compiles and launches the kernels."""
    return versions("cuda-core", "cuda-bindings")


cuda_kda.libraries = decode_kda.libraries = libraries
decode_kda.capabilities = "no-backward, dtype=float32+float16+bfloat16"
