"""The three layers: which rule, which gates, and how flash-linear-attention names their parameters."""

import math

import torch

from kda_lab.data.doors import known
from kda_lab.layer.base import DeltaRuleLayer, linear, uniform
from kda_lab.rules import RULES


class KimiDeltaAttention(DeltaRuleLayer):
    """Kimi Delta Attention as a layer: a decay for each key channel from a low-rank projection, a sigmoid output gate.

    hidden_size: of x   head_dim: K   expand_v: V / K   num_heads: H   num_v_heads: HV, None for H   conv_size: w
    lower_bound: None for the softplus gate (Kimi Linear), or its floor, as -5.0 (Kimi K3, GLM-5.3-Flash)
    allow_neg_eigval: write gates in (0, 2)   full_rank_gate: the output gate is one product (Kimi K3)   gate_bias: its
    bias,
    which flash-linear-attention has and published checkpoints do not   norm_eps: of the output norm
    rule: "kda", or another name in ``rules.RULES`` with a decay a channel and gates, as "gdn2". A gate of key channels
    is projected for the key heads, [hidden, H K], one of value channels for the value heads, [hidden, HV V];
    allow_neg_eigval doubles the first gate; a rule with other gates than beta decodes in torch on every device.
    generator: a torch.Generator that first values are drawn from, None for torch's own.
    Raises ValueError when sizes do not fit. Implements gate-bounded, gate-softplus, kda-recurrence (Kimi Linear,
    section 4).

    >>> layer = KimiDeltaAttention(64, head_dim=16, num_heads=2, generator=torch.Generator().manual_seed(0))
    >>> cache = layer.new_cache(requests=1)
    >>> layer(torch.zeros(1, 5, 64), cache).shape, layer.decode(torch.zeros(1, 1, 64), cache).shape
    (torch.Size([1, 5, 64]), torch.Size([1, 1, 64]))
    """

    @known
    def __init__(
        self,
        hidden_size: int = 2048,
        expand_v: float = 1,
        head_dim: int = 128,
        num_heads: int = 16,
        num_v_heads: int | None = None,
        conv_size: int = 4,
        lower_bound: float | None = None,
        allow_neg_eigval: bool = False,
        full_rank_gate: bool = False,
        gate_bias: bool = True,
        norm_eps: float = 1e-5,
        rule: str = "kda",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        fitting = [name for name, r in RULES.items() if r.decay == "channel" and r.gates]
        if rule not in fitting:
            raise ValueError(
                f"rule must be one that erases and has a decay a channel, {' or '.join(fitting)}, got {rule!r}"
            )
        V = whole(head_dim * expand_v, "head_dim * expand_v")
        super().__init__(rule, hidden_size, num_heads, num_v_heads, head_dim, V, conv_size, allow_neg_eigval, norm_eps)
        if lower_bound is not None and not -math.inf < lower_bound < 0:
            raise ValueError(
                f"lower_bound must be negative and finite, or None for the softplus gate, got {lower_bound}"
            )
        HV = self.num_v_heads
        self.lower_bound = lower_bound
        self.f_proj = torch.nn.Sequential(linear(hidden_size, V), linear(V, HV * head_dim))
        if full_rank_gate:
            self.g_proj = linear(hidden_size, HV * V)
        else:
            self.g_proj = torch.nn.Sequential(linear(hidden_size, V), linear(V, HV * V, gate_bias))
        self.A_log = torch.nn.Parameter(torch.empty(HV, device="meta", dtype=torch.float32))
        self.dt_bias = torch.nn.Parameter(torch.empty(HV * head_dim, device="meta", dtype=torch.float32))
        self.projections = (*self.projections, "f_proj.0", "g_proj" if full_rank_gate else "g_proj.0")
        self.finish(generator, device, dtype)

    def reset_gates(self, generator):
        """Rates of 1 to 16 (1 with a lower bound), and biases whose softplus is 0.001 to 0.1."""
        if self.lower_bound is None:
            self.A_log.copy_(uniform(self.A_log.shape, 1, 16, generator).log())
        else:
            self.A_log.zero_()
        self.dt_bias.copy_(inverse_softplus(small_steps(self.dt_bias.shape, generator)))

    def gates(self, parts):
        decay, output = parts
        decay = self.f_proj[1](decay).unflatten(-1, (self.num_v_heads, self.K))
        output = self.g_proj[1](output) if isinstance(self.g_proj, torch.nn.Sequential) else output
        return decay, output.unflatten(-1, (self.num_v_heads, self.V))


class GatedDeltaNet(DeltaRuleLayer):
    """Gated DeltaNet as a layer: one decay for each value head, straight from the hidden states, and a swish output
    gate.

    Arguments as for ``KimiDeltaAttention``; use_gate: whether there is an output gate   output_gate_activation: "swish"
    or "sigmoid". Implements gate-softplus, gdn-recurrence (Gated DeltaNet).

    >>> layer = GatedDeltaNet(64, head_dim=16, num_heads=2, expand_v=2, generator=torch.Generator().manual_seed(0))
    >>> layer(torch.zeros(1, 5, 64)).shape, layer.cache_bytes().state
    (torch.Size([1, 5, 64]), 4096)
    """

    @known
    def __init__(
        self,
        hidden_size: int = 2048,
        expand_v: float = 2,
        head_dim: int = 256,
        num_heads: int = 6,
        num_v_heads: int | None = None,
        use_gate: bool = True,
        conv_size: int = 4,
        allow_neg_eigval: bool = False,
        output_gate_activation: str = "swish",
        norm_eps: float = 1e-5,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        V = whole(head_dim * expand_v, "head_dim * expand_v")
        sizes = hidden_size, num_heads, num_v_heads, head_dim, V
        super().__init__("gated_delta_rule", *sizes, conv_size, allow_neg_eigval, norm_eps)
        if output_gate_activation not in ("swish", "sigmoid"):
            raise ValueError(f"output_gate_activation must be 'swish' or 'sigmoid', got {output_gate_activation!r}")
        self.activation = output_gate_activation
        HV = self.num_v_heads
        self.a_proj = linear(hidden_size, HV)
        self.A_log = torch.nn.Parameter(torch.empty(HV, device="meta", dtype=torch.float32))
        self.dt_bias = torch.nn.Parameter(torch.empty(HV, device="meta", dtype=torch.float32))
        self.projections = (*self.projections, "a_proj")
        if use_gate:
            self.g_proj = linear(hidden_size, HV * V)
            self.projections = (*self.projections, "g_proj")
        self.finish(generator, device, dtype)

    def reset_gates(self, generator):
        """Rates up to 16, and biases whose softplus is 0.001 to 0.1."""
        self.A_log.copy_(uniform(self.A_log.shape, 0, 16, generator).clamp(min=1e-4).log())
        self.dt_bias.copy_(inverse_softplus(small_steps(self.dt_bias.shape, generator)))

    def gates(self, parts):
        decay, *output = parts
        return decay, output[0].unflatten(-1, (self.num_v_heads, self.V)) if output else None


class DeltaNet(DeltaRuleLayer):
    """DeltaNet as a layer: no decay, and an output gate only where it is asked for.

    expand_k, expand_v: H K / hidden and H V / hidden; the others as for ``GatedDeltaNet``. Implements delta-recurrence.

    >>> layer = DeltaNet(64, num_heads=2, generator=torch.Generator().manual_seed(0))
    >>> layer(torch.zeros(1, 5, 64)).shape, layer.A_log is None
    (torch.Size([1, 5, 64]), True)
    """

    activation = "swish"

    @known
    def __init__(
        self,
        hidden_size: int = 1024,
        expand_k: float = 1.0,
        expand_v: float = 1.0,
        num_heads: int = 4,
        use_gate: bool = False,
        conv_size: int = 4,
        allow_neg_eigval: bool = False,
        norm_eps: float = 1e-5,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        K = whole(hidden_size * expand_k / num_heads, "hidden_size * expand_k / num_heads")
        V = whole(hidden_size * expand_v / num_heads, "hidden_size * expand_v / num_heads")
        super().__init__("delta_rule", hidden_size, num_heads, None, K, V, conv_size, allow_neg_eigval, norm_eps)
        if use_gate:
            self.g_proj = linear(hidden_size, num_heads * V)
            self.projections = (*self.projections, "g_proj")
        self.finish(generator, device, dtype)

    def gates(self, parts):
        return None, parts[0].unflatten(-1, (self.num_v_heads, self.V)) if parts else None


def whole(x, name):
    """x as an integer; ValueError unless it is one.

    >>> whole(64 * 2.0, "head_dim * expand_v")
    128
    """
    if abs(x - round(x)) > 1e-5 * max(abs(x), 1):
        raise ValueError(f"{name} must be a whole number, got {x}")
    return round(x)


def small_steps(shape, generator):
    """Numbers between 0.001 and 0.1, uniform in their logarithm.

    >>> x = small_steps((100,), torch.Generator().manual_seed(0))
    >>> bool(x.min() >= 0.001), bool(x.max() <= 0.1001)
    (True, True)
    """
    return uniform(shape, math.log(0.001), math.log(0.1), generator).exp()


def inverse_softplus(y):
    """x with softplus(x) = y.

    >>> torch.nn.functional.softplus(inverse_softplus(torch.tensor([0.5])))
    tensor([0.5000])
    """
    return y + torch.log(-torch.expm1(-y))
