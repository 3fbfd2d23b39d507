// What the bit explorer knows, apart from the page.

import { FORMATS, real, roundReal } from "./floats.js";
import { exactDecimal, hexCode, hexFloat, parseCode, parseReal } from "./numerals.js";
import { PRESETS, describe } from "./stories.js";

export const MOST_COMPARED = 3;

/** The text to put into the number field for the value of a code: short if it can be, exact always. */
function textOf(x) {
  if (x.kind === "nan") return "nan";
  if (x.kind === "inf") return x.negative ? "-inf" : "inf";
  const exact = exactDecimal(x).replaceAll("−", "-");
  return exact.length <= 24 ? exact : hexFloat(x);
}

/** A format, a code, the real number behind it and its text, the formats to compare, what is wrong with an input. */
export class State {
  constructor({ format, value, code, compare }) {
    this.format = FORMATS[format] ?? FORMATS.fp16;
    this.setCompare(compare ?? []);
    this.setCode(0n);
    if (value) this.setText(String(value));
    if (code && (this.error || hexCode(this.code, this.format) !== code)) this.setCodeText(code);
  }

  get hex() {
    return hexCode(this.code, this.format);
  }

  /** What goes back to the model. */
  get traits() {
    return { format: this.format.name, value: this.text, code: this.hex, compare: [...this.compare] };
  }

  /** Names of all formats on the page, the explored one first. */
  get names() {
    return [this.format.name, ...this.compare];
  }

  get sentence() {
    return this.story ?? describe(this.x, this.code, this.format, this.text);
  }

  setText(text) {
    try {
      const x = parseReal(text);
      this.code = roundReal(x, this.format);
      const preset = PRESETS.find((candidate) => candidate.text === text.trim()) ?? null;
      Object.assign(this, { x, text, error: null, preset, story: preset?.story(this.format, this.code) });
    } catch (error) {
      this.refuse("number", error);
    }
  }

  setCodeText(text) {
    try {
      this.setCode(parseCode(text, this.format));
    } catch (error) {
      this.refuse("code", error);
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

  setCompare(names) {
    const others = names.filter((name) => name in FORMATS && name !== this.format.name);
    this.compare = [...new Set(others)].slice(0, MOST_COMPARED);
  }

  refuse(field, error) {
    if (!(error instanceof SyntaxError || error instanceof RangeError)) throw error;
    this.error = { field, message: error.message };
  }
}
