// The look of both explorers. Colors: Okabe and Ito (2008), each with a border style or a hatching that says the same.

export const STYLE = /* css */ `
:host { display: block; }
[hidden] { display: none !important; }
* { box-sizing: border-box; }
.card {
  color-scheme: light;
  --ink: #1b1f24; --muted: #57606a; --line: #d0d7de; --soft: #f4f6f8; --paper: #ffffff; --focus: #0b57d0;
  --sign: #cc79a7; --exponent: #56b4e9; --mantissa: #e69f00;
  --sign-edge: #9c4678; --exponent-edge: #0b6aa8; --mantissa-edge: #946300;
  --sign-tint: #faf0f5; --exponent-tint: #eef7fd; --mantissa-tint: #fdf5e4;
  --typed: #b34700; --band: #fdf0d0; --range: #56b4e9; --danger: #b3261e;
  color: var(--ink); background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 16px; max-width: 1100px; container-type: inline-size;
  font: 14px/1.45 var(--jp-ui-font-family, system-ui, -apple-system, "Segoe UI", sans-serif);
}
.card[data-theme="dark"] {
  color-scheme: dark;
  --ink: #e6e9ed; --muted: #a3adb8; --line: #434b55; --soft: #242a31; --paper: #171b20; --focus: #8ab4f8;
  --sign-edge: #d992b8; --exponent-edge: #6cc0f0; --mantissa-edge: #ecae2b;
  --sign-tint: #2c2128; --exponent-tint: #1b2932; --mantissa-tint: #2d2615;
  --typed: #ff9d5c; --band: #3a2f12; --range: #3585b5; --danger: #ff8a80;
}
p { margin: 0; }
.title { font-size: 15px; font-weight: 600; }
button, select, input { font: inherit; color: inherit; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; border-radius: 4px; }
sup { font-size: 0.72em; line-height: 0; }
.hidden {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap;
}
.number, code { font-family: var(--jp-code-font-family, ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace); }

.controls { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: end; }
.controls label { display: grid; gap: 2px; color: var(--muted); font-size: 12px; min-width: 0; }
.controls .wide { flex: 1 1 180px; }
.controls .code { flex: 1 1 130px; }
select, input[type="text"], input[type="number"] {
  width: 100%; min-width: 0; height: 34px; padding: 0 8px; background: var(--soft); color: var(--ink);
  border: 1px solid var(--muted); border-radius: 6px; font-size: 14px;
}
input[aria-invalid="true"] { border: 2px solid var(--danger); }
.error { color: var(--danger); margin-top: 6px; }
.error:empty { display: none; }
.chips { display: flex; flex-wrap: wrap; gap: 6px; margin-top: 10px; align-items: center; }
.chips > span { color: var(--muted); font-size: 12px; }
.chip, .step, .plain {
  min-height: 28px; padding: 2px 11px; border: 1px solid var(--line); border-radius: 14px; background: var(--soft);
  cursor: pointer; font-size: 13px;
}
.chip:hover, .step:hover:enabled, .plain:hover { border-color: var(--ink); }
.chip[aria-pressed="true"] { background: var(--ink); color: var(--paper); border-color: var(--ink); }

.bits { display: flex; flex-wrap: wrap; gap: 14px 18px; margin-top: 16px; }
.field { min-width: 0; --edge: var(--sign-edge); --fill: var(--sign); --tint: var(--sign-tint); }
.field.exponent { --edge: var(--exponent-edge); --fill: var(--exponent); --tint: var(--exponent-tint); }
.field.mantissa { --edge: var(--mantissa-edge); --fill: var(--mantissa); --tint: var(--mantissa-tint); }
.caption { display: flex; gap: 6px; align-items: baseline; white-space: nowrap; font-weight: 600; padding-bottom: 2px; }
.caption small { font-weight: 400; color: var(--muted); }
.row { display: flex; flex-wrap: wrap; gap: 4px; padding-top: 7px; border-top: 4px double var(--edge); }
.exponent .row { border-top: 3px solid var(--edge); padding-top: 8px; }
.mantissa .row { border-top: 3px dashed var(--edge); padding-top: 8px; }
.bit {
  width: 30px; height: 38px; padding: 0; border: 1.5px solid var(--edge); border-radius: 6px; background: var(--tint);
  color: var(--ink); font-size: 17px; cursor: pointer; font-weight: 400;
}
.bit[aria-pressed="true"] { background: var(--fill); color: #14171a; font-weight: 700; }
.bit:hover { box-shadow: 0 0 0 2px var(--edge); }
.many .row { gap: 2px; }
.many .bit { width: 24px; height: 30px; font-size: 14px; }
.note { margin-top: 6px; color: var(--muted); font-size: 13px; overflow-wrap: anywhere; max-width: 34em; }
.sign .note { max-width: 5em; }
.hint { margin-top: 8px; font-size: 12px; color: var(--muted); }
kbd { font: inherit; border: 1px solid var(--line); border-radius: 4px; padding: 0 4px; background: var(--soft); }

.result { margin-top: 14px; padding: 12px 14px; border-radius: 8px; background: var(--soft); }
.equation { display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: baseline; }
.formula { font-size: 16px; overflow-wrap: anywhere; }
.formula span { padding-bottom: 1px; }
.formula .sign { border-bottom: 4px double var(--sign-edge); }
.formula .exponent { border-bottom: 2px solid var(--exponent-edge); }
.formula .mantissa { border-bottom: 2px dashed var(--mantissa-edge); }
.value { font-size: 25px; line-height: 1.25; font-weight: 600; overflow-wrap: anywhere; }
.value.long { font-size: 18px; }
.story { margin-top: 6px; font-size: 15px; min-height: 1.45em; max-width: 62em; }
.facts { display: flex; flex-wrap: wrap; gap: 10px 24px; margin: 14px 0 0; }
.facts > div { min-width: 0; }
dt { color: var(--muted); font-size: 12px; }
dd { margin: 0; overflow-wrap: anywhere; }
.step { border-radius: 6px; text-align: left; max-width: 100%; overflow-wrap: anywhere; padding: 2px 8px; }
.step:disabled { cursor: default; color: var(--muted); border-style: dotted; }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--muted); font-size: 13px; }
.digits { overflow-wrap: anywhere; margin-top: 4px; }

.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); gap: 0 28px; }
figure { margin: 16px 0 0; min-width: 0; }
figcaption { color: var(--muted); font-size: 12.5px; margin-bottom: 4px; }
figcaption b { color: var(--ink); font-weight: 600; }
.picture { min-width: 0; overflow: hidden; }
.key { display: inline-block; margin-left: 8px; }
.swatch {
  display: inline-block; width: 1.6em; height: 0.85em; vertical-align: -0.05em;
  border: 1px solid var(--exponent-edge);
}
.swatch.normal { background: var(--range); }
.swatch.subnormal { background: repeating-linear-gradient(135deg, var(--range) 0 2px, transparent 2px 5px); }
.swatch.zero {
  border-color: var(--muted);
  background: radial-gradient(circle, var(--muted) 1px, transparent 1.4px) 0 0 / 5px 5px;
}
.swatch.overflow {
  border-color: var(--danger);
  background: repeating-linear-gradient(45deg, var(--danger) 0 1px, transparent 1px 5px),
    repeating-linear-gradient(135deg, var(--danger) 0 1px, transparent 1px 5px);
}
.swatch.band { background: var(--band); border: 1px dashed var(--mantissa-edge); }
svg { display: block; overflow: visible; font-size: 12px; }
svg text { fill: var(--ink); }
svg .small { fill: var(--muted); font-size: 11px; }
svg .strong { font-weight: 700; }
svg .number { font-size: 12px; }
svg .tag { font-size: 11px; font-weight: 600; paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.guide { stroke: var(--muted); stroke-dasharray: 2 4; }
.axis { stroke: var(--muted); stroke-width: 1.5; }
.tick { stroke: var(--ink); stroke-width: 2; }
.band { fill: var(--band); }
.tie { stroke: var(--mantissa-edge); stroke-width: 1.5; stroke-dasharray: 4 3; }
.stored { fill: var(--exponent-edge); stroke: var(--paper); stroke-width: 2; }
.typed { fill: var(--typed); }
.typed-line { stroke: var(--typed); stroke-width: 2; }
svg .typed-label { fill: var(--typed); font-weight: 600; }
.hatch-line { fill: var(--range); }
.cross-line { stroke: var(--danger); stroke-width: 1.3; fill: none; }
.dot { fill: var(--muted); }
rect.normal { fill: var(--range); stroke: var(--exponent-edge); }
rect.subnormal { fill: url(#hatch); stroke: var(--exponent-edge); }
rect.zero { fill: url(#dots); stroke: var(--muted); }
rect.overflow { fill: url(#cross); stroke: var(--danger); }

table { width: 100%; border-collapse: collapse; margin-top: 4px; }
caption { text-align: left; font-weight: 600; padding: 16px 0 4px; }
th { text-align: left; font-weight: 400; color: var(--muted); font-size: 12px; }
th, td {
  padding: 5px 10px 5px 0; border-top: 1px solid var(--line); vertical-align: baseline; overflow-wrap: anywhere;
}
thead th { border-top: 0; padding-bottom: 2px; }
th[scope="row"] { color: var(--ink); font-size: 14px; }
.mini { display: inline-flex; flex-wrap: wrap; gap: 2px 8px; font-size: 13px; }
.mini span { border-bottom: 4px double var(--sign-edge); overflow-wrap: anywhere; }
.mini .exponent { border-bottom: 2px solid var(--exponent-edge); }
.mini .mantissa { border-bottom: 2px dashed var(--mantissa-edge); }
.plain { border-radius: 6px; padding: 1px 8px; }
.slider { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; margin-top: 10px; }
.slider input { flex: 1 1 220px; min-width: 0; height: 28px; accent-color: var(--focus); }
.slider output { min-width: 12em; font-weight: 600; }
.add { display: flex; flex-wrap: wrap; gap: 8px; margin-top: 8px; align-items: center; }
.add select { width: auto; height: 30px; }
.title + .controls { margin-top: 10px; }
.steps { display: grid; }
.cell {
  height: 30px; min-width: 0; padding: 0; border: 1px solid var(--line); border-radius: 4px; background: var(--soft);
  cursor: pointer; font-size: 14px; line-height: 1; color: var(--muted);
}
.cell[aria-pressed="true"] { background: var(--danger); border-color: var(--danger); color: var(--paper); font-weight: 700; }
.cell:hover, .cell[data-chosen] { border-color: var(--ink); box-shadow: 0 0 0 1px var(--ink); position: relative; }
.controls .pattern { flex: 1 1 100%; margin-top: 10px; }
.cross { color: var(--danger); font-weight: 700; }
.scale-line { fill: none; stroke: var(--exponent-edge); stroke-width: 2.5; stroke-linejoin: round; }
.skip, .skip-edge { fill: none; stroke: var(--danger); stroke-width: 2.5; stroke-linecap: round; }
.skip-edge { stroke: var(--paper); stroke-width: 5.5; }
.count { fill: var(--range); }
@container (max-width: 620px) {
  .steps { display: flex; flex-wrap: wrap; gap: 3px; margin: 12px 0 0 !important; }
  .cell { width: 30px; height: 34px; }
  .compare thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  .compare, .compare caption, .compare tbody, .compare tr { display: block; }
  .compare td, .compare th[scope="row"] { display: block; }
  .compare tr { border-top: 1px solid var(--line); padding: 8px 0; }
  .compare td, .compare th[scope="row"] { border: 0; padding: 2px 0; }
  .compare td::before { content: attr(data-label) " "; color: var(--muted); font-size: 12px; }
}
@container (min-width: 760px) {
  .bits:not(.many) .bit { width: 36px; height: 44px; font-size: 19px; }
}
@container (max-width: 380px) {
  .bit { width: 27px; height: 34px; }
  .value { font-size: 20px; }
}
@media (prefers-reduced-motion: no-preference) {
  .bit, .chip { transition: background-color 0.12s, box-shadow 0.12s; }
}
@media (forced-colors: active) {
  .bit[aria-pressed="true"] { border-width: 4px; forced-color-adjust: none; }
}
`;
