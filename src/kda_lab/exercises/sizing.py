"""Exercises of the chapter on sizing a hybrid model."""

import kda_lab as kl
from kda_lab import plan
from kda_lab.serving import GIB, load

read = kl.serving.config.read
FP8, ceil_div = kl.serving.specs.FP8, kl.serving.specs.ceil_div


def by_hand():
    """Kimi Linear on four ranks.

    (bytes of a state, tokens of a block, bytes of an id, ids of a request)
    """
    # <solution>
    state = 8 * 128 * 128 * 4 + 3 * (3 * 8 * 128) * 2
    block = 128 * 4  # three steps of 128 * 1152 bytes hold 442,368
    return state, block, 7 * block * 1152, 20 + 3 * 2
    # </solution>


def check_by_hand(by_hand):
    p = plan("kimi-linear-48b-a3b", tp=4, context=10_000)
    want = p.state_page_bytes, p.block_size, p.bytes_per_block, sum(p.request_blocks)
    names = "state", "block", "block id", "ids of a request"
    hints = (
        "heads are divided, S is fp32, the window has 3 rows in bf16",
        "whole steps of 128",
        "seven layers",
        "rows, and 3 groups of states",
    )
    for name, got, right, hint in zip(names, by_hand(), want, hints, strict=True):
        assert got == right, f"the {name} should not be {got:,}: {hint}"


def undo(tokens, context, block, groups, most=12):
    """(ids in the pool, fewest states that each group can hold).

    tokens: what it printed as the size of its cache   context: of a request
    block: tokens   groups: of states, beside one of rows   most: to try
    """
    # <solution>
    for held in range(1, most + 1):
        each = ceil_div(context, block) + groups * held
        ids = ceil_div(tokens * each, context)
        if int(ids / each * context) == tokens:
            return ids, held
    # </solution>


def check_undo(undo):
    # printed by two servers, see the chapter
    cases = [((302_921, 131_072, 1568, 3), (208, 2)), ((7_035_562, 32_768, 2096, 4), (5153, 2))]
    for name, how in (
        ("kimi-linear-48b-a3b", {"tp": 2}),
        ("kimi-k3", {"tp": 8, "num_spec": 4}),
        ("qwen3.6-27b", {"number": FP8, "num_spec": 2}),
    ):
        p = plan(name, memory=33 * GIB, context=50_001, **how)
        cases.append(((p.tokens, p.context, p.block_size, len(p.state_groups)), (p.num_blocks, p.request_blocks[1])))
    for log, want in cases:
        got = undo(*log)
        assert got is not None, (
            f"no number of states explains {log}: try more, and remember that the server cuts to an integer"
        )
        assert got[1] == want[1], f"{log}: a group holds {want[1]} states, not {got[1]}"
        assert got[0] == want[0], f"{log}: {got[0]:,} ids with {got[1]} states a group do not print {log[0]:,} tokens"


def counted_from_0(config):
    """A copy of a Kimi config, its lists read as if numbered from 0.

    In ``linear_attn_config``, entry i of ``full_attn_layers`` is taken
    for layer i of 0, 1, ...; an entry beyond the last layer is dropped.
    All other layers become KDA. Both returned lists are numbered from 0,
    as GLM has them. In K3 all this lies inside ``text_config``. The
    config itself stays as it is.
    """
    # <solution>
    inner = "text_config" if "text_config" in config else None
    text = config[inner] if inner else config
    lists, count = text["linear_attn_config"], text["num_hidden_layers"]
    full = [i for i in lists["full_attn_layers"] if i < count]
    kda = [i for i in range(count) if i not in full]
    lists = {**lists, "full_attn_layers": full, "kda_layers": kda}
    text = {**text, "linear_attn_config": lists}
    return {**config, inner: text} if inner else text
    # </solution>


def check_counted_from_0(counted_from_0):
    for name, want in (("kimi-linear-48b-a3b", {"mla": 6, "kda": 21}), ("kimi-k3", {"mla": 23, "kda": 70})):
        config = load(name)
        wrong = counted_from_0(config)
        assert config == load(name), "the config itself was changed: copy what you change"
        kinds = read(wrong).kinds()
        assert kinds == want, (
            f"{name}: read so it has {want}, not {kinds}: its last layer of attention is beyond the end"
        )
        right, other = (plan(c, memory=60 * GIB, context=2**17) for c in (config, wrong))
        assert other.growth < right.growth, "one layer of attention less keeps fewer bytes a token"
        assert (other.concurrency > right.concurrency) == (name != "kimi-k3"), (
            "Kimi Linear seems to hold more requests, K3 fewer"
        )
        # neither the line of the block nor that of padding shows it
        assert (other.block_size, other.padding_fraction) == (right.block_size, right.padding_fraction)
