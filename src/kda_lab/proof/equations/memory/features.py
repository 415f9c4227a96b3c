"""What surrounds the memory: feature map, norms, short convolution, and the layer's gated readout."""

import math

import sympy
import torch

from kda_lab import rules
from kda_lab.parts import features
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, variant

KATHAROPOULOS = "Katharopoulos et al. (2020), Transformers are RNNs"
SUN = "Sun et al. (2023), Retentive Network; Qin et al. (2022)"
KIMI = "Kimi Linear (2025), section 4"
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
    require(norm(torch.zeros(3)).equal(torch.zeros(3)), "a zero key does not stay zero")


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


def convolution_by_hand(x, weight):
    """y_t = SiLU(sum over a of weight_a x_(t - w + 1 + a)), with zeros before the start; loops over everything."""
    (T, D), w = x.shape, weight.shape[-1]
    y = torch.zeros(T, D, dtype=x.dtype)
    for t in range(T):
        for c in range(D):
            total = sum(float(weight[c, a] * x[t - w + 1 + a, c]) for a in range(w) if t - w + 1 + a >= 0)
            y[t, c] = total / (1 + math.exp(-total))
    return y


def check_convolution(convolve):
    for T in (1, 2, 3, 9):
        for w in (2, 4):
            x, weight = normal(T, 3, seed=T), normal(3, w, seed=7)
            y, state = convolve(x, weight)
            agree(y, convolution_by_hand(x, weight), f"T = {T}, w = {w}")
            padded = torch.cat([torch.zeros(w - 1, 3, dtype=torch.float64), x])
            agree(state, padded[T:], "the state holds the last w - 1 inputs")


def check_streaming(convolve):
    """Whole, token by token, and cut at every place (also shorter than the window): one answer, one last state."""
    x, weight = normal(2, 7, 3, seed=8), normal(3, 4, seed=9)  # two sequences at once
    whole, last = convolve(x, weight)
    state, rows = None, []
    for t in range(7):
        y, state = convolve(x[:, t : t + 1], weight, state)
        rows.append(y)
    agree(torch.cat(rows, 1), whole, "streaming")
    agree(state, last, "state after streaming")
    for n in range(1, 7):
        first, carried = convolve(x[:, :n], weight)
        second, end = convolve(x[:, n:], weight, carried)
        agree(torch.cat([first, second], 1), whole, f"cut after {n}")
        agree(end, last, f"state after a cut at {n}")


def check_channels(convolve):
    """One convolution over the channels of q, k and v side by side is three of its own."""
    parts, weights = [normal(6, d, seed=d) for d in (2, 3, 4)], [normal(d, 4, seed=d + 20) for d in (2, 3, 4)]
    y, state = convolve(torch.cat(parts, -1), torch.cat(weights))
    separate = [convolve(p, w) for p, w in zip(parts, weights)]
    agree(y, torch.cat([s[0] for s in separate], -1), "outputs")
    agree(state, torch.cat([s[1] for s in separate], -1), "states")


def convolution_rollback(window, accepted, w):
    """The state after ``accepted`` of the draft tokens, from the w - 1 + n inputs kept over a step with n drafts.

    window: [w - 1 + n, D]   returns [w - 1, D].   Implements short-convolution-rollback.

    >>> convolution_rollback(torch.arange(6)[:, None], 2, 4).T        # w = 4, 3 drafts, 2 of them accepted
    tensor([[2, 3, 4]])
    """
    return window[accepted : accepted + w - 1]


def check_rollback(rollback):
    x, weight, n = normal(9, 3, seed=10), normal(3, 4, seed=11), 3
    _, before = features.short_convolution(x[:6], weight)
    window = torch.cat([before, x[6:]])  # n = 3 draft tokens behind the state
    require(len(window) == 4 - 1 + n, "length of the window")
    for accepted in range(n + 1):
        _, state = features.short_convolution(x[: 6 + accepted], weight)
        agree(rollback(window, accepted, 4), state, f"{accepted} of {n} drafts accepted")


def gated_readout(S, q, gate, W_o):
    """y = sum over heads of W_o (RMSNorm(S q) . sigmoid(gate)): the layer behind the memory, for one token.

    S: [H, V, K]   q: [H, K]   gate: [H, V]   W_o: [H, D, V]   returns [D].   Implements gated-readout.

    >>> S, q, gate = torch.tensor([[[2.0]]]), torch.tensor([[5.0]]), torch.tensor([[0.0]])
    >>> gated_readout(S, q, gate, torch.tensor([[[1.0]]]))          # the norm leaves the sign, the gate halves
    tensor([0.5000])
    """
    o = (S @ q[:, :, None])[..., 0]  # [H, V]
    o = features.rms_norm(o, 0.0)  # one norm for each head
    return (W_o @ (o * torch.sigmoid(gate))[..., None])[..., 0].sum(0)


def check_readout(readout):
    """Written out; the scale of q cancels in the norm, that of the keys does not."""
    S, q, gate, W_o = normal(2, 3, 4, seed=12), normal(2, 4, seed=13), normal(2, 3, seed=14), normal(2, 5, 3, seed=15)
    y = torch.zeros(5, dtype=torch.float64)
    for h in range(2):
        o = [sum(float(S[h, r, c] * q[h, c]) for c in range(4)) for r in range(3)]
        root = math.sqrt(sum(z * z for z in o) / 3)
        for d in range(5):
            y[d] += sum(float(W_o[h, d, r]) * o[r] / root / (1 + math.exp(-float(gate[h, r]))) for r in range(3))
    agree(readout(S, q, gate, W_o), y, "written out")
    scale = torch.tensor([[0.088], [40.0]], dtype=torch.float64)  # another one for each head
    agree(readout(S, q * scale, gate, W_o), y, "scaled queries")
    keys, values, beta = normal(6, 4, seed=16) / 2, normal(6, 3, seed=17), torch.full((6,), 0.5, dtype=torch.float64)
    states = [rules.scan(rules.delta, S[0], keys, keys * c, values, beta)[0] for c in (1.0, 1.3)]
    outputs = [readout(s[None], q[:1], gate[:1], W_o[:1]) for s in states]
    require((outputs[0] - outputs[1]).abs().max() > 1e-3, "the scale of the keys was expected to matter")


_conv = features.short_convolution
_CONV_MUTANTS = (
    Mutant("taps reversed", lambda x, weight, state=None: _conv(x, weight.flip(-1), state)),
    Mutant(
        "looks one token ahead",
        lambda x, weight, state=None: (_conv(x, weight, state)[0].roll(-1, -2), _conv(x, weight, state)[1]),
    ),
)
_CARRY_MUTANTS = (
    Mutant(
        "keeps what came out instead of what came in",
        variant(_conv, ("window[..., T:, :]", "torch.nn.functional.silu(window[..., T:, :])")),
    ),
    Mutant("the carried state is ignored", lambda x, weight, state=None: _conv(x, weight)),
    Mutant(
        "a window of w - 2",
        variant(_conv, ("window[..., T:, :]", "torch.cat([window[..., T:T+1, :] * 0, window[..., T+1:, :]], -2)")),
    ),
    Mutant("keeps the first inputs", variant(_conv, ("window[..., T:, :]", "window[..., :w - 1, :]"))),
)

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
    Equation(
        "short-convolution",
        "Each channel mixes its last w inputs, then SiLU; zeros stand before the start.",
        KIMI,
        "checked",
        Check("float64", "T=1..9 w=2, 4", check_convolution),
        None,
        _conv,
        (
            *_CONV_MUTANTS,
            Mutant("no activation", variant(_conv, ("torch.nn.functional.silu(y)", "y"))),
            *_CARRY_MUTANTS[2:],
        ),
    ),
    Equation(
        "short-convolution-streaming",
        "Whole, token by token, or cut anywhere: the state is the last w - 1 raw inputs.",
        KIMI,
        "checked",
        Check("float64", "T=7 w=4, every cut", check_streaming),
        None,
        _conv,
        _CARRY_MUTANTS,
    ),
    Equation(
        "short-convolution-channels",
        "The convolution of q, k and v side by side is three convolutions.",
        KIMI,
        "checked",
        Check("float64", "channels 2, 3, 4", check_channels),
        None,
        _conv,
        (
            Mutant("channels shifted", lambda x, weight, state=None: _conv(x, weight.roll(1, 0), state)),
            Mutant(
                "one kernel for all channels",
                lambda x, weight, state=None: _conv(x, weight.mean(0, keepdim=True).expand_as(weight), state),
            ),
            Mutant("channels mixed", lambda x, weight, state=None: _conv(x.cumsum(-1), weight, state)),
        ),
    ),
    Equation(
        "short-convolution-rollback",
        "With w - 1 + n inputs kept, accepting a drafts is reading the window at offset a.",
        KIMI,
        "checked",
        Check("float64", "w=4 n=3", check_rollback),
        None,
        convolution_rollback,
        (
            Mutant("the newest inputs, accepted or not", lambda window, accepted, w: window[len(window) - w + 1 :]),
            Mutant("no offset", lambda window, accepted, w: window[: w - 1]),
            Mutant("one too far", lambda window, accepted, w: window.roll(-1, 0)[accepted : accepted + w - 1]),
        ),
    ),
    Equation(
        "gated-readout",
        "Each head is normed and gated; the query's scale cancels in the norm, the keys' does not.",
        KIMI,
        "checked",
        Check("float64", "H=2 K=4 V=3", check_readout),
        None,
        gated_readout,
        (
            Mutant(
                "one norm over all heads",
                variant(gated_readout, ("rms_norm(o, 0.0)", "rms_norm(o.flatten(), 0.0).view_as(o)")),
            ),
            Mutant("no norm", variant(gated_readout, ("features.rms_norm(o, 0.0)", "o * 1"))),
            Mutant(
                "the gate before the norm",
                variant(
                    gated_readout,
                    ("rms_norm(o,", "rms_norm(o * torch.sigmoid(gate),"),
                    ("o * torch.sigmoid(gate))[", "o)["),
                ),
            ),
            Mutant("SiLU gate", variant(gated_readout, ("torch.sigmoid(gate)", "torch.nn.functional.silu(gate)"))),
        ),
    ),
]
