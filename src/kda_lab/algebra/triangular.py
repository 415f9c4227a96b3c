"""Inverse of a unit lower triangular matrix, three ways.

``A`` is strictly lower triangular, so ``(I + A)^-1`` is a finite sum of products: an integer polynomial in the entries.
All three functions take ``A`` [..., C, C] and return ``R`` = (I + A)^-1 of the same shape.
"""


def substitution(A):
    """Forward substitution, row by row: R_i = e_i - sum_{j<i} A_ij R_j.

    A: [..., C, C] strictly lower triangular (the rest is not read).   Implements chunk-inverse-rows.

    >>> import numpy as np
    >>> substitution(np.array([[0, 0, 0], [2, 0, 0], [3, 4, 0]]))
    array([[ 1,  0,  0],
           [-2,  1,  0],
           [ 5, -4,  1]])
    """
    C = A.shape[-1]
    R = A * 0  # [..., C, C]
    rows = []
    for i in range(C):
        row = A[..., i, :] * 0
        row[..., i] = 1
        for j in range(i):
            row = row - rows[j] * A[..., i, j, None]
        rows.append(row)
        R[..., i, :] = row
    return R


def merge(R1, A21, R2):
    """The lower left block of the inverse of [[L1, 0], [A21, L2]], given R1 = L1^-1 and R2 = L2^-1.

    R1: [..., m, m]   A21: [..., n, m]   R2: [..., n, n]   returns [..., n, m].   Implements block-inverse.

    >>> import numpy as np
    >>> merge(np.array([[1]]), np.array([[2]]), np.array([[1]]))
    array([[-2]])
    """
    return -(R2 @ (A21 @ R1))


def blocked(A, block=16):
    """Substitution on the diagonal blocks, then merges, one block row at a time.

    A: [..., C, C] strictly lower triangular; the last block may be smaller.   Implements block-inverse.

    >>> import numpy as np
    >>> A = np.tril(np.arange(25).reshape(5, 5), -1)
    >>> (blocked(A, block=2) == substitution(A)).all()
    np.True_
    """
    C = A.shape[-1]
    R = substitution(A[..., :block, :block])
    for n in range(block, C, block):
        e = min(n + block, C)
        R2 = substitution(A[..., n:e, n:e])
        top = R
        R = A[..., :e, :e] * 0
        R[..., :n, :n] = top
        R[..., n:, :n] = merge(top, A[..., n:e, :n], R2)
        R[..., n:, n:] = R2
    return R


def doubling(A):
    """The product of (I + N^(2^k)) over k, with N = -A: few matrix products, all of them full size.

    A: [..., C, C] strictly lower triangular.   Exact in exact arithmetic; unstable in floats at C = 64 with
    near-equal keys (the powers overflow long before they vanish).   Implements inverse-doubling.

    >>> import numpy as np
    >>> A = np.tril(np.arange(25).reshape(5, 5), -1)
    >>> (doubling(A) == substitution(A)).all()
    np.True_
    """
    C = A.shape[-1]
    N = -A
    R = N * 1  # I + N + ... + N^(n-1), kept without its identity until the end
    n = 2
    while n < C:
        N = N @ N
        R = R + N + R @ N
        n = n * 2
    for i in range(C):
        R[..., i, i] = 1
    return R


def inverse_bound(beta, k):
    """The largest that ``|R_ij|`` can be below the diagonal, ``beta_i |k_i| |k_j|``, while ``0 <= beta |k|^2 <= 2`` and
    alpha <= 1.

    beta: [C]   k: [C, K] torch tensors   returns [C, C].   Implements inverse-bound.

    >>> import torch
    >>> inverse_bound(torch.tensor([0.5, 1.0]), torch.tensor([[1.0, 0.0], [0.0, 2.0]])).tolist()
    [[0.5, 1.0], [2.0, 4.0]]
    """
    length = k.norm(dim=-1)
    return beta[:, None] * length[:, None] * length[None, :]
