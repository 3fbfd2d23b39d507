// Gradient-range explorer: a histogram of magnitudes in powers of two that a loss scale moves over formats' ranges.
// Traits: counts ({exponent: count}, bin k holds [2^k, 2^(k+1))), zeros (count), formats (names), scale_log2, label.

import { FORMATS } from "./floats.js";
import { OUTCOMES, bounds, holdsGradients, outcome, percent, shares } from "./histogram.js";
import { STYLE } from "./style.js";
import { box, label, line, picture, power, ticks } from "./svg.js";
import { h, key, onTraits, onWidth, openRoot, save, set, uniqueId, withPowers } from "./ui.js";

const TRAITS = ["counts", "zeros", "formats", "scale_log2", "label"];
const SCALE = { min: -8, max: 32 };
const MEANING = { zero: "become zero", subnormal: "subnormal", normal: "normal", overflow: "overflow" };
const HISTOGRAM = 150; // pixels

/** The plain data of the model, with what does not fit left out. */
function read(model) {
  const counts = Object.fromEntries(Object.entries(model.get("counts") ?? {}).filter(([, count]) => count > 0));
  const formats = (model.get("formats") ?? []).filter(holdsGradients);
  const scale = Math.round(Number(model.get("scale_log2")) || 0);
  return {
    counts,
    formats: formats.length ? formats : ["fp16"],
    label: model.get("label") || "gradients",
    zeros: Number(model.get("zeros")) || 0,
    scale: Math.max(SCALE.min, Math.min(SCALE.max, scale)),
  };
}

/** First and last power of two of the axis: it stays where it is while the scale moves the histogram. */
function axisOf(counts) {
  const bins = Object.keys(counts).map(Number);
  return { low: Math.min(-30, ...bins) - 2, high: Math.max(18, ...bins.map((k) => k + 18)) };
}

function draw({ counts, formats, scale, label: title }, chosen, width) {
  const { low, high } = axisOf(counts);
  const [left, right] = [14 + 7.6 * Math.max(...formats.map((name) => name.length)), width - 12];
  const [floor, rowHeight, bar] = [14 + HISTOGRAM, 26, 16];
  const bottom = floor + 10 + formats.length * rowHeight;
  const place = (k) => left + ((Math.max(low, Math.min(high, k)) - low) / (high - low)) * (right - left);
  const most = Math.max(1, ...Object.values(counts));
  const bars = Object.entries(counts).map(([bin, count]) => {
    const k = Number(bin) + scale;
    const height = Math.max(1.5, (count / most) * HISTOGRAM);
    return box(outcome(k, FORMATS[chosen]), place(k) + 0.5, place(k + 1) - 0.5, floor - height, height);
  });
  const cutsOf = (name) => {
    const { subnormal, normal, last } = bounds(FORMATS[name]);
    return [low, subnormal, normal, last + 1, high];
  };
  const bands = formats.flatMap((name, index) => {
    const y = floor + 10 + index * rowHeight;
    const cuts = cutsOf(name).map(place);
    const parts = OUTCOMES.map((kind, part) => {
      const [from, to] = [cuts[part], cuts[part + 1]];
      const room = to - from > kind.length * 6.4 + 8;
      return box(kind, from, to, y, bar) + (room ? label((from + to) / 2, y + 12, kind, "tag") : "");
    });
    return [label(left - 8, y + 12.5, name, name === chosen ? "strong" : "", "end"), ...parts];
  });
  const guides = cutsOf(chosen)
    .filter((k) => k > low && k < high)
    .map((k) => line("guide", place(k), 8, place(k), bottom));
  const marks = ticks(low, high, right - left, 44).map(
    (k) => line("tick", place(k), bottom, place(k), bottom + 5) + label(place(k), bottom + 20, power(k)),
  );
  const axes = [floor, bottom].map((y) => line("axis", left, y, right, y));
  const name = `Histogram of the magnitudes of ${title} in powers of two, over the ranges of ${formats.join(", ")}.`;
  return picture(width, bottom + 28, name, [...guides, ...bars, ...bands, ...axes, ...marks]);
}

/** What overflow gives in a format, in a word. */
const overflowName = (f) => ({ ieee: "inf", fnuz: "NaN" })[f.flavor] ?? "saturated";

function render({ model, el }) {
  let data = read(model);
  let chosen = data.formats[0];
  let width = 0; // measured when it changes: asking at every step would lay the page out once more
  const { root, close } = openRoot(el, STYLE, "Gradient-range explorer");
  const id = uniqueId("scale");

  const title = h("p", { class: "title" });
  const move = () => {
    data.scale = Number(slider.value);
    paint();
  };
  const keep = () => save(model, { scale_log2: data.scale });
  const slider = h("input", { type: "range", id, ...SCALE, step: 1, oninput: move, onchange: keep });
  const shown = h("output", { for: id });
  const choice = h("div", { class: "chips", role: "group", "aria-label": "Format that the bars are drawn for" });
  const frame = h("div", { class: "picture" });
  const keys = Object.entries(MEANING).map(([kind, meaning]) => key(kind, meaning));
  const figure = h("figure", {}, h("figcaption", {}, h("b", {}, "Values by power of two."), ...keys), frame);
  const summary = h("p", { class: "story" });
  const result = h("div", { class: "result", "aria-live": "polite", "aria-atomic": "true" }, summary);
  const [caption, body] = [h("caption"), h("tbody")];
  const header = ["format", ...Object.values(MEANING)].map((name) => h("th", { scope: "col" }, name));
  const table = h("table", { class: "compare" }, caption, h("thead", {}, h("tr", {}, ...header)), body);

  function paintChoice() {
    const chips = data.formats.map((name) => {
      const choose = () => {
        chosen = name;
        for (const chip of chips) set(chip, "aria-pressed", chip.textContent === name);
        paint();
      };
      return h("button", { type: "button", class: "chip", "aria-pressed": name === chosen, onclick: choose }, name);
    });
    choice.replaceChildren(h("span", {}, "bars drawn for"), ...chips);
  }

  function row(name) {
    const parts = shares(data.counts, data.scale, FORMATS[name]);
    const cells = OUTCOMES.map((kind) => {
      const note = kind === "overflow" && parts.overflow > 0 ? ` (${overflowName(FORMATS[name])})` : "";
      return h("td", { class: "number", "data-label": MEANING[kind] }, percent(parts[kind]) + note);
    });
    return h("tr", {}, h("th", { scope: "row" }, name === chosen ? h("b", {}, name) : name), ...cells);
  }

  function sentence(scaleText) {
    const { zero, subnormal, overflow } = shares(data.counts, data.scale, FORMATS[chosen]);
    const lost = `${percent(zero)} of the values become zero, ${percent(subnormal)} are subnormal`;
    return `Scaled by ${scaleText}, in ${chosen}: ${lost}, ${percent(overflow)} overflow.`;
  }

  function paint() {
    const { counts, formats, scale, zeros } = data;
    const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
    const scaleText = `2^(${String(scale).replace("-", "−")})`;
    title.textContent = data.label;
    slider.value = scale;
    set(slider, "aria-valuetext", `2 to the power ${scale}`);
    shown.replaceChildren(...withPowers(scaleText), ` = ${scale < 0 ? `1/${2 ** -scale}` : 2 ** scale}`);
    if (width) frame.innerHTML = draw(data, chosen, width);
    summary.replaceChildren(...withPowers(total ? sentence(scaleText) : "No values yet."));
    const [all, before] = [total, zeros].map((count) => count.toLocaleString("en-US"));
    caption.textContent = `Share of the ${all} nonzero values; ${before} more were zero before`;
    body.replaceChildren(...formats.map(row));
  }

  root.append(
    title,
    h("div", { class: "slider" }, h("label", { for: id }, "loss scale"), slider, shown),
    choice,
    figure,
    result,
    table,
  );
  paintChoice();
  paint();
  const follow = () => {
    data = read(model);
    if (!data.formats.includes(chosen)) chosen = data.formats[0];
    paintChoice();
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
