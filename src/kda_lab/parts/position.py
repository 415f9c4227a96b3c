"""Order and position: recurrences that see order, masks that do not, rotations, and which models rotate what.

``linear_rnn_step``, ``masked_sums``, ``rotate``, ``rotating`` and ``passage`` use plain array algebra alone, so that
the same call runs on torch, on polynomials and in a finite field.
"""

import json
from fractions import Fraction

import torch

from kda_lab.data import FOLDER
from kda_lab.rules import outer

DATA = FOLDER / "positions.json"


def rnn_step(h, x, W, W_x, b):
    """tanh(W h + W_x x + b): the state goes through a nonlinear function on its way to the next token.

    h, b: [N]   x: [D]   W: [N, N]   W_x: [N, D]   returns [N].   Implements rnn-step (Elman 1990).

    >>> one = torch.ones(1)
    >>> rnn_step(one * 0, one, torch.eye(1), torch.eye(1), one * 0).item() < 1
    True
    """
    return torch.tanh(W @ h + W_x @ x + b)


def linear_rnn_step(h, x, W):
    """W h + x.   h, x: [N]   W: [N, N]   returns [N].   Implements linear-rnn-order.

    >>> import numpy as np
    >>> linear_rnn_step(np.array([1, 0]), np.array([5, 5]), np.array([[0, 1], [1, 0]]))
    array([5, 6])
    """
    return W @ h + x


def reach(w, b, tanh=torch.tanh):
    """The open interval of values that tanh(w tanh(h) + b) takes over all h; one step tanh(a h + b) takes (-1, 1).

    w, b: scalars   returns (low, high).   Implements tanh-steps.

    >>> low, high = reach(torch.tensor(1.0), torch.tensor(0.0))
    >>> round(high.item(), 3)
    0.762
    """
    return tanh(b - abs(w)), tanh(b + abs(w))


def tiles(T, size):
    """The tasks (row, first column, end column) that cover the causal triangle in tiles of some columns.

    >>> tiles(3, 2)
    [(0, 0, 2), (1, 0, 2), (2, 0, 2), (2, 2, 4)]
    """
    return [(i, start, start + size) for i in range(T) for start in range(0, i + 1, size)]


def masked_sums(P, V, tasks):
    """Numerators and denominators of causal attention, gathered task by task, in whatever order the tasks come.

    P: [T, T] weights, such as e^(q_i . k_j)   V: [T, V]   tasks: (row, first column, end column)
    returns numerators [T, V], denominators [T].   Implements attention-any-order.

    >>> import numpy as np
    >>> masked_sums(np.ones((2, 2), int), np.array([[4], [6]]), [(1, 1, 2), (0, 0, 1), (1, 0, 1)])
    (array([[ 4],
           [10]]), array([1, 2]))
    """
    numerators, denominators = V * 0, P[0] * 0  # [T, V], [T]
    for i, start, end in tasks:
        for j in range(start, min(end, i + 1)):  # the causal mask
            numerators[i] = numerators[i] + V[j] * P[i, j]
            denominators[i] = denominators[i] + P[i, j]
    return numerators, denominators


def two_means(T):
    """The weight of each token in the last row after two causal averages: token j has (1/j + ... + 1/T) / T.

    returns T fractions.   Implements second-layer-order.

    >>> [str(w) for w in two_means(3)]
    ['11/18', '5/18', '1/9']
    """
    return [sum(Fraction(1, i) for i in range(j, T + 1)) / T for j in range(1, T + 1)]


def sees_order(mixer):
    """Whether the third output of one layer differs between the tokens A, B, C and B, A, C.   Implements
    first-layer-order.

    Raises KeyError for a name that is not listed.

    >>> sees_order("softmax attention"), sees_order("delta")
    (False, True)
    """
    return {
        "softmax attention": False,
        "linear attention": False,
        "sum of tanh": False,
        "log of a sum": False,
        "softmax with distances": True,
        "retnet": True,
        "gla": True,
        "delta": True,
        "kda": True,
        "linear rnn": True,
    }[mixer]


def rotate(x, c, s):
    """Turn neighbouring channels (2i, 2i + 1) by an angle of their own, given as its cosine and sine.

    x: [..., K]   c, s: [K / 2]   same shape back.   Implements rope-rotation (Su et al. 2021).

    >>> import numpy as np
    >>> rotate(np.array([1, 0, 2, 5]), np.array([0, 1]), np.array([1, 0]))       # a quarter turn, and none
    array([0, 1, 2, 5])
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    out = x * 0
    out[..., 0::2] = even * c - odd * s
    out[..., 1::2] = even * s + odd * c
    return out


def angles(position, K, base=10000.0, dtype=torch.float64):
    """The angle of each channel pair at a position: position base^(-2i/K).   returns [K / 2].

    >>> angles(3, 4).tolist()
    [3.0, 0.03]
    """
    return position * base ** (-torch.arange(0, K, 2, dtype=dtype) / K)


def rope(x, position, base=10000.0):
    """A query or key turned to its position.   x: [K], K even   returns [K].   Implements rope-rotation.

    >>> x = torch.ones(4, dtype=torch.float64)
    >>> torch.allclose(rope(x, 7).norm(), x.norm())
    True
    """
    turn = angles(position, x.shape[-1], base, x.dtype)
    return rotate(x, turn.cos(), turn.sin())


def relative_score(q, k, c, s):
    """q . R_(j-t) k, from cosine and sine of the angles at the distance j - t.   q, k: [K]   c, s: [K / 2].

    Implements rope-relative.

    >>> import numpy as np
    >>> int(relative_score(np.array([1, 0]), np.array([0, 1]), np.array([0]), np.array([-1])))  # k turned back onto q
    1
    """
    return q @ rotate(k, c, s)


def rotating(S, q, k, v, c, s):
    """Linear attention whose state turns at every token: S R + v k^T, read with q. Queries and keys stay as they are.

    S: [V, K]   q, k: [K]   v: [V]   c, s: [K / 2], of one step's angles.   Implements rope-transition.

    >>> import numpy as np
    >>> quarter = np.array([0]), np.array([1])
    >>> rotating(np.array([[1, 0]]), np.array([1, 1]), np.array([0, 0]), np.array([9]), *quarter)[0]
    array([[ 0, -1]])
    """
    # a row times R is the row turned backwards
    S = rotate(S, c, s * -1) + outer(v, k)
    return S, S @ q


def passage(k, transitions, q):
    """k . T_(j+1) ... T_t q: the weight with which a write under k at token j reaches the output at token t.

    k, q: [K]   transitions: those of tokens j+1..t, each [K, K]   returns a scalar.   Implements transition-score.

    >>> import numpy as np
    >>> int(passage(np.array([1, 2]), [np.eye(2, dtype=int) * 2, np.eye(2, dtype=int) * 3], np.array([1, 1])))
    18
    """
    for T in transitions:
        k = k @ T
    return k @ q


def models():
    """Which position signal real models use: config fields, what the code does, sources, confidence A or B.

    >>> models()[0]["model"], models()[0]["linear"]
    ('Kimi-Linear-48B-A3B', 'KDA')
    """
    return json.loads(DATA.read_text(encoding="utf-8"))["models"]


def rotated(entry):
    """How many of a head's query dims a model rotates, and out of how many; None where a source does not say.

    A field such as ``rope_theta`` alone says nothing: what counts is the dims, ``mla_use_nope`` and the code.

    >>> {m["model"]: rotated(m) for m in models()}["Qwen3-Next-80B-A3B"]
    (64, 256)
    """
    facts = entry["facts"]
    part = facts.get("qk_rope_head_dim")
    whole = facts.get("head_dim") or (facts["qk_nope_head_dim"] + part if "qk_nope_head_dim" in facts else None)
    if not entry["rotary_in_code"] or facts.get("mla_use_nope") or facts.get("use_mla_nope"):
        return 0, whole
    if part is None:
        part = facts.get("rotary_dim", int(facts.get("partial_rotary_factor", 1) * whole))
    return part, whole


def decoys(entry):
    """Fields of a config that look like rotation although the model rotates nothing.

    >>> {m["model"]: decoys(m) for m in models()}["Nemotron-3-Nano-30B-A3B"]
    ['partial_rotary_factor', 'rope_theta']
    """
    if rotated(entry)[0]:
        return []
    return [
        name
        for name, value in entry["facts"].items()
        if ("rope" in name or "rotary" in name) and value and "nope" not in name
    ]
