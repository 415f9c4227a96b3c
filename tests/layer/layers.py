"""Small layers of each kind for the tests, and the layer read once more: separate products, one token after the
other.
"""

import torch
from torch.nn import functional

from kda_lab import layer, ops

HIDDEN = 24
# K = 8, V = 16 and two value heads a key head, so that no two axes can be mistaken for each other
KINDS = {
    "kda, softplus gate": (layer.KimiDeltaAttention, {"head_dim": 8, "num_heads": 2, "num_v_heads": 4, "expand_v": 2}),
    "kda, bounded gate": (
        layer.KimiDeltaAttention,
        {"head_dim": 8, "num_heads": 2, "num_v_heads": 4, "lower_bound": -5.0},
    ),
    "kda, beta to 2": (
        layer.KimiDeltaAttention,
        {"head_dim": 8, "num_heads": 2, "expand_v": 2, "allow_neg_eigval": True, "full_rank_gate": True},
    ),
    "gated deltanet 2": (
        layer.KimiDeltaAttention,
        {"head_dim": 8, "num_heads": 2, "num_v_heads": 4, "expand_v": 2, "rule": "gdn2"},
    ),
    "gated deltanet": (layer.GatedDeltaNet, {"head_dim": 8, "num_heads": 2, "num_v_heads": 4, "expand_v": 2}),
    "deltanet": (layer.DeltaNet, {"num_heads": 3, "expand_v": 2}),
}


def make(kind="kda, softplus gate", dtype=torch.float64, seed=0, **options):
    build, arguments = KINDS[kind]
    made = build(HIDDEN, **(arguments | options), generator=torch.Generator().manual_seed(seed), dtype=dtype)
    with torch.no_grad():
        # a norm weight of one would hide that it is missing
        made.o_norm.weight.mul_(torch.linspace(0.5, 1.5, len(made.o_norm.weight), dtype=dtype))
        if made.dt_bias is not None:
            # decays near 1 beside strong ones
            made.dt_bias[::3] += 5
    return made


def hidden(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def plain(made, x, S=None):
    """Outputs and final states of x [B, T, hidden], from the parameters as they are stored."""
    w, split = made.conv_size, lambda y, d: y.unflatten(-1, (-1, d))
    streams = []
    for name in "qkv":
        y = getattr(made, f"{name}_proj")(x).mT  # [B, D, T]
        taps = getattr(made, f"{name}_conv1d").weight  # [D, 1, w]
        streams.append(functional.silu(functional.conv1d(functional.pad(y, (w - 1, 0)), taps, groups=len(taps))).mT)
    q, k, v = split(streams[0], made.K), split(streams[1], made.K), split(streams[2], made.V)
    erase = made.b_proj(x).sigmoid() * (2 if made.allow_neg_eigval else 1)
    gates, written, rule = {}, {"beta": erase}, "delta_rule"
    if hasattr(made, "w_proj"):
        # the erase gate belongs to the key heads, the write gate to the value heads
        erase = split(erase, made.K).repeat_interleave(made.num_v_heads // made.num_heads, -2)
        written = {"b": erase, "w": split(made.w_proj(x).sigmoid(), made.V)}
        rule, gates["g"] = "gdn2", split(made.f_proj(x), made.K)
    elif isinstance(made, layer.KimiDeltaAttention):
        rule, gates["g"] = "kda", split(made.f_proj(x), made.K)
    elif isinstance(made, layer.GatedDeltaNet):
        rule, gates["g"] = "gated_delta_rule", made.a_proj(x)
    if gates:
        gates |= {
            "use_gate_in_kernel": True,
            "A_log": made.A_log,
            "dt_bias": made.dt_bias,
            "lower_bound": made.lower_bound,
        }
    o, S = getattr(ops, f"naive_{rule}")(
        q, k, v, **written, **gates, initial_state=S, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    y = o / (o.square().mean(-1, keepdim=True) + made.norm_eps).sqrt() * made.o_norm.weight
    if hasattr(made, "g_proj"):
        gate = split(made.g_proj(x), made.V)
        y = y * (gate.sigmoid() if made.activation == "sigmoid" else gate * gate.sigmoid())
    return made.o_proj(y.flatten(-2)), S
