"""The implementations of this package, each path by name: the oracle, torch, the CUDA kernels, decoding."""

import functools

import torch

from kda_lab import ops
from kda_lab.conformance.adapters import versions
from kda_lab.conformance.case import ALL
from kda_lab.ops import gradient, run
from kda_lab.ops.contract import Call, check
from kda_lab.ops.prepare import prepare, working_dtype
from kda_lab.ops.words import in_kernel_words
from kda_lab.rules import RULES

KDA = RULES["kda"]


def oracle(rule):
    """``ops.naive_X`` of a rule, the oracle itself, with results in the dtypes of the contract: here by that name, too.

    It has no chunks, and any gradient.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> oracle("kda")(x, x, x, 0 * x, x[..., 0])[0].dtype
    torch.float32
    """
    function = getattr(ops, f"naive_{rule}")

    @functools.wraps(function)
    def as_asked(q, k, v, *others, **options):
        o, S = function(q, k, v, *others, **options)
        wide = torch.float64 if v.dtype == torch.float64 else torch.float32
        return o.to(v.dtype), None if S is None else S.to(wide)

    return as_asked


# naive_kda and its like, for ``--impl``
globals().update({f"naive_{rule}": oracle(rule) for rule in ALL})


def torch_kda(q, k, v, g, beta, **options):
    """The chunk form in torch, on a GPU too, where ``ops.chunk_kda`` would take the kernel.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> torch_kda(x, x, x, 0 * x, x[..., 0])[0].flatten().tolist()
    [1.0, 1.0]
    """
    call = Call(q, k, v, g, {"beta": beta}, **options)
    check(KDA, call)
    with run.full_precision(call):
        o, S = gradient.run(prepare(KDA, call, working_dtype(q)), call.chunk_size or run.CHUNK)
    return run.finish(call, o, S, v.dtype)


def cuda_kda(q, k, v, g, beta, **options):
    """The readable CUDA kernel itself, behind the checks of ``ops``; refuses what it does not answer.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> cuda_kda(x, x, x, 0 * x, x[..., 0])
    Traceback (most recent call last):
    NotImplementedError: the CUDA kernel takes no such call; it needs a CUDA device, K and V up to 128, chunks of 64, no
    gradients
    """
    # here, as below, so that a record depends on the kernel that it ran and on no other
    from kda_lab.cuda import chunk

    call = Call(q, k, v, g, {"beta": beta}, **options)
    check(KDA, call)
    # what the choice of ops leaves to torch: an empty call, which the kernel answers too
    if v.numel() and not run.kernel_answers(call):
        raise NotImplementedError(
            "the CUDA kernel takes no such call; it needs a CUDA device, K and V up to 128, chunks of 64, no gradients"
        )
    return chunk.kda_chunk_forward(**in_kernel_words(KDA, call)._asdict())


def hopper_kda(q, k, v, g, beta, segments=None, **options):
    """The Hopper kernel itself, behind the checks of ``ops``; refuses what it does not answer. On a CPU its source,
    slowly.

    segments: of ``hopper.kda_hopper_forward``.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> hopper_kda(x, x, x, 0 * x, x[..., 0])
    Traceback (most recent call last):
    NotImplementedError: the Hopper kernel takes K and V of 64 or 128, got K=1 and V=1
    """
    from kda_lab.cuda import hopper

    call = Call(q, k, v, g, {"beta": beta}, **options)
    check(KDA, call)
    words = in_kernel_words(KDA, call)
    if reason := hopper.unsupported(words):
        raise NotImplementedError(reason)
    if call.chunk_size or call.wants_gradient():
        raise NotImplementedError("the Hopper kernel takes 16 tokens a step and no other number, and has no gradients")
    return hopper.kda_hopper_forward(**words._asdict(), segments=segments)


def hopper_in_segments_kda(q, k, v, g, beta, **options):
    """``hopper_kda`` with every single sequence cut in three, as the kernel cuts long ones with few heads for itself.

    >>> x = torch.ones(1, 2, 1, 1)
    >>> hopper_in_segments_kda(x, x, x, 0 * x, x[..., 0])
    Traceback (most recent call last):
    NotImplementedError: the Hopper kernel takes K and V of 64 or 128, got K=1 and V=1
    """
    cu = options.get("cu_seqlens")
    single = (q.shape[0] if cu is None else len(cu) - 1) == 1 and v.shape[-1] >= q.shape[-1]
    return hopper_kda(q, k, v, g, beta, segments=3 if single else 1, **options)


def decode_kda(q, k, v, g, beta, initial_state=None, output_final_state=False, cu_seqlens=None, **options):
    """``ops.recurrent_kda`` as a server calls it: one token of every sequence a call, the states handed over.

    On a GPU it refuses what the decode kernel does not answer, so that nothing else is examined in its place.

    >>> x = torch.ones(1, 3, 1, 1)
    >>> decode_kda(x, x, x, 0 * x, 0.5 * x[..., 0])[0].flatten().tolist()
    [0.5, 0.75, 0.875]
    """
    given = {"initial_state": initial_state, "output_final_state": output_final_state, "cu_seqlens": cu_seqlens}
    check(KDA, Call(q, k, v, g, {"beta": beta}, **given, **options))
    B, T = q.shape[:2]
    S = initial_state
    if S is None:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        S = torch.zeros(
            B if cu_seqlens is None else len(cu_seqlens) - 1, *v.shape[2:], q.shape[-1], dtype=wide, device=q.device
        )
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
    """(o, state) after one token of each row, by the decode kernel on a GPU. Raises NotImplementedError where it does
    not answer.
    """
    call = Call(q, k, v, g, {"beta": beta}, initial_state=S, output_final_state=True, **options)
    if q.is_cuda and not run.decode_answers(KDA, call):
        raise NotImplementedError(
            "the decode kernel takes no such call; it needs K and V up to 128, K a multiple of 4, no float64, no "
            "gradients"
        )
    return ops.recurrent_kda(q, k, v, g, beta, initial_state=S, output_final_state=True, **options)


def libraries():
    """Versions of what compiles and launches the kernels."""
    return versions("cuda-core", "cuda-bindings")


for function in (cuda_kda, hopper_kda, hopper_in_segments_kda, decode_kda):
    function.libraries = libraries
cuda_kda.capabilities = "no-backward, no-chunk-size, dtype=float32+float16+bfloat16"
decode_kda.capabilities = "no-backward, dtype=float32+float16+bfloat16"
# the copy engine reads dense channels at multiples of 16 bytes: the slices of a fused projection it reads, but not any
# strides
hopper_kda.capabilities = (
    "sizes=128x128+64x64+64x128+128x64, dtype=bfloat16, chunk=16, no-backward, no-chunk-size, no-strides"
)
hopper_in_segments_kda.capabilities = hopper_kda.capabilities
