"""What the public functions accept: each argument is checked here, once, and each error is one sentence."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from kda_lab.rules import GATES, gate_shape

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Call(NamedTuple):
    """The arguments of one call; the package docstring says what each of them means.   gates: {name: tensor}, those of
    the rule.

    >>> Call._fields[:5]
    ('q', 'k', 'v', 'g', 'gates')
    """

    q: Any
    k: Any
    v: Any
    g: Any = None
    gates: Mapping[str, Any] = MappingProxyType({})
    scale: float | None = None
    initial_state: Any = None
    output_final_state: bool = False
    use_qk_l2norm_in_kernel: bool = False
    use_gate_in_kernel: bool = False
    use_beta_sigmoid_in_kernel: bool = False
    A_log: Any = None
    dt_bias: Any = None
    lower_bound: float | None = None
    cu_seqlens: Any = None
    chunk_size: int | None = None

    def wants_gradient(self):
        """Whether autograd is to go through this call."""
        tensors = (x for x in (*self, *self.gates.values()) if isinstance(x, torch.Tensor))
        return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def call_of(rule, named):
    """The call that arguments by name make for a rule. A name that the contract does not know is a TypeError.

    >>> from kda_lab.rules import RULES
    >>> call_of(RULES["delta_rule"], dict(q=1, k=2, v=3, beta=4, scale=0.5)).gates
    {'beta': 4}
    """
    gates = {name: named[name] for name in rule.gates}
    return Call(gates=gates, **{name: x for name, x in named.items() if name not in gates})


_trusted = ContextVar("trusted", default=False)


@contextmanager
def trusted_values() -> Iterator[None]:
    """Inside, calls on a GPU skip the checks that read g and cu_seqlens, and with them the wait for the GPU.

    Shapes, dtypes and devices are checked all the same; on a CPU the values are, too. A stream that is being captured
    into a CUDA graph cannot be read from, so calls in a capture skip these checks by themselves.

    >>> with trusted_values():
    ...     pass
    """
    token = _trusted.set(True)
    try:
        yield
    finally:
        _trusted.reset(token)


def values_readable(x):
    """Whether the values of x may be read on the host without breaking a CUDA graph capture or a promise.

    >>> values_readable(torch.zeros(1))
    True
    """
    return not x.is_cuda or not (_trusted.get() or torch.cuda.is_current_stream_capturing())


def check(rule, call, state_dtypes=None):
    """Raise ValueError or TypeError unless the call is inside the contract of this rule.

    state_dtypes: what initial_state may be; by default float32, or also float64 when q, k and v are.

    >>> from kda_lab.rules import RULES
    >>> x = torch.zeros(1, 4, 2, 8)
    >>> check(RULES["delta_rule"], Call(x, x, x[:, :3], gates={"beta": x[..., 0]}))
    Traceback (most recent call last):
    ValueError: v must be [B, T, HV, V] with B, T = (1, 4) as in q, got (1, 3, 2, 8)
    """
    check_tensors(rule, call)
    check_sizes(rule, call)
    check_gate(rule, call)
    check_numbers(call)
    if call.cu_seqlens is not None:
        check_cu_seqlens(call)
    check_state(call, state_dtypes)
    check_values(rule, call)


def check_tensors(rule, call):
    """Types, floating dtypes, one dtype for q, k, v, and one device."""
    wanted = {"q": call.q, "k": call.k, "v": call.v}
    if rule.decay:
        wanted["g"] = call.g
    wanted |= call.gates
    optional = {name: getattr(call, name) for name in ("initial_state", "A_log", "dt_bias")}
    wanted |= {name: x for name, x in optional.items() if x is not None}
    for name, x in wanted.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
        if x.dtype not in FLOATS:
            raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, got {x.dtype}; convert it first")
        if x.device != call.q.device:
            raise ValueError(
                f"all tensors must be on q's device {call.q.device}, got {name} on {x.device}; move it there"
            )
    if not call.q.dtype == call.k.dtype == call.v.dtype:
        dtypes = f"{call.q.dtype}, {call.k.dtype}, {call.v.dtype}"
        raise TypeError(f"q, k and v must have one dtype, got {dtypes}; convert them to the same")


def check_sizes(rule, call):
    """q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K] or [B, T, HV]; beta [B, T, HV], or gates with channels."""
    q, k, v = call.q, call.k, call.v
    if q.ndim != 4:
        raise ValueError(f"q must be [B, T, H, K], got {tuple(q.shape)}; add the missing axis")
    if k.shape != q.shape:
        raise ValueError(f"k must have q's shape [B, T, H, K] = {tuple(q.shape)}, got {tuple(k.shape)}")
    if v.ndim != 4 or v.shape[:2] != q.shape[:2]:
        raise ValueError(f"v must be [B, T, HV, V] with B, T = {tuple(q.shape[:2])} as in q, got {tuple(v.shape)}")
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    if min(H, HV, K, V) < 1:
        raise ValueError(f"H, HV, K and V must be at least 1, got H = {H}, HV = {HV}, K = {K}, V = {V}")
    if HV % H:
        raise ValueError(
            f"v must have a multiple of the heads of q and k, got HV = {HV} and H = {H}; value heads share keys in "
            "equal groups"
        )
    for name, x in call.gates.items():
        shape = (B, T, HV, *gate_shape(name, K, V))
        if x.shape != shape:
            axes = ", ".join(["B", "T", "HV", *GATES[name]])
            fix = f"one gate for each {'channel' if GATES[name] else 'value head'}"
            if len(shape) == x.ndim + 1:
                fix = f"expand a gate per head with {name}[..., None].expand(-1, -1, -1, {GATES[name]})"
            raise ValueError(f"{name} must be [{axes}] = {shape}, got {tuple(x.shape)}; {fix}")
    if rule.decay == "channel" and call.g.shape != (B, T, HV, K):
        per_head = "expand a gate per head with g[..., None].expand(-1, -1, -1, K)"
        fix = per_head if call.g.ndim == 3 else "one decay for each key channel"
        raise ValueError(f"g must be [B, T, HV, K] = {(B, T, HV, K)}, got {tuple(call.g.shape)}; {fix}")
    if rule.decay == "head" and call.g.shape != (B, T, HV):
        fix = "use kda for a gate per channel" if call.g.ndim == 4 else "one decay for each value head"
        raise ValueError(f"g must be [B, T, HV] = {(B, T, HV)}, got {tuple(call.g.shape)}; {fix}")


def check_gate(rule, call):
    """A_log, dt_bias and lower_bound come with use_gate_in_kernel, and only with it."""
    if not call.use_gate_in_kernel:
        for name in ("A_log", "dt_bias", "lower_bound"):
            if getattr(call, name) is not None:
                raise ValueError(
                    f"{name} was given, but g is taken as a log decay; set use_gate_in_kernel=True for a raw gate, "
                    f"or drop {name}"
                )
        return
    K, HV = call.q.shape[-1], call.v.shape[2]
    if call.A_log is None:
        raise ValueError("use_gate_in_kernel=True needs A_log [HV], got None; pass it, or pass g as a log decay")
    if call.A_log.shape != (HV,):
        raise ValueError(f"A_log must be [HV] = {(HV,)}, got {tuple(call.A_log.shape)}; one rate for each value head")
    shapes = [(HV, K), (HV * K,)] if rule.decay == "channel" else [(HV,)]
    if call.dt_bias is not None and tuple(call.dt_bias.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"dt_bias must be {wanted}, got {tuple(call.dt_bias.shape)}; value heads first")
    bound = call.lower_bound
    if bound is not None and not -math.inf < bound < 0:
        raise ValueError(
            f"lower_bound must be negative and finite, got {bound}; it is the strongest log decay of a token, for "
            "example -5.0"
        )


def check_state(call, dtypes):
    """initial_state: [N, HV, V, K], float32 (or float64 where the arithmetic is)."""
    S = call.initial_state
    if S is None:
        return
    if dtypes is None:
        dtypes = (torch.float32, torch.float64) if call.q.dtype == torch.float64 else (torch.float32,)
    if S.dtype not in dtypes:
        wanted = " or ".join(map(str, dtypes))
        raise TypeError(
            f"initial_state must be {wanted}, got {S.dtype}; convert it, and keep states in that type between calls"
        )
    N = call.q.shape[0] if call.cu_seqlens is None else call.cu_seqlens.numel() - 1
    HV, V = call.v.shape[2:]
    shape = (N, HV, V, call.q.shape[-1])
    if S.shape != shape:
        fix = (
            "transpose its last two axes"
            if S.ndim == 4 and S.mT.shape == shape
            else "one state for each sequence and value head"
        )
        raise ValueError(f"initial_state must be [N, HV, V, K] = {shape}, got {tuple(S.shape)}; {fix}")


def check_numbers(call):
    """scale and chunk_size."""
    if call.scale is not None and not (isinstance(call.scale, Real) and math.isfinite(call.scale)):
        raise TypeError(f"scale must be a finite number or None, got {call.scale!r}; None means K**-0.5")
    C = call.chunk_size
    if C is not None and (not isinstance(C, int) or isinstance(C, bool) or C < 1):
        raise ValueError(f"chunk_size must be a positive integer or None, got {C!r}; None means 64")


def check_cu_seqlens(call):
    """int64 [N + 1] on q's device, with one batch row; its values are checked in ``check_values``."""
    cu = call.cu_seqlens
    if not isinstance(cu, torch.Tensor) or cu.dtype != torch.int64:
        got = cu.dtype if isinstance(cu, torch.Tensor) else type(cu).__name__
        raise TypeError(f"cu_seqlens must be an int64 tensor, got {got}; convert it with .long()")
    if cu.ndim != 1 or len(cu) < 1:
        raise ValueError(f"cu_seqlens must be [N + 1], got {tuple(cu.shape)}; N sequences have N + 1 boundaries")
    if cu.device != call.q.device:
        raise ValueError(f"cu_seqlens must be on q's device {call.q.device}, got {cu.device}; move it there")
    if call.q.shape[0] != 1:
        raise ValueError(
            f"cu_seqlens needs B = 1, got B = {call.q.shape[0]}; put the sequences one after the other along T"
        )


def check_values(rule, call):
    """What only the values tell: the order of cu_seqlens and the sign of g. Reads from the GPU; see
    ``trusted_values``.
    """
    if not values_readable(call.q):
        return
    end = call.q.shape[1]
    if call.cu_seqlens is not None:
        end = check_boundaries(call.cu_seqlens.tolist(), end)
    # rows at and after the last boundary belong to nobody and may hold anything
    if rule.decay and call.g[:, :end].numel():
        check_log_decay(*torch.stack(torch.aminmax(call.g.detach()[:, :end])).tolist(), raw=call.use_gate_in_kernel)


def check_boundaries(cu, T):
    """Return the last boundary of cu, a list that must rise from 0 and stay within T.

    >>> check_boundaries([0, 3, 2], T=5)
    Traceback (most recent call last):
    ValueError: cu_seqlens must not decrease, got 3 before 2; sort the boundaries
    """
    if cu[0] != 0:
        raise ValueError(f"cu_seqlens must start at 0, got {cu[0]}; the first sequence begins at the first row")
    for a, b in zip(cu, cu[1:]):
        if b < a:
            raise ValueError(f"cu_seqlens must not decrease, got {a} before {b}; sort the boundaries")
    if cu[-1] > T:
        raise ValueError(
            f"cu_seqlens must end within the T = {T} tokens, got {cu[-1]}; pass the tokens of every sequence"
        )
    return cu[-1]


def check_log_decay(low, high, raw=False):
    """Refuse gates that are not log decays: NaN, above zero, or the decay itself. low, high: smallest and largest
    value.

    >>> check_log_decay(0.5, 0.99)
    Traceback (most recent call last):
    ValueError: g must be <= 0 (log decay), got values from 0.5 to 0.99, which look like the decay itself; pass
    log(alpha)
    """
    if math.isnan(high):
        raise ValueError("g must be a number everywhere, got NaN; find the layer that made it")
    if raw or high <= 0:
        return
    if low >= 0 and high <= 1:
        raise ValueError(
            f"g must be <= 0 (log decay), got values from {low:.3g} to {high:.3g}, which look like the decay itself; "
            "pass log(alpha)"
        )
    raise ValueError(
        f"g must be <= 0 (log decay), got max {high:.3g}; pass log(alpha), or a raw gate with use_gate_in_kernel=True"
    )
