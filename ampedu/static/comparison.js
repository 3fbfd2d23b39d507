// The same real number in several formats, a row each.

import { FORMATS, real, realOfNumber, roundReal } from "./floats.js";
import { approximate, binaryFields, exactDecimal } from "./numerals.js";
import { MOST_COMPARED } from "./state.js";
import { errorInUlp } from "./stories.js";
import { h } from "./ui.js";

const COLUMNS = ["format", "bits", "stored value", "stored − typed"];

/** `select` is the control of the explored format: where the focus goes when a row's button vanishes. */
export function comparison(state, change, select) {
  const body = h("tbody");
  const caption = h("caption");
  const header = h("tr", {}, ...COLUMNS.map((name) => h("th", { scope: "col" }, name)));
  const table = h("table", { class: "compare" }, caption, h("thead", {}, header), body);
  const choice = h("select", { "aria-label": "Format to compare with" });
  // A button, since arrow keys on a closed select already change its value.
  const button = h("button", { type: "button", class: "plain", onclick: add }, "compare");
  const box = h("div", { class: "add" }, choice, button);

  function add() {
    change(state.setCompare, [...state.compare, choice.value]);
    if (box.hidden) select.focus();
  }

  function explore(name) {
    change(state.setFormat, name);
    select.focus();
  }

  function remove(name) {
    change(
      state.setCompare,
      state.compare.filter((other) => other !== name),
    );
    choice.focus();
  }

  function heading(name, main) {
    if (main) return h("th", { scope: "row" }, h("b", {}, name));
    const plain = { type: "button", class: "plain" };
    const go = { ...plain, title: `Explore the bits of ${name}`, onclick: () => explore(name) };
    const stop = { ...plain, "aria-label": `Stop comparing with ${name}`, onclick: () => remove(name) };
    return h("th", { scope: "row" }, h("button", go, name), " ", h("button", stop, "×"));
  }

  function row(name, main) {
    const f = FORMATS[name];
    if (state.x.kind === "nan" && !f.hasNaN)
      return h("tr", {}, heading(name, main), h("td", { colspan: 3, "data-label": "" }, "has no code for NaN"));
    const code = main ? state.code : roundReal(state.x, f);
    const stored = real(code, f);
    const exact = exactDecimal(stored);
    const contents = [smallBits(code, f), exact.length <= 22 ? exact : `≈ ${approximate(stored, 12)}`];
    contents.push(errorText(state.x, code, f));
    const cells = contents.map((content, index) =>
      h("td", { class: "number", "data-label": COLUMNS[index + 1] }, content),
    );
    return h("tr", {}, heading(name, main), ...cells);
  }

  function paint() {
    const number = state.text.length > 30 ? "The same number" : state.text.replaceAll("-", "−");
    caption.textContent = `${number} in ${state.compare.length ? "each format" : state.format.name}`;
    body.replaceChildren(...state.names.map((name, index) => row(name, index === 0)));
    const rest = Object.keys(FORMATS).filter((name) => !state.names.includes(name));
    choice.replaceChildren(...rest.map((name) => h("option", { value: name }, name)));
    box.hidden = state.compare.length >= MOST_COMPARED;
  }

  return { nodes: [table, box], paint };
}

/** The bits as text, each field marked and, for screen readers, named. */
function smallBits(code, f) {
  const parts = Object.entries(binaryFields(code, f)).filter(([, text]) => text);
  const field = ([name, text]) =>
    h("span", { class: name, title: name }, h("i", { class: "hidden" }, `${name} `), text);
  return h("span", { class: "mini number" }, ...parts.map(field));
}

function errorText(x, code, f) {
  const stored = real(code, f);
  const error = errorInUlp(x, code, f);
  if (x.kind === "nan") return "";
  if (error === null) {
    if (x.kind === stored.kind) return "none";
    return { nan: "becomes NaN", inf: "overflow" }[stored.kind] ?? "saturated";
  }
  if (error === 0) return "0 (exact)";
  if (stored.num === 0n) return "underflow to 0";
  if (Math.abs(error) > 0.5 && f.flavor !== "scale") return "saturated";
  return `${error < 0 ? "−" : "+"}${approximate(realOfNumber(Math.abs(error)), 2)} ulp`;
}
