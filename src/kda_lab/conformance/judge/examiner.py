"""What a case works with: it makes inputs, calls the implementation, and compares with the oracle by budgets."""

import math
import warnings

import torch

from kda_lab.conformance.capabilities import Unsupported
from kda_lab.conformance.case import REFUSALS, Crashed, Refused, Wrong
from kda_lab.conformance.judge import generate, oracle, tolerance
from kda_lab.rules import RULES

FORBIDDEN = ("CUDA error", "Triton Error [CUDA]", "out of memory", "illegal memory access")
REASON = 1200  # characters of an error's message that are kept


class Examiner:
    """One implementation under one case.

    implementation: an ``adapters.Implementation``   dtype: of q, k, v   seed: determines all inputs
    rung: the name in ``tolerance.RUNGS`` by whose budget errors are judged; None while it is being measured
    """

    def __init__(self, implementation, dtype, seed, name, rung=None):
        self.implementation = implementation
        self.rule = implementation.rule
        self.can = implementation.capabilities
        self.device = implementation.device
        self.dtype = dtype
        self.generator = generate.generator(seed, name)
        self.rung = rung
        self.nearest = None  # the comparison nearest to its budget: (error, budget, what)
        self.accuracy = None
        self.slack = 0.0  # added to every budget of the case
        self.strictness = 1.0  # by which every budget is multiplied

    @property
    def chunk(self):
        """Tokens of a chunk, as declared."""
        return self.can.chunk

    def make(self, T, K=None, V=None, state=True, **options):
        """Arguments of one call on the implementation's device, of a head size that it supports."""
        K, V = self.sizes(K, V)
        named = generate.arguments(self.rule, T, self.generator, K=K, V=V, dtype=self.dtype, **options)
        if not state or not self.can.can("initial-state"):
            del named["initial_state"]
        return self.place(named)

    def sizes(self, K=None, V=None):
        """The head size that is asked for, or the first one that the implementation takes. Raises Unsupported."""
        allowed = self.can.sizes
        if K is None and V is None:
            return (16, 24) if allowed is None else allowed[0]
        if allowed is not None and (K, V) not in allowed:
            raise Unsupported(f"head size {K}x{V}")
        return K, V

    def place(self, named):
        """The same arguments on the implementation's device."""
        return {name: x.to(self.device) if isinstance(x, torch.Tensor) else x for name, x in named.items()}

    def raw(self, named, lower_bound=-5.0, size=1.0):
        """The same arguments with a raw gate, A_log and dt_bias."""
        return self.place(generate.raw_gates(self.rule, named, self.generator, lower_bound, size))

    def gates(self, named):
        """The gates of the rule in a call, by name: beta, or what stands in its place."""
        return {name: named[name] for name in RULES[self.rule].gates}

    def gated(self, named, change):
        """The same call with each gate changed."""
        return named | {name: change(x) for name, x in self.gates(named).items()}

    def normal(self, *shape):
        """Standard normal float64 numbers from the case's generator, on the CPU."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def call(self, named, final=True, check=True, quiet=True):
        """(o, final state) of the implementation; the state is None where it has none. quiet: its warnings are dropped.

        Raises Unsupported, Refused, Crashed, or Wrong if the results do not have the promised shapes and types.
        """
        self.can.need(*needs_of(named))
        self.allow_gates(named)
        final = final and self.can.can("final-state")
        arguments = named | ({"output_final_state": True} if final else {})
        try:
            with warnings.catch_warnings():
                if quiet:
                    warnings.simplefilter("ignore")
                result = self.implementation.call(arguments)
        except Exception as error:
            raise verdict_of(error) from error
        return checked(result, named, final) if check else result

    def allow_gates(self, named):
        """Raise Unsupported for gates stronger than the implementation declares."""
        lowest = self.can.lowest_gate
        if lowest > -math.inf and "g" in named and not named.get("use_gate_in_kernel") and named["g"].numel():
            weakest = float(named["g"].detach().nan_to_num(nan=0.0, neginf=-1e30).min())
            if weakest < lowest:
                raise Unsupported(f"log decays of {weakest:.3g}")

    def wanted(self, named):
        """(o, final state) of the oracle."""
        return oracle.wanted(self.rule, {name: x for name, x in named.items() if name != "chunk_size"})

    def right(self, named, got=None, what="", share=tolerance.SHARE, exact_state=False, like=None):
        """Call the implementation (unless its results are given) and compare both results with the oracle; returns
        them.

        like: a call that this one is a part of, whose budget then counts for both.
        exact_state: the state needs no product of rounded operands, so it must be right to float32 whatever the
        products are.
        """
        got = self.call(named) if got is None else got
        wanted, like = self.wanted(named), like or named
        if got[0] is not None:
            self.compare(got[0], wanted[0], like, 0, f"{what}o", share)
        if got[1] is not None:
            self.compare(got[1], wanted[1], like, 1, f"{what}final state", share, exact_state)
        return got

    def compare(self, got, wanted, named, which, what, share=tolerance.SHARE, exact=False):
        """Raise Wrong unless a result (which: 0 for o, 1 for the state) is within the budget of the call ``named``."""
        measure = (tolerance.row_errors, tolerance.channel_errors)[which]
        # where the oracle's answer is: states of 65,536 sequences take long to copy
        error = measure(got.detach().to(wanted.device), wanted.detach(), share)
        limit = self.budget(named, which, share, exact)
        self.judge(error, limit, what)

    def judge(self, error, limit, what):
        """Note an error beside its budget; raise Wrong if it is larger."""
        limit = (limit + self.slack) * self.strictness
        if self.nearest is None or error.size / limit > self.nearest[0] / self.nearest[1]:
            self.nearest = (error.size, limit, what)
        if not error.size <= limit:
            raise Wrong(f"{what} is off by {error.size:.2g} where {limit:.2g} is allowed ({error.where})")

    def budget(self, named, which, share=tolerance.SHARE, exact=False, rung=None):
        """The largest allowed error of o (which = 0) or of the state (1) of this call, in the measure of
        ``tolerance``.
        """
        bits = tolerance.RUNGS[rung or self.rung or "bfloat16"]
        bits = max(bits, 24) if exact else bits
        plain = {name: x for name, x in named.items() if name != "chunk_size"}
        cost = oracle.costs(self.rule, plain, bits, share)[which]
        output = tolerance.BITS[self.dtype] if which == 0 else 53
        return tolerance.FACTOR * cost + tolerance.floor(bits, named["q"].shape[1], output)

    def same(self, got, wanted, what):
        """Raise Wrong unless two tensors are equal bit by bit."""
        if got is None and wanted is None:
            return
        if not torch.equal(got, wanted):
            where = (got != wanted).nonzero()
            raise Wrong(
                f"{what}: {len(where)} of {got.numel()} entries differ, the first at "
                f"{where[0].tolist() if len(where) else '?'}"
            )

    def refused(self, named, what):
        """Raise Wrong unless the implementation refuses this call with an error of any kind but a broken device."""
        try:
            self.call(named, check=False)
        except Refused:
            return
        except Crashed as error:
            if any(words in str(error) for words in FORBIDDEN):
                raise
            return
        raise Wrong(f"{what} was accepted; the contract asks for an error that says what is wrong")


def needs_of(named):
    """The features that a call asks for."""
    q, v, g = named["q"], named["v"], named.get("g")
    if named.get("initial_state") is not None:
        yield "initial-state"
    if named.get("cu_seqlens") is not None:
        yield "varlen"
    if v.shape[2] != q.shape[2]:
        yield "grouped-heads"
    if named.get("scale") is not None:
        yield "scale"
    if named.get("use_gate_in_kernel"):
        yield "softplus-gate" if named.get("lower_bound") is None else "bounded-gate"
    elif g is not None:
        yield "given-gate"
    yield "l2norm" if named.get("use_qk_l2norm_in_kernel") else "plain-keys"
    if named.get("use_beta_sigmoid_in_kernel"):
        yield "beta-logits"
    if named.get("chunk_size") is not None:
        yield "chunk-size"
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in named.values()):
        yield "backward"


def verdict_of(error):
    """Refused for an error that was raised on purpose, Crashed for any other, Unsupported as it is.

    >>> type(verdict_of(ValueError("K must be 128"))).__name__, type(verdict_of(IndexError("list index"))).__name__
    ('Refused', 'Crashed')
    """
    if isinstance(error, Unsupported):
        return error
    # in one line: an engine that declines says why in the lines behind the first
    text = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"[:REASON]
    on_purpose = isinstance(error, REFUSALS) or type(error) is RuntimeError or "NotSupported" in type(error).__name__
    kind = Refused if on_purpose and not any(words in str(error) for words in FORBIDDEN) else Crashed
    return kind(text)


def checked(result, named, final):
    """The results if they are a pair of the promised shapes and types; raises Wrong otherwise."""
    if not (isinstance(result, tuple) and len(result) == 2):
        raise Wrong(
            f"the result must be a pair (o, final state), got {type(result).__name__}; return o, S (or o, None)"
        )
    o, S = result
    if not isinstance(o, torch.Tensor) or o.shape != named["v"].shape:
        raise Wrong(f"o must have v's shape {tuple(named['v'].shape)}, got {shape_of(o)}")
    if not final:
        return o, None
    N = named["q"].shape[0] if named.get("cu_seqlens") is None else len(named["cu_seqlens"]) - 1
    HV, V = named["v"].shape[2:]
    shape = (N, HV, V, named["q"].shape[-1])
    if not isinstance(S, torch.Tensor) or S.shape != shape:
        raise Wrong(
            f"the final state must be [N, HV, V, K] = {shape}, got {shape_of(S)}; say --state-layout kv if it is [N, "
            "HV, K, V]"
        )
    return o, S


def shape_of(x):
    """The shape of a tensor, or what else it is.

    >>> shape_of(None), shape_of(torch.zeros(2))
    ('None', (2,))
    """
    return tuple(x.shape) if isinstance(x, torch.Tensor) else str(x) if x is None else type(x).__name__
