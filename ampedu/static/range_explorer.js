// Gradient-range explorer: a histogram of magnitudes in powers of two, moved by a loss scale over the ranges of formats.
// Traits: counts ({exponent: count}, bin k holds [2^k, 2^(k+1))), zeros (count), formats (names), scale_log2, label.

import { FORMATS } from "./floats.js";
import { OUTCOMES, bounds, holdsGradients, outcome, percent, shares } from "./histogram.js";
import { STYLE } from "./style.js";
import {
  PATTERNS,
  escape,
  h,
  key,
  onTraits,
  onWidth,
  openRoot,
  save,
  set,
  svgPower,
  ticks,
  uniqueId,
  withPowers,
} from "./ui.js";

const TRAITS = ["counts", "zeros", "formats", "scale_log2", "label"];
const SCALE = { min: -8, max: 32 };
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

function draw({ counts, formats, scale, label }, chosen, width) {
  const { low, high } = axisOf(counts);
  const left = 14 + 7.6 * Math.max(...formats.map((name) => name.length)),
    right = width - 12;
  const floor = 14 + HISTOGRAM,
    rowHeight = 26,
    bar = 16;
  const place = (k) => left + ((Math.max(low, Math.min(high, k)) - low) / (high - low)) * (right - left);
  const box = (name, from, to, y, height) =>
    to <= from
      ? ""
      : `<rect class="${name}" x="${from.toFixed(1)}" y="${y.toFixed(1)}" width="${(to - from).toFixed(1)}" height="${height.toFixed(1)}"/>`;
  const most = Math.max(1, ...Object.values(counts));
  const bars = Object.entries(counts).map(([bin, count]) => {
    const k = Number(bin) + scale;
    const height = Math.max(1.5, (count / most) * HISTOGRAM);
    return box(outcome(k, FORMATS[chosen]), place(k) + 0.5, place(k + 1) - 0.5, floor - height, height);
  });
  const bands = formats.map((name, index) => {
    const { subnormal, normal, last } = bounds(FORMATS[name]);
    const y = floor + 10 + index * rowHeight;
    const cuts = [low, subnormal, normal, last + 1, high].map(place);
    const pieces = OUTCOMES.map((kind, part) => {
      const [from, to] = [cuts[part], cuts[part + 1]];
      const room = to - from > kind.length * 6.4 + 8;
      const x = (from + to) / 2;
      return (
        box(kind, from, to, y, bar) +
        (room ? `<text class="tag" text-anchor="middle" x="${x}" y="${y + 12}">${kind}</text>` : "")
      );
    });
    return `<text text-anchor="end" x="${left - 8}" y="${y + 12.5}" class="${name === chosen ? "strong" : ""}">${name}</text>${pieces.join("")}`;
  });
  const bottom = floor + 10 + formats.length * rowHeight;
  const marks = ticks(low, high, right - left, 44).map(
    (k) =>
      `<line class="tick" x1="${place(k)}" x2="${place(k)}" y1="${bottom}" y2="${bottom + 5}"/>` +
      `<text text-anchor="middle" x="${place(k)}" y="${bottom + 20}">${svgPower(k)}</text>`,
  );
  const { subnormal, normal, last } = bounds(FORMATS[chosen]);
  const guides = [subnormal, normal, last + 1]
    .filter((k) => k > low && k < high)
    .map((k) => `<line class="guide" x1="${place(k)}" x2="${place(k)}" y1="8" y2="${bottom}"/>`);
  const name = `Histogram of the magnitudes of ${label} in powers of two, over the ranges of ${formats.join(", ")}.`;
  return `<svg role="img" aria-label="${escape(name)}" width="${width}" height="${bottom + 28}" viewBox="0 0 ${width} ${bottom + 28}">
    ${PATTERNS}${guides.join("")}${bars.join("")}<line class="axis" x1="${left}" x2="${right}" y1="${floor}" y2="${floor}"/>
    ${bands.join("")}<line class="axis" x1="${left}" x2="${right}" y1="${bottom}" y2="${bottom}"/>${marks.join("")}</svg>`;
}

function render({ model, el }) {
  let data = read(model);
  let chosen = data.formats[0];
  let width = 0;
  const { root, close } = openRoot(el, STYLE, "Gradient-range explorer");
  const sliderId = uniqueId("scale");

  const title = h("h3");
  const slider = h("input", {
    type: "range",
    id: sliderId,
    min: SCALE.min,
    max: SCALE.max,
    step: 1,
    oninput: () => {
      data.scale = Number(slider.value);
      paint();
    },
    onchange: () => save(model, { scale_log2: data.scale }),
  });
  const shown = h("output", { for: sliderId });
  const choice = h("div", { class: "chips", role: "group", "aria-label": "Format that the bars are drawn for" });
  const picture = h("div", { class: "picture" });
  const figure = h(
    "figure",
    {},
    h(
      "figcaption",
      {},
      h("b", {}, "Values by power of two."),
      key("zero", "become zero"),
      key("subnormal", "subnormal, lose bits"),
      key("normal", "normal"),
      key("overflow", "overflow"),
    ),
    picture,
  );
  const summary = h("p", { class: "story" });
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
        ...["format", "become zero", "subnormal", "normal", "overflow"].map((name) => h("th", { scope: "col" }, name)),
      ),
    ),
    body,
  );

  function paintChoice() {
    choice.replaceChildren(
      h("span", {}, "bars drawn for"),
      ...data.formats.map((name) =>
        h(
          "button",
          {
            type: "button",
            class: "chip",
            "aria-pressed": name === chosen,
            onclick: (event) => {
              chosen = name;
              for (const chip of choice.querySelectorAll("button"))
                set(chip, "aria-pressed", chip === event.currentTarget);
              paint();
            },
          },
          name,
        ),
      ),
    );
  }

  function paint() {
    const { counts, formats, scale, label, zeros } = data;
    const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
    title.textContent = label;
    slider.value = scale;
    const power = `2^(${String(scale).replace("-", "−")})`;
    set(slider, "aria-valuetext", `2 to the power ${scale}`);
    shown.replaceChildren(...withPowers(power), ` = ${scale < 0 ? `1/${2 ** -scale}` : 2 ** scale}`);
    if (width) picture.innerHTML = draw(data, chosen, width);
    const parts = shares(counts, scale, FORMATS[chosen]);
    summary.replaceChildren(
      ...withPowers(
        total
          ? `Scaled by ${power}, in ${chosen}: ${percent(parts.zero)} of the values become zero, ${percent(parts.subnormal)} are subnormal, ${percent(parts.overflow)} overflow.`
          : "No values yet.",
      ),
    );
    table.caption.textContent = `Share of the ${total.toLocaleString("en-US")} nonzero values; ${zeros.toLocaleString("en-US")} more were zero before`;
    body.replaceChildren(
      ...formats.map((name) => {
        const row = shares(counts, scale, FORMATS[name]);
        const cells = OUTCOMES.map((kind) =>
          h(
            "td",
            { class: "number", "data-label": kind === "zero" ? "become zero" : kind },
            percent(row[kind]) +
              (kind === "overflow" && row[kind] > 0
                ? ` (${{ ieee: "inf", fnuz: "NaN" }[FORMATS[name].flavor] ?? "saturated"})`
                : ""),
          ),
        );
        return h("tr", {}, h("th", { scope: "row" }, name === chosen ? h("b", {}, name) : name), ...cells);
      }),
    );
  }

  root.append(
    title,
    h("div", { class: "slider" }, h("label", { for: sliderId }, "loss scale"), slider, shown),
    choice,
    figure,
    h("div", { class: "result", "aria-live": "polite", "aria-atomic": "true" }, summary),
    table,
  );
  paintChoice();
  paint();
  const stops = [
    close,
    onWidth(picture, (measured) => {
      width = measured;
      paint();
    }),
    onTraits(model, TRAITS, () => {
      data = read(model);
      if (!data.formats.includes(chosen)) chosen = data.formats[0];
      paintChoice();
      paint();
    }),
  ];
  return () => stops.forEach((stop) => stop());
}

export default { render };
