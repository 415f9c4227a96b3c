"""Read a model's config as it is published, and say what each of its layers keeps in the cache.

Field names differ between families, and several that look decisive are not: ``rope_theta`` stands in models that rotate
nothing, ``head_dim`` in models that do not use it, layer lists count from 0 or from 1. So the fields that count are
those that the family's code reads, and a config without one of them is an error that names it.
"""

from collections.abc import Callable
from typing import NamedTuple

from kda_lab.serving.plan import families
from kda_lab.serving.plan.fields import ConfigError, listed, need, optional, whole


class Facts(NamedTuple):
    """What a config says about the cache.

    layers: for each decoder layer the kinds of cache it keeps, none for a layer without   drafts: the same for the
    layers
    of the built-in drafter   makers: kind -> function of `At` that makes the spec   kernels: kind -> smallest kernel
    block
    in tokens   packed: layers of a block lie side by side   notes: what a reader of the config should know.
    """

    name: str
    context: int | None
    layers: list[tuple[str, ...]]
    drafts: list[tuple[str, ...]]
    makers: dict[str, Callable]
    kernels: dict[str, int]
    packed: bool
    notes: list[str]

    def kinds(self) -> dict[str, int]:
        """How many layers keep each kind, without the drafter."""
        return {kind: sum(kind in layer for layer in self.layers) for kind in self.makers}


def read(config) -> Facts:
    """What each layer of a model keeps. config: a dict as published. ConfigError names a field that is missing.

    >>> from kda_lab.serving.plan.fields import load
    >>> facts = read(load("glm-5.3-flash"))
    >>> facts.kinds(), facts.layers[3]
    ({'mla': 11, 'indexer': 11, 'tail': 11, 'kda': 34}, ('mla', 'indexer', 'tail'))
    """
    inner = next((name for name in ("text_config", "llm_config", "language_config") if config.get(name)), None)
    text = config[inner] if inner else config
    if not isinstance(text, dict):
        raise ConfigError(f"the config's '{inner}' is not an object with named fields; give it as it is published")
    notes = []
    kinds = layer_kinds(text, notes)
    if not kinds:
        raise ConfigError("the list of layers is empty; give it as it is published")
    compressed = "compress_ratios" in text
    makers, kernels = {}, {}
    if {"softmax", "window"} & set(kinds):
        families.softmax(text, notes, makers, kernels)
    families.linear(text, kinds, notes, makers)
    if compressed:
        families.compressed(text, notes, makers, kernels)

    attention = tuple(kind for kind in makers if kind in ("attention", "mla", "indexer", "tail", "keys", "raw"))
    named = {"softmax": attention, "none": ()}
    layers = [named.get(kind, tuple(kind.split("+"))) for kind in kinds]
    if "indexer" in makers and "indexer_types" in text:
        # a layer that shares the choice of another keeps no keys of its own
        own = [kind == "full" for kind in listed(text, "indexer_types", "which layers choose for themselves", str)]
        if len(own) != len(layers):
            raise ConfigError(f"'indexer_types' names {len(own)} layers of {len(layers)}; give one for each layer")
        shared = [tuple(kind for kind in kept if kind not in ("indexer", "tail")) for kept in layers]
        layers = [kept if has else without for kept, without, has in zip(layers, shared, own, strict=True)]
    drafts = _drafts(text, attention)
    packed = compressed or bool({"tail", "raw"} & set(makers))
    limits = [optional(text, name, "tokens of a request") for name in ("max_position_embeddings", "model_max_length")]
    context = next((limit for limit in limits if limit), None)
    names = [text.get("model_type")]
    if config.get("architectures"):
        names = listed(config, "architectures", "the class of the model", str)
    _position_note(text, kinds, notes)
    return Facts(names[0] or "model", context, layers, drafts, makers, kernels, packed, notes)


def layer_kinds(text, notes):
    """One word for each decoder layer: softmax, window, kda, gdn, mamba2, lightning, none, or parts joined by '+'.

    >>> layer_kinds({"num_hidden_layers": 8, "layer_group_size": 4, "kda_lower_bound": -5.0}, [])
    ['kda', 'kda', 'kda', 'softmax', 'kda', 'kda', 'kda', 'softmax']
    """
    family = str(text.get("model_type", ""))
    if "linear_attn_config" in text or family.startswith(("kimi_linear", "kimi_k3", "glm5_next")):
        return _kimi_kinds(text, notes)
    if "hybrid_override_pattern" in text or "layers_block_type" in text or "mamba_num_heads" in text:
        return _pattern_kinds(text)
    if "compress_ratios" in text or family.startswith("deepseek_v4"):
        count = whole(text, "num_hidden_layers", "how many layers the model has")
        ratios = listed(text, "compress_ratios", "how many tokens share a row in each layer")
        return [_compressed_kind(ratio) for ratio in ratios[:count]]
    if "layer_types" in text:
        return [_named_kind(name) for name in _layer_types(text)]
    count = whole(text, "num_hidden_layers", "how many layers the model has")
    if "attn_type_list" in text or family in ("minimax", "minimax_m1", "minimax_text_01"):
        types = listed(text, "attn_type_list", "which layers are softmax (1) and which lightning (0)")
        if len(types) != count:
            raise ConfigError(
                f"'attn_type_list' names {len(types)} layers and 'num_hidden_layers' says {count}; correct one of them"
            )
        return ["softmax" if kind else "lightning" for kind in types]
    if "layer_group_size" in text or family.startswith("bailing_hybrid"):
        size = whole(text, "layer_group_size", "that the last layer of each group is attention")
        return ["softmax" if (i + 1) % size == 0 or i >= count // size * size else "kda" for i in range(count)]
    if "full_attention_interval" in text or "linear_num_value_heads" in text:
        every = whole(text, "full_attention_interval", "how often a layer is attention ('layer_types' says it too)")
        notes.append(f"no 'layer_types' in the config: every {every}th layer is attention ('full_attention_interval')")
        return ["softmax" if (i + 1) % every == 0 else "gdn" for i in range(count)]
    for field in ("mamba_d_state", "mamba_d_ssm", "attn_layer_period", "state_size", "time_mix_extra_dim"):
        if field in text:
            raise ConfigError(
                f"the config has '{field}', so some layers keep a state, but no 'layer_types' that says which"
            )
    if text.get("sliding_window") and text.get("use_sliding_window", True):
        need(text, "layer_types", f"which layers keep {text['sliding_window']} tokens only ('sliding_window')")
    return ["softmax"] * count


def _kimi_kinds(text, notes):
    lists = need(text, "linear_attn_config", "which layers are KDA and which attention")
    if not isinstance(lists, dict):
        raise ConfigError("'linear_attn_config' is not an object with named fields; give it as it is published")
    count = whole(text, "num_hidden_layers", "how many layers the model has")
    kda = listed(lists, "kda_layers", "which layers are KDA")
    full = listed(lists, "full_attn_layers", "which layers are attention")
    first = min([*kda, *full], default=0)
    if sorted([*kda, *full]) != list(range(first, first + count)) or first not in (0, 1):
        raise ConfigError(
            f"'kda_layers' and 'full_attn_layers' do not name each of {count} layers once; correct 'linear_attn_config'"
        )
    notes.append(f"layer lists count from {first} here; layers are numbered from 0 below")
    kinds = ["softmax" if i + first in set(full) else "kda" for i in range(count)]
    names = [_named_kind(name) == "softmax" for name in (_layer_types(text) if "layer_types" in text else [])]
    if names and names != [kind == "softmax" for kind in kinds]:
        raise ConfigError(
            "'layer_types' and 'linear_attn_config' disagree on which layers are attention; correct one of them"
        )
    return kinds


def _pattern_kinds(text):
    letters = {"M": "mamba2", "*": "softmax", "-": "none", "E": "none"}
    letters |= {"mamba": "mamba2", "attention": "softmax", "mlp": "none", "moe": "none"}
    if "layers_block_type" in text:
        pattern = listed(text, "layers_block_type", "what each layer is", str)
    else:
        pattern = need(text, "hybrid_override_pattern", "which layers keep what ('layers_block_type' says it too)")
    if not isinstance(pattern, str | list):
        raise ConfigError(
            f"'hybrid_override_pattern' is {pattern!r}, not a string of letters; give it as it is published"
        )
    if unknown := set(pattern) - set(letters):
        raise ConfigError(
            f"a layer is {min(unknown)!r}, none of {', '.join(letters)}; the planner does not know what it keeps"
        )
    return [letters[kind] for kind in pattern]


def _layer_types(text):
    names = listed(text, "layer_types", "what each layer is", str)
    if len(names) != (count := text.get("num_hidden_layers", len(names))):
        raise ConfigError(
            f"'layer_types' names {len(names)} layers and 'num_hidden_layers' says {count!r}; correct one of them"
        )
    return names


def _named_kind(name):
    known = {
        "linear_attention": "gdn",
        "full_attention": "softmax",
        "attention": "softmax",
        "sliding_attention": "window",
    }
    known |= {"deepseek_sparse_attention": "softmax", "indexed_attention": "softmax"}
    if name not in known:
        raise ConfigError(
            f"'layer_types' names {name!r}, none of {', '.join(known)}; the planner does not know what it keeps"
        )
    return known[name]


def _compressed_kind(ratio):
    """DeepSeek-V4: a window everywhere; one row for 4 tokens with an indexer, or one for 128; and the sums still
    open.
    """
    extra = {0: "", 4: "+rows4+index4+open4+indexopen4", 128: "+rows128+open128"}
    if ratio not in extra:
        raise ConfigError(
            f"'compress_ratios' holds {ratio!r}, none of 0, 4, 128; the planner does not know what it keeps"
        )
    return "near" + extra[ratio]


def _drafts(text, attention):
    """What the layers of the built-in drafter keep: like attention, unless a pattern says otherwise."""
    if "compress_ratios" in text:
        return [tuple(_compressed_kind(r).split("+")) for r in text["compress_ratios"][text["num_hidden_layers"] :]]
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    count = next((n for n in (optional(text, name, "layers of the drafter", 0) for name in names) if n), 0)
    pattern = text.get("mtp_hybrid_override_pattern") or text.get("mtp_layers_block_type")
    if isinstance(pattern, str | list):
        return [attention for kind in list(pattern) * count if kind in ("*", "attention")]
    return [attention] * count


def _position_note(text, kinds, notes):
    """Fields that look like rotation and are not."""
    rotates = "rope_theta" in text or text.get("qk_rope_head_dim") or "partial_rotary_factor" in text
    if text.get("mla_use_nope") or text.get("use_mla_nope"):
        if text.get("qk_rope_head_dim"):
            notes.append(
                f"nothing is rotated, yet {text['qk_rope_head_dim']} numbers of 'qk_rope_head_dim' stay in each row"
            )
        elif text.get("indexer_rope_interleave"):
            notes.append("nothing is rotated, whatever 'indexer_rope_interleave' says: 'qk_rope_head_dim' is 0")
    elif "mamba2" in kinds and rotates:
        notes.append("nothing is rotated, whatever 'rope_theta' says: this family's code has no rotation")
