// Typesets formulas with MathJax in Node: one JSON request on stdin, one JSON answer on stdout.
// request: {mathjax: folder, packages: [...], macros: {...}, formulas: [[tex, display], ...]}
// answer:  [{svg, mathml, glyphs: {id: outline}} or {error}, ...] in the same order
// Glyphs are drawn by <use>, so that a page defines each outline once; kda_math.py puts the outlines on the page.
"use strict";
const fs = require("fs");
const path = require("path");

const request = JSON.parse(fs.readFileSync(0, "utf8"));
const log = console.warn;
console.warn = (text) => /No version information/.test(text) || log(text); // liteDOM of the pip package carries none

const quote = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
const DROPPED = /^(xmlns|xmlns:xlink|role|focusable|data-(?!tex$).*)$/;

/** The SVG of a formula as text: glyph outlines go to `glyphs`, groups that say nothing are dropped. */
function write(adaptor, node, glyphs) {
  const kind = adaptor.kind(node);
  if (kind === "#text") return quote(adaptor.value(node));
  if (kind === "defs") {
    for (const outline of adaptor.childNodes(node)) {
      glyphs[glyph(adaptor.getAttribute(outline, "id"))] = adaptor.getAttribute(outline, "d");
    }
    return "";
  }
  const inner = adaptor.childNodes(node).map((child) => write(adaptor, child, glyphs)).join("");
  if (kind === "use" && !glyphs[glyph(adaptor.getAttribute(node, "xlink:href").slice(1))]) return ""; // a space
  let attributes = "";
  for (const { name, value } of adaptor.allAttributes(node)) {
    if (name === "xlink:href") attributes += ` href="#${glyph(value.slice(1))}"`;
    else if (!DROPPED.test(name)) attributes += ` ${name}="${quote(value)}"`;
  }
  if (kind === "g" && (!inner || !attributes)) return inner;
  return inner ? `<${kind}${attributes}>${inner}</${kind}>` : `<${kind}${attributes}/>`;
}

/** MJX-7-TEX-I-1D446 of the seventh formula is mj-I-1D446 of every formula. */
const glyph = (id) => id.replace(/^MJX-\d+-TEX-/, "mj-");

/** MathML in one line, with the source beside it. */
function mathml(text, tex) {
  const line = text.replace(/\n\s*/g, "").replace(/ (data-[a-z-]+|xmlns)="[^"]*"/g, "");
  const [, open, inner] = /^(<math[^>]*>)(.*)<\/math>$/s.exec(line);
  const source = `<annotation encoding="application/x-tex">${quote(tex)}</annotation>`;
  return `${open}<semantics><mrow>${inner}</mrow>${source}</semantics></math>`;
}

async function main() {
  const MathJax = await require(path.join(request.mathjax, "node-main.js")).init({
    loader: {
      paths: { mathjax: request.mathjax },
      load: ["input/tex-base", "output/svg", "adaptors/liteDOM", ...request.packages.map((name) => `[tex]/${name}`)],
    },
    tex: {
      packages: { "[+]": request.packages },
      macros: request.macros,
      formatError: (_, problem) => { throw new Error(problem.message); },
    },
    svg: { fontCache: "local" },
    startup: { typeset: false },
  });
  const adaptor = MathJax.startup.adaptor;
  const answer = request.formulas.map(([tex, display]) => {
    try {
      MathJax.texReset();
      const glyphs = {};
      const [svg] = adaptor.tags(MathJax.tex2svg(tex, { display }), "svg");
      const drawn = write(adaptor, svg, glyphs);
      const said = MathJax.tex2mml(tex, { display });
      if (/<merror/.test(said)) throw new Error("MathJax says merror");
      const foreign = /<text[^>]*>([^<]*)</.exec(drawn);
      if (foreign) throw new Error(`no glyph for ${foreign[1]}`);
      for (const id of Object.keys(glyphs)) if (!glyphs[id]) delete glyphs[id];
      return { svg: drawn, mathml: mathml(said, tex), glyphs };
    } catch (problem) {
      return { error: problem.message };
    }
  });
  fs.writeFileSync(1, JSON.stringify({ version: MathJax.version, formulas: answer }));
}

main().catch((problem) => { console.error(problem); process.exitCode = 1; });
