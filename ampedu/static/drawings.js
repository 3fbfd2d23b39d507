// The two number lines of the bit explorer: the neighborhood to scale, and the ranges in powers of two.

import { fields, floorLog2, neighbors, real, subtract, timesPowerOfTwo, toNumber, ulpExponent } from "./floats.js";
import { approximate, exactDecimal } from "./numerals.js";
import { box, escape, label, line, picture, power, shape, ticks } from "./svg.js";

const AXIS = 56; // height of the axis of the neighborhood in pixels

/** log2 of a positive finite real. */
function log2(x) {
  const whole = floorLog2(x.num, x.den);
  return whole + Math.log2(toNumber(timesPowerOfTwo({ ...x, negative: false }, -whole)));
}

/** What the reader typed, short enough for a label. */
const typedName = (typed) => escape(typed.length > 22 ? "your number" : typed.replaceAll("-", "−"));

/**
 * The values around the stored one, to scale: ticks, rounding interval, ties, the typed number x.
 * Null where there is nothing to draw: NaN, and negative numbers in a format without sign.
 */
export function neighborhood(x, code, f, typed, width) {
  const finite = Number.isFinite(toNumber(real(code, f)));
  if (!finite && (x.kind === "nan" || (x.negative && !f.signBit))) return null;
  // Where the number overflowed, the picture stands at the largest value, with one more step for what comes after it.
  const anchor = finite ? code : (x.negative ? f.signBit : 0n) | f.maxCode;
  const center = real(anchor, f);
  const unit = ulpExponent(anchor, f);
  const position = (value) => toNumber(timesPowerOfTwo(subtract(value, center), -unit));
  const points = pointsAround(anchor, f, position, width < 400 ? 1 : width < 640 ? 2 : 3);
  const stored = points.findIndex((point) => (finite ? point.t === 0 : point.beyond));
  const [low, high] = [points[0].t - 0.6, points.at(-1).t + 0.6];
  const [left, right] = [14, width - 14];
  const place = (t) => left + ((t - low) / (high - low)) * (right - left);
  const tie = (index) => (points[index].t + points[index + 1].t) / 2;
  const from = place(stored > 0 ? tie(stored - 1) : low);
  const to = place(stored < points.length - 1 ? tie(stored) : high);
  const pieces = [box("band", from, to, AXIS - 15, 30), line("axis", left, AXIS, right, AXIS)];
  for (let index = 0; index < points.length - 1; index += 1) {
    pieces.push(line("tie", place(tie(index)), AXIS - 15, place(tie(index)), AXIS + 15));
  }
  pieces.push(...marks(points, stored, x, f, place));
  if (x.kind === "finite" && !(finite && position(x) === 0)) {
    pieces.push(typedMark(position(x), low, high, place, typedName(typed)));
  }
  const name = `Values of ${f.name} around ${finite ? "the stored one" : "its end"}, ${approximate(center, 8)}.`;
  return picture(width, 108, name, pieces);
}

/** The anchor and so many values on either side, in order; `t` counts ulps of the anchor, `beyond` is no value. */
function pointsAround(anchor, f, position, steps) {
  const points = [{ code: anchor, t: 0 }];
  for (const [side, sign] of [
    ["below", -1],
    ["above", 1],
  ]) {
    const add = (point) => points[sign > 0 ? "push" : "unshift"](point);
    for (let step = 1, at = anchor; step <= steps; step += 1) {
      at = neighbors(at, f)[side];
      if (at === null || fields(at, f).kind === "inf") {
        const t = points.at(sign > 0 ? -1 : 0).t + sign;
        if (f.hasInf) add({ t, beyond: sign > 0 ? "+∞" : "−∞" });
        else if (f.flavor === "fnuz" || (f.flavor === "scale" && sign > 0)) add({ t, beyond: "NaN" });
        break;
      }
      add({ code: at, t: position(real(at, f)) });
    }
  }
  return points;
}

function marks(points, stored, x, f, place) {
  const near = points.map((_, index) => index).filter((index) => Math.abs(index - stored) <= 1);
  const room = Math.min(...near.slice(1).map((index) => place(points[index].t) - place(points[index - 1].t)));
  const values = points.map((point) => (point.beyond ? null : real(point.code, f)));
  const names = distinct(values, near, x, room);
  return points.map((point, index) => {
    const at = place(point.t);
    const here = index === stored;
    const mark = here
      ? shape("circle", { class: "stored", cx: at, cy: AXIS, r: 6.5 })
      : line("tick", at, AXIS - 8, at, AXIS + 8);
    if (!near.includes(index)) return mark;
    const name = label(at, AXIS + 32, point.beyond ?? names[index], here ? "strong number" : "number");
    const relation = here ? "stored" : index < stored ? "next below" : "next above";
    return mark + name + (here || room > 72 ? label(at, AXIS + 47, relation, "small") : "");
  });
}

/** Rounded to so many digits, or exact where that is as short. */
function brief(x, digits) {
  const rounded = approximate(x, digits);
  const dyadic = (x.den & (x.den - 1n)) === 0n;
  const exact = dyadic && x.den < 1n << 64n ? exactDecimal(x) : rounded;
  return exact.length <= Math.max(8, rounded.length) ? exact : rounded;
}

/** Decimal texts just long enough to tell the values, and the typed number, apart; none where they would not fit. */
function distinct(values, near, x, room) {
  for (let digits = 4; digits <= 18; digits += 1) {
    const names = values.map((value) => (value ? brief(value, digits) : ""));
    const shown = near.map((index) => names[index]);
    if (Math.max(...shown.map((name) => name.length)) * 7.6 > room) break;
    const typed = x.kind === "finite" ? brief(x, digits) : null;
    const clear = near.every((index) => names[index] !== typed || subtract(x, values[index]).num === 0n);
    if (clear && new Set(shown).size === shown.length) return names;
  }
  return values.map(() => "");
}

function typedMark(t, low, high, place, name) {
  if (t > high) return label(place(high), 18, `${name} lies far to the right →`, "typed-label", "end");
  if (t < low) return label(place(low), 18, `← ${name} lies far to the left`, "typed-label", "start");
  const at = place(t);
  const part = (t - low) / (high - low);
  const arrow = shape("path", { class: "typed", d: `M${at} ${AXIS - 3}l-6 -13h12z` });
  const anchor = part < 0.15 ? "start" : part > 0.85 ? "end" : "middle";
  return arrow + line("typed-line", at, AXIS - 26, at, AXIS) + label(at, AXIS - 29, name, "typed-label", anchor);
}

/** Ranges of several formats on one axis of powers of two, and where the number stands. */
export function ranges(x, formats, typed, width) {
  const ends = formats.map((f) => ({ smallest: f.minExponent - f.mantissaBits, largest: log2(real(f.maxCode, f)) }));
  const smallest = Math.min(...ends.map((end) => end.smallest));
  const largest = Math.max(...ends.map((end) => end.largest));
  const margin = (largest - smallest) * 0.05 + 1;
  const [low, high] = [smallest - margin, largest + margin];
  const [left, right] = [14 + 7.6 * Math.max(...formats.map((f) => f.name.length)), width - 12];
  const [top, rowHeight, bar] = [24, 26, 16];
  const bottom = top + formats.length * rowHeight + 2;
  const place = (k) => left + ((k - low) / (high - low)) * (right - left);
  const pieces = formats.map((f, index) => {
    const y = top + index * rowHeight + (rowHeight - bar) / 2;
    const [from, normal, to] = [ends[index].smallest, f.minExponent, ends[index].largest].map(place);
    const name = label(left - 8, y + 12.5, f.name, index ? "" : "strong", "end");
    return name + box("subnormal", from, normal, y, bar) + box("normal", normal, Math.max(normal + 1, to), y, bar);
  });
  pieces.push(line("axis", left, bottom, right, bottom));
  for (const k of ticks(low, high, right - left, 52)) {
    pieces.push(line("tick", place(k), bottom, place(k), bottom + 5), label(place(k), bottom + 20, power(k)));
  }
  if (x.kind !== "nan") {
    const size = x.kind === "inf" ? Infinity : x.num === 0n ? -Infinity : log2(x);
    const at = place(Math.min(high, Math.max(low, size)));
    const name = x.negative ? `|${typedName(typed)}|` : typedName(typed);
    const text = size > high ? `${name} →` : size < low ? `← ${name}` : name;
    const anchor = at < left + 40 ? "start" : at > right - 40 ? "end" : "middle";
    pieces.push(line("typed-line", at, top - 4, at, bottom), label(at, 15, text, "typed-label", anchor));
  }
  const summary = formats.map(
    (f, index) => `${f.name} 2^${ends[index].smallest} to 2^${ends[index].largest.toFixed(1)}`,
  );
  return picture(width, bottom + 28, `Ranges in powers of two: ${summary.join("; ")}.`, pieces);
}
