"""One KDA layer out of a published checkpoint: Kimi Linear's tensor names, read from safetensors without the other
tensors.
"""

import json
from pathlib import Path

import torch

from kda_lab.data.doors import known
from kda_lab.layer.layers import KimiDeltaAttention

# ours, which are flash-linear-attention's, and the published ones
NAMES = {
    "q_proj.weight": "q_proj.weight",
    "k_proj.weight": "k_proj.weight",
    "v_proj.weight": "v_proj.weight",
    "q_conv1d.weight": "q_conv1d.weight",
    "k_conv1d.weight": "k_conv1d.weight",
    "v_conv1d.weight": "v_conv1d.weight",
    "b_proj.weight": "b_proj.weight",
    "A_log": "A_log",  # [1, 1, H, 1] in Kimi Linear, [H] in GLM-5.3-Flash
    "dt_bias": "dt_bias",
    "f_proj.0.weight": "f_a_proj.weight",
    "f_proj.1.weight": "f_b_proj.weight",
    "g_proj.0.weight": "g_a_proj.weight",
    "g_proj.1.weight": "g_b_proj.weight",
    "g_proj.weight": "g_proj.weight",
    "o_norm.weight": "o_norm.weight",
    "o_proj.weight": "o_proj.weight",
}
# Kimi Linear, Kimi K3, GLM-5.3-Flash
PREFIXES = ("model.layers", "language_model.model.layers", "model.language_model.layers")


@known
def load_checkpoint(
    path: str | Path,
    index: int,
    config: dict | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> KimiDeltaAttention:
    """A ``KimiDeltaAttention`` with the weights of layer ``index``, counted from 0, of a checkpoint.

    path: a .safetensors file, or a folder with model.safetensors or model.safetensors.index.json   config: the model's
    config as a dict, or None to read config.json in that folder; it says what the tensors do not: heads, the gate's
    floor, eps.
    dtype: of the layer (A_log and dt_bias stay float32 at least), None for each tensor as it is stored.
    Raises FileNotFoundError without weights or config, KeyError for a missing tensor, ValueError for a wrong shape or
    config.

    >>> load_checkpoint("nowhere", 0, config={})
    Traceback (most recent call last):
    FileNotFoundError: nowhere holds no weights; pass a .safetensors file or a folder with model.safetensors.index.json
    """
    path = Path(path)
    where = locate(path)
    options = read_options(read_config(path) if config is None else config)
    prefix = find_prefix(where, index)
    # a full product for the output gate, or two of low rank: the names tell
    layer = KimiDeltaAttention(
        **options, full_rank_gate=f"{prefix}.g_proj.weight" in where, gate_bias=False, device="meta"
    )
    names = {ours: f"{prefix}.{NAMES[ours]}" for ours, _ in layer.named_parameters()}
    tensors = read_tensors(where, names.values())
    state = {}
    for ours, parameter in layer.named_parameters():
        x = tensors[names[ours]]
        if ours == "A_log":
            # Kimi K3 stores 128 rates for 96 heads; those who load it take the first ones
            x = x.flatten()[: layer.num_v_heads]
        x = fit(x, parameter.shape, names[ours])
        wanted = dtype or x.dtype
        if ours in ("A_log", "dt_bias"):
            wanted = torch.promote_types(wanted, torch.float32)
        state[ours] = x.to(device=device or "cpu", dtype=wanted)
    layer.load_state_dict(state, assign=True)
    return layer


def locate(path):
    """For each tensor name the file that holds it."""
    if path.is_file():
        files = [path]
    elif (path / "model.safetensors.index.json").is_file():
        index = json.loads((path / "model.safetensors.index.json").read_text())
        return {name: path / file for name, file in index["weight_map"].items()}
    else:
        files = sorted(path.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(
            f"{path} holds no weights; pass a .safetensors file or a folder with model.safetensors.index.json"
        )
    where = {}
    for file in files:
        with opened(file) as tensors:
            where |= dict.fromkeys(tensors.keys(), file)
    return where


def opened(file):
    """A safetensors file, of which single tensors can be read."""
    try:
        from safetensors import safe_open
    except ImportError:
        raise ImportError("reading a checkpoint needs safetensors; install it with pip install safetensors") from None
    if not file.is_file():
        raise FileNotFoundError(f"{file} is named by the index and missing; download it")
    return safe_open(file, framework="pt")


def read_config(path):
    """config.json of the folder that the weights are in."""
    file = (path if path.is_dir() else path.parent) / "config.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is missing; pass config, since tensors do not say which form the decay gate has"
        )
    return json.loads(file.read_text())


def read_options(config):
    """Arguments of ``KimiDeltaAttention`` from a model's config.

    >>> linear = {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}
    >>> read_options({"hidden_size": 2304, "rms_norm_eps": 1e-5, "linear_attn_config": linear})["lower_bound"] is None
    True
    """
    config = config.get("text_config", config)
    linear = config.get("linear_attn_config", {})
    missing = [n for n in ("hidden_size", "rms_norm_eps") if n not in config]
    missing += [
        f"linear_attn_config.{n}" for n in ("num_heads", "head_dim", "short_conv_kernel_size") if n not in linear
    ]
    if missing:
        raise ValueError(f"the config must describe a KDA layer as Kimi Linear's does, and lacks {', '.join(missing)}")
    return {
        "hidden_size": config["hidden_size"],
        "num_heads": linear["num_heads"],
        "head_dim": linear["head_dim"],
        "conv_size": linear["short_conv_kernel_size"],
        "norm_eps": config["rms_norm_eps"],
        "lower_bound": linear.get("gate_lower_bound"),
    }


def find_prefix(names, index):
    """The path of the layer's tensors, by the one that every KDA layer has.

    >>> find_prefix(["model.layers.3.self_attn.A_log"], 3)
    'model.layers.3.self_attn'
    """
    for prefix in PREFIXES:
        if f"{prefix}.{index}.self_attn.A_log" in names:
            return f"{prefix}.{index}.self_attn"
    kda = sorted({int(name.split(".")[-3]) for name in names if name.endswith(".self_attn.A_log")})
    raise KeyError(f"layer {index} has no self_attn.A_log and is no KDA layer; the KDA layers here, from 0, are {kda}")


def read_tensors(where, names):
    """These tensors, each from its file."""
    if missing := [name for name in names if name not in where]:
        raise KeyError(f"the checkpoint lacks {', '.join(missing)}; a KDA layer needs them all")
    tensors = {}
    for file in sorted({where[name] for name in names}):
        with opened(file) as held:
            tensors |= {name: held.get_tensor(name) for name in names if where[name] == file}
    return tensors


def fit(x, shape, name):
    """x in this shape; axes of length one may come and go, nothing else.

    >>> fit(torch.zeros(1, 8, 4), (8, 1, 4), "q_conv1d.weight").shape
    torch.Size([8, 1, 4])
    """
    squeezed = lambda s: [n for n in s if n != 1]
    if squeezed(x.shape) != squeezed(shape):
        raise ValueError(
            f"{name} must be {tuple(shape)} by the config, got {tuple(x.shape)}; check that they belong together"
        )
    return x.reshape(shape)
