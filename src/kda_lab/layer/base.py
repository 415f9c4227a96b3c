"""The layer that KDA, Gated DeltaNet and DeltaNet share: projections fused at run time, prefill, and decode over a
cache.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from kda_lab.data.doors import known
from kda_lab.layer.cache import Cache, Snapshot, cache_bytes
from kda_lab.layer.core import gated_norm, remember, split_heads, write_gates
from kda_lab.layer.step import step
from kda_lab.ops.contract import Call, check_boundaries, check_cu_seqlens, values_readable
from kda_lab.ops.prepare import working_dtype
from kda_lab.ops.run import KERNEL_DIM, kernel_packages
from kda_lab.parts.features import short_convolution
from kda_lab.rules import GATES, RULES, gate_shape

# indices or counts, one a request: a tensor of integers, a list of them, or None
Requests = torch.Tensor | Sequence[int] | None


class DeltaRuleLayer(torch.nn.Module):
    """Hidden states in, hidden states out. A subclass names its rule, adds its decay and says what it projects; the
    projections of the rule's gates are made here.

    Parameters have the names and shapes of flash-linear-attention's layer of the same class name; projections and
    convolutions that read the same input are one product at run time.

    >>> DeltaRuleLayer.convolutions
    ('q_conv1d', 'k_conv1d', 'v_conv1d')
    """

    activation = "sigmoid"  # of the output gate
    lower_bound: float | None = None  # of the decay gate; None is the softplus form
    convolutions = ("q_conv1d", "k_conv1d", "v_conv1d")

    def __init__(
        self,
        rule: str,
        hidden_size: int,
        num_heads: int,
        num_v_heads: int | None,
        K: int,
        V: int,
        conv_size: int,
        allow_neg_eigval: bool,
        norm_eps: float,
    ) -> None:
        super().__init__()
        self.rule = RULES[rule]
        HV = num_heads if num_v_heads is None else num_v_heads
        if min(hidden_size, num_heads, HV, K, V) < 1 or conv_size < 2:
            raise ValueError(
                f"sizes must be positive and conv_size at least 2, got hidden_size = {hidden_size}, num_heads = "
                f"{num_heads}, "
                f"num_v_heads = {HV}, K = {K}, V = {V}, conv_size = {conv_size}"
            )
        if HV % num_heads:
            raise ValueError(
                f"num_v_heads must be a multiple of num_heads, got {HV} and {num_heads}; value heads share keys in "
                "equal groups"
            )
        self.hidden_size, self.num_heads, self.num_v_heads, self.K, self.V = hidden_size, num_heads, HV, K, V
        self.conv_size, self.allow_neg_eigval, self.norm_eps = conv_size, allow_neg_eigval, norm_eps
        self._fused = None
        self.register_parameter("A_log", None)
        self.register_parameter("dt_bias", None)
        self.q_proj = linear(hidden_size, num_heads * K)
        self.k_proj = linear(hidden_size, num_heads * K)
        self.v_proj = linear(hidden_size, HV * V)
        # what reads the hidden states: q, k, v, the gates, and then what a subclass adds
        self.projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
        for name in self.rule.gates:
            # a gate of key channels belongs to the key heads, which value heads share
            heads = num_heads if GATES[name] == "K" else HV
            self.add_module(f"{name[0]}_proj", linear(hidden_size, heads * math.prod(gate_shape(name, K, V))))
            self.projections = (*self.projections, f"{name[0]}_proj")
        for name, channels in zip(self.convolutions, (num_heads * K, num_heads * K, HV * V)):
            # only a holder of [channels, 1, w]: the three run as one short_convolution
            self.add_module(
                name, torch.nn.Conv1d(channels, channels, conv_size, groups=channels, bias=False, device="meta")
            )
        self.o_norm = torch.nn.RMSNorm(V, eps=norm_eps, device="meta")
        self.o_proj = linear(HV * V, hidden_size)

    def finish(self, generator, device, dtype):
        """Give the parameters memory and first values: uniform within 1 / sqrt(fan in), norms at one, gates by the
        subclass.
        """
        self.to_empty(device=device or "cpu").to(dtype or torch.get_default_dtype())
        if self.q_proj.weight.is_meta:
            return
        with torch.no_grad():
            for name, p in self.named_parameters():
                owner = self.get_submodule(name.rpartition(".")[0])
                if isinstance(owner, torch.nn.RMSNorm):
                    p.fill_(1.0)
                elif owner is not self:
                    bound = 1 / math.sqrt(owner.weight[0].numel())
                    p.copy_(uniform(p.shape, -bound, bound, generator))
            self.reset_gates(generator)

    def reset_gates(self, generator):
        """First values of A_log and dt_bias; nothing without a gate."""

    @property
    def channels(self):
        """What the convolution sees, D channels of q | k | v."""
        return 2 * self.num_heads * self.K + self.num_v_heads * self.V

    def new_cache(self, requests, num_spec=0):
        """An empty ``Cache`` for this layer, in its dtype and on its device: float32 states, or float64 in a float64
        layer.
        """
        weight = self.q_proj.weight
        shape = (self.num_v_heads, self.V, self.K)
        return Cache.empty(requests, self.conv_size, self.channels, shape, num_spec, weight.dtype, weight.device)

    def cache_bytes(self, num_spec=0):
        """``Bytes`` of a request in this layer, before any cache is made."""
        conv = self.q_proj.weight.element_size()
        heads = self.num_heads, self.K, self.V, self.num_v_heads
        return cache_bytes(*heads, self.conv_size, num_spec, conv, 8 if conv == 8 else 4)

    def gates(self, parts) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """(decay gate [..., HV, K] or [..., HV] or None, output gate [..., HV, V] or None) from the subclass's
        projections.
        """
        raise NotImplementedError("a subclass says what its gates are made of")

    def fused_weights(self):
        """The weights that run: projections [sum, hidden] and convolutions [D, w], one under the other.

        Where gradients are wanted or present they are put together anew, so that a gradient reaches the parts, and
        since an optimiser may write to them unseen (a fused one does). Otherwise they are kept until a parameter
        changes in place, moves or is replaced. Only writing through ``.data`` goes unseen: call ``forget_fused`` then.

        >>> from kda_lab.layer import DeltaNet
        >>> [tuple(w.shape) for w in DeltaNet(8, num_heads=2).fused_weights()]  # 8 + 8 + 8 channels and 2 write gates
        [(26, 8), (24, 4)]
        """
        linears = [self.get_submodule(name).weight for name in self.projections]
        taps = [self.get_submodule(name).weight for name in self.convolutions]
        fuse = lambda: (torch.cat(linears), torch.cat(taps)[:, 0])
        sources = linears + taps
        training = torch.is_grad_enabled() and any(p.requires_grad for p in sources)
        if training or any(p.grad is not None or p.is_inference() for p in sources):
            self.forget_fused()
            return fuse()
        # the parts are kept, so that their addresses cannot be used again
        key = [(p.data_ptr(), p._version, p.dtype, p.device) for p in sources]
        if self._fused is None or self._fused[0] != key:
            with torch.no_grad(), torch.inference_mode(False):
                self._fused = key, [p.detach() for p in sources], fuse()
        return self._fused[2]

    def forget_fused(self):
        """Put the fused weights together anew at the next call."""
        self._fused = None

    def __getstate__(self):
        """Copies and pickles leave the fused weights behind."""
        return super().__getstate__() | {"_fused": None}

    def project(self, x: torch.Tensor) -> tuple:
        """qkv [..., D] before the convolution, the logits of the rule's gates in a tuple (beta: [..., HV]), decay gate
        and output gate of x [..., hidden]; taps [D, w].
        """
        weight, taps = self.fused_weights()
        sizes = [self.get_submodule(name).out_features for name in self.projections[3:]]
        qkv, *parts = functional.linear(x, weight).split([self.channels, *sizes], -1)
        n = len(self.rule.gates)
        logits = tuple(self.of_value_heads(name, y) for name, y in zip(self.rule.gates, parts))
        return qkv, logits, *self.gates(parts[n:]), taps

    def of_value_heads(self, name, y):
        """The logits of one gate for each value head, [..., HV] or [..., HV, channels], from those in a row."""
        channels = gate_shape(name, self.K, self.V)
        y = y.unflatten(-1, (-1, *channels)) if channels else y
        return y.repeat_interleave(self.num_v_heads // self.num_heads, -2) if GATES[name] == "K" else y

    @known
    def forward(
        self,
        x: torch.Tensor,
        cache: Cache | None = None,
        requests: Requests = None,
        cu_seqlens: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``prefill``, for training and for calls without a cache."""
        return self.prefill(x, cache, requests, cu_seqlens)

    # forward is the name that torch calls, prefill the phase: one signature
    @known
    def prefill(
        self,
        x: torch.Tensor,
        cache: Cache | None = None,
        requests: Requests = None,
        cu_seqlens: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [B, T, hidden] from x [B, T, hidden], chunk by chunk, T tokens of B requests at once.

        cache: begins where its requests stand and leaves them at the end of x   requests: int [B], or None for all.
        cu_seqlens: int64 [N + 1] with B = 1, N sequences one after the other as in ``ops``; then requests is [N]. A row
        that belongs to no sequence comes out as zero.
        This is a phase, not a shape: a prompt of one token, or of 1 + k, is prefilled, and a step of ``decode`` is not.
        Raises ValueError when x, cache and requests do not fit.

        >>> from kda_lab.layer import DeltaNet
        >>> layer, x = DeltaNet(8, num_heads=2), torch.randn(1, 5, 8)
        >>> cache = layer.new_cache(requests=1)
        >>> pieces = torch.cat([layer.prefill(x[:, :3], cache), layer.prefill(x[:, 3:], cache)], 1)
        >>> torch.allclose(pieces, layer(x), atol=1e-5)
        True
        """
        self.check(x, cache, requests, cu_seqlens)
        if cu_seqlens is not None:
            inside = torch.arange(x.shape[1], device=x.device) < cu_seqlens[-1]
            # a NaN in a row that belongs to nobody must not reach a gradient
            x = x.masked_fill(~inside[:, None], 0)
        qkv, logits, gate, output_gate, taps = self.project(x)
        before = Snapshot(None, None) if cache is None else cache.snapshot(requests)
        dtype = working_dtype(x)
        convolve = (
            short_convolution if cu_seqlens is None else functools.partial(ragged_convolution, cu_seqlens=cu_seqlens)
        )
        state = None if before.window is None else before.window.to(dtype)
        mixed, window = convolve(qkv.to(dtype), taps.to(dtype), state)
        q, k, v = split_heads(mixed.to(x.dtype), (self.num_v_heads, self.V, self.K))
        gates = write_gates([y.to(dtype) for y in logits], self.allow_neg_eigval)
        decay = self.A_log, self.dt_bias, self.lower_bound
        o, S = remember("chunk", self.rule.name, q, k, v, gate, gates, before.S, *decay, cu_seqlens)
        if cache is not None:
            cache.restore(Snapshot(window.detach(), S.detach()), requests)
        y = gated_norm(o.to(dtype), output_gate, self.o_norm.weight, self.norm_eps, self.activation)
        return self.o_proj(y.to(x.dtype).flatten(-2))

    @torch.no_grad()
    @known
    def decode(
        self, x: torch.Tensor, cache: Cache, requests: Requests = None, num_accepted: Requests = None
    ) -> torch.Tensor:
        """Hidden states [R, T, hidden] of one step from x [R, T, hidden]: T = 1, or up to 1 + num_spec tokens to
        verify.

        requests: int [R], or None for all of the cache   num_accepted: int [R], how many tokens of each request's last
        step stay; 0 leaves a request out of this step: it keeps its state, and its rows of the result are zero. None:
        what the cache says, which is all of them unless ``cache.accept`` took some back.
        Raises ValueError when x, cache and requests do not fit, or T exceeds 1 + num_spec.

        >>> from kda_lab.layer import DeltaNet
        >>> layer, x = DeltaNet(8, num_heads=2), torch.randn(1, 4, 8)
        >>> cache = layer.new_cache(requests=1, num_spec=2)
        >>> drafted = layer.decode(x[:, :3], cache)                      # a known token and two drafts
        >>> y = layer.decode(x[:, 1:2], cache, num_accepted=[1])         # both were rejected: token 1 comes again
        >>> torch.allclose(y, drafted[:, 1:2], atol=1e-5)
        True
        """
        self.check(x, cache, requests)
        at, T = cache.select(requests), x.shape[1]
        if not 1 <= T <= 1 + cache.num_spec:
            raise ValueError(
                f"a step takes 1 to 1 + num_spec = {1 + cache.num_spec} tokens, got T = {T}; prefill a prompt, or "
                "make the "
                "cache with a larger num_spec"
            )
        if num_accepted is not None:
            cache.accept(num_accepted, at)
            num_accepted = torch.as_tensor(num_accepted, device=x.device)
        n = cache.num_accepted[at]  # [R]
        takes_part = torch.ones_like(n) if num_accepted is None else (num_accepted > 0).to(n.dtype)
        qkv, logits, gate, output_gate, taps = self.project(x)
        y = self.run_step(qkv, logits, gate, output_gate, taps, cache, at, n * takes_part)
        cache.num_accepted[at] = torch.where(takes_part > 0, T, n)
        return self.o_proj(y.flatten(-2))

    def run_step(self, qkv, logits, gate, output_gate, taps, cache, at, num_accepted):
        """``step`` with this layer's parameters and the cache's slots; on CUDA the fused kernel, where it can answer:
        it knows no gate but beta.
        """
        advance = functools.partial(step, rule=self.rule.name)
        fits = max(self.K, self.V) <= KERNEL_DIM and not self.K % 4 and self.rule.gates == ("beta",)
        if qkv.is_cuda and cache.state.dtype == torch.float32 and fits and kernel_packages():
            from kda_lab.cuda.decode import kda_decode as advance

            (logits,) = logits
        return advance(
            qkv,
            gate,
            logits,
            output_gate,
            taps,
            self.A_log,
            self.dt_bias,
            self.o_norm.weight,
            cache.conv_state,
            cache.state,
            cache.conv_slots[at],
            cache.state_slots[at],
            num_accepted,
            lower_bound=self.lower_bound,
            eps=self.norm_eps,
            allow_neg_eigval=self.allow_neg_eigval,
            activation=self.activation,
        )

    def check(self, x, cache, requests, cu_seqlens=None):
        """Raise ValueError unless x is [B, T, hidden], and the cache is this layer's and holds a request for each
        sequence.
        """
        if x.ndim != 3 or x.shape[2] != self.hidden_size:
            raise ValueError(f"x must be [B, T, hidden] with hidden = {self.hidden_size}, got {tuple(x.shape)}")
        N = len(x)
        if cu_seqlens is not None:
            check_cu_seqlens(Call(x, x, x, cu_seqlens=cu_seqlens))
            if values_readable(x):
                check_boundaries(cu_seqlens.tolist(), x.shape[1])
            N = len(cu_seqlens) - 1
        if cache is None:
            return
        mine = (self.num_v_heads, self.V, self.K, self.channels, self.conv_size)
        its = (*cache.state.shape[1:], cache.conv_state.shape[2], cache.width)
        if mine != its:
            raise ValueError(
                f"the cache must be made for HV, V, K, D, w = {mine}, got {its}; use the layer's new_cache"
            )
        at = cache.select(requests)
        if len(at) != N:
            raise ValueError(
                f"there must be a request in the cache for each of the {N} sequences, got {len(at)}; pass requests"
            )
        if requests is not None and values_readable(at) and len(at.unique()) != N:
            raise ValueError(
                f"requests must differ, got {at.tolist()}; a request has one state and takes one step at a time"
            )


def ragged_convolution(x, weight, state, cu_seqlens):
    """``short_convolution`` of N sequences that lie one after the other in x [1, T, D], each behind its own w - 1
    inputs.

    state: [N, w - 1, D] or None for zeros; returns (y [1, T, D], state [N, w - 1, D]). The rows between two sequences
    carry the second one's window, so one convolution over all rows never looks across. Implements short-convolution.

    >>> x, cu = torch.ones(1, 3, 1), torch.tensor([0, 1, 3])
    >>> y, window = ragged_convolution(x, torch.ones(1, 4), None, cu)
    >>> window[:, :, 0].tolist()
    [[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
    """
    N, T, h = len(cu_seqlens) - 1, x.shape[1], weight.shape[-1] - 1
    if state is None:
        state = x.new_zeros(N, h, x.shape[2])
    if not N:
        return torch.zeros_like(x), state
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), torch.arange(T, device=x.device), right=True).clamp(
        max=N - 1
    )
    token = torch.arange(T, device=x.device) + (sequence + 1) * h  # [T], where each token stands among the rows
    head = cu_seqlens[:-1, None] + torch.arange(N * h, device=x.device).view(N, h)  # [N, h], where each window stands
    rows = (
        x.new_zeros(T + N * h, x.shape[2]).index_copy(0, token, x[0]).index_copy(0, head.flatten(), state.flatten(0, 1))
    )
    y, _ = short_convolution(rows, weight)
    last = cu_seqlens[1:, None] + torch.arange(N * h, device=x.device).view(N, h)  # [N, h], the last h rows of each
    return y[token][None], rows[last]


def linear(inputs, outputs, bias=False):
    """A linear layer without memory yet; ``finish`` gives it some.

    >>> linear(3, 2).weight.device
    device(type='meta')
    """
    return torch.nn.Linear(inputs, outputs, bias=bias, device="meta")


def uniform(shape, low, high, generator):
    """Numbers in [low, high), drawn where the generator is.

    >>> uniform((2, 3), 0.0, 1.0, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    device = "cpu" if generator is None else generator.device
    return torch.empty(shape, device=device, dtype=torch.float32).uniform_(low, high, generator=generator)
