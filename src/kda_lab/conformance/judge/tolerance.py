"""How large may an error be? As large as a correct computation of this precision makes it on this very input, times a
factor.

The cost of a precision is measured, not guessed: the chunk algorithm runs in float64, and everything that a kernel of
that precision would round gets a relative noise of the size of its rounding: the operands of every product by ``bits``
significant bits, what kernels keep in float32 (gates, states) by 24, sums of up to 64 terms by three bits less, since
their roundings add up like a random walk to some eight of one, and results by the bits of their dtype. Several such
runs, with two chunk sizes, are compared with the float64 token loop; the largest error is what the precision costs. The
budget is FACTOR times that, since another order of summation or another blocking has another error of the same size,
and the largest of many runs is some three times a typical one. A floor stands under it: no computation is asked to be
better than a few roundings.
"""

import math
from typing import NamedTuple

import torch

from kda_lab.conformance.judge import reading
from kda_lab.parts import decay

# finest first: significand bits of the operands of products
RUNGS = {"float64": 53, "float32": 24, "tf32/fp16": 11, "bfloat16": 8}
BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
FACTOR = 4.0
BLOCK = 16
# a block that is much smaller than its head's largest is judged by this share of the largest: it is what is left over
# of sums whose terms have the size of the largest
SHARE = 0.03


class Error(NamedTuple):
    """The largest relative error of a block, and where it is.

    >>> Error(0.5, "head 1, tokens 16 to 31").size
    0.5
    """

    size: float
    where: str


def noisy(x, bits, generator):
    """x with a relative noise, uniform within plus or minus 2^-bits: the rounding to that many significant bits.

    >>> x = torch.ones(1000, dtype=torch.float64)
    >>> float((noisy(x, 8, torch.Generator().manual_seed(0)) - x).abs().max()) <= 2**-8
    True
    """
    u = torch.rand(x.shape, dtype=torch.float64, generator=generator, device=generator.device).to(x.device)
    return x * (1 + (2 * u - 1) * 2.0**-bits)


# the terms of ops.chunked once more: what judges a kernel shares no code with what it judges
class Local(NamedTuple):
    """What chunks are before they meet a state; n sequences of m chunks.

    M: [n, HV, m, C, C]   Q_in, K_g, W: [n, HV, m, C, K]   U: [n, HV, m, C, V]   D: [n, HV, m, K or 1].

    >>> Local._fields
    ('M', 'Q_in', 'K_g', 'D', 'U', 'W')
    """

    M: torch.Tensor
    Q_in: torch.Tensor
    K_g: torch.Tensor
    D: torch.Tensor
    U: torch.Tensor
    W: torch.Tensor


def emulate(rule, arguments, bits, C, generator):
    """(o, final state) as a chunk kernel whose products take operands of this many bits would have them.

    rule: a name in ``reading.RULES``   arguments: keywords of ``ops``.   float64, differentiable.

    >>> x = torch.ones(1, 3, 1, 1)
    >>> a = dict(q=x, k=x, v=x, beta=x[..., 0])
    >>> o, S = emulate("delta_rule", a, 8, 16, torch.Generator().manual_seed(0))
    >>> bool(0 < (o - 1).abs().max() < 0.05)
    True
    """

    def operand(x):
        return noisy(x, bits, generator)

    def kept(x):
        # what stays in float32, or in float64 if everything does
        return noisy(x, max(bits, 24), generator)

    def summed(x):
        return noisy(x, max(bits, 24) - 3, generator)

    p = reading.read(rule, arguments)
    # exact: the exponential of a sum that contains a gate at the floor is 0, as it is at -inf; and inf - inf cannot
    # occur
    g = kept(p.g).clamp(min=decay.clear_floor(torch.float64))
    p = p._replace(q=operand(p.q), k=operand(p.k), v=operand(p.v), g=g, gates=[kept(x) for x in p.gates], S=kept(p.S))
    parts = []
    for members, rows in reading.of_one_length(p):
        # of one gate, beta, both the first and the last is it
        sequences = p.q, p.k, p.v, p.g, p.gates[0], p.gates[-1]
        chunks = (reading.cut(x, rows, min(C, rows.shape[1])) for x in sequences)
        o, S = through_chunks(local_terms(*chunks, operand, kept, summed), p.S[members], operand, summed)
        parts.append((members, rows, o.flatten(2, 3)[:, :, : rows.shape[1]], S))
    o, S = reading.put_together(p, parts, arguments["v"].shape[:2])
    # the results are rounded to their dtypes
    return noisy(o, BITS[arguments["v"].dtype], generator), kept(S)


def local_terms(Q, K, V, g, erase, write, operand, kept, summed):
    """The terms of all chunks with every operand, kept number and sum rounded.

    Q, K: [n, HV, m, C, K]   V: [n, HV, m, C, V]   g, erase: [n, HV, m, C, K or 1]   write: [n, HV, m, C, V or 1].
    """
    # a gate of one number multiplies the finished sums, one with channels the operand
    after, inside = (erase, 1.0) if erase.shape[-1] == 1 else (1.0, erase)
    G = kept(decay.prefix_sums(g))  # [n, HV, m, C, K or 1]
    K_in, Q_in = operand(K * G.exp()), operand(Q * G.exp())  # [n, HV, m, C, K]
    K_g = operand(K * kept(decay.later_sums(g)).exp())  # [n, HV, m, C, K]
    D = kept(G[..., -1, :].exp())  # [n, HV, m, K or 1]
    M, A = reading.scores(torch.stack([operand(Q), operand(K * inside)]), operand(K), kept(g))  # [n, HV, m, C, C]
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    R = torch.linalg.solve_triangular(summed(A).tril(-1) * after + eye, eye, upper=False, unitriangular=True)
    R = operand(R)  # [n, HV, m, C, C] (I + A)^-1
    U, W = summed(R @ operand(V * write)), operand(R @ operand(K_in * erase))  # [n, HV, m, C, V], [n, HV, m, C, K]
    return Local(operand(M), Q_in, K_g, D, U, W)


def through_chunks(local, S, operand, summed):
    """Outputs [n, HV, m, C, V] and final states, chunk after chunk, with rounded operands, and sums kept in float32.

    S: [n, HV, V, K].
    """
    rows = []
    for t in range(local.D.shape[2]):
        M, Q_in, K_g, D, U, W = (x[:, :, t] for x in local)
        S_in = operand(S)
        E = operand(U - W @ S_in.mT)  # [n, HV, C, V]
        rows.append(Q_in @ S_in.mT + M @ E)
        S = summed(S * D[..., None, :] + E.mT @ K_g)
    return torch.stack(rows, 2), S


def row_errors(got, wanted, share=SHARE, terms=None):
    """The largest relative error of 16 tokens of one head.   got, wanted: [B, T, HV, ...]   returns Error.

    The error of a block is measured by the block's own norm, or by ``share`` of the largest block of its head, or by
    the norm of
    ``terms``, the sizes of what the block is a sum of, whichever is largest.

    >>> x = torch.ones(1, 32, 2, 3)
    >>> y = x.clone()
    >>> y[0, 20, 1] = 2
    >>> row_errors(y, x)
    Error(size=0.25, where='batch row 0, tokens 16 to 31, head 1')
    """
    if not wanted.numel():
        return Error(0.0, "")
    T = wanted.shape[1]
    difference, size = (block_norms(x) for x in (got - wanted, wanted))  # [B, blocks, HV]
    if terms is not None:
        size = torch.maximum(size, block_norms(terms))
    ratio = difference / scale_of(size, share, 1)
    b, t, h = worst(ratio)
    where = f"batch row {b}, tokens {t * BLOCK} to {min(T, t * BLOCK + BLOCK) - 1}, head {h}"
    return Error(float(ratio[b, t, h]), where)


def block_norms(x):
    """Norms of blocks of 16 tokens.   x: [B, T, HV, ...]   returns [B, blocks, HV].

    >>> block_norms(torch.ones(1, 17, 1, 1)).flatten().tolist()
    [4.0, 1.0]
    """
    x = x.double().flatten(3) if x.ndim > 3 else x.double()[..., None]
    x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % BLOCK))
    return x.unflatten(1, (-1, BLOCK)).square().sum((2, -1)).sqrt()


def channel_errors(got, wanted, share=SHARE):
    """The largest relative error of one key channel of a state, since every channel has its own clock.   [N, HV, V, K].

    >>> x = torch.ones(1, 1, 4, 2)
    >>> channel_errors(x * torch.tensor([1.0, 1.5]), x)
    Error(size=0.5, where='sequence 0, head 0, key channel 1')
    """
    if not wanted.numel():
        return Error(0.0, "")
    difference, size = (x.double().square().sum(2).sqrt() for x in (got - wanted, wanted))  # [N, HV, K]
    ratio = difference / scale_of(size, share, 2)
    n, h, c = worst(ratio)
    return Error(float(ratio[n, h, c]), f"sequence {n}, head {h}, key channel {c}")


def scale_of(size, share, dim):
    """What errors are measured by: each norm, but at least ``share`` of the largest along ``dim``, and 1 where all are
    zero.
    """
    scale = torch.maximum(size, share * size.amax(dim, keepdim=True))
    return scale.where(scale > 0, 1.0)


def worst(ratio):
    """Where the largest entry is; a nan is larger than anything."""
    ratio.nan_to_num_(nan=math.inf, posinf=math.inf)
    return tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))


def floor(bits, T, output_bits=53):
    """A few roundings: nothing is asked to be better. In a token loop the same decay is rounded the same way T times,
    so the
    roundings of T tokens may add up.   bits: of operands   output_bits: of the result's dtype.

    >>> 1e-6 < floor(24, 100) < 1e-5
    True
    """
    every_step = 2.0 ** -(53 if bits == 53 else 24)
    return every_step * (40 + T) + 2.0**-bits + 2.0**-output_bits
