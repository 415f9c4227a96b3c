"""Gates: decays of every strength, given or computed inside, and write gates from 0 to 2."""

import math

import torch

from kda_lab.conformance import clauses
from kda_lab.conformance.case import CHANNELS, GATED, PAIRS, Wrong, case


def constant(bench, T, g, **options):
    """Arguments whose log decays are all g."""
    named = bench.make(T, **options)
    named["g"].fill_(g)
    return named


@case(
    "gates",
    input="g=-3 and g=-5 everywhere, C=64",
    clause=clauses.GATE,
    report="NVIDIA/cudnn-frontend#1017",
    ops=GATED,
    needs="given-gate",
)
def uniform_strong_gates(bench):
    """One reference point for a whole chunk: exponents up to 160 overflow at g=-5, and are silently clamped at g=-3."""
    for g in (-3.0, -5.0):
        bench.right(constant(bench, bench.chunk + 6, g), what=f"g={g}: ")


@case(
    "gates",
    input="g=-6 and g=-20 everywhere, T=16",
    clause=clauses.GATE,
    report=("meta-pytorch/attention-gym#394", "inclusionAI/cuLA#89"),
    ops=GATED,
    needs="given-gate",
)
def gates_below_the_usual_bound(bench):
    """Exponents that are safe down to g=-5 and overflow below: an unbounded gate reaches any value."""
    for g in (-6.0, -20.0):
        bench.right(constant(bench, 16, g), what=f"g={g}: ")


@case("gates", input="g=-5.4, -5.6 and -5.8 everywhere, S0 of 2^20", clause=clauses.GATE, ops=GATED, needs="given-gate")
def gates_just_beyond_the_usual_bound(bench):
    """A gate held at a bound of -5.x, or a reciprocal of the decays of 16 tokens, which overflows from -5.55 a token
    on.

    Beside writes of size 1 the difference of e^-5.4 and e^-5 is half a bf16 rounding; of a large state it is half of
    what is left.
    """
    for g in (-5.4, -5.6, -5.8):
        named = constant(bench, bench.chunk + 6, g)
        if "initial_state" in named:
            named["initial_state"] = named["initial_state"] * 2.0**20
        o, S = bench.call(named)
        # float16 does not hold outputs of the state's size
        bench.right(named, (None if bench.dtype == torch.float16 else o, S), f"g={g}: ", share=0.0)


@case("gates", input="g=-60, -104, -1e4 and -1e30 among slow gates", clause=clauses.GATE, ops=GATED, needs="given-gate")
def extreme_gates(bench):
    """Sums of gates that reach infinity: inf - inf is nan, and 0 inf too."""
    named = bench.make(70, gates="weak")
    flat = named["g"].view(-1)
    for i, g in enumerate((-60.0, -104.0, -1e4, -1e30)):
        flat[17 + 31 * i :: 173] = g
    bench.right(named)


@case(
    "gates",
    input="g=-inf at single tokens and channels, and everywhere",
    clause=clauses.CLEAR,
    ops=GATED,
    needs="given-gate",
)
def a_gate_of_minus_infinity_clears(bench):
    """-inf minus -inf: a cleared channel turns to nan, or the token that clears it is lost."""
    named = bench.make(70, gates="weak")
    flat = named["g"].view(-1)
    flat[13::97] = -math.inf
    bench.right(named, what="single entries: ")
    bench.right(constant(bench, 20, -math.inf), what="all entries: ")


@case(
    "gates",
    input="g=0 everywhere: nothing decays",
    clause=clauses.GATE,
    report="fla-org/flash-linear-attention#104",
    ops=GATED,
    needs="given-gate",
)
def gates_of_zero(bench):
    """A log decay of zero taken for "no gate given", or a small constant added under the logarithm."""
    bench.right(constant(bench, bench.chunk + 6, 0.0))


@case(
    "gates",
    input="channels of g between -1e-4 and -5 in one head",
    clause=clauses.GATE,
    ops=CHANNELS,
    needs="given-gate",
)
def channels_keep_their_own_clocks(bench):
    """One decay for all channels of a head: the mean, the first, or that of another channel."""
    named = bench.make(70)
    K = named["g"].shape[-1]
    rates = torch.logspace(-4, math.log10(5), K, dtype=torch.float64)
    named["g"] = bench.place({"g": (-rates * (1 + 0.1 * bench.normal(*named["g"].shape)).abs()).to(named["g"].dtype)})[
        "g"
    ]
    bench.right(named, share=1e-2)


@case(
    "gates",
    input="gates that switch between -1e-3 and -4 every 8 tokens",
    clause=clauses.GATE,
    ops=GATED,
    needs="given-gate",
)
def gates_that_change_within_a_chunk(bench):
    """Gates taken from the neighbouring token: the interval of a decay is off by one."""
    named = bench.make(70)
    strong = (torch.arange(70) // 8 % 2 == 1).to(bench.device)
    named["g"] = named["g"].where(
        ~strong.reshape(1, -1, *[1] * (named["g"].ndim - 2)), torch.full_like(named["g"], -4.0)
    )
    bench.right(named)


@case(
    "gates",
    input="g=+5, T=64; one entry of +0.1",
    clause=clauses.GATE_SIGN,
    report="inclusionAI/cuLA#89",
    ops=GATED,
    needs="given-gate value-checks",
    refusal="must",
)
def positive_gates_are_refused(bench):
    """A raw gate, or its negative, passed where a log decay is wanted: the state explodes and nobody says why."""
    bench.refused(constant(bench, 64, 5.0), "g = 5 everywhere")
    named = bench.make(64)
    named["g"].view(-1)[40] = 0.1
    bench.refused(named, "one log decay of 0.1")


@case(
    "gates",
    input="g=0.9 everywhere: the decay instead of its logarithm",
    clause=clauses.GATE_SIGN,
    report="flashinfer-ai/flashinfer#2490",
    ops=GATED,
    needs="given-gate value-checks",
    refusal="must",
)
def the_decay_itself_is_refused(bench):
    """alpha passed for ln alpha: accepted, it lets the state grow instead of fade."""
    bench.refused(constant(bench, 8, 0.9), "g = 0.9, a decay and not its logarithm,")


@case(
    "gates",
    input="raw gate, lower_bound=-5 and -1, dt_bias [HV, K]",
    clause=clauses.RAW_BOUNDED,
    ops=GATED,
    needs="bounded-gate",
)
def bounded_gate_computed_inside(bench):
    """The bound, the rate or the bias at the wrong place: exp(A_log) outside of the sigmoid, the bias after the
    rate.
    """
    for bound in (-5.0, -1.0):
        bench.right(bench.raw(bench.make(70), lower_bound=bound), what=f"lower_bound={bound}: ")


@case(
    "gates",
    input="raw gate, lower_bound=None, dt_bias [HV, K]",
    clause=clauses.RAW_SOFTPLUS,
    ops=GATED,
    needs="softplus-gate",
)
def softplus_gate_computed_inside(bench):
    """-A_log in place of -exp(A_log), softplus to another base, or a bias that is left out."""
    bench.right(bench.raw(bench.make(70), lower_bound=None))


@case(
    "gates",
    input="dt_bias as [HV K], one number per channel, value heads first; and None",
    clause=clauses.BIAS,
    ops=CHANNELS,
    needs="bounded-gate",
)
def the_layouts_of_the_bias(bench):
    """A flat bias read channels first, one bias for all heads, or none taken for zero rate."""
    named = bench.raw(bench.make(40, H=3))
    bench.right(named | {"dt_bias": named["dt_bias"].flatten()}, what="dt_bias [HV K]: ")
    bench.right(named | {"dt_bias": None}, what="dt_bias None: ")


@case(
    "gates",
    input="HV=4 with H=2: A_log and dt_bias belong to value heads",
    clause=clauses.RAW_BOUNDED,
    ops=GATED,
    needs="bounded-gate grouped-heads",
)
def gate_parameters_belong_to_value_heads(bench):
    """A_log or dt_bias indexed by the key head."""
    bench.right(bench.raw(bench.make(40, H=2, HV=4)))


@case(
    "gates",
    input="x=100 with A_log=-7 or 0, as reported; x=-200 and x=0 with A_log=100; x=-30",
    clause=clauses.RAW_SOFTPLUS,
    report="NVIDIA/TensorRT-LLM#14652",
    ops=GATED,
    needs="softplus-gate",
)
def extreme_raw_gates(bench):
    """log(1 + exp(x)) that overflows, and inf times 0 where an infinite rate meets a closed gate."""
    for x, rate in ((100.0, -7.0), (100.0, 0.0), (-200.0, 100.0), (-30.0, 0.0), (0.0, 100.0)):
        named = bench.raw(bench.make(20), lower_bound=None)
        named["g"].fill_(x)
        named["A_log"].fill_(rate)
        o, S = bench.right(named | {"dt_bias": None}, what=f"x={x}, A_log={rate}: ")
        if not o.isfinite().all() or (S is not None and not S.isfinite().all()):
            raise Wrong(f"x={x}, A_log={rate} gives values that are not finite")


@case(
    "gates",
    input="x=-18 with A_log=18, x=-16 with 16, x=-12 with 12: g is -1 to five digits, and all numbers are moderate",
    clause=clauses.RAW_SOFTPLUS,
    ops=GATED,
    needs="softplus-gate",
)
def the_tail_of_the_softplus(bench):
    """log(1 + e^x) without log1p: in float32 1 + e^-18 is 1, so a channel that should fade stays for ever, without a
    word.
    """
    for x in (-18.0, -16.0, -12.0):
        named = bench.raw(bench.make(20), lower_bound=None)
        named["g"].fill_(x)
        named["A_log"].fill_(-x)
        bench.right(named | {"dt_bias": None}, what=f"x={x}, A_log={-x}: ")


@case("gates", input="raw bounded gate x=+-60, A_log=3", clause=clauses.RAW_BOUNDED, ops=GATED, needs="bounded-gate")
def saturated_bounded_gates(bench):
    """A sigmoid that overflows in its exponential, or a gate that leaves its bound."""
    for x in (60.0, -60.0):
        named = bench.raw(bench.make(40))
        named["g"].fill_(x)
        named["A_log"].fill_(1.0)
        bench.right(named, what=f"x={x}: ")


@case("gates", input="beta as logits, of size 3 and of +-80", clause=clauses.LOGITS, needs="beta-logits")
def write_gates_as_logits(bench):
    """A sigmoid that is missing, applied twice, or overflows."""
    named = bench.make(40)

    def logits(gate):
        x = bench.normal(*gate.shape).to(gate.dtype) * 3
        x[:, ::7], x[:, 3::7] = 80.0, -80.0
        return x

    bench.right(bench.place(bench.gated(named, logits)) | {"use_beta_sigmoid_in_kernel": True})


@case("gates", input="beta between 0 and 2", clause=clauses.BETA, needs="beta-to-two")
def write_gates_up_to_two(bench):
    """Write gates clamped to 1, or an inverse that is only right for small ones."""
    named = bench.make(70)
    bench.right(bench.gated(named, lambda gate: (gate * 2).contiguous()), what="gates in (0, 2): ")
    bench.right(bench.gated(named, lambda gate: torch.full_like(gate, 2.0)), what="gates of 2: ")


@case("gates", input="beta=0 at every other token, and everywhere", clause=clauses.BETA)
def write_gates_of_zero(bench):
    """A token that writes although its gate is closed, or that does not decay because it does not write."""
    named = bench.make(70)
    for gate in bench.gates(named).values():
        gate[:, ::2] = 0
    bench.right(named, what="every other token closed: ")
    bench.right(bench.gated(named, torch.zeros_like), what="all tokens closed: ")


@case("gates", input="write gates 0.05, 0.95, 0.05, ... ", clause=clauses.BETA)
def every_token_has_its_own_write_gate(bench):
    """The write gate of another token or head: beta_j for beta_i, or applied before the inverse on the wrong side."""
    named = bench.make(70)
    turn = torch.where(torch.arange(70, device=bench.device) % 2 == 0, 0.05, 0.95)

    def alternating(gate):
        return (turn.reshape(1, -1, *[1] * (gate.ndim - 2)) * (0.8 + 0.2 * gate)).to(bench.dtype)

    bench.right(bench.gated(named, alternating))


@case(
    "gates",
    input="K=V=16; one of the two gates zero everywhere: only written, then only erased",
    clause=clauses.BETA,
    ops=PAIRS,
)
def erasing_and_writing_have_gates_of_their_own(bench):
    """The gate that erases and the gate that writes taken for each other, or one of them for both."""
    size = (16, 16) if bench.can.sizes is None else next((s for s in bench.can.sizes if s[0] == s[1]), bench.sizes())
    named = bench.make(40, *size)
    bench.right(named, what="both: ")
    for name, gate in bench.gates(named).items():
        bench.right(named | {name: torch.zeros_like(gate)}, what=f"{name}=0: ")
