"""Things to move in the chapter on sizing a hybrid model."""

from kda_lab.pages.widgets import Choice, Range, Static, Widget
from kda_lab.serving.plan.plan import GIB, plan, request_blocks

NAMES = {
    "glm-5.3-flash": "GLM-5.3-Flash",
    "kimi-k3": "Kimi K3",
    "kimi-linear-48b-a3b": "Kimi Linear 48B",
    "ling-3.0-flash": "Ling-3.0-flash",
    "qwen3-next-80b-a3b": "Qwen3-Next 80B",
    "qwen3.5-35b-a3b": "Qwen3.5 35B",
    "qwen3.6-27b": "Qwen3.6 27B",
    "qwen3.5-397b-a17b": "Qwen3.5 397B",
    "qwen3.8-2.4t-a95b": "Qwen3.8 2.4T",
    "nemotron-3-nano-30b-a3b": "Nemotron 3 Nano",
    "nemotron-3-super-120b-a12b": "Nemotron 3 Super",
    "nemotron-3-ultra-550b-a55b": "Nemotron 3 Ultra",
    "deepseek-v3": "DeepSeek-V3 (no states)",
    "llama-3.1-70b": "Llama 3.1 70B (no states)",
}
RANKS = (1, 2, 4, 8, 16)
DRAFTS = range(8)
CONTEXTS = [2**n for n in range(10, 21)]
START = {"model": 0, "ranks": 3, "context": 7}


def facts(name, tp, num_spec):
    """What the drawing needs of one plan: [B, bytes of a block, state groups, states of each, bytes of states, rings,
    bytes a token].

    >>> facts("glm-5.3-flash", 8, 0)[:5]
    [640, 7468032, 4, 3, 18452480]
    """
    p = plan(name, tp=tp, num_spec=num_spec)
    held = request_blocks(p.state_groups[0], 1) if p.state_groups else 0
    rings = sum(g.kind == "ring" for g in p.groups)
    return [p.block_size, p.bytes_per_block, len(p.state_groups), held, p.state_bytes, rings, round(p.growth, 2)]


def what_fits():
    """Model, ranks, budget, length and drafts: how many requests fit, and where the bytes of one go.

    Controls: the model; ranks of tensor parallelism; GiB for the cache of a rank; tokens of a request; drafted
    tokens a step.
    """
    draw = """
      const whole = (x) => kit.fmt(x, 0).replace(/\\B(?=(\\d{3})+$)/g, ",");
      const fmt = (x) => x >= 100 ? whole(x) : kit.fmt(x, x < 10 ? 2 : 1);
      const n = data.contexts[v.context], budget = v.budget * 2 ** 30, model = data.models[v.model], tp = data.ranks[v.ranks];
      const one = (f) => {
        const [B, size, groups, held, states, rings, token] = f;
        const rowBlocks = Math.ceil(n / B), blocks = rowBlocks + groups * held + rings, total = blocks * size;
        const parts = [["rows", "key", n * token], ["running state", "state", states], ["other states", "value", (held - 1) * states]];
        if (!groups) parts.length = 1;
        // what a block has beyond the rows and states in it: padded pages, empty slots, the last block's unused tokens
        parts.push(["padding, empty", "decay", total - parts.reduce((a, q) => a + q[2], 0)]);
        return { B, blocks, rowBlocks, total, parts, fits: Math.floor(budget / size) / blocks };
      };
      const all = model.plans.map((byDrafts) => one(byDrafts[v.drafts])), now = all[v.ranks];
      const x0 = 6, width = 418;
      let svg = kit.text(x0, 12, `one request: ${whole(now.blocks)} blocks, ${fmt(now.total / 2 ** 20)} MiB a rank`, { anchor: "start", size: 13 }), at = 0;
      now.parts.forEach(([name, role, bytes], i) => {
        const w = width * bytes / now.total, y = 64 + 18 * Math.floor(i / 2), x = x0 + 210 * (i % 2);
        svg += kit.bar(x0 + at, 24, Math.max(w, 0.5), 26, { role, opacity: 0.6 });
        at += w;
        svg += kit.bar(x, y - 6, 12, 12, { role, opacity: 0.6 }) + kit.text(x + 19, y, `${name} ${kit.fmt(100 * bytes / now.total, 1)} %`, { anchor: "start", size: 13 });
      });
      svg += kit.text(x0, 112, "requests that fit, by ranks", { anchor: "start", size: 13 });
      const most = Math.max(...all.map((q) => q.fits));
      all.forEach((q, i) => {
        const y = 124 + 19 * i;
        svg += kit.text(x0 + 18, y + 7, String(data.ranks[i]), { anchor: "end", size: 12 });
        svg += kit.bar(x0 + 26, y, Math.max(320 * q.fits / most, 0.5), 14, { role: i === v.ranks ? "state" : "decay", opacity: i === v.ranks ? 0.75 : 0.3 });
        svg += kit.text(x0 + 33 + 320 * q.fits / most, y + 7, fmt(q.fits), { anchor: "start", size: 12 });
      });
      const share = (i) => kit.fmt(100 * now.parts[i][2] / now.total, 1) + " %";
      const last = now.parts.length - 1, head = `${model.name} on ${tp} rank${tp > 1 ? "s" : ""}, ${v.drafts || "no"} draft${v.drafts === 1 ? "" : "s"}, ${fmt(n)} tokens: `;
      const limit = n > model.context ? ` The model is made for ${fmt(model.context)} tokens.` : "";
      const fit = now.fits < 1 ? "not one request fits, and the server refuses to start" : `${fmt(now.fits)} requests fit into ${v.budget} GiB of each rank`;
      const others = last === 1 ? "" : `, its running state ${share(1)}, other states ${share(2)}`;
      return { svg, say: `${head}${fit}. Each needs ${whole(now.blocks)} blocks of ${whole(now.B)} tokens, ${whole(now.rowBlocks)} of them for rows. ` +
        `Rows are ${share(0)} of its bytes${others}, padding and empty parts ${share(last)}.${limit}` };
    """
    models = [
        {"name": shown, "context": plan(name).context, "plans": [[facts(name, tp, k) for k in DRAFTS] for tp in RANKS]}
        for name, shown in NAMES.items()
    ]
    data = {"models": models, "ranks": RANKS, "contexts": CONTEXTS}
    controls = [
        Choice("model", "model", list(NAMES.values()), START["model"]),
        Choice("ranks", "ranks (TP)", [str(tp) for tp in RANKS], START["ranks"]),
        Range("budget", "cache of a rank, GiB", 5, 150, 5, 60),
        Choice("context", "tokens of a request", [f"{n // 1024}k" for n in CONTEXTS], START["context"]),
        Range("drafts", "drafted tokens a step", 0, DRAFTS[-1], 1, 0),
    ]
    return Widget(
        Static("what-fits", "How many requests fit, and where their bytes go", controls, data, draw, size=(430, 224)),
        live=_live,
    )


def _live():
    import ipywidgets

    def step(model="glm-5.3-flash", ranks=8, budget=60, context=2**17, drafts=0):
        p = plan(model, tp=ranks, num_spec=drafts, memory=budget * GIB, context=context)
        used = context * p.growth + p.state_bytes
        print(f"block {p.block_size} tokens, {p.bytes_per_block:,} bytes an id, {p.num_blocks:,} ids")
        print(f"{p.concurrency:.2f} requests of {context:,} tokens, {sum(p.request_blocks):,} ids each")
        print(f"rows and one state are {used / p.request_bytes:.1%} of a request's bytes")

    contexts = [(f"{n // 1024}k", n) for n in CONTEXTS]
    names = [(shown, name) for name, shown in NAMES.items()]
    return ipywidgets.interactive(
        step, model=names, ranks=list(RANKS), budget=(5, 150, 5), context=contexts, drafts=(0, DRAFTS[-1])
    )
