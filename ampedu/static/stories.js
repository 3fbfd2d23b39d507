// The one sentence under the bits: what rounding did to the number, and what each preset wants you to see.

import {
  decode,
  encode,
  fields,
  neighbors,
  real,
  realOfNumber,
  subtract,
  timesPowerOfTwo,
  toNumber,
  ulpExponent,
} from "./floats.js";
import { approximate, exactDecimal } from "./numerals.js";

const TENTH = { kind: "finite", negative: false, num: 1n, den: 10n };
const short = (x) => {
  const exact = exactDecimal(x);
  return exact.length <= 20 ? exact : `about ${approximate(x, 10)}`;
};
const abs = (x) => ({ ...x, negative: false });
const less = (a, b) => subtract(a, b).negative;
const equal = (a, b) =>
  a.kind === b.kind && (a.kind !== "finite" ? a.negative === b.negative : subtract(a, b).num === 0n);

export const largest = (f) => real(f.maxCode, f);

/** Where rounding to nearest starts to leave the finite values: half a step past the largest. */
export function overflowThreshold(f) {
  const half = timesPowerOfTwo(realOfNumber(0.5), ulpExponent(f.maxCode, f));
  const max = largest(f);
  return { ...max, num: max.num * half.den + half.num * max.den, den: max.den * half.den };
}

/** stored − typed in ulps of the stored value, as a JavaScript number; null where one of them is not finite. */
export function errorInUlp(x, code, f) {
  const stored = real(code, f);
  if (x.kind !== "finite" || stored.kind !== "finite") return null;
  return toNumber(timesPowerOfTwo(subtract(stored, x), -ulpExponent(code, f)));
}

/** What the format made of the real x, whose text the reader typed or clicked. One or two sentences. */
export function describe(x, code, f, text) {
  const name = text.length <= 30 ? text.trim().replaceAll("-", "−") : "The number";
  const stored = real(code, f);
  const { kind } = fields(code, f);
  if (x.kind === "nan") return nanStory(f);
  if (x.kind === "inf") {
    if (kind === "inf") return "Infinity: the exponent is all ones and the mantissa is zero.";
    return kind === "nan"
      ? `${f.name} has no infinity: it becomes NaN.`
      : `${f.name} has no infinity: it becomes the largest value, ${short(abs(stored))}.`;
  }
  if (kind === "nan" && x.negative && f.flavor === "scale")
    return `${f.name} has no sign bit: a negative number becomes NaN.`;
  if (kind === "inf")
    return (
      `${name} overflows: everything from ${short(overflowThreshold(f))} on, ` +
      `half a step past the largest value ${short(largest(f))}, rounds to infinity.`
    );
  if (kind === "nan")
    return `${name} overflows: ${f.name} ends at ${short(largest(f))} and has no infinity, so the result is NaN.`;
  if (equal(x, stored)) return exactStory(stored, code, f);
  if (less(largest(f), abs(x))) return saturatedStory(name, x, f);
  if (kind === "zero")
    return `${name} underflows to zero: it is not more than half of the smallest value, ${short(real(1n, f))}.`;
  return roundedStory(name, x, code, f);
}

function exactStory(stored, code, f) {
  const { kind, mantissa, exponent } = fields(code, f);
  if (kind === "zero")
    return stored.negative
      ? "Negative zero: it equals 0, but 1/−0 is −∞."
      : "Zero: exponent and mantissa are all zeros.";
  if (kind === "subnormal") {
    const left = mantissa.toString(2).length;
    const rest = `${left} of ${f.mantissaBits + 1} significant bits ${left === 1 ? "is" : "are"} left.`;
    return `Subnormal: the exponent field is 0, so the hidden bit is 0 too. ${rest}`;
  }
  if (f.flavor === "scale")
    return `A power of two: 2 to the power ${exponent} − ${f.bias}. ${f.name} can hold nothing else.`;
  return `${f.name} holds this value exactly. It is normal: the hidden bit before the mantissa is 1.`;
}

const saturatedStory = (name, x, f) =>
  less(abs(x), overflowThreshold(f))
    ? `${name} is a little more than the largest value of ${f.name} and rounds down to it.`
    : `${name} is beyond the largest value of ${f.name}, ${short(largest(f))}. With no infinity to go to, it saturates.`;

function roundedStory(name, x, code, f) {
  const stored = real(code, f);
  const error = errorInUlp(x, code, f);
  const other = neighbors(code, f)[error > 0 ? "below" : "above"];
  if (f.flavor === "scale" && code === 0n && error > 0) {
    return `${name} is smaller than every value of ${f.name}, which has no zero: it becomes the smallest.`;
  }
  if (other !== null && isMiddle(x, stored, real(other, f))) {
    const [low, high] = error > 0 ? [real(other, f), stored] : [stored, real(other, f)];
    const rule =
      f.flavor === "scale" ? "The larger one is taken" : "The tie goes to the even mantissa, the one that ends in 0";
    return `${name} is exactly halfway between ${short(low)} and ${short(high)}. ${rule}.`;
  }
  const where = `${offset(error)} it; the difference is ${approximate(abs(subtract(stored, x)), 4)}.`;
  return `${name} is not a value of ${f.name}. The nearest one lies ${where}`;
}

const isMiddle = (x, a, b) => b.kind === "finite" && equal(subtract(x, a), subtract(b, x));
const offset = (t) => `${approximate(realOfNumber(Math.abs(t)), 2)} ulp ${t < 0 ? "below" : "above"}`;

function nanStory(f) {
  if (f.flavor === "fnuz") return `NaN has the code that is −0 in other formats: ${f.name} has one NaN and no −0.`;
  if (f.flavor === "fn")
    return `NaN: all ones in exponent and mantissa. ${f.name} has two NaN codes and no infinity, to gain a power of two.`;
  if (f.flavor === "scale") return `NaN: all ones. It is the one code of ${f.name} that is no power of two.`;
  const count = 2n * ((1n << BigInt(f.mantissaBits)) - 1n);
  const cost = `${f.name} spends ${count} codes on it. NaN is not equal to itself.`;
  return `NaN: the exponent is all ones and the mantissa is not zero. ${cost}`;
}

const needs = (bits, f) => `${bits} significant bits, and ${f.name} has ${f.mantissaBits + 1}`;

/** The presets: a label, the text to type or the code to set, and the sentence (null: what describe says). */
export const PRESETS = [
  {
    label: "largest",
    code: (f) => f.maxCode,
    story: (f) =>
      `The largest value of ${f.name}. ${
        {
          ieee: `From ${short(overflowThreshold(f))} on, half a step further, everything rounds to infinity.`,
          fnuz: `From ${short(overflowThreshold(f))} on, half a step further, the result is NaN.`,
          scale: `From ${short(overflowThreshold(f))} on, half a step further, the result is NaN.`,
        }[f.flavor] ?? "Larger numbers, infinity too, become this value: the format saturates."
      }`,
  },
  {
    label: "smallest subnormal",
    code: (f) => (f.flavor === "scale" ? 0n : 1n),
    story: (f) =>
      f.flavor === "scale"
        ? `${f.name} has no subnormal numbers and no zero. This is its smallest value; zero is stored as this too.`
        : `One bit is left of ${f.mantissaBits + 1}. Half of this value, or less, rounds to zero: that is underflow.`,
  },
  {
    label: "0.1",
    text: "0.1",
    story: (f, code) =>
      f.flavor === "scale"
        ? null
        : "In binary 0.1 is 0.0001100110011… without end, so every format stores a neighbor: " +
          `in ${f.name} the one ${offset(errorInUlp(TENTH, code, f))} it. More mantissa bits come closer.`,
  },
  {
    label: "2049",
    text: "2049",
    story: (f, code) => {
      if (f.mantissaBits >= 11)
        return `2049 needs ${needs(12, f)}: stored exactly. Choose fp16 to see the first integer that it misses.`;
      if (decode(code, f) !== 2048 || f.mantissaBits !== 10) return null;
      const tie = "It is halfway between 2048 and 2050, and the tie goes to the even mantissa: 2048 + 1 stays 2048.";
      return `2049 needs ${needs(12, f)}. ${tie}`;
    },
  },
  {
    label: "65520",
    text: "65520",
    story: (f, code) =>
      f.name === "fp16"
        ? "Halfway between 65504, the largest value of fp16, and 65536, where the next one would be. " +
          "The tie goes to the even side, and that is infinity."
        : code === encode(65520, f) && equal(real(code, f), realOfNumber(65520))
          ? `${f.name} holds 65520 exactly. Choose fp16: there it is the first number that overflows.`
          : null,
  },
  { label: "NaN", text: "nan", story: () => null },
];
