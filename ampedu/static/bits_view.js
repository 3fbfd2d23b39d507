// The row of bits: one toggle button a bit in three labeled fields, with one stop of the Tab key for all of them.

import { fields, neighbors } from "./floats.js";
import { h, set, withPowers } from "./ui.js";

const KEYS = [
  ["←", "→", " move, "],
  ["Space", " flips, "],
  ["0", "1", " type, "],
  ["↑", "↓", " next value"],
];

/** change(action, …) applies one of the state's methods and repaints. Returns {nodes, paint}. */
export function bitsView(state, change, hintId) {
  let bits = [];
  let focused = 0; // position, from the left, of the bit that the Tab key reaches
  let shown = null; // the format that the buttons were made for
  const groups = ["sign", "exponent", "mantissa"].map((name) => {
    const [small, row, note] = [h("small"), h("div", { class: "row" }), h("p", { class: "note" })];
    const node = h("div", { class: `field ${name}` }, h("div", { class: "caption" }, name, small), row, note);
    return { name, node, small, row, note };
  });
  const nodes = groups.map((group) => group.node);
  const box = h("div", { role: "group", "aria-describedby": hintId, onkeydown: type }, ...nodes);
  const keys = KEYS.flatMap((entry) => [
    ...entry.slice(0, -1).flatMap((name) => [h("kbd", {}, name), " "]),
    entry.at(-1).trimStart(),
  ]);
  const hint = h("p", { class: "hint", id: hintId }, ...keys);

  const mask = (position) => 1n << BigInt(state.format.bits - 1 - position);

  function build(f) {
    shown = f;
    bits = Array.from({ length: f.bits }, (_, position) =>
      h("button", {
        type: "button",
        class: "bit number",
        onclick: () => change(state.setCode, state.code ^ mask(position)),
        onfocus: () => moveTo(position),
      }),
    );
    let from = 0;
    for (const { name, node, row, small } of groups) {
      const width = { sign: f.signBits, exponent: f.exponentBits, mantissa: f.mantissaBits }[name];
      row.replaceChildren(...bits.slice(from, from + width));
      small.textContent = `${width} ${width === 1 ? "bit" : "bits"}`;
      node.hidden = width === 0;
      from += width;
    }
    box.className = f.bits > 20 ? "bits many" : "bits";
    set(box, "aria-label", `Bits of ${f.name}`);
    moveTo(focused);
  }

  function moveTo(position) {
    focused = Math.max(0, Math.min(bits.length - 1, position));
    bits.forEach((bit, index) => set(bit, "tabindex", index === focused ? 0 : -1));
  }

  function type(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const move = { ArrowLeft: focused - 1, ArrowRight: focused + 1, Home: 0, End: bits.length - 1 }[event.key];
    const side = { ArrowUp: "above", ArrowDown: "below" }[event.key];
    if (move !== undefined) moveTo(move);
    else if (event.key === "0" || event.key === "1") {
      const one = mask(focused);
      change(state.setCode, event.key === "1" ? state.code | one : state.code & ~one);
      moveTo(focused + 1);
    } else if (side) {
      const next = neighbors(state.code, state.format)[side];
      if (next !== null) change(state.setCode, next);
    } else return;
    bits[focused].focus();
    event.preventDefault();
  }

  function paint() {
    const f = state.format;
    if (shown !== f) build(f);
    const digits = state.code.toString(2).padStart(f.bits, "0");
    bits.forEach((bit, position) => {
      if (bit.textContent === digits[position]) return;
      bit.textContent = digits[position];
      set(bit, "aria-pressed", digits[position] === "1");
      set(bit, "aria-label", `${bitName(position, f)}: ${digits[position]}`);
    });
    const notes = fieldNotes(state.code, f);
    for (const { name, note } of groups) note.replaceChildren(...withPowers(notes[name]));
  }

  return { nodes: [box, hint], paint };
}

function bitName(position, f) {
  if (position < f.signBits) return "sign bit";
  const inExponent = position - f.signBits;
  if (inExponent < f.exponentBits) return `exponent bit worth ${2 ** (f.exponentBits - 1 - inExponent)}`;
  return `mantissa bit worth 2^−${inExponent - f.exponentBits + 1}`;
}

/** What each field says by itself, in a few words. */
function fieldNotes(code, f) {
  const { sign, exponent, mantissa, kind } = fields(code, f);
  const notes = { sign: sign ? "minus" : "plus" };
  if (kind === "inf" || kind === "nan") {
    notes.exponent = f.flavor === "fnuz" ? "0" : `${exponent}: all ones`;
    notes.mantissa = kind === "inf" ? "zero: infinity" : "with this exponent: NaN";
    return notes;
  }
  const power = (kind === "normal" ? exponent : 1) - f.bias;
  const counts = kind === "normal" ? "" : ", counts as 1";
  const result = `2^(${String(power).replace("-", "−")})`;
  notes.exponent = `${exponent}${counts}: 2^(${power + f.bias} − ${f.bias}) = ${result}`;
  notes.mantissa = `${mantissa} / ${1n << BigInt(f.mantissaBits)}, hidden bit ${kind === "normal" ? 1 : 0}`;
  return notes;
}
