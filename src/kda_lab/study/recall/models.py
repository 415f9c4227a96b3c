"""A two-layer model around one memory, many runs side by side: the run is an axis beside the heads.

A layer reads x through a norm, makes q, k and v by a projection and a short convolution, lets one of five memories
answer, and adds a norm, a projection and a small MLP. Every run has its own weights, so a linear map is a product for
each run; to the memory the runs are further heads.

Shapes: B sequences, T tokens, R runs, D channels; x [B, T, R, D]; weights [R, in, out].
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention, silu

from kda_lab.parts import decay
from kda_lab.parts.features import l2_normalise, rms_norm, short_convolution

MEMORIES = ("softmax", "linear attention", "DeltaNet", "GDN", "KDA")
GATED = ("GDN", "KDA")


class Shape(NamedTuple):
    """words: vocabulary   answers: classes   D: channels   H heads of K key and V value channels   layers.

    >>> Shape(words=10, answers=4).K
    8
    """

    words: int
    answers: int
    D: int = 64
    H: int = 2
    K: int = 8
    V: int = 8
    layers: int = 2


def initial(memory, shape, runs, generator):
    """Weights of a model, a list of one dict for each layer and one for the rest.   each: [runs, ...].

    Raises ValueError for an unknown memory.

    >>> weights = initial("KDA", Shape(10, 4), 3, torch.Generator().manual_seed(0))
    >>> weights[0]["dt_bias"].shape, len(weights)
    (torch.Size([3, 16]), 3)
    """
    if memory not in MEMORIES:
        raise ValueError(f"a memory is one of {', '.join(MEMORIES)}, got {memory!r}")
    s, device = shape, generator.device

    def normal(*size, scale):
        return torch.randn(runs, *size, generator=generator, device=device, dtype=torch.float32) * scale

    def layer():
        width = s.H * (2 * s.K + s.V)
        w = {"qkv": normal(s.D, width, scale=s.D**-0.5), "out": normal(s.H * s.V, s.D, scale=(s.H * s.V) ** -0.5)}
        # the current token passes, its neighbours a little
        w["taps"] = normal(width, 4, scale=0.3)
        w["up"], w["down"] = normal(s.D, 2 * s.D, scale=s.D**-0.5), normal(2 * s.D, s.D, scale=(2 * s.D) ** -0.5)
        if memory == "DeltaNet" or memory in GATED:
            w["beta"] = normal(s.D, s.H, scale=s.D**-0.5)
        if memory in GATED:
            gates = s.H * (s.K if memory == "KDA" else 1)
            w["gate"] = normal(s.D, gates, scale=s.D**-0.5)
            w["A_log"] = torch.zeros(runs, s.H, device=device, dtype=torch.float32)
            # log decays from -0.001 to -0.1 at the start: half lives of 700 to 7 tokens
            rate = torch.exp(
                math.log(1e-3)
                + math.log(100) * torch.rand(runs, gates, generator=generator, device=device, dtype=torch.float32)
            )
            w["dt_bias"] = rate.expm1().log()
        return w

    ends = {"words": normal(s.words, s.D, scale=1.0), "answers": normal(s.D, s.answers, scale=s.D**-0.5)}
    return [layer() for _ in range(s.layers)] + [ends]


def state_numbers(memory, shape, T):
    """How many numbers a layer's memory holds after T tokens: fixed for a state, growing for a cache of keys and
    values.

    >>> state_numbers("KDA", Shape(10, 4), 100), state_numbers("softmax", Shape(10, 4), 100)
    (128, 3200)
    """
    return shape.H * (shape.K + shape.V) * T if memory == "softmax" else shape.H * shape.K * shape.V


def linear(x, weight):
    """A product for each run.   x: [B, T, R, in]   weight: [R, in, out]   returns [B, T, R, out].

    >>> linear(torch.ones(1, 1, 2, 3), torch.ones(2, 3, 1)).flatten().tolist()
    [3.0, 3.0]
    """
    B, T = x.shape[:2]
    return (x.flatten(0, 1).transpose(0, 1) @ weight).transpose(0, 1).unflatten(0, (B, T))


def one_chunk(q, k, v, g=None, beta=None):
    """What a state that starts at zero reads for each token, the whole sequence as one chunk: O = M E, (I + A) E = B V.

    q, k: [..., T, K]   v: [..., T, V]   g: log decays [..., T, K], or [..., T, 1] for one a head, or None for no decay
    beta: [..., T, 1], or None for linear attention, where E = V.   returns [..., T, V].   Implements linear-chunk,
    delta-chunk, chunk-output.

    >>> x = torch.ones(2, 1)
    >>> one_chunk(x, x, 3 * x).T, one_chunk(x, x, 3 * x, beta=x).T         # added up, and overwritten
    (tensor([[3., 6.]]), tensor([[3., 3.]]))
    """
    both = torch.stack([q, k]) if beta is not None else q[None]
    if g is None or g.shape[-1] == 1:
        one = torch.ones_like(v[..., :1])
        # one decay for all channels multiplies the product
        decays = 1 if g is None else decay.blocked_scores(one, one, g)
        scores = (both @ k.mT).tril() * decays  # [1 or 2, ..., T, T]
    else:
        scores = decay.blocked_scores(both, k, g)
    if beta is None:
        return scores[0] @ v
    A = scores[1].tril(-1) * beta
    # the diagonal is taken as one and not read
    E = torch.linalg.solve_triangular(A, v * beta, upper=False, unitriangular=True)
    return scores[0] @ E


def answer(memory, shape, q, k, v, x, w):
    """What a memory reads for each token.   q, k: [B, T, R H, K]   v: [B, T, R H, V]   x: [B, T, R, D]   returns v's
    shape.

    The keys and queries of the four states have unit length; softmax takes them as they come.
    """
    q, k, v = (y.transpose(1, 2) for y in (q, k, v))  # [B, R H, T, ...]
    if memory == "softmax":
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    g = beta = None
    if memory != "linear attention":
        beta = linear(x, w["beta"]).flatten(2).transpose(1, 2)[..., None].sigmoid()  # [B, R H, T, 1]
    if memory in GATED:
        rate = linear(x, w["gate"]).unflatten(-1, (shape.H, -1)).flatten(2, 3)  # [B, T, R H, K or 1]
        g = decay.softplus_gate(rate, w["A_log"].flatten(), w["dt_bias"].reshape(rate.shape[2:])).transpose(1, 2)
    return one_chunk(l2_normalise(q), l2_normalise(k), v, g, beta).transpose(1, 2)


def mix(memory, shape, x, w):
    """The part of a layer that looks at other tokens.   x: [B, T, R, D]; same shape back.

    >>> shape = Shape(10, 4)
    >>> w = initial("KDA", shape, 1, torch.Generator().manual_seed(0))[0]
    >>> x = torch.randn(1, 5, 1, 64, generator=torch.Generator().manual_seed(1))
    >>> later = torch.cat([x[:, :4], -x[:, 4:]], 1)
    >>> (mix("KDA", shape, x, w) - mix("KDA", shape, later, w)).abs().sum((0, 2, 3)) > 1e-4     # nothing looks ahead
    tensor([False, False, False, False,  True])
    """
    R = x.shape[2]
    h = linear(x, w["qkv"]).flatten(2)  # [B, T, R (2 H K + H V)]
    h, _ = short_convolution(h, w["taps"].flatten(0, 1))
    q, k, v = h.unflatten(-1, (R, -1)).split([shape.H * shape.K, shape.H * shape.K, shape.H * shape.V], -1)
    q, k, v = (y.unflatten(-1, (shape.H, -1)).flatten(2, 3) for y in (q, k, v))  # [B, T, R H, K or V]
    o = rms_norm(answer(memory, shape, q, k, v, x, w))
    return linear(o.unflatten(2, (R, shape.H)).flatten(3), w["out"])


def logits(memory, shape, weights, tokens, queries):
    """Scores of the answers at the last ``queries`` tokens.   tokens: [B, T, R]   returns [B, queries, R, answers].

    >>> shape = Shape(10, 4)
    >>> weights = initial("GDN", shape, 2, torch.Generator().manual_seed(0))
    >>> logits("GDN", shape, weights, torch.ones(3, 8, 2, dtype=torch.long), 5).shape
    torch.Size([3, 5, 2, 4])
    """
    *layers, ends = weights
    # a product with zeros and ones, since a gather's gradient adds in no fixed order
    x = linear(
        (tokens[..., None] == torch.arange(shape.words, device=tokens.device)).float(), ends["words"]
    )  # [B, T, R, D]
    for w in layers:
        x = x + mix(memory, shape, rms_norm(x), w)
        x = x + linear(silu(linear(rms_norm(x), w["up"])), w["down"])
    return linear(rms_norm(x[:, -queries:]), ends["answers"])
