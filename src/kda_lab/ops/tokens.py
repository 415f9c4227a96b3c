"""The recurrences as they are defined: ``rules.scan`` over tokens, batched over sequences and heads by torch.vmap."""

import torch

from kda_lab.rules import GATES, scan


def run(rule, problem):
    """Outputs [B, T, HV, V] and final states [N, HV, V, K] of a problem, token by token in the problem's dtype.

    Implements what the rule's step implements: linear-recurrence, delta-recurrence, gdn-recurrence,
    kda-recurrence and so on.

    >>> from kda_lab.ops.prepare import Problem
    >>> from kda_lab.rules import RULES
    >>> one = torch.ones(1, 3, 1, 1)
    >>> run(RULES["linear_attention"], Problem(one, one, one, 0 * one, None, None, torch.zeros(1, 1, 1, 1),
    ...     None))[0].flatten().tolist()
    [1.0, 2.0, 3.0]
    """
    p = problem
    sequences = [p.q, p.k, p.v]  # each [B, T, HV, ...]
    if rule.decay:
        alpha = p.g.exp()
        sequences.append(alpha if rule.decay == "channel" else alpha[..., 0])
    for name, x in zip(rule.gates, (p.erase, p.write)):
        sequences.append(x if GATES[name] else x[..., 0])
    if p.cu is None:
        return same_length(rule.step, p.S, *sequences)
    outputs, states = [p.v[:, :0]], [p.S[:0]]
    for n, (start, end) in enumerate(zip(p.cu, p.cu[1:])):
        o, S = same_length(rule.step, p.S[n : n + 1], *(x[:, start:end] for x in sequences))
        outputs.append(o)
        states.append(S)
    return torch.cat(outputs, 1), torch.cat(states)


def same_length(step, S, *sequences):
    """Sequences of one length, all heads at once.   S: [B, HV, V, K]   sequences: [B, T, HV, ...].

    >>> from kda_lab.rules import delta
    >>> x = torch.ones(1, 2, 1, 1)
    >>> same_length(delta, torch.zeros(1, 1, 1, 1), x, x, 3 * x, x[..., 0])[0].flatten().tolist()
    [3.0, 3.0]
    """
    v = sequences[2]
    if not v.numel():
        # a copy: the caller may write into the state that it gets
        return torch.zeros_like(v), S.clone()

    def head(S, *sequences):
        S, rows = scan(step, S, *sequences)
        return torch.stack(rows), S  # [T, V], [V, K]

    batch = v.shape[0]
    flat = [x.transpose(1, 2).flatten(0, 1) for x in sequences]  # [B HV, T, ...]
    o, S = torch.vmap(head)(S.flatten(0, 1), *flat)
    return o.unflatten(0, (batch, -1)).transpose(1, 2), S.unflatten(0, (batch, -1))
