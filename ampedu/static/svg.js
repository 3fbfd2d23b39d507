// Pictures as SVG text, drawn at the width that they get, so that their letters keep their size.

const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
export const escape = (text) => String(text).replace(/[&<>"]/g, (character) => escapes[character]);

/** An SVG element as text: shape("line", {x1: 0, …}); numbers are rounded to a tenth of a pixel. */
export function shape(tag, attributes, content = "") {
  const text = (value) => (typeof value === "number" ? Math.round(value * 10) / 10 : escape(value));
  const list = Object.entries(attributes).map(([name, value]) => ` ${name}="${text(value)}"`);
  return `<${tag}${list.join("")}>${content}</${tag}>`;
}

/** A whole picture with its text alternative; the pieces are joined in order. */
export const picture = (width, height, label, pieces) =>
  shape("svg", { role: "img", "aria-label": label, width, height }, PATTERNS + pieces.join(""));

export const line = (name, x1, y1, x2, y2) => shape("line", { class: name, x1, y1, x2, y2 });

/** A box; nothing where it has no width. */
export const box = (name, from, to, y, height) =>
  to > from ? shape("rect", { class: name, x: from, y, width: to - from, height }) : "";

/** Text whose content is SVG already: pass what comes from a reader through escape(). */
export const label = (x, y, content, name = "", anchor = "middle") =>
  shape("text", { x, y, class: name, "text-anchor": anchor }, content);

/** Power of two: 2 with a raised exponent. */
export const power = (k) => `2${shape("tspan", { dy: "-0.45em", "font-size": "0.78em" }, String(k).replace("-", "−"))}`;

/** Powers of two that leave at least so many pixels between the ticks of an axis. */
export function ticks(low, high, pixels, least) {
  const wanted = ((high - low) / pixels) * least;
  const step = 2 ** Math.max(0, Math.ceil(Math.log2(wanted)));
  const list = [];
  for (let k = Math.ceil(low / step) * step; k <= high; k += step) list.push(k);
  return list;
}

/** Hatchings for SVG, as definitions; ids are global in a document but not in a shadow root. */
const PATTERNS = `<defs>
  <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
    <rect width="2" height="6" class="hatch-line"/></pattern>
  <pattern id="cross" width="7" height="7" patternUnits="userSpaceOnUse">
    <path d="M0 0L7 7M7 0L0 7" class="cross-line"/></pattern>
  <pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">
    <circle cx="2" cy="2" r="1.1" class="dot"/></pattern>
</defs>`;
