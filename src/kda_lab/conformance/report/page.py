"""One self-contained page: nothing is loaded from elsewhere, readable in light and dark, outcomes in words as well as
colour.
"""

from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --soft: #5c636b; --line: #d9dde2;
  --pass: #1b6e3c; --fail: #b3261e; --other: #5c636b; --warn: #8a5200 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --paper: #16181b; --soft: #a3abb3; --line: #33383e;
  --pass: #6fcf97; --fail: #ff8a80; --other: #a3abb3; --warn: #f2b65a } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 70rem;
  margin: 2rem auto;
  padding: 0 1rem }
h1 { font-size: 1.4rem; overflow-wrap: anywhere } h2 { font-size: 1.1rem; margin-top: 2rem }
code { font-size: .9em; overflow-wrap: anywhere } a { color: inherit } .soft { color: var(--soft) }
details { border-top: 1px solid var(--line); padding: .35rem 0 }
summary { cursor: pointer; display: flex; gap: .8rem; flex-wrap: wrap }
summary .name { flex: 1 1 18rem } summary .number { font-variant-numeric: tabular-nums; color: var(--soft) }
.outcome { flex: 0 0 7.2rem; font-weight: 600 } .pass { color: var(--pass) } .fail, .error { color: var(--fail) }
.refused { color: var(--warn) } .unsupported { color: var(--other) } dl { margin: .4rem 0 .6rem 8rem }
dt { font-size: .85em; color: var(--soft) } dd { margin: 0 0 .35rem; overflow-wrap: anywhere }
@media (max-width: 40rem) { dl { margin-left: 0 } }
"""


def make(report):
    """The page of a JSON document, as text."""
    who, products = report["implementation"], report["products"]
    verdict = "conforms" if report["ok"] else "does not conform"
    counts = ", ".join(f"{n} {outcome}" for outcome, n in report["summary"].items() if n)
    how = "measured" if products["measured"] else "declared"
    missing = ", ".join(who["missing"]) or "nothing"
    env = report["environment"]
    libraries = "".join(f", {name} {version}" for name, version in env["libraries"].items())
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Conformance of {escape(who['name'])}</title><style>{STYLE}</style></head><body><main>",
        f"<h1>{escape(who['name'])} <span class='{'pass' if report['ok'] else 'fail'}'>{verdict}</span></h1>",
        f"<p>As {who['op']}, {who['dtype']} on {who['device']}, states {who['state_layout']}:",
        f"{counts}, {report['seconds']:.1f} s.</p>",
        f"<p>Products: {products['precision']} ({how}). Errors are relative, of the worst block of a head,",
        "beside what is allowed.</p>",
        f"<p>Declared or seen as missing: {escape(missing)}.</p>",
        f"<p class='soft'>torch {escape(env['torch'])}, Python {escape(env['python'])}, {escape(env['device'])}",
        f"{escape(libraries)}.",
        f" Replay: <code>{escape(report['replay'])}</code></p>",
    ]
    for kind in dict.fromkeys(c["kind"] for c in report["cases"]):
        parts.append(f"<h2>{kind}</h2>")
        parts += [entry(c) for c in report["cases"] if c["kind"] == kind]
    return "\n".join([*parts, "</main></body></html>"])


def entry(case):
    """One case: a line, and behind it what it is about; open where something is wrong."""
    wrong = case["outcome"] in ("fail", "refused", "error")
    numbers = "" if case["error"] is None else f"{shown(case['error'])} of {shown(case['budget'])}"
    accuracy = f", {case['accuracy']}" if case["accuracy"] else ""
    rows = [
        ("what came out", case["reason"]),
        ("catches", case["fault"]),
        ("smallest input", case["input"]),
        ("contract", case["clause"]),
        ("compared", case["compared"]),
        ("ran", case["engine"]),
    ]
    body = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows if text)
    links = "".join(f"<dd><a href='{escape(r)}'>{escape(r)}</a></dd>" for r in case["reports"])
    body += f"<dt>reported</dt>{links}" if links else ""
    return (
        f"<details{' open' if wrong else ''}><summary><span class='outcome {case['outcome']}'>{case['outcome']}</span>"
        f"<span class='name'>{case['name']}</span><span class='number'>{numbers}{accuracy}</span></summary>"
        f"<dl>{body}</dl></details>"
    )


def shown(x):
    """A number, short.

    >>> shown(0.000123), shown("not finite")
    ('1.2e-04', 'not finite')
    """
    return x if isinstance(x, str) else f"{x:.1e}"
