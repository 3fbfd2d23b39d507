// The value of the bits: formula, number and sentence, and the facts below them.

import { fields, neighbors, real, ulpExponent } from "./floats.js";
import { approximate, exactDecimal, formulaParts, hexFloat } from "./numerals.js";
import { h, withPowers } from "./ui.js";

const LONG = 42; // characters of an exact decimal that still fit on one line

/** Returns {nodes, paint}; the first node is announced by screen readers when it changes. */
export function valueView(state, change) {
  const formula = h("p", { class: "formula number" });
  const value = h("p", { class: "value number" });
  const story = h("p", { class: "story" });
  const live = { class: "result", "aria-live": "polite", "aria-atomic": "true" };
  const result = h("div", live, h("div", { class: "equation" }, formula, value), story);
  const step = (side) => {
    const go = () => change(state.setCode, neighbors(state.code, state.format)[side]);
    return h("button", { type: "button", class: "step number", onclick: go });
  };
  const buttons = { below: step("below"), above: step("above") };
  const [kind, ulp, hex] = [h("dd"), h("dd", { class: "number" }), h("dd", { class: "number" })];
  const fact = (name, node) => h("div", {}, h("dt", {}, name), node);
  const facts = [
    fact("kind", kind),
    fact("ulp: gap to the next value", ulp),
    fact("hex float", hex),
    fact("next below", h("dd", {}, buttons.below)),
    fact("next above", h("dd", {}, buttons.above)),
  ];
  const [summary, digits] = [h("summary"), h("p", { class: "digits number" })];
  const details = h("details", {}, summary, digits);

  function paint() {
    const { code, format } = state;
    const stored = real(code, format);
    const exact = exactDecimal(stored);
    const finite = stored.kind === "finite";
    formula.replaceChildren(...formulaNodes(code, format));
    value.textContent = exact.length > LONG ? `≈ ${approximate(stored, 17)}` : finite ? `= ${exact}` : exact;
    value.classList.toggle("long", exact.length > 26);
    details.hidden = exact.length <= LONG;
    summary.textContent = `The exact decimal value, ${exact.replace(/e.*|\D/g, "").length} digits`;
    digits.textContent = exact;
    story.replaceChildren(...withPowers(state.sentence));
    const name = fields(code, format).kind;
    kind.textContent = { nan: "NaN", inf: "infinity" }[name] ?? name;
    ulp.replaceChildren(...withPowers(finite ? ulpText(ulpExponent(code, format)) : "none"));
    hex.textContent = hexFloat(stored);
    const next = neighbors(code, format);
    for (const [side, button] of Object.entries(buttons)) {
      const text = next[side] === null ? "none" : approximate(real(next[side], format), enoughDigits(format));
      button.disabled = next[side] === null;
      button.textContent = side === "below" ? `◂ ${text}` : `${text} ▸`;
    }
  }

  return { nodes: [result, h("dl", { class: "facts" }, ...facts), details], paint };
}

/** The formula with each factor marked like the field that it comes from. */
function formulaNodes(code, f) {
  const parts = formulaParts(code, f);
  if (!parts) return ["no formula: the code stands for"];
  const { sign, power, significand } = parts;
  const factors = [h("span", { class: "exponent" }, power.base, h("sup", {}, power.exponent))];
  if (sign) factors.unshift(h("span", { class: "sign" }, sign.base, h("sup", {}, sign.exponent)), " × ");
  if (significand) factors.push(" × ", h("span", { class: "mantissa" }, significand));
  return factors;
}

/** A power of two with its decimal value, rounded to four digits where it is longer. */
function ulpText(k) {
  const gap = {
    kind: "finite",
    negative: false,
    num: 1n << BigInt(Math.max(k, 0)),
    den: 1n << BigInt(Math.max(-k, 0)),
  };
  const [exact, rounded] = [exactDecimal(gap), approximate(gap, 4)];
  return `2^(${String(k).replace("-", "−")}) ${exact === rounded ? "=" : "≈"} ${rounded}`;
}

/** Significant digits that always tell two neighbors of a format apart: one more than ceil(p log10 2) + 1. */
const enoughDigits = (f) => Math.ceil((f.mantissaBits + 1) * Math.LOG10E * Math.LN2) + 1;
