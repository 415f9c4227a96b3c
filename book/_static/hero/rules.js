// The four rules of the landing page, as in kda_lab.rules, and the judge. There is no page in here; Node tests it.
// S is an array of rows, S[value][key]; q, k and v are arrays of numbers.
const heroRules = (() => {
  "use strict";
  const read = (S, q) => S.map((row) => row.reduce((sum, x, j) => sum + x * q[j], 0));
  const plus = (S, v, k) => S.map((row, i) => row.map((x, j) => x + v[i] * k[j]));
  const fade = (S, alpha) => S.map((row) => row.map((x, j) => x * (Array.isArray(alpha) ? alpha[j] : alpha)));
  const missing = (S, k, v, beta) => read(S, k).map((says, i) => (v[i] - says) * beta);

  function linear(S, q, k, v) {
    S = plus(S, v, k);
    return [S, read(S, q)];
  }
  function delta(S, q, k, v, beta) {
    S = plus(S, missing(S, k, v, beta), k);
    return [S, read(S, q)];
  }
  function gatedDelta(S, q, k, v, alpha, beta) {
    return delta(fade(S, alpha), q, k, v, beta);
  }
  function kda(S, q, k, v, alpha, beta) {
    return delta(fade(S, alpha), q, k, v, beta);
  }

  // One token with its steps laid open. look: read before writing; alpha: null, or a rate a column.
  function token(S, k, v, look, alpha) {
    const faded = alpha ? fade(S, alpha) : S;
    const says = look ? read(faded, k) : v.map(() => 0);
    const residual = v.map((x, i) => x - says[i]);
    return { faded, says, residual, S: plus(faded, residual, k) };
  }

  // ---- the scene; `scene` is the JSON of kda_lab.pages.widgets.hero
  const tokens = (story) => story.flatMap((event) => (typeof event === "string" ? [event] : Array(event).fill(null)));
  const empty = (scene) => scene.values.map(() => Object.keys(scene.keys).map(() => 0));

  function hear(scene, S, name, { look, alpha }) {
    const fact = scene.facts[name];
    const k = fact ? scene.keys[fact.key] : Object.keys(scene.keys).map(() => 0);
    return token(S, k, scene.values.map((x) => (fact && x === fact.value ? 1 : 0)), look, alpha);
  }
  const replay = (scene, heard, terms) => heard.reduce((S, name) => hear(scene, S, name, terms).S, empty(scene));

  // what is right: the last value said; null when it has expired (unless extended), undefined when nothing was said
  function right(scene, key, heard, extended = false) {
    const last = heard.findLastIndex((name) => name && scene.facts[name].key === key);
    if (last < 0) return undefined;
    const expired = !extended && heard.length - 1 - last >= (scene.lasts[key] ?? Infinity);
    return expired ? null : scene.facts[heard[last]].value;
  }

  // Kept: half of the right value, and nothing else above half of that. Gone: nothing above a tenth.
  function judge(scene, answer, want) {
    const top = Math.max(...answer), best = scene.values[answer.indexOf(top)];
    if (want === undefined) return { mark: "none", text: "nobody has said" };
    if (want === null) {
      if (top < scene.gone) return { mark: "ok", text: "let it go" };
      return top < scene.kept ? { mark: "faint", text: `${top.toFixed(2)} of ${best} left` } : { mark: "bad", text: `still says ${best}` };
    }
    const o = answer[scene.values.indexOf(want)];
    const rivals = scene.values.map((value, i) => [answer[i], value]).filter(([, value]) => value !== want);
    const [other, rival] = rivals.reduce((a, b) => (b[0] > a[0] ? b : a));
    if (o >= scene.gone && other <= o / 2) return o >= scene.kept ? { mark: "ok", text: want } : { mark: "faint", text: `${want}, but faint` };
    if (other < scene.gone) return { mark: "bad", text: `forgot ${want}` };
    return { mark: "bad", text: other > o + 0.005 ? `says ${rival}` : `${rival} or ${want}?` };
  }

  // the questions of the story, answered by one memory
  function score(scene, terms, extended = false) {
    const heard = tokens(scene.story);
    return scene.checks.map((check) => {
      const before = heard.slice(0, check.at), answer = read(replay(scene, before, terms), scene.keys[check.key]);
      const late = extended && check.at === heard.length;
      return { ...check, answer, ...judge(scene, answer, right(scene, check.key, before, late)) };
    });
  }

  return { rules: { linear, delta, gated_delta: gatedDelta, kda }, read, tokens, empty, hear, replay, right, judge, score };
})();
if (typeof module !== "undefined" && module.exports) module.exports = heroRules;
