"""Things to move in the chapter on prefill and decode."""

from kda_lab.pages.widgets import Choice, Range, Static, Widget
from kda_lab.study import intensity

NAMES = [
    "Llama-3.1-70B",
    "gpt-oss-120b",
    "DeepSeek-V3",
    "DeepSeek-V3.2",
    "Qwen3-Next-80B-A3B",
    "Kimi-Linear-48B-A3B",
    "GLM-5.3-Flash",
]
CARDS = ["H200", "H100", "B200", "H20", "MI300X"]
CONTEXTS = [2**n for n in range(10, 21)]
BATCHES = [2**n for n in range(0, 11)]


def bytes_per_token():
    """Context, batch, model and card: the bytes that one decoded token reads, and how many tokens a second that
    allows.

    Controls: the model; the context, in powers of two of 1,024 tokens; the requests of a batch, in powers of two;
    the card.

    >>> bytes_per_token()
    <widget: What one decoded token reads>
    """
    draw = """
      const m = data.models[v.model], g = data.gpus[v.gpu], n = data.contexts[v.context], b = data.batches[v.batch];
      const parts = [["weights, shared by the batch", m.weights[v.batch] / b, "key"], ["own cache", m.read[v.context], "value"], ["own state, read and written", m.state * 2, "state"]];
      const total = parts.reduce((s, p) => s + p[1], 0);
      const need = m.stored + b * m.kept[v.context], cards = Math.ceil(need / g.memory);
      const flop = m.linear + m.flop[v.context];
      const reading = total / g.bandwidth, computing = flop / g.flops, each = cards / Math.max(reading, computing);
      const big = (x) => { const d = x < 10 ? 2 : x < 100 ? 1 : 0; return kit.fmt(x, d); };
      const gb = (x) => x >= 1e9 ? big(x / 1e9) + " GB" : x >= 1e6 ? big(x / 1e6) + " MB" : big(x / 1e3) + " kB";
      let svg = kit.text(4, 12, "bytes moved for one token, logarithmic", { anchor: "start" });
      const x = (bytes) => bytes <= 1e6 ? 0 : 270 * Math.log10(bytes / 1e6) / 6;
      for (const [e, name] of [[0, "1 MB"], [3, "1 GB"], [6, "1 TB"]]) {
        const at = 4 + 270 * e / 6;
        svg += kit.line(at, 26, at, 152, { width: 0.6, dash: "2 3" }) + kit.text(at, 163, name, { size: 12, anchor: e ? "middle" : "start" });
      }
      parts.forEach(([name, bytes, role], i) => {
        const y = 30 + 42 * i, share = Math.round(100 * bytes / total);
        svg += kit.text(9, y + 6, name, { anchor: "start" });
        if (bytes > 1e6) svg += kit.bar(4, y + 15, x(bytes), 18, { role });
        svg += kit.text(10 + x(bytes), y + 24, bytes ? `${gb(bytes)}, ${share} %` : "none", { anchor: "start" });
      });
      const below = [["cards needed", cards], ["tokens/s, all", big(each)], ["tokens/s, a request", big(each / b)]];
      below.forEach(([name, number], i) => {
        svg += kit.text(70 + 140 * i, 192, name) + kit.text(70 + 140 * i, 212, String(number), { size: 17 });
      });
      const k = n >= 1048576 ? "1M" : `${n / 1024}k`;
      const say = `${m.name}, ${k} tokens of context, ${b} request${b > 1 ? "s" : ""}: a token moves ${gb(total)}, of which ${Math.round(100 * parts[0][1] / total)} % weights. ` +
        `Memory for ${cards} ${g.name}; at most ${big(each)} tokens/s, held by ${reading >= computing ? "bytes" : "operations"}.` + (n > m.context ? " The model's own limit is shorter." : "");
      return { svg, say };
    """
    static = Static(
        "bytes-per-token",
        "What one decoded token reads",
        [
            Choice("model", "model", NAMES),
            Range("context", "context, 2ⁿ thousand tokens: n", 0, len(CONTEXTS) - 1, 1, 3),
            Range("batch", "batch, 2ⁿ requests: n", 0, len(BATCHES) - 1, 1, 0),
            Choice("gpu", "card", CARDS),
        ],
        _data(),
        draw,
        size=(430, 224),
    )
    return Widget(static, live=_live)


def _data():
    """The tables that the drawing looks up, all from `intensity`."""
    facts = [intensity.models()[name] for name in NAMES]
    limits = intensity.limits()
    models = [
        {
            "name": m.name,
            "context": limits[m.name],
            "stored": intensity.BF16 * m.parameters,
            "linear": 2 * m.active,
            "state": m.state,
            "weights": [round(m.touched(b)) for b in BATCHES],
            "read": [round(m.read(n)) for n in CONTEXTS],
            "kept": [round(m.stored(n)) for n in CONTEXTS],
            "flop": [round(m.flop(n)) for n in CONTEXTS],
        }
        for m in facts
    ]
    cards = [intensity.gpus()[name]._asdict() for name in CARDS]
    return {"models": models, "gpus": cards, "contexts": CONTEXTS, "batches": BATCHES}


def _live():
    import ipywidgets

    def step(model=NAMES[0], context=13, batch=0, gpu=CARDS[0]):
        m, card, b, n = intensity.models()[model], intensity.gpus()[gpu], 2**batch, 2**context
        cards = -int(-(intensity.BF16 * m.parameters + b * m.stored(n)) // card.memory)
        for name, size in m.step(n, b)._asdict().items():
            print(f"{name:8} {size / b / 1e9:9.3f} GB a token")
        speed = b / intensity.together(card, cards).seconds(m.work(n, b))
        print(f"memory for {cards} {gpu}; at most {speed:.1f} tokens/s in all, {speed / b:.1f} a request")

    return ipywidgets.interactive(step, model=NAMES, context=(10, 20), batch=(0, 10), gpu=CARDS)
