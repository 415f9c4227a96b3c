"""kda_chunk.cu on a CPU: the same blocks, the same order of products and the same roundings, in plain torch.

It tells what the kernel's arithmetic does to an input before any GPU is asked, and which of its roundings matters: pass
another `round_to` or `round_inverse` and compare. Sums of a product are in fp32 in both, not in the same order.
"""

import math

import torch

C, SUB, FLOOR = 64, 16, -160.0


def tf32(x):
    """x with its mantissa rounded to 10 bits, ties away from zero: what a tensor core sees of an fp32 number.

    >>> tf32(torch.tensor([1.0, 1.0 + 2**-11, 1.0 + 2**-12])).tolist() == [1.0, 1.0 + 2**-10, 1.0]
    True
    """
    bits = x.contiguous().view(torch.int32)
    return torch.where(torch.isfinite(x), ((bits + 0x1000) & ~0x1FFF).view(torch.float32), x)


def split_tf32(x):
    """x as the kernel's split products see it: hi + lo, both tf32."""
    hi = tf32(x)
    return hi + tf32(x - hi)


def log2_decay(P, j, i):
    """G_i - G_j in base 2: the decay of tokens j+1 .. i (numbers or ranges), from block-local sums P: [..., C, K]."""
    j, i = torch.broadcast_tensors(torch.as_tensor(j), torch.as_tensor(i))
    flat = []
    for jj, ii in zip(j.flatten().tolist(), i.flatten().tolist()):
        a, b = ii // SUB, (jj + SUB) // SUB - 1
        if a == b:
            flat.append(P[..., ii, :] - P[..., jj, :])
            continue
        total = P[..., ii, :].clone()
        for c in range(b + 1, a):
            total += P[..., SUB * c + SUB - 1, :]
        flat.append(total if b < 0 else total + (P[..., SUB * b + SUB - 1, :] - P[..., jj, :]))
    return torch.stack(flat, -2).unflatten(-2, j.shape)


def prepare(q, k, v, g, beta, round_to, round_inverse):
    """kda_prepare, all in fp32: q, k, g [..., C, K], g in base 2; v [..., C, V]; beta [..., C].

    Returns U [..., C, V], W, Q_in, K_g [..., C, K], M [..., C, C], e^{G_C} [..., K].
    """

    def product(x, y):
        return round_to(x) @ round_to(y)

    P = g.clamp_min(FLOOR).unflatten(-2, (-1, SUB)).cumsum(-2).flatten(-3, -2)
    blocks = [slice(n, n + SUB) for n in range(0, C, SUB)]
    A, M = k.new_zeros(2, *k.shape[:-1], C)
    for a in blocks:
        x = torch.exp2(log2_decay(P, a.start, range(a.start, a.stop)))
        for b in blocks[: a.start // SUB]:
            y = k[..., b, :] * torch.exp2(log2_decay(P, range(b.start, b.stop), a.start))
            A[..., a, b] = beta[..., a, None] * product(k[..., a, :] * x, y.mT)
            M[..., a, b] = product(q[..., a, :] * x, y.mT)
        exponent = P[..., a, None, :] - P[..., None, a, :]
        keep = torch.ones(SUB, SUB, dtype=torch.float32).tril().bool()[:, :, None]
        y = k[..., None, a, :] * torch.exp2(exponent.where(keep, torch.tensor(-math.inf)))
        A[..., a, a] = (beta[..., a, None] * (k[..., a, None, :] * y).sum(-1)).tril(-1)
        M[..., a, a] = (q[..., a, None, :] * y).sum(-1)

    R = torch.zeros_like(A)
    for n in blocks:
        x = torch.eye(SUB, dtype=torch.float32).expand(*A.shape[:-2], SUB, SUB).clone()
        for i in range(1, SUB):
            x[..., i, :] -= (A[..., n, n][..., i, :i, None] * x[..., :i, :]).sum(-2)
        R[..., n, n] = x
    for distance in range(1, len(blocks)):
        for a, b in zip(blocks[distance:], blocks):
            middle = slice(b.start, a.start)
            x = round_inverse(A[..., a, middle]) @ round_inverse(R[..., middle, b])
            R[..., a, b] = -round_inverse(R[..., a, a]) @ round_inverse(x)

    from_start, to_end = log2_decay(P, -1, range(C)), log2_decay(P, range(C), C - 1)
    U = product(R, beta[..., None] * v)
    W = product(R, beta[..., None] * k * torch.exp2(from_start))
    return U, W, q * torch.exp2(from_start), k * torch.exp2(to_end), M, torch.exp2(from_start[..., -1, :])


def kda_chunk(q, k, v, g, beta, initial_state=None, *, l2norm=False, round_to=tf32, round_inverse=split_tf32):
    """The three stages: q (scaled), k, g [H, T, K]; v [H, T, V]; beta [H, T] -> o [H, T, V], S [H, V, K].

    `round_to` rounds the factors of a tensor core product, `round_inverse` those of the block merge of the inverse.

    >>> x = torch.ones(1, 3, 2)
    >>> o, S = kda_chunk(x, x / 2**.5, x, 0 * x, torch.ones(1, 3))
    >>> [round(y, 3) for y in o[0, :, 0].tolist()]     # one key, written fully: the value is there at once and stays
    [1.414, 1.414, 1.414]
    """
    q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
    (H, T, K), V = k.shape, v.shape[-1]
    if l2norm:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    chunks = -(-T // C)

    def chunked(x):  # missing tokens: k = v = q = 0, beta = 0, g = 0
        return torch.nn.functional.pad(x, (0, 0, 0, chunks * C - T)).unflatten(1, (chunks, C))

    q, k, v, g, beta = (chunked(x) for x in (q, k, v, g / math.log(2), beta[..., None]))
    U, W, Q_in, K_g, M, decay = prepare(q, k, v, g, beta[..., 0], round_to, round_inverse)
    S = torch.zeros(H, V, K, dtype=torch.float32) if initial_state is None else initial_state.float()
    o = []
    for t in range(chunks):
        E = U[:, t] - round_to(W[:, t]) @ round_to(S).mT
        o.append(round_to(Q_in[:, t]) @ round_to(S).mT + round_to(M[:, t]) @ round_to(E))
        S = S * decay[:, t, None, :] + round_to(E).mT @ round_to(K_g[:, t])
    return torch.cat(o, 1)[:, :T] if o else v.new_zeros(H, 0, V), S
