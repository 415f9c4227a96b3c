"""One token of each update rule, and the loop over tokens. This is the specification.

Every function takes one head and one token and returns ``(S, o)``: the state after the token and what the query
reads from it. They use plain array algebra alone (``*``, ``@``, ``.T``, slices), so the same call runs on torch
tensors, on NumPy arrays of SymPy polynomials (a proof) and on elements of a finite field (a proof at kernel sizes).

Shapes: S [V, K]; q, k [K]; v [V]. Queries arrive already scaled. Keep the array on the left of a scalar.

``RULES``, behind the functions, is the one list of the rules that ``ops``, the layers and the conformance suite have.
"""

from collections.abc import Callable
from typing import NamedTuple


def outer(v, k):
    """v k^T.   v: [V]   k: [K]   returns [V, K].

    >>> import numpy as np
    >>> outer(np.array([1, 2]), np.array([3, 4]))
    array([[3, 4],
           [6, 8]])
    """
    return v[:, None] * k[None, :]


def linear(S, q, k, v):
    """Linear attention: add v k^T, read with q.

    S: [V, K]   q, k: [K] (feature-mapped if a feature map is used)   v: [V].
    Implements linear-recurrence (Katharopoulos et al. 2020, without the denominator).

    >>> import numpy as np
    >>> k = np.array([1, 0])
    >>> S, o = linear(np.zeros((1, 2), int), k, k, np.array([5]))
    >>> linear(S, k, k, np.array([7]))[1]          # the same key twice: the values add up
    array([12])
    """
    S = S + outer(v, k)  # [V, K]
    return S, S @ q


def normalised_linear(state, q, k, v):
    """Linear attention with its normaliser; the readout is returned as numerator and denominator.

    state: (S [V, K], Z [K])   q, k: [K], feature-mapped and positive   v: [V].   Returns (S, Z), (S q, Z . q).
    Implements linear-normaliser (Katharopoulos et al. 2020, eq. 18-20).

    >>> import numpy as np
    >>> one = np.array([1, 1])
    >>> state, (num, den) = normalised_linear((np.zeros((1, 2), int), np.zeros(2, int)), one, one, np.array([6]))
    >>> num / den                                  # the first token reads its own value
    array([6.])
    """
    S, Z = state
    S = S + outer(v, k)  # [V, K]
    Z = Z + k  # [K]
    return (S, Z), (S @ q, Z @ q)


def retnet(S, q, k, v, gamma):
    """RetNet: one fixed decay a head, then add.

    S: [V, K]   q, k: [K]   v: [V]   gamma: scalar in (0, 1].   Implements retnet-recurrence (Sun et al. 2023).

    >>> import numpy as np
    >>> retnet(np.ones((1, 2)), np.array([1, 0]), np.array([0, 1]), np.array([3]), 0.5)[0]
    array([[0.5, 3.5]])
    """
    S = S * gamma + outer(v, k)
    return S, S @ q


def mamba2(S, q, k, v, a, dt):
    """Mamba-2 (SSD): a decay that depends on the token; the step size dt multiplies the write.

    S: [V, K]   q (= C), k (= B): [K]   v (= x): [V]   a, dt: scalars.   Implements mamba2-recurrence (Dao and Gu 2024).

    >>> import numpy as np
    >>> mamba2(np.ones((1, 2)), np.array([1, 0]), np.array([0, 1]), np.array([3]), 0.5, 2.0)[0]
    array([[0.5, 6.5]])
    """
    S = S * a + outer(v * dt, k)
    return S, S @ q


def gla(S, q, k, v, alpha):
    """Gated linear attention: one decay a key channel, then add.

    S: [V, K]   q, k: [K]   v: [V]   alpha: [K] in (0, 1].   Implements gla-recurrence (Yang et al. 2023).

    >>> import numpy as np
    >>> gla(np.ones((1, 2)), np.array([1, 0]), np.array([0, 1]), np.array([3]), np.array([0.5, 1.0]))[0]
    array([[0.5, 4. ]])
    """
    S = S * alpha + outer(v, k)
    return S, S @ q


def rwkv6(S, q, k, v, w, u):
    """RWKV-6: read before the decay, with a bonus u for the current token; then decay and add.

    S: [V, K]   q (= r), k: [K]   v: [V]   w: [K] decay   u: [K] bonus.   Implements rwkv6-recurrence (Peng et al.
    2024).

    >>> import numpy as np
    >>> S, o = rwkv6(np.ones((1, 2)), np.array([1, 0]), np.array([1, 1]), np.array([3]), np.array([0.5, 0.5]),
    ...     np.array([2, 2]))
    >>> o, S                                        # reads 1 + 2 * 3, stores 1 * 0.5 + 3
    (array([7.]), array([[3.5, 3.5]]))
    """
    o = (S + outer(v, k * u)) @ q
    S = S * w + outer(v, k)
    return S, o


def delta(S, q, k, v, beta):
    """DeltaNet: read what the key holds, write beta times the difference.

    S: [V, K]   q, k: [K]   v: [V]   beta: scalar.   Implements delta-recurrence (Schlag et al. 2021).

    >>> import numpy as np
    >>> k = np.array([1, 0])
    >>> S, o = delta(np.zeros((1, 2), int), k, k, np.array([5]), 1)
    >>> delta(S, k, k, np.array([7]), 1)[1]        # the same key twice: the new value replaces the old
    array([7])
    """
    r = (v - S @ k) * beta  # [V] what is missing, times the write gate
    S = S + outer(r, k)
    return S, S @ q


def gated_delta(S, q, k, v, alpha, beta):
    """Gated DeltaNet: one decay a head, then the delta rule.

    S: [V, K]   q, k: [K]   v: [V]   alpha: scalar in (0, 1]   beta: scalar.   Implements gdn-recurrence (Yang et al.
    2024).

    >>> import numpy as np
    >>> k = np.array([1, 0])
    >>> gated_delta(np.array([[4.0, 8.0]]), k, k, np.array([6.0]), 0.5, 0.5)[0]
    array([[4., 4.]])
    """
    S = S * alpha
    return delta(S, q, k, v, beta)


def kda(S, q, k, v, alpha, beta):
    """Kimi Delta Attention: decay, read, correct, write, read out.

    S: [V, K]   q, k: [K]   v: [V]   alpha: [K] in (0, 1]   beta: scalar.   Implements kda-recurrence (Kimi Linear, eq.
    1).

    >>> import numpy as np
    >>> k = np.array([1, 0])
    >>> kda(np.array([[4.0, 8.0]]), k, k, np.array([6.0]), np.array([0.5, 1.0]), 0.5)[0]
    array([[4., 8.]])
    """
    S = S * alpha  # column c decays by alpha_c
    r = (v - S @ k) * beta  # [V] residual, read from the decayed state
    S = S + outer(r, k)
    return S, S @ q


def gated_delta_2(S, q, k, v, alpha, erase, write):
    """Gated DeltaNet-2: the decay of KDA, a gate on the channels of the key that reads, another on those of the value.

    S: [V, K]   q, k: [K]   v: [V]   alpha: [K] in (0, 1]   erase: [K]   write: [V].   The key that is written carries
    no gate. Implements gdn2-recurrence (Hatamizadeh et al. 2026, eq. 10).

    >>> import numpy as np
    >>> k, erase, write = np.array([1, 1]), np.array([1, 0]), np.array([0.5])
    >>> gated_delta_2(np.array([[4.0, 8.0]]), k, k, np.array([6.0]), np.array([0.5, 1.0]), erase, write)[0]
    array([[3., 9.]])
    """
    S = S * alpha  # column c decays by alpha_c
    r = v * write - S @ (k * erase)  # [V] what is committed, less what the erased channels hold
    S = S + outer(r, k)
    return S, S @ q


def dplr(S, q, k, v, w, a, b):
    """Diagonal plus low rank: S (Diag(w) + a b^T) + v k^T.

    S: [V, K]   q, k, w, a, b: [K]   v: [V].   The erase part S a is read from the undecayed state.
    Implements dplr-recurrence.

    >>> import numpy as np
    >>> dplr(np.array([[4.0, 8.0]]), *np.array([[1, 0], [1, 0]]), np.array([3.0]), *np.array([[0.5, 1], [-0.25, 0],
    ...     [1, 0]]))[0]
    array([[4., 8.]])
    """
    S = S * w + outer(S @ a, b) + outer(v, k)
    return S, S @ q


def rwkv7(S, q, k, v, w, kappa, eta):
    """RWKV-7: erase along kappa from the undecayed state, at rate eta a channel; write along k.

    S: [V, K]   q (= r), k, w, kappa (unit length), eta: [K]   v: [V].   Implements rwkv7-recurrence (Peng et al. 2025).

    >>> import numpy as np
    >>> e = np.array([1.0, 0.0])
    >>> rwkv7(np.array([[4.0, 8.0]]), e, e, np.array([3.0]), np.array([0.5, 1.0]), e, np.array([0.5, 0.5]))[0]
    array([[3., 8.]])
    """
    return dplr(S, q, k, v, w, -kappa, kappa * eta)


def scan(rule, S, *sequences):
    """Run a rule over the tokens, one after the other.

    S: the rule's initial state   sequences: the rule's other arguments, each with a leading token axis of the same
    length T.   Returns (final state, [o_1, ..., o_T]); raises ValueError when the lengths differ.

    >>> import numpy as np
    >>> k = np.array([[1, 0], [0, 1], [1, 0]]); v = np.array([[5], [6], [7]])
    >>> S, o = scan(delta, np.zeros((1, 2), int), k, k, v, np.array([1, 1, 1]))
    >>> S
    array([[7, 6]])
    """
    lengths = [len(x) for x in sequences]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"every sequence needs the same number of tokens, got {lengths}; repeat constants for each token"
        )
    rows = []
    for token in zip(*sequences):
        S, o = rule(S, *token)
        rows.append(o)
    return S, rows


# which channels of a head the gate of a token has: those of the key, those of the value, or none (one number a head)
GATES = {"beta": "", "b": "K", "w": "V"}


class Rule(NamedTuple):
    """An update rule as the rest of the library sees it: its step, and what a token brings beside q, k and v.

    name: what its functions in ``ops`` are called by   step: a function of this module   decay: "channel" for g
    [..., HV, K], "head" for g [..., HV], None for no g   gates: names in GATES, in the order in which the step takes
    them behind the decay. The first one erases and the last one writes; without a gate nothing is erased.

    >>> RULES["kda"].tensors, RULES["gdn2"].tensors, RULES["delta_rule"].decay
    (('q', 'k', 'v', 'g', 'beta'), ('q', 'k', 'v', 'g', 'b', 'w'), None)
    """

    name: str
    step: Callable
    decay: str | None
    gates: tuple[str, ...]

    @property
    def tensors(self):
        """The names of a token's tensors in ``ops``, in the order of its arguments."""
        return ("q", "k", "v", *(("g",) if self.decay else ()), *self.gates)


def gate_shape(name, K, V):
    """The shape of one gate of one head and token: () for one number, (K,) or (V,) for a gate with channels.

    Raises KeyError for a name that is not in GATES.

    >>> [gate_shape(name, 4, 3) for name in ("beta", "b", "w")]
    [(), (4,), (3,)]
    """
    return {"": (), "K": (K,), "V": (V,)}[GATES[name]]


RULES = {
    rule.name: rule
    for rule in (
        Rule("kda", kda, "channel", ("beta",)),
        Rule("gated_delta_rule", gated_delta, "head", ("beta",)),
        Rule("gdn2", gated_delta_2, "channel", ("b", "w")),
        Rule("delta_rule", delta, None, ("beta",)),
        Rule("linear_attention", linear, None, ()),
    )
}
