"""What stands before and behind the memory in a layer: the short convolution, and the gated readout."""

import math

import torch

from kda_lab import rules
from kda_lab.parts import features
from kda_lab.proof.equations.common import agree, normal, require
from kda_lab.proof.registry import Check, Equation, Mutant, variant

KIMI = "Kimi Linear (2025), section 4"


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
