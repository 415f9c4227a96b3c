"""Feature map and norms: they stay positive in floats, and what a norm forgets."""

import math

import sympy
import torch

from kda_lab import rules
from kda_lab.parts import features
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, variant

KATHAROPOULOS = "Katharopoulos et al. (2020), Transformers are RNNs"
SUN = "Sun et al. (2023), Retentive Network; Qin et al. (2022)"
DELTA = "Yang et al. (2024), Parallelizing linear transformers with the delta rule"


def check_feature_map(phi):
    """Values against math.exp, positive down to -80 in fp32, and one slope on both sides of zero."""
    points = [-80.0, -20.0, -1.5, -0.5, -1e-6, 0.0, 1e-6, 0.5, 2.0, 30.0]
    x = torch.tensor(points, dtype=torch.float64)
    agree(phi(x), torch.tensor([p + 1 if p > 0 else math.exp(p) for p in points], dtype=torch.float64), "values")
    for dtype in (torch.float32, torch.bfloat16):
        require((phi(x.to(dtype)) > 0).all(), f"not positive in {dtype}")
    near = torch.tensor([-1e-9, 1e-9], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(phi(near).sum(), near)
    agree(slope, torch.ones(2, dtype=torch.float64), "slopes at zero", tolerance=1e-8)  # e^(-1e-9) is 1e-9 below 1
    far = torch.tensor([1000.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(phi(far).sum(), far)
    require(torch.isfinite(slope).all(), "the gradient of the unused branch is nan")


def vanishing_point(dtype):
    """Below this x, elu(x) + 1 is exactly zero: e^x is less than half of the spacing of numbers just below 1.

    Implements elu-rounds-to-zero.

    >>> round(vanishing_point(torch.float32), 2)
    -17.33
    """
    return math.log(torch.finfo(dtype).eps / 4)


def check_vanishing_point(point):
    for dtype, printed in ((torch.float32, -17.3), (torch.bfloat16, -6.2), (torch.float64, -37.4)):
        x = point(dtype)
        require(abs(x - printed) < 0.05, f"{dtype}: {x:.2f}, expected about {printed}")
        naive = torch.nn.functional.elu(torch.tensor([x - 0.1, x + 0.1], dtype=dtype)) + 1
        require(naive[0] == 0 and naive[1] > 0, f"{dtype}: elu(x) + 1 does not vanish at {x:.2f}")


def check_l2(norm):
    """Entries written out, eps in the root, length below 1, a zero vector, one head at a time."""
    x = normal(5, 2, 4, seed=1)
    for eps in (1e-6, 0.3):
        length = torch.tensor(
            [[math.sqrt(sum(float(c) ** 2 for c in head) + eps) for head in token] for token in x], dtype=x.dtype
        )
        agree(norm(x, eps), x / length[..., None], f"eps = {eps}")
    agree(norm(x), norm(x, 1e-6), "default eps")
    for scale in (1e-3, 1.0, 1e3):
        require((norm(x * scale).norm(dim=-1) < 1).all(), f"length not below 1 at scale {scale}")
    require(
        norm(torch.zeros(3, dtype=torch.float32)).equal(torch.zeros(3, dtype=torch.float32)),
        "a zero key does not stay zero",
    )


def l2_jacobian(x):
    """d k / d x for k = x / |x|: (I - k k^T) / |x|, as a SymPy matrix of the column x.   Implements l2-norm-jacobian.

    >>> l2_jacobian(sympy.Matrix([3, 0]))
    Matrix([
    [0,   0],
    [0, 1/3]])
    """
    length = sympy.sqrt(x.dot(x))
    k = x / length
    return (sympy.eye(len(x)) - k * k.T) / length


def prove_l2_jacobian(jacobian):
    """Three channels, symbolic entries; the direction of x itself is sent to zero."""
    x = sympy.Matrix(sympy.symbols("x:3", positive=True))
    exact = (x / sympy.sqrt(x.dot(x))).jacobian(x)
    length = sympy.Symbol("n", positive=True)
    shorten = lambda M: (M.subs(x.dot(x), length**2)).applyfunc(sympy.expand)
    require(shorten(exact - jacobian(x)) == sympy.zeros(3, 3), "differs from SymPy's derivative")
    along = sympy.numer(sympy.together((jacobian(x) * x)[0]))
    require(
        sympy.expand(along.subs(x.dot(x), length**2).subs(length, sympy.sqrt(x.dot(x)))) == 0,
        "the radial direction survives",
    )


def check_l2_jacobian(jacobian):
    x = normal(4, seed=2)
    exact = torch.autograd.functional.jacobian(lambda y: features.l2_normalise(y, 0.0), x)
    closed = jacobian(sympy.Matrix(x.tolist())).tolist()
    agree(torch.tensor([[float(e) for e in row] for row in closed], dtype=torch.float64), exact, "autograd")


def check_rms(norm):
    """Entries written out; invariant to a positive factor at eps = 0, odd in its argument, one head at a time."""
    o = normal(6, 2, 4, seed=3)
    for eps in (0.0, 1e-6, 0.3):
        root = torch.tensor(
            [[math.sqrt(sum(float(c) ** 2 for c in head) / 4 + eps) for head in token] for token in o], dtype=o.dtype
        )
        agree(norm(o, eps), o / root[..., None], f"eps = {eps}")
    agree(norm(o), norm(o, 1e-6), "default eps")
    factor = normal(6, 2, 1, seed=4).abs() + 0.1  # one factor for each token and head
    agree(norm(o * factor, 0.0), norm(o, 0.0), "a positive factor")
    agree(norm(-o, 0.0), -norm(o, 0.0), "a negative factor turns the sign")


def check_denominator_cancels(norm):
    """Normalised linear attention, its numerator alone, a scaled query: one answer after the norm."""
    q, k, v = features.elu_plus_one(normal(2, 9, 4, seed=5)).unbind(0) + (normal(9, 3, seed=6),)
    state = (torch.zeros(3, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64))
    _, rows = rules.scan(rules.normalised_linear, state, q, k, v)
    _, scaled = rules.scan(rules.linear, state[0], q * 4**-0.5, k, v)
    for (numerator, denominator), o in zip(rows, scaled):
        agree(norm(numerator / denominator, 0.0), norm(numerator, 0.0), "with and without the denominator")
        agree(norm(o, 0.0), norm(numerator, 0.0), "with and without the query's scale")
    tiny = torch.full((4,), 1e-4, dtype=torch.float64)
    require(abs(norm(tiny, 1e-6).mean() - 1) > 0.5, "eps was expected to matter for small outputs")


EQUATIONS = [
    Equation(
        "elu-plus-one",
        "The feature map x + 1 above zero, e^x below: positive, with one slope at zero.",
        KATHAROPOULOS,
        "checked",
        Check("float64", "x from -80 to 30, fp32 and bf16", check_feature_map),
        None,
        features.elu_plus_one,
        (
            Mutant("elu(x) + 1, which rounds to zero", lambda x: torch.nn.functional.elu(x) + 1),
            Mutant("relu", torch.relu),
            Mutant("identity", lambda x: x),
            Mutant(
                "exp of the unused branch overflows",
                variant(features.elu_plus_one, ("x.clamp(max=0).exp()", "x.exp()")),
            ),
        ),
    ),
    Equation(
        "elu-rounds-to-zero",
        "Computed as elu(x) + 1 it is exactly zero below ln(eps/4): -17.3 in fp32, -6.2 in bf16.",
        "IEEE 754",
        "checked",
        Check("float64", "fp32, bf16, fp64", check_vanishing_point),
        None,
        vanishing_point,
        (
            Mutant("the smallest number", lambda dtype: math.log(torch.finfo(dtype).tiny)),
            Mutant("eps", lambda dtype: math.log(torch.finfo(dtype).eps)),
        ),
    ),
    Equation(
        "l2-norm",
        "x / sqrt(|x|^2 + eps): length just below one; a zero key stays zero.",
        DELTA,
        "checked",
        Check("float64", "5 tokens, 2 heads, 4 channels", check_l2),
        None,
        features.l2_normalise,
        (
            Mutant(
                "one norm over all heads",
                lambda x, eps=1e-6: features.l2_normalise(x.flatten(-2) if x.dim() > 2 else x, eps).view_as(x),
            ),
            Mutant("no eps", lambda x, eps=1e-6: x / x.norm(dim=-1, keepdim=True)),
            Mutant("eps outside the root", lambda x, eps=1e-6: x / (x.norm(dim=-1, keepdim=True) + eps)),
            Mutant("mean instead of sum", lambda x, eps=1e-6: features.rms_norm(x, eps)),
        ),
    ),
    Equation(
        "l2-norm-jacobian",
        "The gradient of k = x/|x| is (I - k k^T)/|x|: the direction of the key itself gets none.",
        DELTA,
        "proved",
        Check("calculus", "K=3", prove_l2_jacobian),
        Check("float64", "K=4", check_l2_jacobian),
        l2_jacobian,
        (
            Mutant("I / |x|", lambda x: sympy.eye(len(x)) / sympy.sqrt(x.dot(x))),
            Mutant("I - k k^T", lambda x: l2_jacobian(x) * sympy.sqrt(x.dot(x))),
            Mutant("the sign", lambda x: 2 * sympy.eye(len(x)) / sympy.sqrt(x.dot(x)) - l2_jacobian(x)),
        ),
    ),
    Equation(
        "norm-attention",
        "RMSNorm, one head at a time: a positive factor in front of its input cancels.",
        SUN,
        "checked",
        Check("float64", "6 tokens, 2 heads, 4 channels", check_rms),
        None,
        features.rms_norm,
        (
            Mutant(
                "one norm over all heads",
                lambda o, eps=1e-6: o * (o.square().mean((-2, -1), keepdim=True) + eps).rsqrt(),
            ),
            Mutant("the mean is subtracted", lambda o, eps=1e-6: features.rms_norm(o - o.mean(-1, keepdim=True), eps)),
            Mutant("sum instead of mean", lambda o, eps=1e-6: features.l2_normalise(o, eps)),
            Mutant("drops the sign", lambda o, eps=1e-6: features.rms_norm(o.abs(), eps)),
            Mutant("a large eps", lambda o, eps=1e-6: features.rms_norm(o, eps + 0.1)),
        ),
    ),
    Equation(
        "norm-cancels-denominator",
        "Behind the norm, the denominator and the query's scale cancel; they matter through eps only.",
        SUN,
        "checked",
        Check("float64", "T=9 K=4 V=3", check_denominator_cancels),
        None,
        features.rms_norm,
        (
            Mutant("a large eps", lambda o, eps=1e-6: features.rms_norm(o, eps + 0.1)),
            Mutant("no eps at all", lambda o, eps=1e-6: features.rms_norm(o, 0.0)),
            Mutant("square without the root", lambda o, eps=1e-6: o / (o.square().mean(-1, keepdim=True) + eps)),
        ),
    ),
]
