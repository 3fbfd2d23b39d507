// Where the values of a histogram in powers of two land in a format, once they are multiplied by a power of two.
// Bin k counts the magnitudes in [2^k, 2^(k+1)).

import { FORMATS, floorLog2, real } from "./floats.js";

export const OUTCOMES = ["zero", "subnormal", "normal", "overflow"];

/** Formats that can hold gradients: e8m0 has no sign and no zero. */
export const holdsGradients = (name) => name in FORMATS && FORMATS[name].flavor !== "scale";

/** Exponents that bound the outcomes: first subnormal bin, first normal bin, last normal bin. */
export function bounds(f) {
  const max = real(f.maxCode, f);
  // From half of the smallest subnormal number on a value rounds up to it; the bin below it starts exactly there.
  return { subnormal: f.minExponent - f.mantissaBits - 1, normal: f.minExponent, last: floorLog2(max.num, max.den) };
}

/** What happens to the magnitudes of bin k: one of OUTCOMES. The top bin of a format counts as normal as a whole. */
export function outcome(k, f) {
  const { subnormal, normal, last } = bounds(f);
  return k < subnormal ? "zero" : k < normal ? "subnormal" : k <= last ? "normal" : "overflow";
}

/** Fractions of the nonzero values by outcome, after multiplication by 2**scale; all 0 for an empty histogram. */
export function shares(counts, scale, f) {
  const result = Object.fromEntries(OUTCOMES.map((name) => [name, 0]));
  let total = 0;
  for (const [k, count] of Object.entries(counts)) {
    result[outcome(Number(k) + scale, f)] += count;
    total += count;
  }
  for (const name of OUTCOMES) result[name] /= total || 1;
  return result;
}

/** A fraction as percent: exact 0 and 100 only where nothing, or everything, is meant. */
export function percent(fraction) {
  if (fraction === 0) return "0 %";
  if (fraction === 1) return "100 %";
  if (fraction < 0.0001) return "< 0.01 %";
  if (fraction > 0.9999) return "> 99.99 %";
  const value = 100 * fraction;
  return `${value.toFixed(value < 1 || value > 99 ? 2 : 1)} %`;
}
