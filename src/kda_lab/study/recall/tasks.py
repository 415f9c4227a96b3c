"""Sequences of writes and queries: multi-query associative recall, overwriting, and resets that clear a part.

A sequence is a row of slots and then of queries. A slot holds two tokens, a key and its value, or two blanks, or two
resets. A query is one key; its answer is the value that was written last under this key, or "none" if a reset came
after it and the key is of the kind that a reset clears (the keys with odd numbers). Queries stand at the end.
"""

from typing import NamedTuple

import torch

BLANK, RESET, FIRST_KEY = 0, 1, 2


class Task(NamedTuple):
    """writes: how many pairs a sequence may hold, one number drawn for each sequence   pool: how many different keys
    these
    have, or None for as many as there are pairs   resets: whether a reset comes somewhere among the writes
    keys, values: how many of each there are   queries: how many keys are asked for.

    >>> Task(writes=(4, 8)).length
    28
    """

    writes: tuple[int, ...]
    pool: int | None = None
    resets: bool = False
    keys: int = 64
    values: int = 16
    queries: int = 12

    @property
    def slots(self):
        return max(self.writes) + self.resets

    @property
    def length(self):
        """Tokens of a sequence."""
        return 2 * self.slots + self.queries

    @property
    def words(self):
        """Size of the vocabulary of blank, reset, keys and values."""
        return FIRST_KEY + self.keys + self.values

    @property
    def answers(self):
        """How many answers there are, the values and "none"."""
        return self.values + 1


class Sequences(NamedTuple):
    """tokens: [N, T]   answers: [N, queries]   writes: [N], the number of pairs in each sequence.

    >>> Sequences._fields
    ('tokens', 'answers', 'writes')
    """

    tokens: torch.Tensor
    answers: torch.Tensor
    writes: torch.Tensor


def draw(task, N, generator, writes=None):
    """N sequences of a task, on the generator's device; with this many writes each, if ``writes`` is given.

    Each of the ``pool`` keys is written equally often, up to one, in random order; each query asks for one of the
    writes.

    >>> x = draw(Task(writes=(4,), keys=4, values=3, queries=4), 1, torch.Generator().manual_seed(0))
    >>> x.tokens.tolist(), x.answers.tolist()
    ([[5, 6, 4, 8, 2, 8, 3, 6, 5, 4, 2, 2]], [[0, 2, 2, 2]])
    """
    options = {"generator": generator, "device": generator.device}
    rows, slots = torch.arange(N, device=generator.device)[:, None], task.slots
    counts = torch.tensor(task.writes if writes is None else [writes], device=generator.device)
    n = counts[torch.randint(len(counts), (N, 1), **options)]  # [N, 1]
    place = torch.arange(slots, device=generator.device)
    # writes fill the row from its end: slot j holds write number j - (slots - n), and blanks come first
    number = place - (slots - task.resets - n)  # [N, slots]
    if task.resets:
        at = slots - 1 - (torch.rand(N, 1, **options) * (n - 1)).long() - 1  # [N, 1], never first or last
        is_reset = place == at
        number = number - (place > at).long()
        number = number.masked_fill(is_reset, -1)
    else:
        at, is_reset = torch.full_like(n, -1), torch.zeros_like(number, dtype=torch.bool)
    live = number >= 0
    names = torch.rand(N, task.keys, **options).argsort(-1)  # [N, keys], an order of all keys
    # a random order of the writes: the shuffled numbers of the live slots
    order = torch.rand(N, slots, **options).masked_fill(~live, 2).argsort(-1).argsort(-1)
    key = names[rows, order % (n if task.pool is None else task.pool)]  # [N, slots]
    value = torch.randint(task.values, (N, slots), **options)
    asked = (torch.rand(N, task.queries, **options) * n).long()  # [N, queries], a write number
    slot = (number[:, None, :] == asked[..., None]).float().argmax(-1)  # where it stands
    query = key[rows, slot]
    same = (key[:, None, :] == query[..., None]) & live[:, None, :]  # [N, queries, slots]
    last = (same * (place + 1)).argmax(-1)  # the last write under this key
    cleared = (last < at) & (query % 2 == 1)
    answers = value[rows, last].masked_fill(cleared, task.values)
    first = (FIRST_KEY + key).masked_fill(~live, BLANK).masked_fill(is_reset, RESET)
    second = (FIRST_KEY + task.keys + value).masked_fill(~live, BLANK).masked_fill(is_reset, RESET)
    tokens = torch.cat([torch.stack([first, second], -1).flatten(1), FIRST_KEY + query], 1)
    return Sequences(tokens, answers, n[:, 0])
