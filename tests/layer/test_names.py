"""Parameters under the names of flash-linear-attention and of published checkpoints, and the products that they are
fused to.
"""

import copy
import importlib
import json
import pickle
from importlib import resources

import pytest
import torch
from safetensors.torch import save_file

from kda_lab import layer
from kda_lab.layer.base import DeltaRuleLayer
from kda_lab.proof.registry import variant
from tests.layer.layers import HIDDEN, KINDS, hidden, make, plain

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 1e-10, "atol": 1e-10}
RECORDED = json.loads((resources.files("kda_lab") / "data/fla_layer_names.json").read_text())
CASES = [(name, case) for name, cases in RECORDED["layers"].items() for case in cases]


def theirs(name, case):
    """A layer's state dict as recorded, and the layer itself where flash-linear-attention can be imported."""
    draw = torch.Generator().manual_seed(0)
    yield {key: torch.randn(shape, generator=draw) for key, shape in case["state_dict"].items()}, None
    try:
        package = importlib.import_module("fla.layers")
    except ImportError:
        return
    built = getattr(package, name)(**case["arguments"])
    yield built.state_dict(), built


@pytest.mark.parametrize(("name", "case"), CASES, ids=lambda x: x if isinstance(x, str) else str(x["arguments"]))
def test_state_dicts_of_flash_linear_attention_load_and_come_back(name, case):
    for state, built in theirs(name, case):
        made = getattr(layer, name)(**case["arguments"])
        assert {key: list(x.shape) for key, x in made.state_dict().items()} == case["state_dict"]
        made.load_state_dict(state)
        for key, x in made.state_dict().items():
            assert torch.equal(x, state[key])
        if built is not None:
            built.load_state_dict(made.state_dict())
        x = hidden(1, 5, dtype=torch.float32).repeat(1, 1, 2)
        torch.testing.assert_close(made(x), plain(made.double(), x.double())[0].float(), rtol=1e-4, atol=1e-4)


def test_gated_deltanet_2_has_the_parameters_of_its_layer_in_flash_linear_attention():
    """fla.layers.GatedDeltaNet2 with as many value heads as key heads, read in its source; K = 8, V = 16, H = 3."""
    made = layer.KimiDeltaAttention(HIDDEN, head_dim=8, expand_v=2, num_heads=3, rule="gdn2")
    shapes = {
        "A_log": (3,),
        "dt_bias": (24,),
        "q_proj.weight": (24, HIDDEN),
        "k_proj.weight": (24, HIDDEN),
        "v_proj.weight": (48, HIDDEN),
        "q_conv1d.weight": (24, 1, 4),
        "k_conv1d.weight": (24, 1, 4),
        "v_conv1d.weight": (48, 1, 4),
        "f_proj.0.weight": (16, HIDDEN),
        "f_proj.1.weight": (24, 16),
        "b_proj.weight": (24, HIDDEN),
        "w_proj.weight": (48, HIDDEN),
        "g_proj.0.weight": (16, HIDDEN),
        "g_proj.1.weight": (48, 16),
        "g_proj.1.bias": (48,),
        "o_norm.weight": (16,),
        "o_proj.weight": (HIDDEN, 48),
    }
    assert {name: tuple(p.shape) for name, p in made.state_dict().items()} == shapes


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter_through_the_fused_weights(kind):
    made, x = make(kind), hidden(2, 67)
    weights = torch.randn(2, 67, HIDDEN, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    wanted = torch.autograd.grad((plain(made, x)[0] * weights).sum(), list(made.parameters()))
    got = torch.autograd.grad((made(x) * weights).sum(), list(made.parameters()))
    for (name, _), a, b in zip(made.named_parameters(), got, wanted):
        assert b.abs().max() > 0, name
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 * b.abs().max().item(), msg=name)


def replace_by_hand(made):
    made.k_proj.weight = torch.nn.Parameter(made.k_proj.weight.detach() * 2)


def optimise(build):
    def change(made):
        made(hidden(1, 3)).square().sum().backward()
        with torch.no_grad():
            # a look at the layer between the gradient and the step must keep nothing
            made(hidden(1, 3))
        optimiser = build(made.parameters())
        optimiser.step()
        optimiser.zero_grad()

    return change


CHANGES = {
    "an optimiser": optimise(lambda p: torch.optim.SGD(p, lr=0.1)),
    "a foreach optimiser": optimise(lambda p: torch.optim.Adam(p, lr=0.1, foreach=True)),
    "a fused optimiser": optimise(lambda p: torch.optim.Adam(p, lr=0.1, fused=True)),
    "a state dict": lambda made: made.load_state_dict(make(seed=5).state_dict()),
    "an assigned state dict": lambda made: made.load_state_dict(make(seed=5).state_dict(), assign=True),
    "a new parameter": replace_by_hand,
    "new data": lambda made: setattr(made.q_conv1d.weight, "data", made.q_conv1d.weight.data * 2),
    "another dtype and back": lambda made: made.to(torch.bfloat16).double(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_fused_weights_follow_their_parts(change):
    made, x = make(), hidden(1, 5)
    with torch.no_grad():
        old = made(x)
        assert made.fused_weights()[0] is made.fused_weights()[0]
    CHANGES[change](made)
    with torch.no_grad():
        torch.testing.assert_close(made(x), plain(made, x)[0], **EXACT)
    assert (made(x) - old).abs().max() > 1e-6
    assert made.decode(x[:, :1], made.new_cache(1)).sub(plain(made, x)[0][:, :1]).abs().max() < 1e-10


def test_fused_weights_that_outlive_their_parts_are_seen(monkeypatch):
    wrong = variant(DeltaRuleLayer.fused_weights, ("p.data_ptr(), p._version", "p.data_ptr()"))
    monkeypatch.setattr(DeltaRuleLayer, "fused_weights", wrong)
    made, x = make(), hidden(1, 5)
    with torch.no_grad():
        made(x)
        made.load_state_dict(make(seed=5).state_dict())
        assert (made(x) - plain(made, x)[0]).abs().max() > 1e-3


def test_copies_and_pickles_have_fused_weights_of_their_own():
    made, x = make(), hidden(1, 5)
    with torch.no_grad():
        made(x)
        for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert other._fused is None
            other.q_proj.weight.mul_(2)
            torch.testing.assert_close(other(x), plain(other, x)[0], **EXACT)
        made.q_proj.weight.data.mul_(2)
        made.forget_fused()
        torch.testing.assert_close(made(x), plain(made, x)[0], **EXACT)


def test_a_layer_runs_in_inference_mode():
    with torch.inference_mode():
        made, x = make(), hidden(1, 5)
        y = made(x)
        made.q_proj.weight.mul_(2)
        assert (made(x) - y).abs().max() > 1e-3
    outer = make()
    with torch.inference_mode():
        y = outer(x)
    torch.testing.assert_close(outer(x.clone()), y, **EXACT)


CONFIG = {
    "hidden_size": HIDDEN,
    "rms_norm_eps": 1e-5,
    "linear_attn_config": {"num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 3]},
}


def published(index, prefix="model.layers", full_rank=False, seed=0):
    """The tensors of one KDA layer under the names of a published checkpoint, bf16 with fp32 gates."""
    H, K, draw = 2, 8, torch.Generator().manual_seed(seed)
    shapes = {
        **{f"{n}_proj.weight": (H * K, HIDDEN) for n in "qkv"},
        **{f"{n}_conv1d.weight": (H * K, 1, 4) for n in "qkv"},
        "f_a_proj.weight": (K, HIDDEN),
        "f_b_proj.weight": (H * K, K),
        "b_proj.weight": (H, HIDDEN),
        "o_norm.weight": (K,),
        "o_proj.weight": (HIDDEN, H * K),
        "A_log": (1, 1, H, 1),
        "dt_bias": (H * K,),
    }
    shapes |= (
        {"g_proj.weight": (H * K, HIDDEN)}
        if full_rank
        else {"g_a_proj.weight": (K, HIDDEN), "g_b_proj.weight": (H * K, K)}
    )
    dtype = lambda name: torch.float32 if name in ("A_log", "dt_bias") else torch.bfloat16
    return {f"{prefix}.{index}.self_attn.{n}": torch.randn(s, generator=draw).to(dtype(n)) for n, s in shapes.items()}


def folder(path, *shards, config=CONFIG):
    """A checkpoint: shards of tensors, their index and the config."""
    weight_map = {}
    for i, tensors in enumerate(shards):
        save_file(tensors, path / f"model-{i}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"model-{i}.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("bound", [None, -5.0])
def test_a_kda_layer_comes_out_of_a_sharded_checkpoint(bound, tmp_path):
    tensors = published(1)
    config = CONFIG | {"linear_attn_config": CONFIG["linear_attn_config"] | {"gate_lower_bound": bound}}
    parts = dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2]) | published(2, seed=1)
    made = layer.load_checkpoint(folder(tmp_path, *parts, config=config), 1)
    stem = "model.layers.1.self_attn."
    assert torch.equal(made.f_proj[1].weight, tensors[f"{stem}f_b_proj.weight"])
    assert torch.equal(made.g_proj[0].weight, tensors[f"{stem}g_a_proj.weight"]) and made.g_proj[1].bias is None
    assert torch.equal(made.A_log, tensors[f"{stem}A_log"].flatten()) and made.A_log.dtype == torch.float32
    assert made.q_proj.weight.dtype == torch.bfloat16 and made.lower_bound == bound and made.norm_eps == 1e-5
    exact = layer.load_checkpoint(tmp_path, 1, dtype=torch.float64)
    x = hidden(1, 5)
    torch.testing.assert_close(exact(x), plain(exact, x)[0], **EXACT)
    y = made(x.bfloat16())
    assert (y.double() - exact(x)).abs().max() < 0.05 * exact(x).abs().max()


@pytest.mark.parametrize("model", ["Kimi K3", "GLM-5.3-Flash"])
def test_other_kda_models_differ_in_prefix_and_gates(model, tmp_path):
    k3 = model == "Kimi K3"
    prefix = "language_model.model.layers" if k3 else "model.language_model.layers"
    tensors, name = published(0, prefix, full_rank=k3), f"{prefix}.0.self_attn.A_log"
    # K3's array of rates is longer than it has heads
    tensors[name] = torch.cat([tensors[name].flatten(), torch.full((3 if k3 else 0,), torch.nan)])
    save_file(tensors, tmp_path / "model.safetensors")
    made = layer.load_checkpoint(tmp_path / "model.safetensors", 0, config={"text_config": CONFIG}, dtype=torch.float64)
    x = hidden(1, 5)
    torch.testing.assert_close(made(x), plain(made, x)[0], **EXACT)
    assert made.A_log.isfinite().all() and isinstance(made.g_proj, torch.nn.Linear) == k3


def without(tensors, name):
    return {key: x for key, x in tensors.items() if not key.endswith(name)}


def test_a_checkpoint_that_does_not_fit_is_refused_in_one_sentence(tmp_path):
    path = folder(tmp_path, published(0), published(1))
    cases = {
        (KeyError, r"layer 3 has no self_attn.A_log .* the KDA layers here, from 0, are \[0, 1\]"): lambda: load(3),
        (FileNotFoundError, "model-1.safetensors is named by the index and missing"): lambda: (
            (path / "model-1.safetensors").unlink(),
            load(1),
        ),
        (KeyError, "lacks model.layers.0.self_attn.f_b_proj.weight; a KDA layer"): lambda: (
            folder(path, without(published(0), "f_b_proj.weight")),
            load(0),
        ),
        (ValueError, r"A_log must be \(3,\) by the config, got \(2,\)"): lambda: load(
            0,
            CONFIG | {"linear_attn_config": {"num_heads": 3, "head_dim": 8, "short_conv_kernel_size": 4}},
            published(0),
        ),
        (ValueError, r"o_norm.weight must be \(8,\) by the config, got \(16,\)"): lambda: load(
            0, CONFIG, published(0) | {"model.layers.0.self_attn.o_norm.weight": torch.zeros(16)}
        ),
        (ValueError, "lacks linear_attn_config.num_heads"): lambda: load(0, {"hidden_size": 8, "rms_norm_eps": 1e-6}),
        (FileNotFoundError, "config.json is missing; pass config"): lambda: ((path / "config.json").unlink(), load(0)),
    }

    def load(index, config=None, tensors=None):
        if tensors:
            folder(path, tensors)
        return layer.load_checkpoint(path, index, config)

    for (error, message), call in cases.items():
        with pytest.raises(error, match=message):
            call()
