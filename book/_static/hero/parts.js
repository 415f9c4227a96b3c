// Parts of the landing page's drawing: a tank matrix with answer bars, rates, marks, and two movements (flight, lift).
const heroParts = (() => {
  "use strict";
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const MARK = {
    ok: "M2 7.5 5.5 11.5 12 2.5", bad: "M3 3 11 11M11 3 3 11", none: "M4 7h6",
    faint: "M1.5 8.5C3.5 4.5 5.5 5.5 7 7s3.5 2.5 5.5-1.500",
  };
  const WORD = { ok: "right", bad: "wrong", faint: "faint", none: "not asked yet" };

  function el(tag, props = {}, ...kids) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
    node.append(...kids);
    return node;
  }
  const number = (x) => (Math.abs(x) < 0.005 ? "" : x.toFixed(2).replace("-", "\u2212"));
  function mark(kind) {
    const span = el("span", { class: `sign ${kind}`, role: "img", "aria-label": WORD[kind] });
    span.innerHTML = `<svg viewBox="0 0 14 14" aria-hidden="true"><path d="${MARK[kind]}"/></svg>`;
    return span;
  }
  // a sentence in pieces, [[role, words], ...]
  const sentence = (words) => words.flatMap(([role, text], i) => [i ? " " : "", role ? el("span", { class: role }, text) : text]);

  function stroke({ dash, width }) {
    const span = el("span", { class: "stroke", "aria-hidden": "true" });
    span.innerHTML = `<svg width="100%" height="8"><line x1="3" x2="100%" y1="4" y2="4" stroke-width="${width}" stroke-linecap="round" stroke-dasharray="${dash}"/></svg>`;
    return span;
  }

  // The state as tanks, a row a value and a column a key; to the right what the question gets, a bar a value.
  function table(name, values, keys) {
    const heads = keys.map((key) => el("button", { type: "button", "data-ask": key, title: `Ask \u201c${key}?\u201d` }, key));
    const asked = el("td", { class: "asked" });
    const cells = [], bars = [], rows = [];
    for (const value of values) {
      const own = keys.map(() => el("td", { class: "cell" }, el("span", { class: "level" }), el("span", { class: "num" })));
      const bar = el("td", { class: "answer" }, el("span", { class: "frame" }), el("span", { class: "bar" }), el("span", { class: "num" }));
      cells.push(own);
      bars.push(bar);
      rows.push(el("tr", {}, el("th", { scope: "row", class: "value" }, value), ...own, bar));
    }
    const head = el("tr", {}, el("td"), ...heads.map((b) => el("th", { scope: "col", class: "key" }, b)), asked);
    const node = el("table", { class: "tanks" }, el("caption", {}, `What ${name} holds: a row a value, a column a key`), el("thead", {}, head), el("tbody", {}, ...rows));

    function set(S) {
      S.forEach((row, i) => row.forEach((x, j) => {
        const [level, num] = cells[i][j].children;
        level.style.height = `${100 * Math.min(1, Math.abs(x))}%`;
        cells[i][j].classList.toggle("negative", x < -0.004);
        cells[i][j].classList.toggle("over", x > 1.2);
        num.textContent = number(x);
      }));
    }
    // answer: a number a value, or null for no question; kind: "said", or "look" for a look before a write
    function answer(question, numbers, want, kind = "said") {
      asked.textContent = question ? `${question}?` : "";
      bars.forEach((cell, i) => {
        const x = numbers ? numbers[i] : 0;
        cell.className = `answer ${numbers ? kind : ""} ${numbers && values[i] === want ? "wanted" : ""} ${Math.abs(x) < 0.1 ? "slight" : x >= 0.5 ? "long" : ""}`;
        cell.style.setProperty("--x", Math.max(0, Math.min(1, x)).toFixed(3));
        cell.children[2].textContent = numbers ? number(x) : "";
      });
    }
    function light(column, kind) {
      [heads.map((b) => b.parentNode), ...cells].forEach((row) => row.forEach((c, j) => c.classList.toggle(kind, j === column)));
    }
    return { node, set, answer, light, cell: (i, j) => cells[i][j] };
  }

  // a slider that says its number
  function rate(label, value, change) {
    const input = el("input", { type: "range", min: 0, max: 1, step: 0.01, value, "aria-label": label, autocomplete: "off" });
    const shown = el("output", {}, "");
    const set = (x) => { input.value = x; shown.textContent = `\u00d7 ${Number(x).toFixed(2)}`; };
    input.addEventListener("input", () => { set(input.value); change(Number(input.value)); });
    set(value);
    return { node: el("label", { class: "rate" }, el("span", {}, label.split(",")[1].trim()), input, shown), set };
  }

  function place(box, node) {
    const outer = box.getBoundingClientRect(), r = node.getBoundingClientRect();
    return { x: r.left - outer.left, y: r.top - outer.top, width: r.width, height: r.height };
  }
  function move(box, text, kind, frames, ms) {
    const node = el("span", { class: `moving ${kind}`, "aria-hidden": "true" }, text);
    box.append(node);
    node.animate(frames(node), { duration: ms, easing: "cubic-bezier(.45,.05,.3,1)", fill: "both" }).onfinish = () => node.remove();
  }
  // nothing here is see-through on its way, so that every number can be read at any moment
  // a number flies from what was said into its cell: solid for a value, hollow for a difference
  function fly(box, from, to, text, kind, ms) {
    const a = place(box, from), b = place(box, to);
    if (!b.width || calm.matches) return;
    move(box, text, kind, (node) => {
      const at = (p, lift, size) => `translate(${p.x + p.width / 2 - node.offsetWidth / 2}px, ${p.y + p.height / 2 - node.offsetHeight / 2 - lift}px) scale(${size})`;
      return [{ transform: at(a, 0, 0.6) }, { transform: at(a, 6, 1), offset: 0.15 }, { transform: at(b, 0, 1.1), offset: 0.9 }, { transform: at(b, 0, 0.9) }];
    }, ms);
  }
  // what was there lifts out of its cell
  function lift(box, from, text, ms) {
    const a = place(box, from);
    if (!a.width || calm.matches) return;
    const at = (dx, dy, turn) => `translate(${a.x + dx}px, ${a.y + dy}px) rotate(${turn}deg)`;
    move(box, text, "out", (node) => {
      node.style.width = `${a.width}px`;
      node.style.height = `${a.height}px`;
      return [{ transform: at(0, 0, 0) }, { transform: at(0, -12, 0), offset: 0.35 }, { transform: `${at(14, -80, 9)} scale(.3)` }];
    }, ms);
  }
  return { el, number, mark, sentence, stroke, table, rate, fly, lift, calm };
})();
