// Bit explorer: the bits of one number in one format, and what other formats make of the same real number.
// Traits: format (name), value (text of a real number), code ("0x…", wins over value where they differ), compare (names).

import { FORMATS, fields, neighbors, real, realOfNumber, roundReal, ulpExponent } from "./floats.js";
import {
  approximate,
  binaryFields,
  exactDecimal,
  formulaParts,
  hexCode,
  hexFloat,
  parseCode,
  parseReal,
} from "./numerals.js";
import { neighborhood, ranges } from "./drawings.js";
import { PRESETS, describe, errorInUlp } from "./stories.js";
import { STYLE } from "./style.js";
import { h, key, onTraits, onWidth, openRoot, save, set, uniqueId, withPowers } from "./ui.js";

const MOST_COMPARED = 3;
const LONG = 42; // characters of an exact decimal that still fit on one line

/** The text to put into the number field for the value of a code: short if it can be, exact always. */
function textOf(x) {
  if (x.kind === "nan") return "nan";
  if (x.kind === "inf") return x.negative ? "-inf" : "inf";
  const exact = exactDecimal(x).replaceAll("−", "-");
  return exact.length <= 24 ? exact : hexFloat(x);
}

/** What the explorer knows, apart from the page: a format, a code, the real number behind it, formats to compare. */
class State {
  constructor(model) {
    this.format = FORMATS[model.get("format")] ?? FORMATS.fp16;
    this.compare = (model.get("compare") ?? [])
      .filter((name) => name in FORMATS && name !== this.format.name)
      .slice(0, MOST_COMPARED);
    this.setText(String(model.get("value") || "0"));
    const code = model.get("code");
    if (code && (this.error || hexCode(this.code, this.format) !== code)) this.setCodeText(code);
    if (this.code === undefined) this.setCode(0n);
  }

  setText(text) {
    try {
      const x = parseReal(text);
      this.code = roundReal(x, this.format);
      const preset = PRESETS.find((candidate) => candidate.text === text.trim()) ?? null;
      Object.assign(this, { x, text, error: null, preset, story: preset?.story(this.format, this.code) });
    } catch (error) {
      if (!(error instanceof SyntaxError || error instanceof RangeError)) throw error;
      this.error = { field: "number", message: error.message };
    }
  }

  setCodeText(text) {
    try {
      this.setCode(parseCode(text, this.format));
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      this.error = { field: "code", message: error.message };
    }
  }

  setCode(code) {
    const x = real(code, this.format);
    Object.assign(this, { code, x, text: textOf(x), story: null, error: null, preset: null });
  }

  setFormat(name) {
    const f = FORMATS[name];
    if (!f || f === this.format) return;
    const { preset } = this;
    this.compare = this.compare.map((other) => (other === name ? this.format.name : other));
    this.format = f;
    if (this.x.kind === "nan" && !f.hasNaN) {
      this.setText("1");
      this.story = `${f.name} has no NaN: every code is a number. The explorer went on with 1.`;
    } else if (preset) this.setPreset(preset);
    else this.setText(this.text);
  }

  setPreset(preset) {
    if (preset.text) return this.setText(preset.text);
    this.setCode(preset.code(this.format));
    Object.assign(this, { preset, story: preset.story(this.format, this.code) });
  }

  sentence() {
    return this.story ?? describe(this.x, this.code, this.format, this.text);
  }
}

function render({ model, el }) {
  const state = new State(model);
  const { root, close } = openRoot(el, STYLE, "Bit explorer");
  const ids = Object.fromEntries(["error", "hint"].map((name) => [name, uniqueId(name)]));
  let focused = 0; // position of the bit that the Tab key reaches, from the left
  let bits = [];

  const change = (action, ...args) => {
    action.apply(state, args);
    paint();
    save(model, {
      format: state.format.name,
      value: state.text,
      code: hexCode(state.code, state.format),
      compare: [...state.compare],
    });
  };

  // ---------------------------------------------------------------- controls
  const formatSelect = h(
    "select",
    { onchange: () => change(state.setFormat, formatSelect.value) },
    ...Object.values(FORMATS).map((f) => h("option", { value: f.name }, `${f.name}: ${f.title}`)),
  );
  const field = (name, commit) => {
    const input = h("input", {
      type: "text",
      spellcheck: "false",
      autocomplete: "off",
      autocapitalize: "off",
      class: "number",
      "aria-describedby": ids.error,
      onchange: () => change(commit, input.value),
      onkeydown: (event) => event.key === "Enter" && change(commit, input.value),
    });
    input.dataset.field = name;
    return input;
  };
  const numberInput = field("number", state.setText);
  const codeInput = field("code", state.setCodeText);
  const error = h("p", { class: "error", id: ids.error, role: "alert" });
  const chips = PRESETS.map((preset) =>
    h("button", { type: "button", class: "chip", onclick: () => change(state.setPreset, preset) }, preset.label),
  );

  // ---------------------------------------------------------------- bits
  const groups = ["sign", "exponent", "mantissa"].map((name) => {
    const group = { name, small: h("small"), row: h("div", { class: "row" }), note: h("p", { class: "note" }) };
    group.node = h(
      "div",
      { class: `field ${name}` },
      h("div", { class: "caption" }, name, group.small),
      group.row,
      group.note,
    );
    return group;
  });
  const bitBox = h(
    "div",
    { class: "bits", role: "group", "aria-describedby": ids.hint, onkeydown: typeBit },
    ...groups.map((group) => group.node),
  );

  function buildBits(f) {
    bits = Array.from({ length: f.bits }, (_, position) =>
      h("button", {
        type: "button",
        class: "bit number",
        onclick: () => {
          focused = position;
          change(state.setCode, state.code ^ (1n << BigInt(f.bits - 1 - position)));
        },
        onfocus: () => moveTo(position, false),
      }),
    );
    focused = Math.min(focused, f.bits - 1);
    let from = 0;
    for (const { name, node, row, small } of groups) {
      const width = { sign: f.signBits, exponent: f.exponentBits, mantissa: f.mantissaBits }[name];
      row.replaceChildren(...bits.slice(from, from + width));
      small.textContent = `${width} ${width === 1 ? "bit" : "bits"}`;
      node.hidden = width === 0;
      from += width;
    }
    bitBox.className = f.bits > 20 ? "bits many" : "bits";
    set(bitBox, "aria-label", `Bits of ${f.name}`);
    bitBox.dataset.format = f.name;
  }

  function moveTo(position, focus = true) {
    focused = Math.max(0, Math.min(bits.length - 1, position));
    bits.forEach((bit, index) => set(bit, "tabindex", index === focused ? 0 : -1));
    if (focus) bits[focused].focus();
  }

  function typeBit(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    const move = { ArrowLeft: focused - 1, ArrowRight: focused + 1, Home: 0, End: bits.length - 1 }[key];
    if (move !== undefined) moveTo(move);
    else if (key === "0" || key === "1") {
      const mask = 1n << BigInt(state.format.bits - 1 - focused);
      change(state.setCode, key === "1" ? state.code | mask : state.code & ~mask);
      moveTo(focused + 1);
    } else if (key === "ArrowUp" || key === "ArrowDown") {
      const next = neighbors(state.code, state.format)[key === "ArrowUp" ? "above" : "below"];
      if (next !== null) change(state.setCode, next);
    } else return;
    event.preventDefault();
  }

  function paintBits() {
    const f = state.format;
    if (bitBox.dataset.format !== f.name) buildBits(f);
    const digits = state.code.toString(2).padStart(f.bits, "0");
    bits.forEach((bit, position) => {
      const on = digits[position] === "1";
      bit.textContent = digits[position];
      set(bit, "aria-pressed", on);
      set(bit, "tabindex", position === focused ? 0 : -1);
      set(bit, "aria-label", `${bitName(position, f)}: ${digits[position]}`);
    });
    const { sign, exponent, mantissa, kind } = fields(state.code, f);
    const special = kind === "inf" || kind === "nan";
    groups[0].note.textContent = sign ? "minus" : "plus";
    const effective = kind === "normal" ? exponent : 1;
    const low = kind === "subnormal" || kind === "zero" ? `${exponent}, counts as 1: ` : `${exponent}: `;
    groups[1].note.replaceChildren(
      ...(special && f.flavor !== "fn" && f.flavor !== "fnuz"
        ? [`${exponent}: all ones, reserved`]
        : [
            low,
            ...withPowers(`2^(${effective} − ${f.bias})`),
            ...withPowers(` = 2^(${effective - f.bias})`.replace("(-", "(−")),
          ]),
    );
    groups[2].note.textContent =
      kind === "inf"
        ? "zero: infinity"
        : kind === "nan"
          ? "the code of NaN"
          : `${mantissa} / ${1n << BigInt(f.mantissaBits)}, hidden bit ${kind === "normal" ? 1 : 0}`;
  }

  // ---------------------------------------------------------------- value
  const formulaLine = h("p", { class: "formula number" });
  const valueLine = h("p", { class: "value number" });
  const story = h("p", { class: "story" });
  const result = h(
    "div",
    { class: "result", "aria-live": "polite", "aria-atomic": "true" },
    h("div", { class: "equation" }, formulaLine, valueLine),
    story,
  );
  const step = (side) =>
    h("button", {
      type: "button",
      class: "step number",
      onclick: () => change(state.setCode, neighbors(state.code, state.format)[side]),
    });
  const facts = {
    kind: h("dd"),
    ulp: h("dd", { class: "number" }),
    hex: h("dd", { class: "number" }),
    below: step("below"),
    above: step("above"),
  };
  const allDigits = h("p", { class: "digits number" });
  const allSummary = h("summary");
  const details = h("details", {}, allSummary, allDigits);
  const fact = (name, node) => h("div", {}, h("dt", {}, name), node.tagName === "DD" ? node : h("dd", {}, node));

  function paintValue() {
    const f = state.format;
    const parts = formulaParts(state.code, f);
    const factor = (name, ...nodes) => h("span", { class: name }, ...nodes);
    formulaLine.replaceChildren(
      ...(parts
        ? [
            parts.sign && factor("sign", parts.sign.base, h("sup", {}, parts.sign.exponent)),
            parts.sign && " × ",
            factor("exponent", "2", h("sup", {}, parts.power.exponent)),
            parts.significand && " × ",
            parts.significand && factor("mantissa", parts.significand),
          ].filter(Boolean)
        : ["no formula: the code stands for"]),
    );
    const stored = real(state.code, f);
    const exact = exactDecimal(stored);
    const long = exact.length > LONG;
    valueLine.textContent = long ? `≈ ${approximate(stored, 17)}` : parts ? `= ${exact}` : exact;
    valueLine.classList.toggle("long", exact.length > 26);
    details.hidden = !long;
    allSummary.textContent = `The exact decimal value, ${exact.replace(/e.*|\D/g, "").length} digits`;
    allDigits.textContent = exact;
    story.replaceChildren(...withPowers(state.sentence()));
    facts.kind.textContent = { nan: "NaN", inf: "infinity" }[fields(state.code, f).kind] ?? fields(state.code, f).kind;
    const finite = stored.kind === "finite";
    const ulp = finite ? ulpExponent(state.code, f) : null;
    facts.ulp.replaceChildren(...(finite ? withPowers(`2^(${String(ulp).replace("-", "−")})`) : ["none"]));
    if (finite && ulp !== 0)
      facts.ulp.append(
        ` ≈ ${approximate(powerOfTwo(ulp), 4)}`.replace(
          "≈ ",
          (ulp > 0 && ulp < 13) || (ulp < 0 && ulp > -4) ? "= " : "≈ ",
        ),
      );
    facts.hex.textContent = hexFloat(stored);
    const around = neighbors(state.code, f);
    for (const side of ["below", "above"]) {
      const button = facts[side];
      button.disabled = around[side] === null;
      const value = around[side] === null ? "none" : approximate(real(around[side], f), neighborDigits(f));
      button.textContent = side === "below" ? `◂ ${value}` : `${value} ▸`;
    }
  }

  // ---------------------------------------------------------------- pictures and comparison
  const near = h("div", { class: "picture" });
  const far = h("div", { class: "picture" });
  const nearFigure = h(
    "figure",
    {},
    h("figcaption", {}, h("b", {}, "Nearby values."), key("band", "rounds to the stored one (ties dashed)")),
    near,
  );
  const farFigure = h(
    "figure",
    {},
    h("figcaption", {}, h("b", {}, "Range, in powers of two."), key("subnormal", "subnormal"), key("normal", "normal")),
    far,
  );
  let width = 0;
  function paintPictures() {
    if (!width) return;
    const picture = neighborhood(state.x, state.code, state.format, state.text, width);
    nearFigure.hidden = picture === null;
    near.innerHTML = picture ?? "";
    const formats = [state.format, ...state.compare.map((name) => FORMATS[name])];
    far.innerHTML = ranges(state.x, formats, state.text, width);
  }

  const body = h("tbody");
  const table = h(
    "table",
    { class: "compare" },
    h("caption", {}),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ...["format", "bits", "stored value", "stored − typed"].map((name) => h("th", { scope: "col" }, name)),
      ),
    ),
    body,
  );
  const addSelect = h("select", { "aria-label": "Format to compare with" });
  // A button, since arrow keys on a closed select already change its value.
  const addBox = h(
    "div",
    { class: "add" },
    addSelect,
    h(
      "button",
      {
        type: "button",
        class: "plain",
        onclick: () => {
          change(() => state.compare.push(addSelect.value));
          if (addBox.hidden) formatSelect.focus();
        },
      },
      "compare",
    ),
  );

  function paintTable() {
    table.caption.textContent = `${state.text.length > 30 ? "The same number" : state.text.replaceAll("-", "−")} in ${state.compare.length ? "each format" : state.format.name}`;
    body.replaceChildren(
      ...[state.format.name, ...state.compare].map((name, index) => compareRow(FORMATS[name], index === 0)),
    );
    const rest = Object.keys(FORMATS).filter((name) => name !== state.format.name && !state.compare.includes(name));
    addSelect.replaceChildren(...rest.map((name) => h("option", { value: name }, name)));
    addBox.hidden = state.compare.length >= MOST_COMPARED;
  }

  function compareRow(f, main) {
    const head = h(
      "th",
      { scope: "row" },
      main
        ? h("b", {}, f.name)
        : h(
            "button",
            {
              type: "button",
              class: "plain",
              title: `Explore the bits of ${f.name}`,
              onclick: () => {
                change(state.setFormat, f.name);
                formatSelect.focus();
              },
            },
            f.name,
          ),
    );
    if (!main)
      head.append(
        " ",
        h(
          "button",
          {
            type: "button",
            class: "plain",
            "aria-label": `Stop comparing with ${f.name}`,
            onclick: () => {
              change(() => {
                state.compare = state.compare.filter((name) => name !== f.name);
              });
              addSelect.focus();
            },
          },
          "×",
        ),
      );
    const cell = (label, className, ...content) => h("td", { "data-label": label, class: className }, ...content);
    if (state.x.kind === "nan" && !f.hasNaN)
      return h("tr", {}, head, h("td", { colspan: "3", "data-label": "" }, "has no code for NaN"));
    const code = main ? state.code : roundReal(state.x, f);
    const stored = real(code, f);
    const digits = binaryFields(code, f);
    const mini = h(
      "span",
      { class: "mini number" },
      ...Object.entries(digits)
        .filter(([, text]) => text)
        .map(([name, text]) => h("span", { class: name, title: name }, h("i", { class: "hidden" }, `${name} `), text)),
    );
    const exact = exactDecimal(stored);
    const error = errorInUlp(state.x, code, f);
    return h(
      "tr",
      {},
      head,
      cell("bits", "", mini),
      cell("stored value", "number", exact.length <= 22 ? exact : `≈ ${approximate(stored, 12)}`),
      cell("stored − typed", "", errorText(error, state.x, stored, f)),
    );
  }

  // ---------------------------------------------------------------- the page
  function paint() {
    formatSelect.value = state.format.name;
    const wrong = state.error?.field;
    error.textContent = state.error?.message ?? "";
    for (const [input, text] of [
      [numberInput, state.text],
      [codeInput, hexCode(state.code, state.format)],
    ]) {
      if (input.dataset.field === wrong) set(input, "aria-invalid", true);
      else {
        set(input, "aria-invalid", null);
        input.value = text;
      }
    }
    chips.forEach((chip, index) => set(chip, "aria-pressed", PRESETS[index] === state.preset));
    paintBits();
    paintValue();
    paintPictures();
    paintTable();
  }

  root.append(
    h(
      "div",
      { class: "controls" },
      h("label", { class: "wide" }, "format", formatSelect),
      h("label", { class: "wide" }, "real number, e.g. 0.1, 1/3, 1 + 2^-11", numberInput),
      h("label", { class: "code" }, "code, or type bits", codeInput),
    ),
    error,
    h("div", { class: "chips", role: "group", "aria-label": "Presets" }, h("span", {}, "try"), ...chips),
    bitBox,
    h(
      "p",
      { class: "hint", id: ids.hint },
      h("kbd", {}, "←"),
      " ",
      h("kbd", {}, "→"),
      " move, ",
      h("kbd", {}, "Space"),
      " flips, ",
      h("kbd", {}, "0"),
      " ",
      h("kbd", {}, "1"),
      " type, ",
      h("kbd", {}, "↑"),
      " ",
      h("kbd", {}, "↓"),
      " next value",
    ),
    result,
    h(
      "dl",
      { class: "facts" },
      fact("kind", facts.kind),
      fact("ulp: gap to the next value", facts.ulp),
      fact("hex float", facts.hex),
      fact("next below", facts.below),
      fact("next above", facts.above),
    ),
    details,
    h("div", { class: "figures" }, nearFigure, farFigure),
    table,
    addBox,
  );
  paint();
  const stops = [
    close,
    onWidth(far, (measured) => {
      width = measured;
      paintPictures();
    }),
    onTraits(model, ["format"], () => follow("format", state.format.name, state.setFormat)),
    onTraits(model, ["value"], () => follow("value", state.text, state.setText)),
    onTraits(model, ["code"], () => follow("code", hexCode(state.code, state.format), state.setCodeText)),
    onTraits(model, ["compare"], () => {
      state.compare = model
        .get("compare")
        .filter((name) => name in FORMATS && name !== state.format.name)
        .slice(0, MOST_COMPARED);
      paint();
    }),
  ];
  function follow(trait, current, action) {
    const value = model.get(trait);
    if (!value || value === current) return;
    action.call(state, value);
    paint();
  }
  return () => stops.forEach((stop) => stop());
}

const powerOfTwo = (k) => ({
  kind: "finite",
  negative: false,
  num: k > 0 ? 1n << BigInt(k) : 1n,
  den: k < 0 ? 1n << BigInt(-k) : 1n,
});

/** Significant digits that always tell two neighbors of a format apart: one more than ceil(1 + p log10 2). */
const neighborDigits = (f) => Math.ceil((f.mantissaBits + 1) * Math.LOG10E * Math.LN2) + 1;

function bitName(position, f) {
  if (position < f.signBits) return "sign bit";
  const inExponent = position - f.signBits;
  if (inExponent < f.exponentBits) return `exponent bit worth ${2 ** (f.exponentBits - 1 - inExponent)}`;
  return `mantissa bit worth 2^−${inExponent - f.exponentBits + 1}`;
}

function errorText(error, x, stored, f) {
  if (x.kind === "nan") return "";
  if (error === null)
    return x.kind === stored.kind ? "none" : ({ nan: "becomes NaN", inf: "overflow" }[stored.kind] ?? "saturated");
  if (error === 0) return "0 (exact)";
  if (stored.num === 0n) return "underflow to 0";
  if (Math.abs(error) > 0.5 && f.flavor !== "scale") return "saturated";
  return `${error < 0 ? "−" : "+"}${approximate(realOfNumber(Math.abs(error)), 2)} ulp`;
}

export default { render };
