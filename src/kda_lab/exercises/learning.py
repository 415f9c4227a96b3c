"""Exercises of the chapter on learning."""

import torch

from kda_lab import learning, rules


def by_hand():
    """What the key (1, 1) reads after the coupled step and after Gated DeltaNet's."""
    # <solution>
    return 1.0, 3.0
    # </solution>


def check_by_hand(by_hand):
    S, k, v = torch.tensor([[6.0, 2.0]]), torch.tensor([1.0, 1.0]), torch.tensor([2.0])
    coupled = learning.coupled_step(S, k, v, 0.25, 2.0) @ k
    decoupled = rules.gated_delta(S, k, k, v, 0.5, 0.25)[1]
    assert tuple(by_hand()) == (coupled.item(), decoupled.item()), (
        "write S, the gradient and the new state as in the table of the chapter"
    )


def huber_step(S, k, v, beta):
    """One step of rate beta on Huber's loss of S k - v: slope e where |e| <= 1, else the sign of e, entry by entry.

    S: [V, K]   k: [K]   v: [V]   returns [V, K].
    """
    # <solution>
    slope = (S @ k - v).clamp(-1, 1)  # [V]
    return S - learning.chain(slope, k) * beta
    # </solution>


def check_huber_step(huber_step):
    generator = torch.Generator().manual_seed(3)
    S, k, v = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((4, 3), (3,), (4,)))
    X = S.clone().requires_grad_()
    torch.nn.functional.huber_loss(X @ k, v * 3, reduction="sum").backward()
    got = huber_step(S, k, v * 3, 0.7)
    assert torch.allclose(got, S - 0.7 * X.grad), (
        f"off by {(got - S + 0.7 * X.grad).abs().max():.2g}; the gradient is the slope times k^T"
    )


def rate_for_gate(beta, k):
    """The rate eta of the implicit step whose write gate is beta.

    beta: scalar with 0 < beta |k|^2 < 1   k: [K]   returns a scalar.
    """
    # <solution>
    return beta / (1 - beta * (k @ k))
    # </solution>


def check_rate_for_gate(rate_for_gate):
    for length, beta in ((1.0, 0.5), (1.0, 0.999), (2.0, 0.2), (0.5, 3.0)):
        k = torch.tensor([0.6, 0.8], dtype=torch.float64) * length
        got = learning.implicit_gate(k, rate_for_gate(beta, k)).item()
        assert abs(got - beta) < 1e-12, f"for |k| = {length} the rate should give the gate {beta}, it gives {got:.4g}"


def penalty_that_flips(alpha_wanted, beta):
    """The penalty lambda of a coupled step that keeps the share alpha_wanted.

    The share is that of what is stored at right angles to the key.
    alpha_wanted: scalar <= 1, negative too   beta: scalar > 0.
    """
    # <solution>
    return (1 - alpha_wanted) / beta
    # </solution>


def check_penalty_that_flips(penalty_that_flips):
    S, k = torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    other = torch.tensor([0.0, 1.0], dtype=torch.float64)  # the write under k does not reach it
    for alpha in (0.5, 0.0, -1.0):
        lam = penalty_that_flips(alpha, 0.8)
        assert lam >= 0, f"a penalty is not negative, got {lam:.3g}"
        after = learning.coupled_step(S, k, torch.zeros(1, dtype=torch.float64), 0.8, lam) @ other
        assert abs(after.item() - alpha * 4.0) < 1e-12, (
            f"the memory 4 at right angles to the key should become {alpha * 4:g}, got {after.item():.3g}"
        )
        kept = learning.proximal_decay(torch.tensor(0.8 * lam))
        assert 0 < kept <= 1, "the proximal decay of the same rate and penalty must stay in (0, 1]"
