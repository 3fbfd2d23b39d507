// Bit explorer: the bits of one number in one format, and what other formats make of the same real number.
// Traits: format (name), value (text of a real number), code ("0x…"; wins where it differs from the value's code),
// compare (names of formats). All of them go back to the model at every change.

import { bitsView } from "./bits_view.js";
import { comparison } from "./comparison.js";
import { neighborhood, ranges } from "./drawings.js";
import { FORMATS } from "./floats.js";
import { State } from "./state.js";
import { PRESETS } from "./stories.js";
import { STYLE } from "./style.js";
import { h, key, onTraits, onWidth, openRoot, save, set, uniqueId } from "./ui.js";
import { valueView } from "./value_view.js";

const TRAITS = ["format", "value", "code", "compare"];

function render({ model, el }) {
  const state = new State(Object.fromEntries(TRAITS.map((name) => [name, model.get(name)])));
  const { root, close } = openRoot(el, STYLE, "Bit explorer");
  const ids = { error: uniqueId("error"), hint: uniqueId("hint") };

  const change = (action, ...args) => {
    action.apply(state, args);
    paint();
    save(model, state.traits);
  };

  const options = Object.values(FORMATS).map((f) => h("option", { value: f.name }, `${f.name}: ${f.title}`));
  const formatSelect = h("select", { onchange: () => change(state.setFormat, formatSelect.value) }, ...options);
  const text = { type: "text", spellcheck: false, autocomplete: "off", autocapitalize: "off", class: "number" };
  const input = (commit) => {
    const node = h("input", { ...text, "aria-describedby": ids.error, onchange: () => change(commit, node.value) });
    return node;
  };
  const inputs = { number: input(state.setText), code: input(state.setCodeText) };
  const error = h("p", { class: "error", id: ids.error, role: "alert" });
  const chips = PRESETS.map((preset) => {
    const choose = () => change(state.setPreset, preset);
    return h("button", { type: "button", class: "chip", onclick: choose }, preset.label);
  });
  const bits = bitsView(state, change, ids.hint);
  const value = valueView(state, change);
  const table = comparison(state, change, formatSelect);

  const [near, far] = [h("div", { class: "picture" }), h("div", { class: "picture" })];
  const legend = (title, ...keys) => h("figcaption", {}, h("b", {}, title), ...keys);
  const nearLegend = legend("Nearby values.", key("band", "rounds to the stored one (ties dashed)"));
  const nearFigure = h("figure", {}, nearLegend, near);
  const farLegend = legend("Range, in powers of two.", key("subnormal", "subnormal"), key("normal", "normal"));
  const farFigure = h("figure", {}, farLegend, far);

  let width = 0; // measured when it changes: asking at every click would lay the page out once more
  function paintPictures() {
    if (!width) return;
    const { x, code, format, names, text: typed } = state;
    const picture = neighborhood(x, code, format, typed, width);
    nearFigure.hidden = picture === null;
    near.innerHTML = picture ?? "";
    far.innerHTML = ranges(
      x,
      names.map((name) => FORMATS[name]),
      typed,
      width,
    );
  }

  function paint() {
    formatSelect.value = state.format.name;
    error.textContent = state.error?.message ?? "";
    for (const [name, node] of Object.entries(inputs)) {
      const wrong = state.error?.field === name;
      set(node, "aria-invalid", wrong ? true : null);
      if (!wrong) node.value = name === "code" ? state.hex : state.text;
    }
    chips.forEach((chip, index) => set(chip, "aria-pressed", PRESETS[index] === state.preset));
    for (const part of [bits, value, table]) part.paint();
    paintPictures();
  }

  const controls = [
    h("label", { class: "wide" }, "format", formatSelect),
    h("label", { class: "wide" }, "real number, e.g. 0.1, 1/3, 1 + 2^-11", inputs.number),
    h("label", { class: "code" }, "code, or type bits", inputs.code),
  ];
  root.append(
    h("div", { class: "controls" }, ...controls),
    error,
    h("div", { class: "chips", role: "group", "aria-label": "Presets" }, h("span", {}, "try"), ...chips),
    ...bits.nodes,
    ...value.nodes,
    h("div", { class: "figures" }, nearFigure, farFigure),
    ...table.nodes,
  );
  paint();

  const follow = (name, current, action) =>
    onTraits(model, [name], () => {
      const wanted = model.get(name);
      if (!wanted || String(wanted) === String(current())) return;
      action.call(state, wanted);
      paint();
    });
  const stops = [
    close,
    onWidth(far, (measured) => {
      width = measured;
      paintPictures();
    }),
    follow("format", () => state.format.name, state.setFormat),
    follow("value", () => state.text, state.setText),
    follow("code", () => state.hex, state.setCodeText),
    follow("compare", () => state.compare, state.setCompare),
  ];
  return () => stops.forEach((stop) => stop());
}

export default { render };
