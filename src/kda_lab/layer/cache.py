"""What a request leaves behind in a layer: the last inputs of the convolution and the recurrent state, in slots of two
pools.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from kda_lab.ops.contract import values_readable


class Bytes(NamedTuple):
    """Bytes of one request in one layer.   conv: its window   state: one recurrent state   slots: how many states it
    has.

    ``page`` is what a paged server plans for one block, a window and a state; ``total`` is what a ``Cache`` holds for a
    request.

    >>> Bytes(conv=18_432, state=524_288, slots=1).page
    542720
    """

    conv: int
    state: int
    slots: int

    @property
    def page(self):
        return self.conv + self.state

    @property
    def total(self):
        return self.conv + self.slots * self.state


def cache_bytes(num_heads, K, V, num_v_heads=None, width=4, num_spec=0, conv=2, state=4):
    """How large a request is: ``width - 1 + num_spec`` rows of q | k | v, and 1 + num_spec states [HV, V, K].

    conv, state: bytes of an entry.

    >>> [cache_bytes(8, 128, 128, num_spec=k).page for k in (0, 1, 3, 7)]
    [542720, 548864, 561152, 585728]
    """
    HV = num_v_heads or num_heads
    rows = width - 1 + num_spec
    return Bytes(rows * (2 * num_heads * K + HV * V) * conv, HV * V * K * state, 1 + num_spec)


class Snapshot(NamedTuple):
    """The committed part of R requests.   window: [R, w - 1, D], the inputs before the next token   S: [R, HV, V, K].

    >>> Snapshot._fields
    ('window', 'S')
    """

    window: torch.Tensor
    S: torch.Tensor


@dataclass
class Cache:
    """States of N requests in one layer; a kernel works on the pools in place, through the indices.

    conv_state: [slots, w - 1 + k, D], in the layer's dtype   state: [slots, HV, V, K], float32 (float64 in a float64
    layer)
    conv_slots: int32 [N]   state_slots: int32 [N, 1 + k]   num_accepted: int32 [N], at least 1: the state of request n
    stands in state_slots[n, num_accepted[n] - 1], and its window begins at that row less one. k drafts can be verified
    in a step.

    >>> cache = Cache.empty(2, width=4, channels=24, shape=(1, 8, 8), num_spec=3)
    >>> cache.conv_state.shape, cache.state.shape, cache.bytes.total, cache.nbytes
    (torch.Size([2, 6, 24]), torch.Size([8, 1, 8, 8]), 1600, 3200)
    """

    conv_state: torch.Tensor
    state: torch.Tensor
    conv_slots: torch.Tensor
    state_slots: torch.Tensor
    num_accepted: torch.Tensor

    @classmethod
    def empty(cls, requests, width, channels, shape, num_spec=0, dtype=torch.float32, device=None):
        """A cache with pools of its own, all zeros: N requests before their first token.   shape: (HV, V, K).

        >>> len(Cache.empty(3, width=4, channels=24, shape=(1, 8, 8)))
        3
        """
        slots = 1 + num_spec
        index = torch.arange(requests * slots, dtype=torch.int32, device=device)
        state = torch.float64 if dtype == torch.float64 else torch.float32
        return cls(
            torch.zeros(requests, width - 1 + num_spec, channels, dtype=dtype, device=device),
            torch.zeros(requests * slots, *shape, dtype=state, device=device),
            index[:requests].clone(),
            index.view(requests, slots),
            torch.ones(requests, dtype=torch.int32, device=device),
        )

    def __len__(self):
        return len(self.conv_slots)

    @property
    def num_spec(self):
        """How many drafts k a step can verify."""
        return self.state_slots.shape[1] - 1

    @property
    def width(self):
        """The taps w of the convolution."""
        return self.conv_state.shape[1] - self.num_spec + 1

    @property
    def bytes(self):
        """``Bytes`` of one request."""
        size = lambda x: x[0].numel() * x.element_size()
        return Bytes(size(self.conv_state), size(self.state), 1 + self.num_spec)

    @property
    def nbytes(self):
        """Bytes of both pools."""
        return self.conv_state.nbytes + self.state.nbytes

    def snapshot(self, requests=None):
        """A ``Snapshot`` of these requests (int [R], or None for all), which later steps do not touch.

        >>> Cache.empty(2, width=4, channels=24, shape=(1, 8, 8), num_spec=3).snapshot().window.shape
        torch.Size([2, 3, 24])
        """
        at = self.select(requests)
        first = self.num_accepted[at].long() - 1  # [R]
        rows = first[:, None] + torch.arange(self.width - 1, device=first.device)
        slots = self.state_slots[at].long().gather(1, first[:, None])[:, 0]
        return Snapshot(self.conv_state[self.conv_slots[at].long()[:, None], rows], self.state[slots])

    @torch.no_grad()
    def restore(self, snapshot, requests=None):
        """Put these requests where a snapshot stands: also after a prefill, in another slot, or in another cache.

        >>> cache = Cache.empty(1, width=4, channels=24, shape=(1, 8, 8))
        >>> cache.restore(Snapshot(torch.ones(1, 3, 24), torch.ones(1, 1, 8, 8)))
        >>> cache.state.mean().item()
        1.0
        """
        at = self.select(requests)
        # rows and slots that belong to drafts are left as they are: nothing reads them before it is written
        self.conv_state[self.conv_slots[at].long(), : self.width - 1] = snapshot.window.to(self.conv_state.dtype)
        self.state[self.state_slots[at, 0].long()] = snapshot.S.to(self.state.dtype)
        self.num_accepted[at] = 1

    def reset(self, requests=None):
        """Back to before the first token: a slot that is used again must not remember who had it.

        >>> cache = Cache.empty(1, width=4, channels=24, shape=(1, 8, 8))
        >>> cache.state.fill_(torch.nan)[0, 0, 0, 0].item(), cache.reset(), cache.state.sum().item()
        (nan, None, 0.0)
        """
        window, S = self.conv_state, self.state
        n = len(self.select(requests))
        self.restore(
            Snapshot(window.new_zeros(n, self.width - 1, window.shape[2]), S.new_zeros(n, *S.shape[1:])), requests
        )

    def accept(self, num_accepted, requests=None):
        """Keep the first n tokens of the last step of each of these requests, and take back the others; 0 changes
        nothing.

        num_accepted: int [R]. Raises ValueError for a count below 0 or above the tokens of that step.

        >>> cache = Cache.empty(2, width=4, channels=24, shape=(1, 8, 8), num_spec=3)
        >>> cache.num_accepted.fill_(4).tolist()                    # as a step over four tokens leaves it
        [4, 4]
        >>> cache.accept(torch.tensor([3, 0]))
        >>> cache.num_accepted.tolist()
        [3, 4]
        """
        at = self.select(requests)
        num_accepted = torch.as_tensor(num_accepted, device=self.num_accepted.device).to(self.num_accepted.dtype)
        if num_accepted.shape != at.shape:
            raise ValueError(
                f"num_accepted must be [R] = {tuple(at.shape)}, got {tuple(num_accepted.shape)}; one count for "
                "each request"
            )
        if len(at) and values_readable(num_accepted):
            wrong = (num_accepted < 0) | (num_accepted > self.num_accepted[at])
            if wrong.any():
                raise ValueError(
                    f"num_accepted must be 0 to the tokens of the last step, got {num_accepted[wrong][0].item()} "
                    f"of {self.num_accepted[at][wrong][0].item()}; count the known token and the accepted drafts"
                )
        self.num_accepted[at] = torch.where(num_accepted > 0, num_accepted, self.num_accepted[at])

    def copy(self):
        """A cache with pools of its own and the same contents.

        >>> cache = Cache.empty(1, width=4, channels=24, shape=(1, 8, 8))
        >>> cache.copy().state.fill_(1.0).sum().item(), cache.state.sum().item()
        (64.0, 0.0)
        """
        return replace(self, **{name: x.clone() for name, x in vars(self).items()})

    def select(self, requests):
        """Indices int64 [R] of these requests, or of all for None.

        >>> Cache.empty(2, width=4, channels=24, shape=(1, 8, 8)).select(None)
        tensor([0, 1])
        """
        if requests is None:
            return torch.arange(len(self), device=self.conv_slots.device)
        return torch.as_tensor(requests, device=self.conv_slots.device).long()
