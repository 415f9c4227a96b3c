// The landing page's scene: a story in beats, which plays by itself once, and a table of controls for the reader.
(() => {
  "use strict";
  const R = heroRules, { el, number, mark, sentence, stroke, table, rate, fly, lift, calm } = heroParts;
  const quote = (key) => `\u201c${key}?\u201d`;
  const join = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);
  const TERMS = { look: "look first", fade: "fade", own: "own rates" };
  const WITHOUT = { look: "without looking first", fade: "without fading", own: "with one rate for all columns" };

  function start(root) {
    const scene = JSON.parse(root.querySelector(".hero-data").textContent);
    const keys = Object.keys(scene.keys), whole = R.tokens(scene.story);
    const state = { heard: [], asked: null, known: 0, beat: 0, turn: 0, auto: false, extended: false, current: "linear" };
    const live = root.querySelector(".hero-live"), parts = build();
    const memories = scene.memories.map(panel);
    const shown = () => memories.filter((m) => !m.node.hidden);
    const by = Object.fromEntries(memories.map((m) => [m.id, m]));

    // ---------------------------------------------------------------- what is on the page
    function button(words, kind, act) {
      const b = el("button", { type: "button", class: kind }, ...[words].flat());
      b.addEventListener("click", act);
      return b;
    }
    function group(label, kind, ...buttons) {
      return el("div", { class: `group ${kind}`, role: "group", "aria-label": label }, el("span", { class: "label" }, label), ...buttons);
    }
    function build() {
      const p = {};
      p.told = el("p", { class: "told", role: "status" });
      p.next = button("Next \u2192", "primary", next);
      p.play = button("Pause", "plain-button", playOrPause);
      p.skip = button("All four at once", "plain-button", () => finish());
      p.lose = button("Make KDA lose", "plain-button", lose);
      p.empty = button("Start empty", "plain-button", clear);
      p.say = Object.fromEntries(Object.entries(scene.facts).map(([id, fact]) => [id, button(sentence(fact.words), `chip say ${id}`, () => free(() => say(id)))]));
      p.pass = [2, 10].map((n) => button(`${n} tokens`, "chip", () => free(() => pass(n))));
      p.ask = Object.fromEntries(keys.map((key) => [key, button(`${key}?`, `chip ask ${key}`, () => free(() => ask(key)))]));
      p.tabs = el("div", { class: "tabs", role: "group", "aria-label": "Which memory is shown" });
      p.mems = el("div", { class: "hero-mems" });
      p.heard = el("p", { class: "heard" });
      const steps = el("div", { class: "steps" }, p.next, p.play, p.skip, p.lose, p.empty);
      const hands = el("div", { class: "hands" }, group("Say", "", ...Object.values(p.say)), group("Wait", "later", ...p.pass), group("Ask", "", ...Object.values(p.ask)));
      live.append(el("div", { class: "pinned" }, p.told, steps, p.tabs), hands, p.mems, p.heard);
      return p;
    }
    function panel(memory) {
      const m = { ...memory, on: { look: true, fade: true, own: true }, rate: scene.best[memory.id], sliders: [] };
      m.table = table(m.full || m.name, scene.values, keys);
      m.verdict = el("p", { class: "verdict" });
      m.score = el("div", { class: "score" });
      m.alias = el("span", { class: "alias" });
      m.terms = memory.terms;
      const rates = el("div", { class: "rates" }, ...knobs(m)), name = `hero-name-${m.id}`;
      m.switches = m.terms.map((term) => button(TERMS[term], "switch", () => flip(m, term)));
      const off = el("div", { class: "terms", role: "group", "aria-label": `Terms of ${m.name}` }, ...m.switches);
      m.node = el("section", { class: "hero-mem", "data-mem": m.id, "aria-labelledby": name }, stroke(m),
        el("h2", { id: name }, m.name, " ", el("small", {}, m.full)), el("p", { class: "plain" }, m.plain, m.alias), m.table.node, rates, m.verdict, m.score, off);
      m.tab = button([m.name, " "], "tab", () => { stop(); state.current = m.id; render(); });
      m.node.querySelectorAll("[data-ask]").forEach((b) => b.addEventListener("click", () => free(() => ask(b.dataset.ask))));
      m.node.hidden = m.tab.hidden = memory.terms.includes("fade");
      parts.mems.append(m.node);
      parts.tabs.append(m.tab);
      return m;
    }
    function knobs(m) {
      if (!m.terms.includes("fade")) return [el("span", { class: "never" }, "never fades")];
      const columns = m.terms.includes("own") ? keys : [null];
      m.sliders = columns.map((key, j) => rate(`${m.name}, ${key || "all"}`, key ? m.rate[j] : m.rate, (x) => turn(m, j, x)));
      return m.sliders.map((s) => s.node);
    }

    // ---------------------------------------------------------------- what a memory is, with its terms and rates
    function terms(m, on = m.on) {
      const fades = m.terms.includes("fade") && on.fade, one = m.id === "gdn" ? m.rate : scene.best.gdn;
      const own = m.terms.includes("own") && on.own;
      return { look: m.terms.includes("look") && on.look, alpha: fades ? (own ? m.rate : keys.map(() => one)) : null };
    }
    function alias(m) {
      if (m.terms.every((t) => m.on[t])) return "";
      const { look, alpha } = terms(m);
      if (!alpha) return look ? "DeltaNet" : "linear attention";
      if (look) return "Gated DeltaNet";
      return m.terms.includes("own") && m.on.own ? "gated linear attention (GLA)" : "RetNet, a sum that fades";
    }
    const replay = (m, heard = state.heard) => R.replay(scene, heard, terms(m));
    const score = (m) => R.score(scene, terms(m), state.extended);
    function verdict(m, key) {
      const answer = R.read(replay(m), scene.keys[key]), want = R.right(scene, key, state.heard, state.extended);
      return { answer, want, ...R.judge(scene, answer, want) };
    }

    // ---------------------------------------------------------------- show
    function render() {
      const count = shown().length;
      root.dataset.n = count;
      parts.mems.dataset.n = count;
      for (const m of memories) show(m);
      for (const [key, b] of Object.entries(parts.ask)) b.setAttribute("aria-pressed", String(key === state.asked));
      parts.next.hidden = parts.skip.hidden = state.beat >= beats.length;
      parts.lose.hidden = parts.empty.hidden = state.beat < beats.length;
      parts.play.textContent = state.auto ? "Pause" : state.beat >= beats.length ? "Play again" : state.beat ? "Go on by itself" : "Play";
      parts.lose.textContent = state.extended ? "Let the code expire" : "Make KDA lose";
      root.classList.toggle("more", state.beat > 3);
      root.classList.toggle("free", state.beat >= beats.length);
      parts.told.setAttribute("aria-live", state.auto ? "off" : "polite");
      heard();
    }
    function show(m) {
      m.table.set(replay(m));
      const v = state.asked ? verdict(m, state.asked) : null;
      m.table.answer(state.asked, v && v.mark !== "none" ? v.answer : null, v?.want);
      m.table.light(state.asked ? keys.indexOf(state.asked) : -1, "asking");
      m.verdict.className = `verdict ${v ? v.mark : ""}`;
      m.verdict.replaceChildren(...(v ? [mark(v.mark), ` ${v.text}`] : []));
      m.tab.replaceChildren(m.name, ...(v ? [" ", mark(v.mark)] : []));
      m.tab.setAttribute("aria-pressed", String(state.current === m.id));
      m.node.classList.toggle("current", state.current === m.id);
      m.alias.textContent = alias(m) ? ` Now it is ${alias(m)}.` : "";
      m.node.classList.toggle("broken", Boolean(alias(m)));
      m.switches.forEach((b, i) => {
        b.setAttribute("aria-pressed", String(m.on[m.terms[i]]));
        b.disabled = m.terms[i] === "own" && !m.on.fade;
      });
      scoreboard(m);
    }
    // a line a column: its questions in the order of time
    function scoreboard(m) {
      const known = score(m).filter((c) => revealed().includes(c.key + c.at));
      const lines = keys.map((key) => {
        const own = known.filter((c) => c.key === key);
        return own.length ? el("p", {}, el("b", { class: "key" }, key), ...own.map((c) => el("span", { class: c.mark }, c.at === whole.length && state.extended && c.key in scene.lasts ? "extended" : c.name, " ", mark(c.mark)))) : "";
      });
      const right = known.filter((c) => c.mark === "ok").length;
      m.score.replaceChildren(...lines, known.length === scene.checks.length ? el("p", { class: "sum" }, `${right} of ${known.length} right`) : "");
    }
    function revealed() {
      const order = [[3, 0], [5, 2], [6, 3], [8, 1]];
      return order.filter(([beat]) => state.known >= beat).map(([, i]) => scene.checks[i].key + scene.checks[i].at);
    }
    function heard() {
      const bits = [];
      let quiet = 0;
      const rest = () => { if (quiet) bits.push(el("span", { class: "soft" }, `${quiet} tokens that say nothing`)); quiet = 0; };
      for (const name of state.heard) {
        if (!name) { quiet += 1; continue; }
        rest();
        bits.push(el("span", {}, ...sentence(scene.facts[name].words)));
      }
      rest();
      const all = bits.flatMap((b, i) => (i ? [" \u00b7 ", b] : [b]));
      parts.heard.replaceChildren(el("b", {}, "Each heard: "), ...(all.length ? all : ["nothing yet."]));
    }
    function tell(words) { parts.told.textContent = words; }

    // ---------------------------------------------------------------- movement; a later turn ends an earlier one
    const sleep = (ms) => new Promise((go) => setTimeout(go, ms));
    async function wait(ms, mine) {
      if (!calm.matches) await sleep(ms);
      if (mine !== state.turn) throw "over";
    }
    function begin() {
      live.querySelectorAll(".moving").forEach((node) => node.remove());
      live.querySelectorAll(".speaking").forEach((node) => node.classList.remove("speaking"));
      memories.forEach((m) => m.table.light(-1, "reading"));
      return ++state.turn;
    }
    async function say(name) {
      const mine = begin(), fact = scene.facts[name], column = keys.indexOf(fact.key), row = scene.values.indexOf(fact.value);
      const steps = shown().map((m) => [m, R.hear(scene, replay(m), name, terms(m))]), chip = parts.say[name];
      state.heard = [...state.heard, name];
      state.asked = null;
      chip.classList.add("speaking");
      steps.forEach(([m, s]) => { m.verdict.replaceChildren(); m.table.set(s.faded); m.table.light(column, "reading"); m.table.answer(null); });
      if (!calm.matches) {
        const finds = steps.filter(([, s]) => s.says.some((x) => x > 0.1));
        finds.forEach(([m, s]) => m.table.answer(fact.key, s.says, null, "look"));
        await wait(finds.length ? 550 : 60, mine);
        for (const [m, s] of steps) {
          s.residual.forEach((x, i) => { if (x < -0.05) lift(live, m.table.cell(i, column), number(-x), 900); });
          if (Math.abs(s.residual[row]) > 0.005) fly(live, chip, m.table.cell(row, column), number(s.residual[row]), terms(m).look ? "hollow" : "solid", 700);
        }
        await wait(640, mine);
      }
      memories.forEach((m) => m.table.light(-1, "reading"));
      chip.classList.remove("speaking");
      render();
    }
    async function pass(count) {
      const mine = begin();
      for (let i = 0; i < count; i++) {
        state.heard = [...state.heard, null];
        render();
        await wait(110, mine);
      }
    }
    async function ask(key) {
      const mine = begin();
      state.asked = key;
      render();
      if (!calm.matches) shown().forEach((m) => m.verdict.animate([{ transform: "scale(.6)" }, { transform: "scale(1)" }], { duration: 320, easing: "ease-out" }));
      await wait(340, mine);
    }
    function enter(id) {
      const m = by[id];
      m.node.hidden = m.tab.hidden = false;
      if (!calm.matches) m.node.animate([{ transform: "translateX(40px)" }, { transform: "none" }], { duration: 500, easing: "ease-out" });
    }
    function set(m, value) {
      m.rate = Array.isArray(value) ? [...value] : value;
      m.sliders.forEach((s, j) => s.set(Array.isArray(value) ? value[j] : value));
    }
    async function sweep(m, to) {
      const mine = begin(), from = m.rate;
      for (let i = 1; i <= 20; i++) {
        set(m, Math.round(100 * (from + ((to - from) * i) / 20)) / 100);
        render();
        await wait(60, mine);
      }
    }

    // ---------------------------------------------------------------- the story
    // from: tokens heard before; ask: what is asked in the end; focus: the memory to look at; gdn: its rate before
    const { first, best } = scene, last = whole.length;
    const beats = [
      { tell: "Ada lives in Rome.", from: 0, act: () => say("rome") },
      { tell: "Ada moved to Oslo.", from: 1, act: () => say("oslo") },
      { tell: "Where is Ada now? Linear attention added, so it says both. DeltaNet looked first, took Rome out and wrote Oslo.",
        from: 2, ask: "Ada", focus: "delta" },
      { tell: `Now something that should not stay: the code is 417, and it is good for ${scene.lasts.code} tokens.`, from: 2, act: () => say("code") },
      { tell: "Two tokens later somebody needs the code, and both memories know it.", from: 3, act: () => pass(2), ask: "code" },
      { tell: "Ten more tokens, and the code has expired. Nobody says so, and these two never forget anything by themselves.",
        from: 5, act: () => pass(10), ask: "code" },
      { tell: `So the third memory fades. Gated DeltaNet (GDN) multiplies its whole table by ${first} at every token, and the code is gone.`,
        from: last, enter: "gdn", ask: "code", focus: "gdn", gdn: first },
      { tell: "But what about Ada? She has faded with the code, because one rate rules the whole table.", from: last, ask: "Ada", focus: "gdn", gdn: first },
      { tell: `Turn the rate up to ${best.gdn}, and Ada is back. But the code is back as well: whatever fades the code fades Ada as much, so no one rate can do both.`,
        from: last, act: () => sweep(by.gdn, best.gdn), ask: "code", focus: "gdn", gdn: first },
      { tell: "Kimi Delta Attention (KDA) gives each column a rate of its own. Ada\u2019s column keeps everything, and the code\u2019s column fades.",
        from: last, enter: "kda", ask: "Ada", focus: "kda" },
      { tell: "Which one remembers? KDA keeps Ada and drops the code, because each column has its own rate. DeltaNet keeps even what has expired. Drag a rate: can you make KDA lose, or GDN win?",
        from: last, ask: "code", focus: "kda" },
    ];
    let running = null;
    async function step() {
      if (!state.beat) reset();
      const beat = (running = beats[state.beat]);
      state.beat += 1;
      state.heard = whole.slice(0, beat.from);
      set(by.gdn, beat.gdn ?? best.gdn);
      state.current = beat.focus || state.current;
      tell(beat.tell);
      if (beat.enter) enter(beat.enter);
      if (beat.act && beat.ask) state.asked = beat.gdn ? "Ada" : null;
      render();
      if (beat.act) await beat.act();
      if (beat.gdn && beat.act) await wait(1200, state.turn);
      state.known = state.beat;
      if (beat.ask) await ask(beat.ask);
      running = null;
      render();
    }
    // the end of a beat that was cut short
    function settle() {
      if (!running) return;
      state.heard = whole.slice(0, beats[state.beat]?.from ?? last);
      if (running.act && running.gdn) set(by.gdn, best.gdn);
      state.asked = running.ask || null;
      state.known = state.beat;
      running = null;
    }
    const quiet = (promise) => promise.catch((reason) => { if (reason !== "over") throw reason; });
    function next() {
      stop();
      if (state.beat < beats.length) quiet(step());
    }
    async function auto() {
      const mine = (auto.run = {});
      state.auto = true;
      if (state.beat >= beats.length) state.beat = 0;
      while (auto.run === mine && state.beat < beats.length) {
        const began = performance.now();
        try { await step(); } catch (reason) { if (reason !== "over") throw reason; return; }
        // 300 ms a word, and the first two sentences are read while they are written
        const reading = 300 * beats[state.beat - 1].tell.split(" ").length;
        await sleep(state.beat < 3 ? Math.max(200, reading - (performance.now() - began)) : reading);
      }
      if (auto.run === mine) { state.auto = false; render(); }
    }
    function stop() {
      begin();
      settle();
      state.auto = false;
      auto.run = null;
      render();
    }
    function playOrPause() {
      if (state.auto) stop();
      else auto();
    }
    // every term on, every rate at its best
    function mend() {
      for (const m of memories) {
        m.on = { look: true, fade: true, own: true };
        set(m, scene.best[m.id]);
      }
    }
    function reset() {
      Object.assign(state, { heard: [], asked: null, known: 0, beat: 0, extended: false, current: "linear" });
      mend();
      for (const m of memories) m.node.hidden = m.tab.hidden = m.terms.includes("fade");
    }

    // ---------------------------------------------------------------- the reader's hands
    function all(heard) {
      stop();
      Object.assign(state, { beat: beats.length, known: beats.length, heard });
      memories.forEach((m) => { m.node.hidden = m.tab.hidden = false; });
    }
    function free(act) {
      stop();
      quiet(act().then(() => tell(line())));
    }
    function line() {
      if (!state.asked) return state.heard.length ? "Now ask." : "All are empty.";
      const want = R.right(scene, state.asked, state.heard, state.extended);
      if (want === undefined) return `Nobody has said anything about ${quote(state.asked)} yet.`;
      const good = shown().filter((m) => verdict(m, state.asked).mark === "ok").map((m) => m.name);
      const due = want === null ? "nothing, for the code has expired" : want;
      return `Asked ${quote(state.asked)} Right would be ${due}. ${good.length ? `${join(good)} ${good.length > 1 ? "get" : "gets"} it right.` : "Nobody gets it right."}`;
    }
    function finish() {
      reset();
      all([...whole]);
      state.asked = "code";
      state.current = "kda";
      tell("All four after the whole story, each at the best of all its rates. Drag a rate or take a term away: what fails first?");
      render();
    }
    function clear() {
      all([]);
      Object.assign(state, { asked: null, extended: false });
      tell("All four are empty. Say something to them, let time pass, and ask.");
      render();
    }
    function lose() {
      const extended = !state.extended;
      all([...whole]);
      mend();
      Object.assign(state, { extended, asked: "code", current: "kda" });
      tell(extended ? "At the last moment the code is extended, so 417 is wanted after all. KDA has let it go, and nothing brings it back. The memories that held on to it look clever now." : "The code expires as planned: right would be nothing, and KDA alone has let it go.");
      render();
    }
    function story() {
      if (state.heard.length !== last) state.heard = [...whole];
    }
    function turn(m, column, x) {
      stop();
      story();
      if (m.id === "kda") { m.on.own = m.on.fade = true; m.rate = m.rate.map((y, j) => (j === column ? x : y)); } else m.rate = x;
      state.current = m.id;
      if (m.id === "kda") state.asked = keys[column];
      state.asked = state.asked || keys[0];
      const right = score(m).filter((c) => c.mark === "ok").length;
      tell(`${m.name} now keeps ${x.toFixed(2)} ${m.id === "kda" ? `of the column of \u201c${keys[column]}\u201d` : "of its whole table"} a token, and ${right} of ${scene.checks.length} answers are right.`);
      render();
    }
    // switching a term off asks the question that fails without it
    function flip(m, term) {
      stop();
      story();
      const before = score(m);
      m.on[term] = !m.on[term];
      state.current = m.id;
      const after = score(m), fails = after.find((c, i) => c.mark !== "ok" && before[i].mark === "ok");
      if (fails) state.asked = fails.key;
      const off = m.terms.filter((t) => !m.on[t]).map((t) => WITHOUT[t]), name = alias(m);
      tell(off.length ? `${m.name} ${join(off)} is ${name}. ${fails ? `Now ${quote(fails.key)} (${fails.name}) gets \u201c${fails.text}\u201d.` : ""}` : `${m.name} is whole again.`);
      render();
    }

    // ---------------------------------------------------------------- begin
    live.hidden = false;
    root.classList.add("alive");
    root.dataset.alive = "1";
    const touched = (event) => {
      state.touched = true;
      if (state.auto && !(event.target.closest && event.target.closest(".steps"))) stop();
    };
    for (const kind of ["pointerdown", "keydown", "wheel", "touchstart"]) document.addEventListener(kind, touched, { passive: true, capture: true });
    root.hero = { state, memories, score };
    if (/[?&]still/.test(location.search)) return finish();
    tell("Two memories, both empty. Each is a small table with a column for every key and a row for every value.");
    render();
    // without movement, the first conflict stands there at once
    if (calm.matches) return void (async () => { while (state.beat < 3) await step(); })();
    new IntersectionObserver((seen, watch) => {
      if (!seen[0].isIntersecting) return;
      watch.disconnect();
      setTimeout(() => { if (!state.touched && !state.beat) auto(); }, 500);
    }, { threshold: 0.25 }).observe(parts.mems);
  }
  document.querySelectorAll(".kda-hero:not([data-alive])").forEach(start);
})();
