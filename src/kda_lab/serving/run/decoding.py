"""Greedy decoding of the tiny model with and without drafts, on top of any memory: slots, ReplaySSM, RecoverSSM."""

import itertools
from typing import NamedTuple

import numpy as np
import torch

from kda_lab import rules
from kda_lab.serving.drafts.replayssm import Inputs
from kda_lab.serving.drafts.speculation import window_length, window_offset
from kda_lab.serving.run import tinymodel as tiny


class Model:
    """``heads`` layers of the tiny model side by side as heads; the next token is the largest of a few scores.

    Float64. The scores are a wild function of the outputs, so no token repeats for ever and a wrong state soon shows;
    but they differ far more than by rounding, so a state made in another order gives the same tokens.

    >>> model = Model(); S, window, token = model.prefill([3, 1, 4])
    >>> S.shape, window.shape, 0 <= token < model.vocabulary
    (torch.Size([2, 2, 3]), (2, 3, 8), True)
    """

    def __init__(self, heads=2, vocabulary=61):
        self.heads, self.vocabulary = heads, vocabulary
        self.scores = torch.from_numpy(tiny.embed(range(vocabulary), 0, heads * tiny.V).copy())  # [vocabulary, H V]

    def inputs(self, window, tokens):
        """Inputs of the memory, and those of the convolution: the window's and the tokens' own.

        window: [H, TAPS - 1, MIXED]   tokens: T ids   returns Inputs, [H, TAPS - 1 + T, MIXED].
        """
        raw = [tiny.embed(tokens, head + 1, tiny.CHANNELS) for head in range(self.heads)]
        parts = zip(*(tiny.layer_inputs(w, x) for w, x in zip(window, raw)))
        q, k, v, alpha, beta = (torch.from_numpy(np.stack(part, 1)) for part in parts)  # [T, H, ...]
        mixed = np.stack([np.concatenate([w, x[:, : tiny.MIXED]]) for w, x in zip(window, raw)])
        return Inputs(q, k, v, alpha.log(), beta), mixed

    def sample(self, o):
        """The next token, from the outputs [H, V] of one."""
        return int((self.scores @ o.flatten() * 40).cos().argmax())

    def prefill(self, prompt, S=None, window=None):
        """State, window and next token behind a prompt; from zero, or from the state and window of an earlier part."""
        S = torch.zeros(self.heads, tiny.V, tiny.K, dtype=torch.float64) if S is None else S
        window = np.zeros((self.heads, tiny.TAPS - 1, tiny.MIXED)) if window is None else window
        x, mixed = self.inputs(window, prompt)
        for t in range(len(prompt)):
            both = [rules.kda(S[h], *(a[t, h] for a in (x.q, x.k, x.v, x.g.exp(), x.beta))) for h in range(self.heads)]
            S, o = (torch.stack(part) for part in zip(*both))
        return S, mixed[:, 1 - tiny.TAPS :], self.sample(o)


class Decoded(NamedTuple):
    """tokens: what was sampled   accepted: new tokens of each step   memory: the state's holder at the end.

    >>> Decoded._fields
    ('tokens', 'accepted', 'memory')
    """

    tokens: list
    accepted: list
    memory: object


def plain(model, prompt, count):
    """``count`` greedy tokens by the token loop alone: no memory, no drafts.

    >>> len(plain(Model(), [3, 1, 4], 5))
    5
    """
    S, window, token = model.prefill(prompt)
    tokens = [token]
    while len(tokens) < count:
        S, window, token = model.prefill(tokens[-1:], S, window)
        tokens.append(token)
    return tokens


def decode(model, make, prompt, count, drafter=None, leftover=False):
    """``count`` greedy tokens, with the state in a memory and drafts verified.

    make: function(S, position) -> memory   drafter: function(tokens so far) -> drafts, None or empty for none
    leftover: the prompt's last token runs alone, through the memory.

    >>> from kda_lab.serving.drafts.replayssm import ReplaySSM
    >>> model, make = Model(), lambda S, position: ReplaySSM(S, 8, position)
    >>> truth = plain(model, [3, 1, 4], 9)
    >>> got = decode(model, make, [3, 1, 4], 9, lambda tokens: truth[len(tokens) :][:3])
    >>> got.tokens == truth, got.accepted
    (True, [4, 4])
    """
    body = prompt[:-1] if leftover else prompt
    S, window, token = model.prefill(body)
    memory = make(S, len(body))
    if leftover:
        x, mixed = model.inputs(window, prompt[-1:])
        token = model.sample(memory.step(x, prompt=True)[0])
        window = mixed[:, 1:]
    tokens, accepted = [token], []
    while len(tokens) < count:
        drafts = list(drafter(tokens)) if drafter else []
        x, mixed = model.inputs(window, [tokens[-1], *drafts])
        outputs = memory.verify(x) if drafts else memory.step(x)
        new = agreed(model, outputs, drafts)
        if drafts:
            memory.accept(len(new))
        # the oldest input has left; as many as a step with these drafts keeps
        kept = mixed[:, 1:]
        assert kept.shape[1] == window_length(tiny.TAPS, len(drafts))
        offset = window_offset(len(new))
        window = kept[:, offset : offset + tiny.TAPS - 1]
        tokens += new
        accepted.append(len(new))
    return Decoded(tokens[:count], accepted, memory)


def agreed(model, outputs, drafts):
    """The model's own tokens as far as the drafts agree, and the one after: a recovered token, or a bonus behind all of
    them.
    """
    new = []
    for o, draft in zip(outputs, [*drafts, None]):
        new.append(model.sample(o))
        if new[-1] != draft:
            break
    return new


def drafter(truth, right, num_spec):
    """Drafts of which the first ``right(step)`` are the model's own tokens and the next one is not.

    truth: all tokens that the model will sample   right: how many of num_spec are right in each step, over and over;
    None for a step without drafts.

    >>> draft = drafter([5, 6, 7, 8], [1, None], 2); draft([5]), draft([5, 6]), draft([5, 6])
    ([6, 8], [], [7, 9])
    """
    pattern = itertools.cycle(right)

    def draft(tokens):
        n = next(pattern)
        if n is None:
            return []
        following = truth[len(tokens) :][:num_spec]
        return [token if i < n else token + 1 for i, token in enumerate(following)]

    return draft
