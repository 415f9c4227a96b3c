"""Exercises of the chapter on what a chunk does to the old state."""

import torch

from kda_lab import affine, chunk, inputs, rules, triangular


def by_hand():
    """w_2, two numbers."""
    # <solution>
    return 0.125, 0.5
    # </solution>


def check_by_hand(by_hand):
    K, alpha = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.5, 1.0]])
    W = chunk.kda(torch.zeros(1, 2), K, K, K[:, :1], alpha, torch.tensor([0.5, 0.5])).W
    assert list(by_hand()) == W[1].tolist(), (
        "w_1 = beta_1 p_1 and w_2 = beta_2 p_2 - A_21 w_1, where p_2 has decayed over tokens 1 and 2"
    )


def apply_thin(S, W, K_g, D):
    """S (Diag(D) - W^T K_g) without forming a [K, K] matrix.

    S: [V, K]   W, K_g: [C, K]   D: [K]   returns [V, K].
    """
    # <solution>
    return S * D - (S @ W.T) @ K_g
    # </solution>


def check_apply_thin(apply_thin):
    x = inputs.head(6, K=5, V=3, generator=torch.Generator().manual_seed(3))
    t = chunk.kda(x.S, x.q, x.k, x.v, x.g.exp(), x.beta)
    got = apply_thin(x.S, t.W, t.K_g, t.D)
    want = rules.scan(rules.kda, x.S, x.q, x.k, x.v * 0, x.g.exp(), x.beta)[0]
    assert torch.allclose(got, want), f"the loop with values zero leaves {want.tolist()}, got {got.tolist()}"
    # every array that the answer makes passes by here
    shapes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            shapes.append(tuple(out.shape) if isinstance(out, torch.Tensor) else ())
            return out

    with Watch():
        apply_thin(x.S, t.W, t.K_g, t.D)
    assert (5, 5) not in shapes, "a [K, K] matrix was formed; multiply S by W^T first"


def grown(C):
    """Keys [C, 1] with beta = alpha = 1 for which an entry of R exceeds 10^6 in absolute value, although no key is
    longer than 3.
    """
    # <solution>
    return torch.full((C, 1), 3.0, dtype=torch.float64)
    # </solution>


def check_grown(grown):
    K = grown(12)
    assert K.shape == (12, 1) and K.abs().max() <= 3, "twelve keys of one channel, none longer than 3"
    R = triangular.substitution(chunk.tril(K @ K.T, -1))
    assert R.abs().max() > 1e6, (
        f"the largest entry of R is {R.abs().max():.3g}; take beta |k|^2 above 2, for every token"
    )
    T = affine.transition(K[0], torch.ones(1, dtype=torch.float64), 1.0)
    assert abs(T.item()) > 1, "then each transition must expand"
