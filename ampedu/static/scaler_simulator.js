// Loss-scale simulator: click steps to make their gradients inf, and see scale and growth tracker follow.
// Traits: pattern (string of . and x), scale, growth_tracker, growth_factor, backoff_factor, growth_interval (numbers).

import { LONGEST, PRESETS, numberText, patternOf, simulate } from "./loss_scale.js";
import { MARGIN, draw } from "./scaler_plot.js";
import { STYLE } from "./style.js";
import { h, onTraits, onWidth, openRoot, save, set, uniqueId, withPowers } from "./ui.js";

const NUMBERS = ["scale", "growth_tracker", "growth_factor", "backoff_factor", "growth_interval"];
const TRAITS = ["pattern", ...NUMBERS];
const INPUTS = {
  scale: { text: "scale at the start", wrong: (x) => !(x > 0 && x < 2 ** 128), why: "a positive number below 2^128" },
  growth_interval: { text: "growth interval", wrong: (x) => !(Number.isInteger(x) && x > 0), why: "a whole number from 1" },
  growth_factor: { text: "growth factor", wrong: (x) => !(x > 1 && x <= 1e6), why: "a number above 1" },
  backoff_factor: { text: "backoff factor", wrong: (x) => !(x > 0 && x < 1), why: "a number between 0 and 1" },
};

const isWrong = (input) => input.getAttribute("aria-invalid") === "true";
/** Nodes of a text with powers, with a real minus in the exponents. */
const written = (text) => withPowers(text.replaceAll("^-", "^−"));

function read(model) {
  let pattern;
  try {
    pattern = patternOf(String(model.get("pattern") ?? ""));
  } catch {
    pattern = ".".repeat(20); // a model set by hand; Python refuses such a pattern
  }
  const start = { ...PRESETS[0].start };
  for (const name of NUMBERS) {
    const value = model.get(name);
    if (typeof value === "number") start[name] = value;
  }
  return { pattern, start: { ...start, scale: Math.fround(start.scale) } };
}

function render({ model, el }) {
  let { pattern, start } = read(model);
  let rows = [];
  let chosen = 0;
  let preset = null;
  let width = 0;
  const { root, close } = openRoot(el, STYLE, "Loss-scale simulator");

  const error = h("p", { class: "error", role: "alert" });
  const fields = Object.entries(INPUTS).map(([name, { text }]) => {
    const id = uniqueId(name);
    const input = h("input", { type: "text", inputmode: "decimal", id, onchange: () => type(name, input) });
    return { name, input, node: h("label", { for: id, class: "code" }, text, input) };
  });
  const typed = h("input", { type: "text", id: uniqueId("pattern"), spellcheck: "false", class: "number" });
  typed.addEventListener("input", () => typePattern());
  const controls = h("div", { class: "controls" }, ...fields.map(({ node }) => node));
  const chips = PRESETS.map((each) => h("button", { type: "button", class: "chip", onclick: () => take(each) }, each.name));
  const presets = h("div", { class: "chips", role: "group", "aria-label": "Examples" }, h("span", {}, "try"), ...chips);
  const steps = h("div", { class: "steps", role: "group", "aria-label": "Steps; press one to change its gradients" });
  steps.addEventListener("keydown", walk);
  const frame = h("div", { class: "picture" });
  const legend = h(
    "figcaption",
    {},
    h("b", {}, "Scale of each step, and clean steps in a row."),
    h("span", { class: "key" }, h("span", { class: "cross", "aria-hidden": "true" }, "✕"), " skipped step"),
    h("span", { class: "key" }, h("span", { class: "swatch normal" }), " growth tracker after the step"),
  );
  const story = h("p", { class: "story" });
  const summary = h("p", { class: "note" });
  const result = h("div", { class: "result", "aria-live": "polite" }, story, summary);
  const body = h("tbody");
  const head = ["step", "gradients", "scale", "next scale", "tracker", "what happened"];
  const titles = h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)));
  const table = h("details", {}, h("summary", {}, "All steps as a table"), h("table", {}, h("thead", {}, titles), body));

  table.addEventListener("toggle", fillTable);

  function type(name, input) {
    const value = Number(input.value.trim().replace(/^2\^([-−]?\d+)$/, (_, k) => 2 ** Number(k.replace("−", "-"))));
    const bad = !input.value.trim() || INPUTS[name].wrong(value);
    if (bad) return refuse(input, `The ${INPUTS[name].text} must be ${INPUTS[name].why}.`);
    start = { ...start, [name]: name === "scale" ? Math.fround(value) : value };
    change();
  }

  function typePattern() {
    try {
      pattern = patternOf(typed.value);
    } catch (problem) {
      if (!(problem instanceof SyntaxError)) throw problem;
      return refuse(typed, problem.message);
    }
    change();
  }

  function refuse(input, message) {
    set(input, "aria-invalid", "true");
    error.textContent = message;
  }

  function toggle(index) {
    chosen = index;
    pattern = pattern.slice(0, index) + (pattern[index] === "x" ? "." : "x") + pattern.slice(index + 1);
    change();
  }

  function change(example = null) {
    preset = example;
    error.textContent = "";
    for (const input of [typed, ...fields.map((field) => field.input)]) set(input, "aria-invalid", null);
    paint();
    save(model, { pattern, ...start });
  }

  function take(each) {
    ({ pattern, start } = each);
    chosen = 0;
    change(each);
  }

  function walk(event) {
    const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: pattern.length - 1 }[event.key];
    if (to === undefined || !pattern[to]) return;
    event.preventDefault();
    look(to);
    steps.children[to].focus();
  }

  function look(index) {
    if (index === chosen) return;
    [chosen, preset] = [index, null];
    paint();
  }

  function paintSteps() {
    while (steps.children.length > pattern.length) steps.lastChild.remove();
    while (steps.children.length < pattern.length) {
      const index = steps.children.length;
      const options = { type: "button", class: "cell", onclick: () => toggle(index), onpointerenter: () => look(index) };
      steps.append(h("button", { ...options, onfocus: () => look(index) }));
    }
    steps.style.gridTemplateColumns = `repeat(${pattern.length}, minmax(0, 1fr))`;
    [...steps.children].forEach((cell, index) => {
      const bad = pattern[index] === "x";
      const sign = bad ? "✕" : "·";
      if (cell.textContent !== sign) cell.textContent = sign;
      set(cell, "aria-pressed", bad);
      set(cell, "aria-label", `step ${index}: ${bad ? "inf or NaN" : "finite"}`);
      set(cell, "tabindex", index === chosen ? 0 : -1);
      set(cell, "data-chosen", index === chosen ? "true" : null);
    });
  }

  function total() {
    const skipped = rows.filter((row) => row.skipped).length;
    const grown = rows.filter((row) => row.after.scale > row.before.scale).length;
    const { scale } = rows.at(-1).after;
    return `${rows.length} steps: ${skipped} skipped, the scale grew ${grown} times and ends at ${numberText(scale)}.`;
  }

  function paint() {
    rows = simulate(start, pattern);
    chosen = Math.min(chosen, rows.length - 1);
    for (const { name, input } of fields) if (!isWrong(input)) input.value = numberText(start[name]);
    // While somebody types a pattern, their spaces stay.
    if (root.getRootNode().activeElement !== typed && !isWrong(typed)) typed.value = pattern;
    chips.forEach((chip, index) => set(chip, "aria-pressed", PRESETS[index] === preset));
    paintSteps();
    if (width) frame.innerHTML = draw(rows, chosen, width, `Loss scale and growth tracker. ${total()}`);
    const { event, after } = rows[chosen];
    const words = preset ? preset.story : `Step ${chosen}: ${event}. Growth tracker: ${after.growth_tracker}.`;
    story.replaceChildren(...written(words));
    summary.replaceChildren(...written(total()));
    fillTable();
  }

  /** Sixty rows take longer than all the rest: they wait until somebody opens the table. */
  function fillTable() {
    if (!table.open) return;
    body.replaceChildren(
      ...rows.map(({ before, after, skipped, event }, index) => {
        const cells = [skipped ? "inf or NaN" : "finite", numberText(before.scale), numberText(after.scale)];
        const texts = [...cells, String(after.growth_tracker), event];
        const data = texts.map((text) => h("td", {}, ...written(text)));
        return h("tr", {}, h("th", { scope: "row" }, index), ...data);
      }),
    );
  }

  steps.style.margin = `14px ${MARGIN.right}px 0 ${MARGIN.left}px`;
  const byKeyboard = h("label", { class: "pattern" }, `pattern: . clean, x inf or NaN, at most ${LONGEST} steps`, typed);
  const hint = h("p", { class: "hint" }, "Click a step, or walk with ← and → and press the space bar, to make it overflow.");
  root.append(h("p", { class: "title" }, "Loss-scale simulator"), controls, presets, steps, hint);
  root.append(h("figure", {}, legend, frame), result, h("div", { class: "controls" }, byKeyboard), error, table);
  paint();
  const follow = () => {
    ({ pattern, start } = read(model));
    preset = null;
    paint();
  };
  const resize = (measured) => {
    width = measured;
    paint();
  };
  const stops = [close, onWidth(frame, resize), onTraits(model, TRAITS, follow)];
  return () => stops.forEach((stop) => stop());
}

export default { render };
