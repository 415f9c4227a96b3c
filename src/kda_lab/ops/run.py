"""Who answers a call: the CUDA kernel, the chunk form, the token loop in working precision, or the token loop as an
oracle.
"""

import functools
import warnings

import torch

from kda_lab.ops import gradient, tokens
from kda_lab.ops.contract import call_of, check
from kda_lab.ops.prepare import prepare, working_dtype
from kda_lab.ops.words import in_kernel_words

CHUNK = 64
KERNEL_DIM = 128  # the largest K and V that the CUDA kernel takes


def chunk(rule, named):
    """The chunk form: on CUDA the kernel where it can answer, else torch.   named: the arguments by name."""
    call = call_of(rule, named)
    check(rule, call)
    if kernel_answers(call):
        return on_kernel(rule, call)
    with full_precision(call):
        o, S = gradient.run(prepare(rule, call, working_dtype(call.q)), call.chunk_size or CHUNK)
    return finish(call, o, S, call.v.dtype)


def recurrent(rule, named):
    """The token loop in float32, or float64 for float64 inputs; on CUDA one token is the decode kernel, where it can
    answer.
    """
    call = call_of(rule, named)
    check(rule, call)
    if decode_answers(rule, call):
        return on_decode_kernel(rule, call)
    with full_precision(call):
        o, S = tokens.run(rule, prepare(rule, call, working_dtype(call.q)))
    return finish(call, o, S, call.v.dtype)


def naive(rule, named):
    """The oracle: the token loop in the argument ``dtype``, results left in it."""
    dtype = named["dtype"]
    call = call_of(rule, {name: x for name, x in named.items() if name != "dtype"})
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}; an oracle needs the digits")
    check(rule, call, state_dtypes=(torch.float32, torch.float64))
    with full_precision(call):
        o, S = tokens.run(rule, prepare(rule, call, dtype))
    return finish(call, o, S, dtype)


def full_precision(call):
    """A context in which an enclosing autocast does not turn the products to bf16."""
    return torch.autocast(call.q.device.type, enabled=False)


def finish(call, o, S, dtype):
    """What the caller gets: o for all T rows, in this dtype, and the state only if it was asked for."""
    left = call.v.shape[1] - o.shape[1]
    if left:
        # rows after the last sequence
        o = torch.cat([o, o.new_zeros(o.shape[0], left, *o.shape[2:])], 1)
    return o.to(dtype), S if call.output_final_state else None


def kernel_answers(call):
    """Whether the CUDA kernel can take this call: forward only, K, V up to 128, chunks of 64, no float64, no
    gate but beta."""
    q, v = call.q, call.v
    if call.gates.keys() - {"beta"}:
        return False
    if not q.is_cuda or q.dtype == torch.float64 or call.chunk_size not in (None, CHUNK):
        return False
    if max(q.shape[-1], v.shape[-1]) > KERNEL_DIM or not v.numel():
        return False
    if call.wants_gradient():
        return False
    # the tensor instructions of the kernel begin with this generation
    return torch.cuda.get_device_capability(q.device) >= (8, 0) and kernel_packages()


def decode_answers(rule, call):
    """Whether the decode kernel can take this call: one token of each row, forward only, a rule that erases."""
    one = call.v.shape[1] == 1 and call.cu_seqlens is None
    return bool(rule.gates) and one and call.q.shape[-1] % 4 == 0 and kernel_answers(call._replace(chunk_size=None))


@functools.cache
def kernel_packages():
    """Whether the packages that compile and launch CUDA source are installed; says once if they are not."""
    try:
        import cuda.bindings.driver
        import cuda.core  # noqa: F401
    except ImportError as error:
        warnings.warn(
            f"the CUDA kernels need cuda-core and NVRTC, and {error.name} is missing; "
            "install them with pip install 'kda_lab[cuda]' (until then torch computes the same, slower)",
            RuntimeWarning,
            stacklevel=6,
        )
        return False
    return True


def on_kernel(rule, call):
    """The answer of the first chunk kernel of ``kda_lab.cuda`` that can give one."""
    from kda_lab.cuda.kernels import answering

    words = in_kernel_words(rule, call)
    return answering(words)(**words._asdict())


def on_decode_kernel(rule, call):
    """One token of each row in the words of ``kda_lab.cuda.decode``: the caller's state is copied into a pool of B
    slots.
    """
    from kda_lab.cuda.decode import decode_core

    q, v, S = call.q, call.v, call.initial_state
    B, HV, V, K = q.shape[0], *v.shape[2:], q.shape[-1]
    state = q.new_zeros(B, HV, V, K, dtype=torch.float32) if S is None else S.contiguous().clone()
    slots = torch.arange(B, dtype=torch.int32, device=q.device)[:, None]
    raw = rule.decay and call.use_gate_in_kernel
    o = decode_core(
        q,
        call.k,
        v,
        call.g if rule.decay else None,
        call.gates["beta"],
        state,
        slots,
        scale=call.scale,
        l2norm=call.use_qk_l2norm_in_kernel,
        beta_sigmoid=call.use_beta_sigmoid_in_kernel,
        A_log=call.A_log if raw else None,
        dt_bias=call.dt_bias if raw else None,
        lower_bound=call.lower_bound,
    )
    return o, state if call.output_final_state else None
