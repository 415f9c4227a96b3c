"""The landing page: its script computes the library's rules, its scene is fair, and its counts are counted."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from kda_lab import EQUATIONS, rules, widgets
from kda_lab.pages import look

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "book/_static/hero"
hero, landing = widgets.hero, widgets.landing
node = pytest.mark.skipif(
    shutil.which("node") is None, reason="the page's script is compared in Node.js, which is absent"
)


def in_node(body, value):
    """What a JavaScript expression in `R` (the script's rules) and `x` (a JSON value) gives."""
    code = (
        f"const R = require({json.dumps(str(STATIC / 'rules.js'))});"
        f"const x = JSON.parse(require('fs').readFileSync(0, 'utf8')); console.log(JSON.stringify({body}));"
    )
    done = subprocess.run(["node", "-e", code], input=json.dumps(value), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def random_run(n, rng):
    """A rule's name, a state and tokens of its arguments, as lists."""
    rule = ["linear", "delta", "gated_delta", "kda"][n % 4]
    V, K, T = rng.integers(1, 7, 3)
    tokens = []
    for _ in range(T):
        token = [rng.normal(size=K), rng.normal(size=K), rng.normal(size=V)]
        token += {"gated_delta": [rng.uniform()], "kda": [rng.uniform(size=K)]}.get(rule, [])
        token += [] if rule == "linear" else [rng.uniform(0, 2)]
        tokens.append([np.asarray(a).tolist() for a in token])
    return {"rule": rule, "S": rng.normal(size=(V, K)).tolist(), "tokens": tokens}


@node
def test_the_rules_of_the_script_are_those_of_the_library():
    rng = np.random.default_rng(0)
    runs = [random_run(n, rng) for n in range(200)]
    got = in_node(
        "x.map(({ rule, S, tokens }) => { const o = []; for (const t of tokens) { "
        "const [S2, y] = R.rules[rule](S, ...t); S = S2; o.push(y); } return [S, o]; })",
        runs,
    )
    for run, (S_script, o_script) in zip(runs, got):
        S = np.array(run["S"])
        for token, o_one in zip(run["tokens"], o_script):
            S, o = getattr(rules, run["rule"])(S, *(np.array(a) for a in token))
            np.testing.assert_allclose(o_one, o, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(S_script, S, rtol=1e-9, atol=1e-9)


@node
def test_the_script_tells_the_same_story():
    """Answers, verdicts and their words for every key after every token, for the settings of the scene and others."""
    scene = hero.data()
    cases = [(m.id, scene["best"][m.id]) for m in hero.MEMORIES] + [
        ("gdn", scene["first"]),
        ("gdn", 0.5),
        ("kda", [0.3, 1.0]),
    ]
    got = in_node(
        "x.cases.map(([id, rate]) => { const alpha = id === 'gdn' ? [rate, rate] : rate;"
        "const terms = { look: id !== 'linear', alpha };"
        "const heard = R.tokens(x.scene.story); return heard.map((_, i) => { const h = heard.slice(0, i + 1), "
        "S = R.replay(x.scene, h, terms); return Object.entries(x.scene.keys).map(([key, k]) => { "
        "const answer = R.read(S, k);"
        "return { answer, ...R.judge(x.scene, answer, R.right(x.scene, key, h)) }; }); }); })",
        {"scene": scene, "cases": cases},
    )
    heard = hero.tokens()
    for (memory, rate), told in zip(cases, got):
        path = hero.states(memory, rate)
        for i, said in enumerate(told, 1):
            for (key, k), one in zip(hero.KEYS.items(), said):
                answer = path[i] @ np.array(k)
                np.testing.assert_allclose(one["answer"], answer, atol=1e-12)
                if key not in {hero.FACTS[name][0] for name in heard[:i] if name}:
                    assert one["mark"] == "none"
                    continue
                want = hero.right(key, heard[:i])
                assert (one["mark"], one["text"]) == (hero.judge(answer, want), hero.verdict(answer, want)), (
                    memory,
                    i,
                    key,
                )


@node
def test_the_scoreboard_of_the_script_is_the_table_of_the_scene():
    scene = hero.data()
    got = in_node(
        "x.memories.map((m) => { const rate = x.best[m.id], alpha = typeof rate === 'number' ? [rate, rate] : rate;"
        "return R.score(x, { look: m.terms.includes('look'), alpha }).map((c) => c.mark); })",
        scene,
    )
    assert dict(zip((m.id for m in hero.MEMORIES), got)) == scene["table"]


def test_who_answers_what():
    table = hero.data()["table"]
    assert table == {
        "linear": ["bad", "bad", "ok", "bad"],
        "delta": ["ok", "ok", "ok", "bad"],
        "gdn": ["ok", "ok", "ok", "bad"],
        "kda": ["ok", "ok", "ok", "ok"],
    }


@pytest.mark.parametrize("memory, strengths", [("delta", True), ("gdn", True), ("kda", False)])
def test_no_other_setting_gets_more_right(memory, strengths):
    rates = {
        "delta": [None],
        "gdn": np.linspace(0, 1, 101),
        "kda": [(a, b) for a in np.linspace(0, 1, 21) for b in np.linspace(0, 1, 21)],
    }
    mine = hero.marks(memory, hero.best(memory))[0].count("ok")
    for rate in rates[memory]:
        for beta in np.linspace(0.05, 1, 20) if strengths else (1.0,):
            assert hero.marks(memory, rate, beta)[0].count("ok") <= mine, (rate, beta)


def test_no_schedule_of_one_rate_keeps_ada_and_drops_the_code():
    """Even with a rate of its own for every token, GDN holds at least as much of the code as of Ada."""
    rng, k = np.random.default_rng(1), {name: np.array(key) for name, key in hero.KEYS.items()}
    for _ in range(200):
        S = np.zeros((len(hero.VALUES), len(hero.KEYS)))
        for name in hero.tokens():
            key, value = hero.FACTS[name][:2] if name else ("", "")
            v = np.array([float(x == value) for x in hero.VALUES])
            S, _ = rules.gated_delta(S, k["Ada"], k.get(key, k["Ada"] * 0), v, rng.uniform(), 1.0)
        assert (S @ k["code"])[2] >= (S @ k["Ada"])[1]


def test_the_page_has_a_picture_without_a_script_and_fetches_nothing_from_elsewhere():
    html = hero.scene()._repr_html_()
    before = html.split("<script")[0]
    assert before.count("<svg") == len(hero.MEMORIES) and before.count('role="img"') == len(hero.MEMORIES)
    assert "Rome or Oslo?" in before and "let it go" in before and "still says 417" in before
    for text in [html, *(p.read_text(encoding="utf-8") for p in STATIC.iterdir())]:
        assert not re.search(r"(?:https?:)?//[\w-]+\.\w", re.sub(r"^\s*//.*$", "", text, flags=re.M))
    for name in re.findall(r'(?:src|href)="\.\./_static/hero/([^"]+)"', html):
        assert (STATIC / name).is_file()


def test_scripts_are_classic_so_that_they_run_from_a_file():
    for path in STATIC.glob("*.js"):
        assert not re.search(r"^\s*(?:import|export)\b|fetch\(|XMLHttpRequest", path.read_text(encoding="utf-8"), re.M)


def test_colours_are_the_tokens_of_the_book():
    sheet, book = (ROOT / "book/_static/hero/hero.css").read_text(encoding="utf-8"), look.css()
    # a variable of the page itself begins otherwise
    used = set(re.findall(r"var\((--kda-[\w-]+)", sheet))
    assert {"--kda-key", "--kda-value", "--kda-state", "--kda-error", "--kda-paper"} <= used
    assert not {name for name in used if f"{name}:" not in book + sheet}


def test_contents_have_every_chapter_with_its_question():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    html = landing.contents(ROOT / "book").html
    for part in toc["parts"]:
        for chapter in part["chapters"]:
            name = Path(chapter["file"]).name
            assert html.count(f'href="{name}.html"') == 1
            text = (ROOT / "book" / f"{name}.md").read_text(encoding="utf-8")
            assert ("{admonition} Question" in text) == bool(landing.read(name, ROOT / "book").question)
    assert "{term}" not in html and "`" not in html and "$" not in html


def test_doors_lead_to_pages_of_the_book():
    for _, _, stems in landing.DOORS:
        assert all((ROOT / "book" / f"{stem}.md").is_file() for stem in stems.split())


def test_minutes_count_words_and_formulas_but_no_code():
    assert landing.minutes("word " * 1000) == 5
    assert landing.minutes("word " * 1000 + "\n```python\n" + "code " * 4000 + "\n```\n") == 5
    assert landing.minutes("word " * 1000 + "\n```{math}\n:label: a\nx\n```\n" * 4) == 7


def test_the_promise_counts_what_the_registry_holds():
    html = landing.promise(ROOT / "book").html
    shown = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1])
    by = {e.slug: e for e in EQUATIONS}
    assert len(shown) >= 8 and f"{len(EQUATIONS)} equations" in html
    for row in shown:
        slug = re.search(r"<code>([\w-]+)</code></a>", row)[1]
        assert f"{len(by[slug].mutants)} wrong versions" in row


def test_the_colophon_says_what_the_citation_file_says():
    cite = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    html = landing.colophon(ROOT / "book").html
    assert all(str(cite[name]) in html for name in ("version", "license", "title"))
