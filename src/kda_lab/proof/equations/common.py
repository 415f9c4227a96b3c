"""What the registry's modules share: entries written out one by one, rules tried token by token, comparison in floats.

The formulas here use no function of the library, so that a mistake in the library cannot cancel out.
"""

import torch

from kda_lab.proof.engines import Disagreement, stack

# a state and C tokens, as the simplest rules take them, and as KDA does
TOKENS = "S:V,K q:C,K k:C,K v:C,V"
KDA_TOKENS = TOKENS + " alpha:C,K=decay beta:C=gate"


def matrix(rows, columns, entry):
    """The array of entry(r, c), in the number system of its entries.   returns [rows, columns].

    >>> matrix(2, 2, lambda r, c: 10 * r + c).tolist()
    [[0, 1], [10, 11]]
    """
    return stack([stack([entry(r, c) for c in range(columns)]) for r in range(rows)])


def read(S, q):
    """S q, entry by entry.   S: [V, K]   q: [K]   returns [V].

    >>> import numpy as np
    >>> read(np.array([[1, 2]]), np.array([3, 4])).astype(int).tolist()
    [11]
    """
    return stack([sum(S[r, c] * q[c] for c in range(len(q))) for r in range(len(S))])


def affine_step(S, transition, increment):
    """S T + H, with T(e, c) and H(r, c) given as functions of their indices.   S: [V, K]   returns [V, K].

    >>> import numpy as np
    >>> affine_step(np.array([[1, 2]]), lambda e, c: int(e == c), lambda r, c: c).astype(int).tolist()
    [[1, 3]]
    """
    V, K = S.shape
    return matrix(V, K, lambda r, c: sum(S[r, e] * transition(e, c) for e in range(K)) + increment(r, c))


def lower_unit(A):
    """I + A as an array.   A: [C, C].

    >>> lower_unit(torch.tensor([[0, 0], [5, 0]])).tolist()
    [[1, 0], [5, 1]]
    """
    out = A * 1
    for i in range(len(A)):
        out[i, i] = out[i, i] + 1
    return out


def token_by_token(formula, *names):
    """A claim: a rule gives the state and the output of ``formula``, for each token, from a state that is not zero.

    formula: (S, *inputs of one token) -> (S, o)   names: the inputs' names, each with a leading token axis.

    >>> from kda_lab.proof.engines import Ring, run_claim
    >>> add = lambda S, v: (S + v, v)
    >>> run_claim(Ring(), "S:V v:C,V", {"V": 1, "C": 2}, token_by_token(add, "v"), add)
    """

    def claim(x, rule):
        S = x.S
        for t in range(len(getattr(x, names[0]))):
            token = [getattr(x, n)[t] for n in names]
            wanted, output = formula(S, *token)
            new, o = rule(S, *token)
            yield new, wanted
            yield o, output
            S = wanted

    return claim


def residuals(S, K, V, alpha, beta):
    """All states of KDA's token loop, the first one included, and what each token writes along its key.

    S: [V, K]   K, alpha: [C, K]   V: [C, V]   beta: [C]   returns C + 1 states and C rows [V].

    >>> import numpy as np
    >>> one = np.ones((2, 1))
    >>> [float(r) for (r,) in residuals(one[:1], one, one * 3, one / 2, one[:, 0])[1]]
    [2.5, 1.5]
    """
    states, rows = [S], []
    for k, v, a, b in zip(K, V, alpha, beta):
        S = states[-1] * a
        rows.append((v - S @ k) * b)
        states.append(S + rows[-1][:, None] * k[None, :])
    return states, rows


def agree(left, right, what, tolerance=1e-12):
    """Raise Disagreement unless two tensors are equal up to ``tolerance`` of the larger one.

    The default leaves four digits to rounding (2^-53 = 1.1e-16) over a few hundred operations.

    >>> agree(torch.tensor([1.0]), torch.tensor([1.0]), "one")
    """
    left, right = torch.as_tensor(left), torch.as_tensor(right)
    if left.shape != right.shape:
        raise Disagreement(f"{what}: shapes {tuple(left.shape)} and {tuple(right.shape)}")
    scale = max(left.abs().max().item(), right.abs().max().item(), 1e-300) if left.numel() else 1.0
    error = (left - right).abs().max().item() / scale if left.numel() else 0.0
    if not error <= tolerance:  # also catches nan
        raise Disagreement(f"{what}: relative difference {error:.1e}")


def require(condition, what):
    """Raise Disagreement unless the condition holds.

    >>> require(True, "true is true")
    """
    if not condition:
        raise Disagreement(what)


def named(mutants, *prefixes):
    """Those mutants whose names begin so.

    >>> from kda_lab.proof.registry import Mutant
    >>> [m.name for m in named([Mutant("no mask", len), Mutant("twice", len)], "no ")]
    ['no mask']
    """
    return [m for m in mutants if m.name.startswith(prefixes)]


def normal(*shape, seed=0, dtype=torch.float64):
    """Normal numbers from a generator of their own.

    >>> normal(2, seed=1).equal(normal(2, seed=1))
    True
    """
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
