"""How a network makes a decay: two parameterisations, their slopes, and what floating point does at the ends."""

import itertools
import math

import sympy
import torch

from kda_lab.parts import decay
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, wrong

BOUNDED = "Kimi K3 and GLM-5.3-Flash, gate with a lower bound"
SOFTPLUS = "Gu and Dao (2023), Mamba; Kimi Linear (2025)"


def by_hand(x, A_log, bias, formula):
    """A gate entry by entry: formula(z, rate), with a rate for each head and a bias for each head and channel.

    x: [T, H, K]   A_log: [H]   bias: [H, K] or None   returns [T, H, K].
    """
    out = torch.zeros_like(x)
    for t, h, c in itertools.product(*map(range, x.shape)):
        z = float(x[t, h, c]) + (0.0 if bias is None else float(bias[h, c]))
        out[t, h, c] = formula(z, math.exp(float(A_log[h])))
    return out


def check_bounded(gate):
    """Entries written out; the range is between the bound and 0."""
    x, A_log, bias = normal(5, 2, 3, seed=1) * 2, normal(2, seed=2), normal(2, 3, seed=3)
    for bound in (-5.0, -1.5):
        for shift in (None, bias):
            got = gate(x, A_log, shift, bound)
            exact = by_hand(x, A_log, shift, lambda z, rate: bound / (1 + math.exp(-rate * z)))
            agree(got, exact, f"bound {bound}, bias {shift is not None}")
            require(((got < 0) & (got > bound)).all(), "outside the open interval")
    agree(gate(x, A_log, bias), gate(x, A_log, bias, -5.0), "the default bound")
    steep = gate(torch.tensor([[-1.0, 0.0, 1.0]], dtype=torch.float64), torch.tensor([1000.0], dtype=torch.float64))
    require(steep.tolist() == [[0.0, -2.5, -5.0]], f"a rate that overflows acts as a step, got {steep.tolist()}")


def check_softplus(gate):
    """Entries written out, also far out, where log1p(exp(x)) would overflow."""
    x, A_log, bias = normal(5, 2, 3, seed=4) * 2, normal(2, seed=5), normal(2, 3, seed=6)
    x[0, 0, 0], x[1, 1, 1] = 900.0, -30.0
    softplus = lambda z: max(z, 0.0) + math.log1p(math.exp(-abs(z)))
    for shift in (None, bias):
        got, exact = gate(x, A_log, shift), by_hand(x, A_log, shift, lambda z, rate: -rate * softplus(z))
        # 1e-8: beyond 20 torch takes softplus(x) = x, which is off by e^-20 = 2e-9
        agree(got / exact, torch.ones_like(x), f"bias {shift is not None}", tolerance=1e-8)
        require((got < 0).all(), "a decay above 1")
    steep = gate(torch.tensor([[-95.0, -1000.0, 0.0]], dtype=torch.float64), torch.tensor([90.0], dtype=torch.float64))
    agree(steep[0, 0], torch.tensor(-math.exp(-5.0), dtype=torch.float64), "a large rate times a small softplus")
    require(torch.isfinite(steep).all() and steep[0, 1] == 0 and steep[0, 2] < -1e30, f"large rates: {steep.tolist()}")


def bounded_slope(g, A_log, lower_bound):
    """dg/dx = e^(A_log) g (1 - g / lower_bound): zero at both ends, steepest at half of the bound.

    Implements gate-bounded-slope.

    >>> bounded_slope(-2.5, torch.tensor(0.0), -5.0).item()            # steepest at half of the bound
    -1.25
    """
    return (A_log.exp() if isinstance(A_log, torch.Tensor) else sympy.exp(A_log)) * g * (1 - g / lower_bound)


def prove_bounded_slope(slope):
    x, A, bound = sympy.symbols("x A bound", real=True)
    g = bound / (1 + sympy.exp(-sympy.exp(A) * x))
    rest = sympy.together(g.diff(x) - slope(g, A, bound))
    require(sympy.expand(sympy.numer(rest)) == 0, f"{rest} is left over")


def check_bounded_slope(slope):
    x, A_log = normal(6, 1, 3, seed=7).requires_grad_(), normal(1, seed=8)
    g = decay.bounded_gate(x, A_log, lower_bound=-5.0)
    (exact,) = torch.autograd.grad(g.sum(), x)
    agree(slope(g, A_log, -5.0), exact, "autograd")


def softplus_slope(g, x, A_log):
    """dg/dx = -e^(A_log) sigmoid(x): it does not vanish for a strong decay.   Implements gate-softplus-slope.

    >>> softplus_slope(None, 0, 0)
    -1/2
    """
    return -sympy.exp(A_log) / (1 + sympy.exp(-x))


def prove_softplus_slope(slope):
    x, A = sympy.symbols("x A", real=True)
    g = -sympy.exp(A) * sympy.log(1 + sympy.exp(x))
    rest = sympy.simplify(g.diff(x) - slope(g, x, A))
    require(rest == 0, f"{rest} is left over")


def check_softplus_slope(slope):
    for x in (-3.0, 0.2, 8.0):
        point = torch.tensor([[x]], dtype=torch.float64, requires_grad=True)
        (exact,) = torch.autograd.grad(
            decay.softplus_gate(point, torch.tensor([0.3], dtype=torch.float64)).sum(), point
        )
        # compared in fp32
        agree(torch.tensor(float(slope(None, x, 0.3))), exact.float()[0, 0], f"x = {x}", tolerance=1e-6)


def attained(x, dtype):
    """(g, alpha) of the bounded gate at raw gate x: in floats both ends of (e^-5, 1) are attained.   Implements
    gate-endpoints.

    >>> attained(200.0, torch.float32)[0], attained(-800.0, torch.float32)[1]
    (-5.0, 1.0)
    """
    g = decay.bounded_gate(torch.tensor([[x]], dtype=dtype), torch.zeros(1, dtype=dtype))
    return g.item(), g.exp().item()


def kept_inside(x, dtype):
    """Mutant: the open interval, kept open by a margin."""
    g = min(max(attained(x, dtype)[0], -4.99), -1e-3)
    return g, math.exp(g)


def check_endpoints(gate):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        g, alpha = gate(200.0, dtype)
        require(g == -5.0, f"{dtype}: the lower bound is not attained, got {g}")
        # half a bf16 spacing
        agree(torch.tensor(alpha), torch.tensor(math.exp(-5)), f"{dtype}: alpha", tolerance=2**-8)
        g, alpha = gate(-800.0, dtype)
        require(g == 0 and alpha == 1, f"{dtype}: a decay of exactly 1 is not attained, got g = {g}")


def check_half_life(half_life):
    g = torch.tensor([-5.0, -0.1, -1e-3], dtype=torch.float64)
    agree(torch.exp(g * half_life(g)), torch.full((3,), 0.5, dtype=torch.float64), "decay over a half life")
    require((half_life(g) > 0).all(), "a half life is a number of tokens")


def check_clear_floor(floor):
    """exp of it is exactly 0, and one higher it is not; what a stronger gate does is the same."""
    for dtype in (torch.float32, torch.float64):
        g = torch.tensor([floor(dtype) + 1, floor(dtype), floor(dtype) * 2, -math.inf], dtype=dtype)
        require(g.exp()[0] > 0 and (g.exp()[1:] == 0).all(), f"{dtype}: {g.exp().tolist()}")


def check_largest_exponent(exponent):
    """The sum of |g| over the span, for every gate within the bound: attained by the strongest."""
    for bound, span in ((-5.0, 15), (-1.5, 31), (-5.0, 1)):
        worst = -torch.full((span,), bound, dtype=torch.float32).sum().item()
        require(
            exponent(bound, span) == worst, f"bound {bound}, span {span}: {exponent(bound, span)}, expected {worst}"
        )


def _rate(A_log):
    return A_log[:, None].exp()


def _biased(x, dt_bias):
    return x if dt_bias is None else x + dt_bias


def other_bounded(name, formula):
    """A mutant of the bounded gate: formula(x with bias, A_log, lower_bound)."""
    return Mutant(
        name, lambda x, A_log, dt_bias=None, lower_bound=-5.0: formula(_biased(x, dt_bias), A_log, lower_bound)
    )


def other_softplus(name, formula):
    """A mutant of the gate without a floor: formula(x with bias, A_log)."""
    return Mutant(name, lambda x, A_log, dt_bias=None: formula(_biased(x, dt_bias), A_log))


EQUATIONS = [
    Equation(
        "gate-bounded",
        "g = lower bound . sigmoid(e^(A_log) (x + dt_bias)): a log decay between the bound and 0.",
        BOUNDED,
        "checked",
        Check("float64", "5 tokens, 2 heads, 3 channels", check_bounded),
        None,
        decay.bounded_gate,
        (
            other_bounded("A_log added", lambda x, A_log, bound: bound * torch.sigmoid(A_log[:, None] + x)),
            other_bounded("A_log without exp", lambda x, A_log, bound: bound * torch.sigmoid(A_log[:, None] * x)),
            other_bounded("A_log outside the sigmoid", lambda x, A_log, bound: bound * _rate(A_log) * torch.sigmoid(x)),
            other_bounded("the sign of the gate", lambda x, A_log, bound: bound * torch.sigmoid(-_rate(A_log) * x)),
            other_bounded(
                "a bound for each slope", lambda x, A_log, bound: bound * torch.sigmoid(_rate(A_log) * x) / _rate(A_log)
            ),
            other_bounded(
                "a rate that overflows gives nan", lambda x, A_log, bound: bound * torch.sigmoid(_rate(A_log) * x)
            ),
            Mutant(
                "no bias",
                lambda x, A_log, dt_bias=None, lower_bound=-5.0: decay.bounded_gate(x, A_log, None, lower_bound),
            ),
        ),
    ),
    Equation(
        "gate-softplus",
        "g = -e^(A_log) softplus(x + dt_bias): a log decay without a floor.",
        SOFTPLUS,
        "checked",
        Check("float64", "5 tokens, 2 heads, 3 channels, x to 900", check_softplus),
        None,
        decay.softplus_gate,
        (
            other_softplus("A_log inside", lambda x, A_log: -torch.nn.functional.softplus(_rate(A_log) * x)),
            other_softplus("the sign", lambda x, A_log: _rate(A_log) * torch.nn.functional.softplus(x)),
            other_softplus("overflows far above zero", lambda x, A_log: -_rate(A_log) * (1 + x.exp()).log()),
            other_softplus(
                "rounds to zero far below zero",
                lambda x, A_log: -A_log[:, None].clamp(max=80).exp() * torch.nn.functional.softplus(x),
            ),
            Mutant("no bias", lambda x, A_log, dt_bias=None: decay.softplus_gate(x, A_log)),
        ),
    ),
    Equation(
        "gate-bounded-slope",
        "dg/dx = e^(A_log) g (1 - g / bound): it vanishes at both ends.",
        "calculus",
        "proved",
        Check("calculus", "all x, A_log, bounds", prove_bounded_slope),
        Check("float64", "6 tokens, 3 channels", check_bounded_slope),
        bounded_slope,
        (
            wrong(
                bounded_slope,
                "without e^(A_log)",
                ("(A_log.exp() if isinstance(A_log, torch.Tensor) else sympy.exp(A_log)) * g", "g"),
            ),
            wrong(bounded_slope, "plus", ("* (1 - g", "* (1 + g")),
            wrong(bounded_slope, "as for a bound of -1", ("* (1 - g / lower_bound)", "* (1 + g)")),
        ),
    ),
    Equation(
        "gate-softplus-slope",
        "dg/dx = -e^(A_log) sigmoid(x): it stays at -e^(A_log) for strong decays.",
        "calculus",
        "proved",
        Check("calculus", "all x, A_log", prove_softplus_slope),
        Check("float64", "three points", check_softplus_slope),
        softplus_slope,
        (
            wrong(softplus_slope, "the other side of the sigmoid", ("sympy.exp(-x)", "sympy.exp(x)")),
            wrong(softplus_slope, "the sign", ("return -sympy", "return sympy")),
            wrong(softplus_slope, "without e^(A_log)", ("-sympy.exp(A_log)", "-1")),
        ),
    ),
    Equation(
        "gate-endpoints",
        "In floats the bounded gate attains both ends: alpha = e^-5 and alpha = 1 exactly.",
        "IEEE 754",
        "checked",
        Check("float64", "fp32, fp64, bf16", check_endpoints),
        None,
        attained,
        (
            Mutant("the open interval, kept open by a margin", kept_inside),
            Mutant("no lower bound", lambda x, dtype: (-max(x, 0.0), math.exp(-max(x, 0.0)))),
        ),
    ),
    Equation(
        "gate-half-life",
        "A channel halves in ln 2 / |g| tokens.",
        "exponential decay",
        "checked",
        Check("float64", "three gates", check_half_life),
        None,
        decay.half_life,
        (
            wrong(decay.half_life, "1 / |g|", ("math.log(2)", "1")),
            wrong(decay.half_life, "the sign", ("g.abs()", "g")),
            wrong(decay.half_life, "base 2", ("math.log(2)", "math.log2(2)")),
        ),
    ),
    Equation(
        "gate-clear-floor",
        "From ln of half the smallest number on, exp(g) is exactly 0: a stronger gate acts the same.",
        "IEEE 754",
        "checked",
        Check("float64", "fp32, fp64", check_clear_floor),
        None,
        decay.clear_floor,
        (
            Mutant("one floor for both", lambda dtype: -104.0),
            Mutant("the smallest normal number", lambda dtype: math.log(torch.finfo(dtype).tiny)),
        ),
    ),
    Equation(
        "gate-largest-exponent",
        "Over a span of tokens the factors of a score reach exponents up to |bound| times the span.",
        BOUNDED,
        "checked",
        Check("float64", "three spans", check_largest_exponent),
        None,
        decay.largest_exponent,
        (
            wrong(decay.largest_exponent, "the sign", ("abs(lower_bound)", "lower_bound")),
            wrong(decay.largest_exponent, "one token fewer", ("* span", "* (span - 1)")),
        ),
    ),
]
