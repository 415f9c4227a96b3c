"""What a layer of each family keeps: from the fields that the family's code reads to the specs of the cache.

Each function fills ``makers``, kind -> function of `At` that makes the spec, and ``kernels``, kind -> smallest kernel
block.
"""

from typing import NamedTuple

from kda_lab.serving.plan import specs as s
from kda_lab.serving.plan.fields import ConfigError, optional, whole

# families whose code takes hidden_size / num_attention_heads where 'head_dim' is absent
DERIVED_WIDTH = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "phi3")


class At(NamedTuple):
    """How a model is served: tokens of a block, ranks, drafted tokens a step, bytes of a cached number and of a number
    of S.

    state_number: None is what the server takes for that family.
    """

    block: int
    tp: int = 1
    num_spec: int = 0
    number: int = s.BF16
    state_number: int | None = None


def softmax(text, notes, makers, kernels):
    """Attention: MLA if there is anything of a latent row, else keys and values of grouped heads."""
    heads = whole(text, "num_attention_heads", "how many query heads attention has")
    if "kv_lora_rank" in text or "qk_nope_head_dim" in text:
        latent = whole(text, "kv_lora_rank", "the width of MLA's latent row")
        rope = whole(text, "qk_rope_head_dim", "how many numbers stand beside the latent row (0 is a value)", 0)
        sparse = "index_head_dim" in text or "index_topk" in text
        makers["mla"] = lambda at: s.mla_rows(at.block, latent + rope, at.number, whole_rows=sparse)
        kernels["mla"] = 64
        notes.append(
            "kernels of Hopper are assumed: FlashMLA in blocks of 64 tokens; other backends take 16, 32 or 128"
        )
        if sparse:
            _indexer(text, makers, kernels)
        return
    width = optional(text, "head_dim", "the width of a key") or optional(
        text, "attention_head_dim", "the width of a key"
    )
    if width is None and text.get("model_type") in DERIVED_WIDTH:
        width = whole(text, "hidden_size", "the width of a head, as hidden_size / num_attention_heads") // heads
        notes.append(f"no 'head_dim' in the config: {width} = hidden_size / num_attention_heads, as in this family")
    width = width or whole(text, "head_dim", "the width of a key and of a value")
    kv_heads = whole(text, "num_key_value_heads", "how many heads are cached (without grouping: num_attention_heads)")
    makers["attention"] = lambda at: s.AttentionSpec(
        at.block, s.kv_heads_per_rank(kv_heads, at.tp), width, number=at.number
    )
    kernels["attention"] = 16
    if "sliding_attention" in text.get("layer_types", []):
        window = whole(text, "sliding_window", "how many tokens a sliding layer keeps")
        makers["window"] = lambda at: s.AttentionSpec(
            at.block, s.kv_heads_per_rank(kv_heads, at.tp), width, number=at.number, window=window
        )
        kernels["window"] = 16
    if "indexer_head_dim" in text or "indexer_compress_ratio" in text:
        _group_keys(text, makers, kernels)


def _indexer(text, makers, kernels):
    """The keys of a sparse indexer; where it pools tokens, one row for each pool and a ring for the open one."""
    width = whole(text, "index_head_dim", "the width of an index key")
    pooled = "index_kpool" in text or str(text.get("model_type", "")).startswith("glm5_next")
    # transformers' default, 16, is not what the checkpoint says, so nothing stands in for a missing field
    pool = whole(text, "index_kpool", "how many tokens share an index key") if pooled else 1
    kernel = 32 * pool if pooled else 64
    makers["indexer"] = lambda at: s.index_rows(at.block, width, 4, pool, stride_tokens=kernel)
    kernels["indexer"] = kernel
    if pooled:
        makers["tail"] = lambda at: s.tail_ring(pool, at.num_spec, width)
        kernels["tail"] = 1


def _group_keys(text, makers, kernels):
    """Qwen4's sparse attention: bf16 keys, one row for a group of tokens, and raw keys of the open group with their
    positions.
    """
    pool = whole(text, "indexer_compress_ratio", "how many tokens share an index key")
    width = whole(text, "indexer_head_dim", "the width of an index key")
    # three 64-bit positions beside a raw key, where positions have three axes
    rope = text.get("rope_parameters")
    raw = width + (12 if isinstance(rope, dict) and "mrope_section" in rope else 0)
    makers["keys"] = lambda at: s.AttentionSpec(at.block, 1, width, 0, per_state=pool)
    makers["raw"] = lambda at: s.RingSpec(s.round_up(pool + at.num_spec, pool), 1, raw)
    kernels |= {"keys": 16, "raw": 1}


def linear(text, kinds, notes, makers):
    """The state of the linear layers, if there are any."""
    readers = {"kda": _kda, "gdn": _gdn, "mamba2": _mamba2, "lightning": _lightning}
    kind = next((kind for kind in readers if kind in kinds), None)
    if kind is not None:
        number, make = readers[kind](text, notes)
        makers[kind] = lambda at: make(at, at.state_number or number)


def _kda(text, notes):
    part = text.get("linear_attn_config", text)
    heads = whole(part, "num_heads" if part is not text else "num_attention_heads", "how many heads KDA has")
    width = whole(part, "head_dim", "the width of a KDA head")
    taps = whole(part, "short_conv_kernel_size", "how many tokens the short convolution sees")
    exports = part.get("gate_lower_bound") is not None and width == 128
    if exports:
        notes.append("FlashKDA is assumed (bf16, heads of 128, bounded gate): a prefill may fill one more state block")
    return s.FP32, lambda at, number: s.kda_state(
        heads, width, taps, at.num_spec, at.tp, number, at.block, int(exports)
    )


def _gdn(text, notes):
    heads = "linear_num_key_heads", "linear_num_value_heads"
    names = *heads, "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"
    sizes = [whole(text, name, "the shape of the linear layers' state") for name in names]
    if "ple_conv_kernel_size" in text:
        notes.append(
            "left out: the convolution of the n-gram layers, since the config does not say which layers these are"
        )
    if "mamba_ssm_dtype" in text:
        default = _number(text["mamba_ssm_dtype"], "mamba_ssm_dtype")
    else:
        notes.append("no 'mamba_ssm_dtype': vLLM keeps S in bfloat16; --mamba-ssm-cache-dtype float32 doubles it")
        default = s.BF16
    return default, lambda at, number: s.gdn_state(*sizes, at.num_spec, at.tp, number, at.block)


def _mamba2(text, notes):
    names = "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"
    sizes = [whole(text, name, "the shape of the Mamba layers' state") for name in names]
    default = _number(text.get("mamba_ssm_cache_dtype", "float32"), "mamba_ssm_cache_dtype")
    return default, lambda at, number: s.mamba2_state(*sizes, at.num_spec, at.tp, number, at.block, checkpoints=1)


def _lightning(text, notes):
    heads = whole(text, "num_attention_heads", "how many heads lightning attention has")
    width = whole(text, "head_dim", "the width of a head of lightning attention")
    notes.append(
        "vLLM 0.32.0 no longer serves this model: S is counted in float32, blocks as its rules would make them"
    )
    return s.FP32, lambda at, number: s.lightning_state(heads, width, at.num_spec, at.tp, number, at.block)


def _number(name, field):
    sizes = {"float32": s.FP32, "bfloat16": s.BF16, "float16": s.BF16}
    if not isinstance(name, str) or name not in sizes:
        raise ConfigError(f"'{field}' is {name!r}, which is none of {', '.join(sizes)}; name one of these")
    return sizes[name]


def compressed(text, notes, makers, kernels):
    """DeepSeek-V4 in vLLM: rows of 584 bytes in pages that are multiples of 576, windows in blocks of 64 tokens of
    their own.
    """
    width = whole(text, "head_dim", "the width of a compressed row")
    index = whole(text, "index_head_dim", "the width of an index key")
    window = whole(text, "sliding_window", "how many tokens the window keeps")
    # fp8 without rotation, 64 rotated numbers in bf16, and 8 bytes of scales
    row = width - 64 + 2 * 64 + 8
    page = {"page_unit": 576}
    notes.append(
        f"rows are fp8 with scales, {row} bytes, whatever --kv-cache-dtype says; no run was compared with this plan"
    )

    def open_sums(block, numbers, span):
        return lambda at: s.AttentionSpec(block, 1, numbers, 0, s.FP32, window=span, **page)

    makers["near"] = lambda at: s.AttentionSpec(64, 1, width, 0, window=window, row=row, **page)
    makers["rows4"] = lambda at: s.AttentionSpec(at.block, 1, width, 0, per_state=4, row=row, **page)
    makers["index4"] = lambda at: s.AttentionSpec(at.block, 1, index + 4, 0, s.FP8, per_state=4, **page)
    makers["rows128"] = lambda at: s.AttentionSpec(at.block, 1, width, 0, per_state=128, row=row, **page)
    # an overlapping pool of 4 keeps two halves of sums and scores, a pool of 128 one
    makers["open4"], makers["indexopen4"] = open_sums(4, 4 * width, 8), open_sums(4, 4 * index, 8)
    makers["open128"] = open_sums(8, 2 * width, 128)
    kernels |= {"near": 32, "rows4": 256, "index4": 256, "rows128": 256}
