// The rule of dynamic loss scaling, as ampedu/scaling/rule.py has it: a state is {scale, growth_tracker, growth_factor,
// backoff_factor, growth_interval}, a pattern is a string of "." (clean step) and "x" (inf or NaN in the gradients).

export const LONGEST = 60; // steps that still fit into one row; widgets/scaler.py has the same number

/** The state after one update: the product in float64, rounded to float32, as torch's kernel does it. */
export function update(state, foundInf) {
  if (foundInf) return { ...state, scale: Math.fround(state.scale * state.backoff_factor), growth_tracker: 0 };
  const count = state.growth_tracker + 1;
  if (count !== state.growth_interval) return { ...state, growth_tracker: count };
  const grown = Math.fround(state.scale * state.growth_factor);
  return { ...state, scale: Number.isFinite(grown) ? grown : state.scale, growth_tracker: 0 };
}

/** One row per step: the states before and after it, whether it was skipped, and what happened in words. */
export function simulate(start, pattern) {
  const rows = [];
  for (const sign of pattern) {
    const before = rows.at(-1)?.after ?? start;
    const foundInf = sign === "x";
    const after = update(before, foundInf);
    rows.push({ before, after, skipped: foundInf, event: event(before, after, foundInf) });
  }
  return rows;
}

export function event(before, after, foundInf) {
  const [old, now] = [numberText(before.scale), numberText(after.scale)];
  const moved = after.scale === before.scale ? `scale stays ${now}` : `scale ${old} → ${now}`;
  if (foundInf) return `inf or NaN found: step skipped, ${moved}`;
  const [count, interval] = [before.growth_tracker + 1, before.growth_interval];
  if (count === interval) {
    const refused = !Number.isFinite(Math.fround(before.scale * before.growth_factor));
    const why = refused ? ", since float32 ends before the next one" : ", the count starts again";
    return `clean step ${count} of ${interval}: ${moved}${why}`;
  }
  if (count > interval) return `clean step ${count}, past the interval ${interval}: ${moved} and cannot grow`;
  return `clean step ${count} of ${interval}: ${moved}`;
}

/** A scale as text: whole numbers below 2^24 in digits, larger and small powers of two as 2^k, others in six digits. */
export function numberText(scale) {
  if (!Number.isFinite(scale)) return Number.isNaN(scale) ? "nan" : scale < 0 ? "-inf" : "inf";
  if (Object.is(scale, -0)) return "-0";
  if (Number.isInteger(scale) && Math.abs(scale) < 2 ** 24) return String(scale);
  const exponent = Math.round(Math.log2(scale));
  if (2 ** exponent === scale && !(scale >= 1 / 16 && scale < 1)) return `2^${exponent}`;
  const [digits, power] = scale.toExponential(5).split("e");
  const e = Number(power);
  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (e >= -4 && e < 6) return trimmed(Number(`${digits}e${e}`).toFixed(Math.max(0, 5 - e)));
  return `${trimmed(digits)}e${e < 0 ? "-" : "+"}${String(Math.abs(e)).padStart(2, "0")}`;
}

/** The signs of a typed pattern, spaces and long tails left out; SyntaxError names what is no sign. */
export function patternOf(text) {
  const signs = text.replace(/\s/g, "").toLowerCase().replaceAll("0", ".").replaceAll("1", "x");
  const wrong = /[^.x]/.exec(signs);
  if (wrong) throw new SyntaxError(`“${wrong[0]}” is no sign: write . for a clean step and x for inf or NaN.`);
  if (!signs) throw new SyntaxError("Write at least one step: . for a clean one, x for inf or NaN.");
  if (signs.length > LONGEST) throw new SyntaxError(`${signs.length} steps are too many to show: at most ${LONGEST}.`);
  return signs;
}

const START = { scale: 65536, growth_tracker: 0, growth_factor: 2, backoff_factor: 0.5, growth_interval: 2000 };

export const PRESETS = [
  {
    name: "clean run",
    pattern: ".".repeat(40),
    start: START,
    story: "torch’s default interval is 2000: in 40 clean steps the tracker counts and the scale stays.",
  },
  {
    name: "one overflow",
    pattern: `${".".repeat(12)}x${".".repeat(27)}`,
    start: START,
    story: "One step is lost and the scale is halved. It takes 2000 clean steps in a row to get it back.",
  },
  {
    name: "every forward non-finite",
    pattern: "x".repeat(40),
    start: START,
    story: "When the forward pass itself gives inf or NaN, no scale helps. It is halved in every step, and has no floor.",
  },
  {
    name: "growth interval 5",
    pattern: `..........${"x.....".repeat(5)}`,
    start: { ...START, growth_interval: 5 },
    story: "These gradients overflow at 2^18. After every 5 clean steps the scale tries it, and each try costs a step.",
  },
];
