// Look at a built book with a browser: node tools/site_check.mjs BUILD SHOTS [pages...]
//
// Each page must load over http and from file:// with no request to another host, no console error, all formulas set,
// alt text on images, named figures, no page wider than a phone, and no accessibility finding of ours; pictures of each
// page in light, in dark and at 390 px go into SHOTS.
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [root, shots, ...asked] = process.argv.slice(2);
const fail = (sentence) => { console.error(sentence); process.exit(1); };
if (!root || !shots) fail("say which build and where pictures go: node tools/site_check.mjs _build/html _build/shots");
if (!fs.existsSync(path.join(root, "index.html"))) fail(`there is no ${root}/index.html; run 'make book' first`);

const browser = process.env.CHROMIUM || ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((p) => fs.existsSync(p));
const modules = process.env.SITE_CHECK_MODULES || process.cwd();
const require = createRequire(path.resolve(modules) + "/");
let chromium, axe;
try {
  ({ chromium } = require("playwright-core"));
  axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
} catch { /* said below */ }
if (!browser || !chromium) {
  fail("this check needs Chromium (CHROMIUM=path, or /usr/bin/chromium) and the npm packages playwright-core and axe-core: " +
    "run 'npm install playwright-core axe-core' in a folder outside the repository and name it in SITE_CHECK_MODULES.");
}

// findings that the theme makes on every page, and no page of ours can mend
const THEME_AXE = new Set(["label-content-name-mismatch", "region"]);
const THEME_ERRORS = ["Identifier 'THEBE_JS_URL' has already been declared"];

const types = { html: "text/html", js: "text/javascript", mjs: "text/javascript", css: "text/css", json: "application/json", svg: "image/svg+xml",
  png: "image/png", woff: "font/woff", woff2: "font/woff2" };
const server = http.createServer((ask, answer) => {
  let file = path.join(root, decodeURIComponent(new URL(ask.url, "http://x").pathname));
  if (fs.existsSync(file) && fs.statSync(file).isDirectory()) file = path.join(file, "index.html");
  if (!fs.existsSync(file)) { answer.writeHead(404); return answer.end(); }
  answer.writeHead(200, { "content-type": types[path.extname(file).slice(1)] || "application/octet-stream" });
  fs.createReadStream(file).pipe(answer);
}).listen(0, "127.0.0.1");
await new Promise((go) => server.once("listening", go));
const base = `http://127.0.0.1:${server.address().port}`;

const found = (folder) => fs.readdirSync(folder, { withFileTypes: true }).flatMap((e) => e.name.startsWith("_") ? [] :
  e.isDirectory() ? found(path.join(folder, e.name)) : e.name.endsWith(".html") ? [path.relative(root, path.join(folder, e.name))] : []);
const pages = asked.length ? asked : found(root).filter((p) => !/^(index|genindex|search|py-modindex|prf-prf)\.html$/.test(p));
fs.mkdirSync(shots, { recursive: true });

const profile = fs.mkdtempSync(path.join(os.tmpdir(), "site-check-"));
const context = await chromium.launchPersistentContext(profile, { executablePath: browser, headless: true, viewport: { width: 1280, height: 1000 },
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--allow-file-access-from-files"] });
let blocked = [];
await context.route("**/*", (route) => {
  const url = route.request().url();
  if (/^(file|data|blob):/.test(url) || url.startsWith(base)) return route.continue();
  blocked.push(url);
  return route.abort();
});

async function settle(page) {
  await page.waitForTimeout(300);
}

async function look(url, name, problems, full) {
  const page = await context.newPage();
  blocked = [];
  page.on("console", (m) => { if (m.type() === "error") problems.add(`console: ${m.text().slice(0, 200)}`); });
  page.on("pageerror", (e) => { if (!THEME_ERRORS.some((t) => String(e).includes(t))) problems.add(`script: ${String(e).slice(0, 200)}`); });
  page.on("response", (r) => { if (r.status() >= 400) problems.add(`${r.status()}: ${r.url()}`); });
  await page.goto(url, { waitUntil: "load" });
  await settle(page);
  const seen = await page.evaluate(() => ({
    raw: [...document.querySelectorAll(".math")].filter((e) => !e.querySelector("mjx-container")).length,
    wrong: document.querySelectorAll("mjx-merror, [data-mjx-error]").length,
    images: [...document.images].filter((i) => !i.alt).map((i) => i.src.split("/").pop()),
    drawings: [...document.querySelectorAll(".kda-figure svg, .kda-widget svg")].filter((s) => !s.getAttribute("aria-label")).length,
    asleep: document.querySelectorAll(".kda-widget:not([data-alive])").length,
    formulas: document.querySelectorAll("mjx-container").length,
  }));
  if (seen.raw) problems.add(`${seen.raw} formula(s) not set`);
  if (seen.wrong) problems.add(`${seen.wrong} formula(s) with an error`);
  if (seen.images.length) problems.add(`images without alt text: ${seen.images.join(", ")}`);
  if (seen.drawings) problems.add(`${seen.drawings} drawing(s) without a name`);
  if (seen.asleep) problems.add(`${seen.asleep} widget(s) whose script did not start`);
  for (const ask of new Set(blocked)) problems.add(`asks another host: ${ask}`);
  if (full) {
    await page.evaluate(axe);
    for (const theme of ["light", "dark"]) {
      await page.evaluate((t) => { document.documentElement.dataset.theme = t; document.documentElement.dataset.mode = t; }, theme);
      await page.waitForTimeout(200);
      await page.screenshot({ path: path.join(shots, `${name}-${theme}.png`), fullPage: true });
      // axe does not read the formula in a header cell that holds nothing else
      const findings = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }).then((r) => r.violations.map((v) => ({ id: v.id,
        places: v.nodes.map((n) => n.target.join(" ")).filter((t) => v.id !== "empty-table-header" || !document.querySelector(t)?.querySelector(".math")) }))));
      for (const { id, places } of findings) {
        if (!THEME_AXE.has(id) && places.length) problems.add(`axe (${theme}): ${id}, ${places.length} place(s), first ${places[0].slice(0, 120)}`);
      }
    }
    await page.evaluate(() => { document.documentElement.dataset.theme = "light"; });
    await page.setViewportSize({ width: 390, height: 844 });
    await page.waitForTimeout(400);
    const wide = await page.evaluate(() => ({ page: document.documentElement.scrollWidth, parts: [...document.querySelectorAll(".kda-figure svg, .kda-widget")]
      .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).length }));
    if (wide.page > 391) problems.add(`at 390 px the page is ${wide.page} px wide`);
    if (wide.parts) problems.add(`at 390 px ${wide.parts} figure(s) reach past the edge`);
    await page.screenshot({ path: path.join(shots, `${name}-390.png`), fullPage: true });
  }
  await page.close();
  return seen.formulas;
}

let bad = 0;
for (const file of pages) {
  const problems = new Set(), name = file.replace(/\.html$/, "").replaceAll("/", "_");
  const formulas = await look(`${base}/${file}`, name, problems, true);
  await look(pathToFileURL(path.resolve(root, file)).href, name, problems, false);
  bad += problems.size;
  console.log(`${problems.size ? "not ok" : "ok"} ${file} (${formulas} formulas)`);
  for (const p of problems) console.log(`   ${p}`);
}
await context.close();
server.close();
fs.rmSync(profile, { recursive: true, force: true });
console.log(`${pages.length} page(s), ${bad} problem(s); pictures in ${shots}`);
process.exit(bad ? 1 : 0);
