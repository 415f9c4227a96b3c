// the helpers of a widget's drawing; each returns SVG as a string. `tokens` comes from kda_lab.pages.look
const kit = {
  // a role's colour, or the colour of the text
  color(role) { return tokens.paint[role] || "currentColor"; },
  // the line of a rule, { dash, width, cap }: for line and path, which draw it in ink
  rule(name) { return { ...tokens.rules[name], cap: "round" }; },
  // a number with a fixed number of digits and a true minus sign
  fmt(x, digits = 2) { return x.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "\u2212"); },
  safe(text) { return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;"); },
  text(x, y, label, { size = tokens.smallest, anchor = "middle", role = "" } = {}) {
    return `<text x="${x}" y="${y}" font-size="${Math.max(size, tokens.smallest)}" text-anchor="${anchor}" dominant-baseline="central" style="fill:${this.color(role)}">${this.safe(label)}</text>`;
  },
  line(x0, y0, x1, y1, { role = "", width = 1.6, dash = "", cap = "butt" } = {}) {
    return `<line x1="${x0}" y1="${y0}" x2="${x1}" y2="${y1}" style="stroke:${this.color(role)};stroke-width:${width};stroke-dasharray:${dash || "none"};stroke-linecap:${cap}"/>`;
  },
  dot(x, y, { role = "", r = 4 } = {}) { return `<circle cx="${x}" cy="${y}" r="${r}" style="fill:${this.color(role)}"/>`; },
  arrow(x0, y0, x1, y1, { role = "", width = 2 } = {}) {
    const n = Math.hypot(x1 - x0, y1 - y0);
    if (n < 1e-9) return "";
    const u = (x1 - x0) / n, w = (y1 - y0) / n, h = Math.min(9, n), x = x1 - h * u, y = y1 - h * w;
    return this.line(x0, y0, x, y, { role, width }) +
      `<path d="M${x1} ${y1}L${x - h * w / 2} ${y + h * u / 2}L${x + h * w / 2} ${y - h * u / 2}Z" style="fill:${this.color(role)}"/>`;
  },
  // a curve through points [[x, y], ...] in pixels
  path(points, { role = "", width = 2, dash = "", cap = "butt" } = {}) {
    return `<path d="M${points.map((p) => p.join(" ")).join("L")}" style="fill:none;stroke:${this.color(role)};stroke-width:${width};stroke-dasharray:${dash || "none"};stroke-linecap:${cap}"/>`;
  },
  bar(x, y, width, height, { role = "state", opacity = 0.7 } = {}) {
    return `<rect x="${x}" y="${y}" width="${width}" height="${Math.max(0, height)}" style="fill:${this.color(role)};fill-opacity:${opacity};stroke:${this.color(role)}"/>`;
  },
  // a matrix [[...], ...] as cells: opacity for the size, `role` above 0 and `negative` below, numbers if digits >= 0
  matrix(x, y, rows, { cell = 34, role = "state", negative = "error", top = 0, digits = 1, label = "" } = {}) {
    const most = top || Math.max(1e-12, ...rows.flat().map(Math.abs));
    let out = label ? this.text(x + rows[0].length * cell / 2, y - 12, label) : "";
    rows.forEach((row, i) => row.forEach((a, j) => {
      const share = Math.min(1, Math.abs(a) / most), paint = this.color(a < 0 ? negative : role);
      out += `<rect x="${x + j * cell}" y="${y + i * cell}" width="${cell}" height="${cell}" style="fill:${paint};fill-opacity:${0.04 + 0.56 * share};stroke:${paint}"/>`;
      if (digits >= 0) out += this.text(x + (j + 0.5) * cell, y + (i + 0.5) * cell, this.fmt(a, digits), {});
    }));
    return out;
  },
  // wire the controls of each widget of this name that is not yet alive
  start(name, data, draw) {
    document.querySelectorAll(`[data-kda="${name}"]:not([data-alive])`).forEach((root) => {
      root.dataset.alive = "1";
      const controls = [...root.querySelectorAll("input, select")];
      const update = () => {
        const v = {};
        for (const c of controls) {
          v[c.name] = Number(c.value);
          const shown = c.parentElement.querySelector("output");
          if (shown) shown.textContent = this.fmt(v[c.name], (c.step.split(".")[1] || "").length);
        }
        const made = draw(v, data, this);
        const svg = root.querySelector("svg"), say = root.querySelector(".kda-say");
        svg.innerHTML = made.svg;
        svg.setAttribute("aria-label", made.say);
        say.textContent = made.say;
      };
      controls.forEach((c) => c.addEventListener("input", update));
      update();
    });
  },
};
