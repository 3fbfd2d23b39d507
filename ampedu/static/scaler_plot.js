// The picture of the loss-scale simulator: the scale and the skipped steps above, the growth tracker below.

import { label, line, picture, power, shape, ticks } from "./svg.js";

export const MARGIN = { left: 44, right: 6 }; // pixels; the row of steps stands between the same margins
const [SCALE_TOP, SCALE_HIGH, GAP, TRACKER_HIGH] = [20, 150, 32, 64];

const drawable = (scale) => scale > 0 && Number.isFinite(scale);

/** Exponents of the axis: one more at both ends than the scales need. */
function rangeOf(scales) {
  const known = scales.filter(drawable).map(Math.log2);
  if (!known.length) return { low: -1, high: 1 };
  return { low: Math.floor(Math.min(...known)) - 1, high: Math.ceil(Math.max(...known)) + 1 };
}

export function draw(rows, chosen, width, words) {
  const [left, right] = [MARGIN.left, width - MARGIN.right];
  const floor = SCALE_TOP + SCALE_HIGH;
  const bottom = floor + GAP + TRACKER_HIGH;
  const column = (right - left) / rows.length;
  const x = (index) => left + index * column;
  const { low, high } = rangeOf(rows.map((row) => row.before.scale));
  const y = (scale) => floor - ((Math.log2(scale) - low) / (high - low)) * SCALE_HIGH;

  const band = shape("rect", { class: "band", x: x(chosen), y: SCALE_TOP, width: column, height: bottom - SCALE_TOP });
  const grid = ticks(low, high, SCALE_HIGH, 26).map((k) => {
    const at = y(2 ** k);
    return (k > low ? line("guide", left, at, right, at) : "") + label(left - 7, at + 4, power(k), "", "end");
  });
  // One path: the pen is lifted where a scale is 0, inf or NaN.
  let pen = "M";
  const path = rows
    .map(({ before: { scale } }, index) => {
      if (!drawable(scale)) return ((pen = "M"), "");
      const stretch = `${pen}${x(index).toFixed(1)} ${y(scale).toFixed(1)}H${x(index + 1).toFixed(1)}`;
      pen = "L";
      return stretch;
    })
    .join("");
  const size = Math.max(3.5, Math.min(6, column * 0.32));
  const crosses = rows.map(({ before: { scale }, skipped }, index) => {
    if (!skipped) return "";
    const [cx, cy] = [x(index + 0.5), drawable(scale) ? y(scale) : floor];
    const d = `M${cx - size} ${cy - size}l${2 * size} ${2 * size}m0 ${-2 * size}l${-2 * size} ${2 * size}`;
    return shape("path", { class: "skip-edge", d }) + shape("path", { class: "skip", d });
  });

  const interval = rows[0].before.growth_interval;
  const most = Math.max(1, ...rows.map((row) => row.after.growth_tracker));
  const shown = interval <= 4 * most ? Math.max(interval, most) : most;
  const height = (count) => (Math.max(0, count) / shown) * TRACKER_HIGH;
  const bars = rows.map(({ after }, index) => {
    const high = height(after.growth_tracker);
    return shape("rect", { class: "count", x: x(index) + 0.5, y: bottom - high, width: column - 1, height: high });
  });
  const goal =
    interval <= shown
      ? line("tie", left, bottom - height(interval), right, bottom - height(interval)) +
        label(right, bottom - height(interval) - 5, `interval ${interval}`, "tag", "end")
      : "";
  const counts = [0, shown].map((count) => label(left - 7, bottom - height(count) + 4, String(count), "", "end"));
  const titles = [
    label(left + 4, SCALE_TOP - 6, "scale of the step", "small", "start"),
    label(left + 4, bottom - TRACKER_HIGH - 5, "growth tracker", "small", "start"),
  ];
  const axes = [floor, bottom].map((at) => line("axis", left, at, right, at));
  const every = ticks(0, rows.length - 1, right - left, 34);
  const marks = every.map((k) => label(x(k + 0.5), bottom + 16, String(k), "small"));
  marks.push(label(left - 7, bottom + 16, "step", "small", "end"));
  const curve = shape("path", { class: "scale-line", d: path });
  const pieces = [band, ...grid, ...bars, goal, ...counts, ...axes, curve, ...crosses, ...titles, ...marks];
  return picture(width, bottom + 22, words, pieces);
}
