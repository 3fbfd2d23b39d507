// The two number lines of the bit explorer, as SVG text: the neighborhood to scale, and the ranges in powers of two.

import { fields, floorLog2, neighbors, real, subtract, timesPowerOfTwo, toNumber, ulpExponent } from "./floats.js";
import { approximate, exactDecimal } from "./numerals.js";
import { PATTERNS, escape, svgPower, ticks } from "./ui.js";

const svg = (width, height, label, content) =>
  `<svg role="img" aria-label="${escape(label)}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${PATTERNS}${content}</svg>`;
const text = (x, y, content, extra = "") => `<text x="${x.toFixed(1)}" y="${y}" ${extra}>${content}</text>`;
const middle = 'text-anchor="middle"';

/** log2 of a positive finite real. */
export function log2(x) {
  const whole = floorLog2(x.num, x.den);
  return whole + Math.log2(toNumber(timesPowerOfTwo({ ...x, negative: false }, -whole)));
}

/** The values around the stored one, to scale: ticks, rounding interval, ties, the typed number. */
export function neighborhood(x, code, f, typed, width) {
  const kind = fields(code, f).kind;
  const finite = kind !== "inf" && kind !== "nan";
  if (!finite && x.kind === "nan") return null;
  // Where the number overflowed, the picture stands at the largest value, with one more step for what comes after it.
  const anchor = finite ? code : (x.negative && f.signBit ? f.signBit : 0n) | f.maxCode;
  if (!finite && x.negative && !f.signBit) return null;
  const center = real(anchor, f);
  const unit = ulpExponent(anchor, f);
  const position = (value) => toNumber(timesPowerOfTwo(subtract(value, center), -unit));
  const steps = width < 400 ? 1 : width < 640 ? 2 : 3;
  const points = [{ code: anchor, t: 0 }];
  for (const side of ["below", "above"]) {
    let at = anchor;
    for (let step = 1; step <= steps; step += 1) {
      at = neighbors(at, f)[side];
      if (at !== null && fields(at, f).kind === "zero") at &= ~f.signBit; // −0 and 0 share a place
      const over = at === null || fields(at, f).kind === "inf";
      const add = (point) => points[side === "above" ? "push" : "unshift"](point);
      if (!over) add({ code: at, t: position(real(at, f)) });
      else if (f.hasInf || f.flavor === "fnuz") {
        const last = points.at(side === "above" ? -1 : 0).t;
        add({ t: last + (side === "above" ? 1 : -1), beyond: !f.hasInf ? "NaN" : side === "above" ? "+∞" : "−∞" });
      }
      if (over) break;
    }
  }
  const low = Math.min(...points.map((p) => p.t)) - 0.6;
  const high = Math.max(...points.map((p) => p.t)) + 0.6;
  const left = 14,
    right = width - 14,
    axis = 56;
  const place = (t) => left + ((t - low) / (high - low)) * (right - left);
  const storedAt = points.findIndex((p) => (finite ? p.t === 0 : p.beyond));
  const edge = (a, b, fallback) => (b ? (a.t + b.t) / 2 : fallback);
  const from = edge(points[storedAt], points[storedAt - 1], low);
  const to = edge(points[storedAt], points[storedAt + 1], high);
  const parts = [
    `<rect class="band" x="${place(from)}" y="${axis - 15}" width="${place(to) - place(from)}" height="30" rx="3"/>`,
    `<line class="axis" x1="${left}" x2="${right}" y1="${axis}" y2="${axis}"/>`,
  ];
  points.slice(1).forEach((point, index) => {
    const tie = place((point.t + points[index].t) / 2);
    parts.push(`<line class="tie" x1="${tie}" x2="${tie}" y1="${axis - 15}" y2="${axis + 15}"/>`);
  });
  parts.push(...labels(points, storedAt, x, f, place, axis));
  if (x.kind === "finite")
    parts.push(typedMark(position(x), low, high, place, typed, axis, equalStored(x, code, f, finite)));
  return svg(
    width,
    108,
    `Values of ${f.name} around the stored one. ${finite ? "Stored" : "Overflowed next to"} ${approximate(center, 8)}.`,
    parts.join(""),
  );
}

const equalStored = (x, code, f, finite) => finite && subtract(x, real(code, f)).num === 0n;

function labels(points, storedAt, x, f, place, axis) {
  const near = points.map((p, index) => index).filter((index) => Math.abs(index - storedAt) <= 1);
  const room = Math.min(...near.slice(1).map((index) => place(points[index].t) - place(points[index - 1].t)));
  const names = distinct(
    points.map((p) => (p.beyond ? null : real(p.code, f))),
    near,
    x,
    room,
  );
  return points.map((point, index) => {
    const at = place(point.t);
    const stored = index === storedAt;
    const mark = stored
      ? `<circle class="stored" cx="${at}" cy="${axis}" r="6.5"/>`
      : `<line class="tick" x1="${at}" x2="${at}" y1="${axis - 8}" y2="${axis + 8}"/>`;
    if (Math.abs(index - storedAt) > 1) return mark;
    const relation = stored ? "stored" : index < storedAt ? "next below" : "next above";
    const value = point.beyond ?? names[index];
    return (
      mark +
      (value ? text(at, axis + 32, value, `${middle} class="${stored ? "strong" : ""} number"`) : "") +
      (stored || room > 72 ? text(at, axis + 47, relation, `${middle} class="small"`) : "")
    );
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
    const clear = near.every(
      (index) => x.kind !== "finite" || names[index] !== brief(x, digits) || subtract(x, values[index]).num === 0n,
    );
    if (clear && new Set(shown).size === shown.length) return names;
  }
  return values.map(() => "");
}

function typedMark(t, low, high, place, typed, axis, same) {
  if (same) return "";
  const name = escape(typed.length > 22 ? "your number" : typed);
  const y = axis - 17;
  if (t < low || t > high) {
    const [at, arrow, anchor] =
      t > high
        ? [place(high), `${name} lies far to the right →`, "end"]
        : [place(low), `← ${name} lies far to the left`, "start"];
    return text(at, 18, arrow, `text-anchor="${anchor}" class="typed-label"`);
  }
  const at = place(t);
  const anchor = t - low < (high - low) * 0.15 ? "start" : high - t < (high - low) * 0.15 ? "end" : "middle";
  return (
    `<path class="typed" d="M${at} ${axis - 3}l-6 -13h12z"/><line class="typed-line" x1="${at}" x2="${at}" y1="${axis - 26}" y2="${axis}"/>` +
    text(at, y - 12, name, `text-anchor="${anchor}" class="typed-label"`)
  );
}

/** Ends of a format in powers of two: smallest positive value, smallest normal value, largest value. */
export const reach = (f) => ({
  smallest: f.minExponent - f.mantissaBits,
  normal: f.minExponent,
  largest: log2(real(f.maxCode, f)),
});

/** Ranges of several formats on one axis of powers of two, and where the number stands. */
export function ranges(x, formats, typed, width) {
  const ends = formats.map(reach);
  const low = Math.min(...ends.map((end) => end.smallest)),
    high = Math.max(...ends.map((end) => end.largest));
  const margin = (high - low) * 0.05 + 1;
  const left = 14 + 7.6 * Math.max(...formats.map((f) => f.name.length)),
    right = width - 12,
    top = 24,
    rowHeight = 26,
    bar = 16;
  const bottom = top + formats.length * rowHeight;
  const place = (k) => left + ((k - low + margin) / (high - low + 2 * margin)) * (right - left);
  const parts = formats.map((f, index) => {
    const { smallest, normal, largest } = ends[index];
    const y = top + index * rowHeight + (rowHeight - bar) / 2;
    const subnormal =
      normal > smallest
        ? `<rect class="subnormal" x="${place(smallest)}" y="${y}" width="${place(normal) - place(smallest)}" height="${bar}"/>`
        : "";
    return (
      text(left - 8, y + 12.5, f.name, `text-anchor="end" class="${index ? "" : "strong"}"`) +
      subnormal +
      `<rect class="normal" x="${place(normal)}" y="${y}" width="${Math.max(1, place(largest) - place(normal))}" height="${bar}"/>`
    );
  });
  parts.push(`<line class="axis" x1="${left}" x2="${right}" y1="${bottom + 2}" y2="${bottom + 2}"/>`);
  for (const k of ticks(low, high, right - left)) {
    const at = place(k);
    parts.push(
      `<line class="tick" x1="${at}" x2="${at}" y1="${bottom + 2}" y2="${bottom + 7}"/>`,
      text(at, bottom + 22, svgPower(k), middle),
    );
  }
  const name = escape(typed.length > 22 ? "your number" : typed);
  const size = x.kind !== "finite" ? Infinity : x.num === 0n ? -Infinity : log2(x);
  if (x.kind !== "nan") {
    const start = low - margin,
      end = high + margin;
    const at = place(Math.min(end, Math.max(start, size)));
    const label = size > end ? `${name} →` : size < start ? `← ${name}` : `|${name}|`.replace(/^\|([^-−].*)\|$/, "$1");
    const anchor = at < left + 40 ? "start" : at > right - 40 ? "end" : "middle";
    parts.push(
      `<line class="typed-line" x1="${at}" x2="${at}" y1="${top - 4}" y2="${bottom + 2}"/>`,
      text(at, 15, label, `text-anchor="${anchor}" class="typed-label"`),
    );
  }
  const summary = formats
    .map((f, index) => `${f.name} from 2^${ends[index].smallest} to about 2^${ends[index].largest.toFixed(1)}`)
    .join("; ");
  return svg(width, bottom + 30, `Ranges in powers of two: ${summary}.`, parts.join(""));
}
