"""``kda-lab plan``: the plan of a config as a table, or as one JSON document."""

import json
import sys
import textwrap

from kda_lab.serving.plan import specs
from kda_lab.serving.plan.plan import GIB, log_lines, plan
from kda_lab.serving.plan.warnings import warnings

WIDTH = 100
NUMBERS = {"auto": None, "float32": specs.FP32, "bfloat16": specs.BF16, "fp8": specs.FP8}
NAMES = {specs.FP8: "fp8", specs.BF16: "bf16", specs.FP32: "float32"}


def add_arguments(parser):
    """The arguments of ``kda-lab plan``; names are the server's where it has them."""
    parser.add_argument(
        "config", metavar="CONFIG.json", help="a published config, or the name of one that comes with the package"
    )
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="ranks of tensor parallelism (1)")
    parser.add_argument("--num-spec", type=int, default=0, metavar="N", help="drafted tokens a step (0)")
    parser.add_argument("--gpu-memory", type=float, metavar="GIB", help="GiB for the cache on each rank, after weights")
    parser.add_argument("--context", type=int, metavar="N", help="tokens of a request (what the config allows)")
    parser.add_argument("--prefix-match-unit", type=int, metavar="N", help="tokens of a hash (the gcd of the blocks)")
    parser.add_argument(
        "--block-size", type=int, metavar="N", help="least tokens of a block (what the kernels ask for)"
    )
    parser.add_argument(
        "--kv-cache-dtype", choices=["auto", "bfloat16", "fp8"], default="auto", help="numbers in rows of attention"
    )
    parser.add_argument(
        "--mamba-ssm-cache-dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="numbers of a state S"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(args):
    """Plan, print, and return the exit status: 2 if the config or a setting cannot be used."""
    try:
        p = plan(
            args.config,
            tp=args.tp,
            num_spec=args.num_spec,
            memory=None if args.gpu_memory is None else args.gpu_memory * GIB,
            context=args.context,
            prefix_match_unit=args.prefix_match_unit,
            block_size=args.block_size,
            number=NUMBERS[args.kv_cache_dtype] or specs.BF16,
            state_number=NUMBERS[args.mamba_ssm_cache_dtype],
        )
    except ValueError as error:
        print(f"kda-lab plan: {error}", file=sys.stderr)
        return 2
    print(json.dumps(document(p), indent=1) if args.json else table(p))
    return 0


def document(p):
    """A plan as plain data; null where a model has no states, or where no memory is given.

    >>> d = document(plan("glm-5.3-flash", tp=8))
    >>> d["block_size"], d["hash_block_size"], d["num_blocks"], d["groups"][2]["size"], d["groups"][2]["layers"][:2]
    (640, 640, None, 9, ['kda.0', 'kda.5'])
    """
    names = (
        "block_size",
        "state_page_bytes",
        "attention_page_bytes",
        "padding_fraction",
        "bytes_per_block",
        "alignment",
    )
    names += (
        "hash_block_size",
        "scheduler_block_size",
        "hit_alignment",
        "block_outermost",
        "num_blocks",
        "context",
        "concurrency",
    )
    held = p.request_blocks or [None] * len(p.groups)
    return {
        "model": p.facts.name,
        "tp": p.at.tp,
        "num_spec": p.at.num_spec,
        **{name: getattr(p, name) for name in names},
        "state_page_padded_bytes": p.state and p.state.page,
        "groups": [
            {
                "kind": g.kind,
                "size": len(g.layers),
                "block_size": g.block,
                "bytes": g.page,
                "blocks_per_request": n,
                "layers": list(g.layers),
            }
            for g, n in zip(p.groups, held, strict=True)
        ],
        "blocks_per_request": p.request_blocks and sum(p.request_blocks),
        "tokens": p.tokens,
        "prefix_tokens": p.prefix_tokens,
        "prefix_states": p.prefix_states,
        "log": log_lines(p),
        "warnings": warnings(p),
        "notes": p.facts.notes,
    }


def aligned(lines):
    """Lines of (what, value, why) with the first two columns aligned; the value to the right.

    >>> print(aligned([("block size", "640 tokens", "why"), ("page", "1,024 bytes", "")]))
    block size   640 tokens   why
    page        1,024 bytes
    """
    left, right = (max(len(line[i]) for line in lines) for i in (0, 1))
    return "\n".join(f"{what:{left}}  {value:>{right}}   {why}".rstrip() for what, value, why in lines)


def sizes(p):
    """The block size and where it comes from: lines for `aligned`."""
    B, tokens = p.block_size, f"{p.block_size:,} tokens"
    whole = p.attention_page_bytes == B * p.token_bytes
    page = (
        "attention page",
        f"{p.attention_page_bytes:,} bytes",
        f"{B:,} x {p.token_bytes:,}" if whole else "rounded up for its kernel",
    )
    if not p.state:
        return [("block size", tokens, "what the attention kernels take; no layer keeps a state"), page]
    S = p.state
    arrays = " + ".join(
        f"{name} {'x'.join(map(str, shape))} {NAMES[number]}"
        for name, shape, number in zip(("conv", "S")[-len(S.shapes) :], S.shapes, S.numbers, strict=True)
    )
    step = f"a multiple of {p.unit} that holds a state: {p.unit} x ceil({S.content:,} / ({p.unit} x {p.token_bytes:,}))"
    padding = f"{100 * p.padding_fraction:.2f} % of the state" if p.padding_fraction else "an exact fit"
    return [
        ("block size", tokens, step),
        ("state page", f"{S.content:,} bytes", arrays),
        page,
        ("padding", f"{S.page - S.content:,} bytes", padding),
    ]


def units(p):
    """Bytes of a block, hash unit and scheduler's block: lines for `aligned`."""
    widest = max(g.page for g in p.groups)
    steps = sorted({spec.alignment for g in p.groups for spec in g.specs} - {1})
    why = f"{widest:,} up to a multiple of {p.alignment:,} = lcm({', '.join(f'{x:,}' for x in steps)})"
    if not p.block_outermost or not steps:
        why = "the widest group"
    if p.block_outermost:
        layout = "layout", "block-outermost", "the layers of a block lie side by side"
    else:
        layout = "layout", "layer-outermost", "the blocks of a layer lie side by side"
    return [
        ("bytes per block", f"{p.bytes_per_block:,} bytes", why),
        layout,
        ("hash unit", f"{p.hash_block_size:,} tokens", f"hits end at multiples of {p.hit_alignment:,}"),
        ("scheduler block", f"{p.scheduler_block_size:,} tokens", ""),
    ]


def capacity(p):
    """What fits: lines for `aligned`."""
    if p.num_blocks is None:
        return [("blocks", "-", "give --gpu-memory, the GiB left for the cache")]
    lines = [("blocks", f"{p.num_blocks:,}", f"{p.memory / GIB:g} GiB")]
    if p.prefix_states is not None:
        lines.append(("states at most", f"{p.prefix_states:,}", "of the whole model, if nothing else is kept"))
    if p.prefix_tokens is not None:
        lines.append(("tokens at most", f"{p.prefix_tokens:,}", "of attention, if nothing else is kept"))
    if p.concurrency is not None:
        need = f"each holds {sum(p.request_blocks):,} blocks, {p.request_bytes / GIB:.3f} GiB"
        lines.append((f"requests of {p.context:,}", f"{p.concurrency:.2f}", need))
    return lines


def group_table(p):
    """The groups: kinds of layers, tokens, bytes, share of the block that is used, and blocks that a request holds."""
    lines = [("group", "layers", "block", "bytes", "of block", "blocks a request")]
    for i, g in enumerate(p.groups):
        kinds = {}
        for name in g.layers:
            kind = name.split(".")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
        what = " + ".join(f"{n} {kind}" for kind, n in kinds.items())
        held = f"{p.request_blocks[i]:,}" if p.request_blocks else "-"
        lines.append((str(i), what, f"{g.block:,}", f"{g.page:,}", f"{100 * g.page / p.bytes_per_block:.1f} %", held))
    widths = [max(len(line[i]) for line in lines) for i in range(6)]
    return "\n".join(
        f"{a:{widths[0]}}  {b:{widths[1]}}  " + "  ".join(f"{x:>{w}}" for x, w in zip(rest, widths[2:], strict=True))
        for a, b, *rest in lines
    )


def table(p):
    """A plan as text: where the block size comes from, groups, what fits, the log lines, warnings and notes."""
    spec = f"{p.at.num_spec} drafted tokens" if p.at.num_spec else "no speculation"
    parts = [
        f"{p.facts.name}: one of {p.at.tp} ranks, {spec}",
        aligned(sizes(p) + units(p)),
        group_table(p),
        aligned(capacity(p)),
    ]
    for title, lines in (("vLLM logs", log_lines(p)), ("warnings", warnings(p)), ("about the config", p.facts.notes)):
        if lines:
            parts.append(
                "\n".join(
                    [
                        title,
                        *(textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ") for line in lines),
                    ]
                )
            )
    return "\n\n".join(parts)
