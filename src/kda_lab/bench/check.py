"""Is a result right? float64 on some heads over all tokens, and every head against the readable kernel.

Float64 is the chunk form of `kda_lab.ops`, which takes seconds where the token loop would take an hour; the token loop
vouches for it on the first tokens of the same heads.
"""

from typing import NamedTuple

import torch

from kda_lab import ops
from kda_lab.cuda.measure import relative_error
from kda_lab.ops.words import in_public_words

LIMIT = 1e-2  # bf16 results of bf16 products err by 2e-3 to 8e-3
BLOCK = 16  # tokens
# one wrong token of 16 is an error of about 1 / 4 of its block, and roundings stay near the limit
BLOCK_LIMIT = 0.1
LOOP = 96  # tokens that the token loop vouches for: a chunk and a half
VOUCHED = 1e-10  # float64 roundings of a hundred tokens are near 1e-14; a wrong term would be far above

AGAINST = (
    f"float64 chunk form of the first, middle and last head, all tokens; the token loop vouches for the first {LOOP}"
)


class Exact(NamedTuple):
    """What float64 says of some heads: o [1, T, heads, V], S [N, heads, V, K]."""

    heads: list
    o: torch.Tensor
    S: torch.Tensor
    against: str


def some_heads(H):
    """The first, the middle and the last head.

    >>> some_heads(96), some_heads(2), some_heads(1)
    ([0, 48, 95], [0, 1], [0])
    """
    return sorted({0, H // 2, H - 1})


def of_heads(arguments, heads):
    """The same call for some of its heads, q, k and v in float64, so that all arithmetic is."""
    named = in_public_words(arguments)
    for name in ("q", "k", "v", "g", "beta"):
        named[name] = named[name][:, :, heads].double()
    named["initial_state"] = named["initial_state"][:, heads]
    return named | {"A_log": named["A_log"][heads], "dt_bias": named["dt_bias"][heads]}


def exact(arguments):
    """What float64 says. Raises RuntimeError if chunk form and token loop differ on the first tokens."""
    heads = some_heads(arguments["q"].shape[2])
    named = of_heads(arguments, heads)
    with torch.no_grad():
        o, S = ops.chunk_kda(**named)
        vouch(named, o)
    return Exact(heads, o, S, AGAINST)


def vouch(named, o):
    """Compare the first tokens of the first sequence with the token loop."""
    bounds = [0, o.shape[1]] if named["cu_seqlens"] is None else named["cu_seqlens"].tolist()
    first = next(n for n in range(len(bounds) - 1) if bounds[n + 1] > bounds[n])
    tokens = slice(bounds[first], min(bounds[first] + LOOP, bounds[first + 1]))
    short = {name: named[name][:, tokens] for name in ("q", "k", "v", "g", "beta")}
    short |= {"initial_state": named["initial_state"][first : first + 1], "cu_seqlens": None}
    error = relative_error(o[:, tokens], ops.naive_kda(**named | short)[0])
    if not error <= VOUCHED:
        raise RuntimeError(
            f"the float64 chunk form and the token loop differ by {error:.1e}, expected at most {VOUCHED:.0e}; run "
            "make test"
        )


def misshapen(result, arguments):
    """What is wrong with the form of a result, in words, or None."""
    o, S = result
    expected = tuple(arguments["v"].shape), tuple(arguments["initial_state"].shape)
    got = tuple(o.shape), tuple(S.shape)
    return (
        None
        if got == expected
        else f"o and state have shapes {got[0]} and {got[1]}, expected {expected[0]} and {expected[1]}"
    )


def errors(result, exact):
    """{o, state, against}: relative errors against float64, of its heads."""
    o, S = result
    return {
        "o": relative_error(o[:, :, exact.heads], exact.o),
        "state": relative_error(S[:, exact.heads], exact.S),
        "against": exact.against,
    }


def agreement(result, readable):
    """{o, state, worst} against another result: relative differences, and the largest of 16 tokens of a head.

    >>> o = torch.ones(1, 32, 2, 4)
    >>> wrong = o.clone()
    >>> wrong[0, 20, 1] = 0
    >>> agreement((wrong, o), (o, o))["worst"]
    0.25
    """
    o, S = result
    return {
        "o": relative_error(o, readable[0]),
        "state": relative_error(S, readable[1]),
        "worst": worst_block(o, readable[0]),
    }


def worst_block(x, y):
    """The largest difference of 16 tokens of a head, as a share of what 16 tokens of that head have in the mean."""
    blocks = [z.float().square().sum(-1)[0] for z in (x.float() - y.float(), y)]  # [T, H]
    blocks = [torch.nn.functional.pad(z, (0, 0, 0, -len(z) % BLOCK)).unflatten(0, (-1, BLOCK)).sum(1) for z in blocks]
    difference, size = blocks
    # a head of zeros has no share
    share = difference.max(0).values / size.mean(0).clamp_min(1e-30)
    return share.max().sqrt().item()


def fault(error, agreement):
    """Why a result is not right, in words, or None.

    >>> fault({"o": 4e-3, "state": 3e-3}, {"o": 5e-3, "state": 5e-3, "worst": 0.02})
    >>> fault({"o": 4e-3, "state": float("nan")}, None)
    'the state is off by nan, allowed is 0.01'
    """
    found = [("o", error["o"], LIMIT), ("the state", error["state"], LIMIT)]
    if agreement:
        other = "against the readable kernel "
        found += [(f"{other}o", agreement["o"], LIMIT), (f"{other}the state", agreement["state"], LIMIT)]
        found += [(f"a block of {BLOCK} tokens", agreement["worst"], BLOCK_LIMIT)]
    wrong = [f"{what} is off by {x:.2g}, allowed is {limit}" for what, x, limit in found if not x <= limit]
    return wrong[0] if wrong else None
