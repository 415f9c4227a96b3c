"""Things to move in the chapter on pages, groups and layouts."""

from kda_lab.pages.widgets import Choice, Range, Static, Widget
from kda_lab.serving.plan.fields import load
from kda_lab.serving.plan.plan import plan
from kda_lab.serving.plan.specs import BF16, FP8

MODEL = "glm-5.3-flash"
HEADS = 64
RANKS = [32, 16, 8, 4, 2, 1]
DRAFTS = range(8)
# bytes of a number, and numbers of a row beside the 512 of the latent
ROWS = [(FP8, 0), (BF16, 0), (BF16, 64)]


def one_block():
    """Heads of a rank, drafts and the row of attention decide the block, and what each group leaves of it unused.

    Controls: KDA heads on a rank; drafted tokens a step; bytes of a token's row in one layer.

    >>> one_block()
    <widget: What one block holds in each group>
    """
    draw = """
      const p = data.plans[v.heads][v.row][v.drafts], heads = data.heads[v.heads], token = data.tokens[v.row];
      const n = (x) => String(x).replace(/\\B(?=(\\d{3})+$)/g, ","), x0 = 6, width = 528;
      const px = (bytes) => width * bytes / p.size, pad = p.page - p.state;
      const names = { attention: ["MLA + indexer", "key"], ring: ["ring", "decay"], state: ["KDA", "state"] };
      let svg = kit.text(x0, 12, `one block id, ${n(p.size)} bytes, as each group fills it`, { anchor: "start", size: 15 });
      let y = 30;
      for (const g of p.groups) {
        const [name, role] = names[g.kind];
        let at = 0;
        svg += `<rect x="${x0}" y="${y}" width="${width}" height="18" style="fill:none;stroke:currentColor;stroke-opacity:.35"/>`;
        for (const [count, page, used] of g.pages) for (let i = 0; i < count; i++) {
          const r = page < p.page && g.kind === "attention" ? "value" : role, wide = px(page) > 4;
          svg += `<rect x="${(x0 + px(at)).toFixed(1)}" y="${y}" width="${Math.max(px(used), 0.4).toFixed(2)}" height="18" ` +
            `style="fill:${kit.color(r)};fill-opacity:.55;stroke:${wide ? kit.color("paper") : "none"}"/>`;
          at += page;
        }
        svg += kit.text(x0, y + 30, `${name}: ${g.pages.map((q) => q[0]).join(" + ")} pages, ${kit.fmt(100 * g.used / p.size, g.used < p.size / 100 ? 2 : 0)} % used`, { anchor: "start", size: 14 });
        y += 44;
      }
      const dealt = p.groups.filter((g) => g.kind === "state").map((g) => g.pages[0][0]);
      const states = dealt.reduce((a, b) => a + b, 0);
      const say = `${heads} heads a rank, ${v.drafts} draft${v.drafts === 1 ? "" : "s"}, ${n(token)} bytes a token: a state of ${n(p.state)} bytes needs a block of ${n(p.block)} tokens, ` +
        `${n(p.page)} bytes; ${kit.fmt(100 * pad / p.state, 1)} % padding. ${states} states are dealt [${dealt.join(", ")}]: a set of them takes ` +
        `${dealt.length} id${dealt.length === 1 ? "" : "s"} and fills ${kit.fmt(100 * states * p.state / (dealt.length * p.size), 0)} % of them.`;
      return { svg, say };
    """
    plans = [[[_facts(tp, row, k) for k in DRAFTS] for row in ROWS] for tp in RANKS]
    tokens = [(512 + more) * number for number, more in ROWS]
    data = {"heads": [HEADS // tp for tp in RANKS], "tokens": tokens, "plans": plans}
    controls = [
        Choice("heads", "KDA heads a rank", [f"{HEADS // tp} ({tp} rank{'s' if tp > 1 else ''})" for tp in RANKS], 2),
        Range("drafts", "drafted tokens a step", 0, DRAFTS[-1], 1, 0),
        Choice(
            "row", "a token in one layer", ["512 bytes (fp8)", "1,024 bytes (bf16)", "1,152 bytes (64 more numbers)"], 1
        ),
    ]
    return Widget(
        Static("one-block", "What one block holds in each group", controls, data, draw, size=(540, 298)), live=_live
    )


def _plan(tp, row, num_spec):
    number, more = row
    config = load(MODEL)
    config.get("text_config", config)["qk_rope_head_dim"] = more
    return plan(config, tp=tp, num_spec=num_spec, number=number)


def _facts(tp, row, num_spec):
    """What the drawing needs of one plan."""
    p = _plan(tp, row, num_spec)
    groups = []
    for group in p.groups:
        pages = {}
        for spec in group.specs:
            pages[spec.page, spec.content] = pages.get((spec.page, spec.content), 0) + 1
        counted = [[count, page, used] for (page, used), count in pages.items()]
        groups.append({"kind": group.kind, "pages": counted, "used": sum(count * used for count, _, used in counted)})
    return {
        "block": p.block_size,
        "state": p.state.content,
        "page": p.attention_page_bytes,
        "size": p.bytes_per_block,
        "groups": groups,
    }


def _live():
    import ipywidgets

    def step(ranks=8, drafts=0, row=ROWS[1]):
        p = _plan(ranks, row, drafts)
        print(
            f"{HEADS // ranks} heads a rank: block {p.block_size} tokens, padding {100 * p.padding_fraction:.2f} %, "
            f"{p.bytes_per_block:,} bytes an id"
        )
        for group in p.groups:
            used = sum(spec.content for spec in group.specs)
            print(
                f"{group.kind:10} {len(group.layers):3} layers {used:12,} bytes used, {used / p.bytes_per_block:6.1%}"
            )

    rows = [(f"{(512 + more) * number} bytes", (number, more)) for number, more in ROWS]
    return ipywidgets.interactive(step, ranks=[32, 16, 8, 4, 2, 1], drafts=(0, DRAFTS[-1]), row=rows)
