// Numbers as text and text as numbers: what a reader types, exact decimals, hex floats, formulas.

import { fields, floorLog2, real } from "./floats.js";

const TOKEN = /0x[0-9a-f]*\.?[0-9a-f]*(?:p[+-]?\d+)?|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[-+*/^]|\S/g;
const LIMIT = 5000; // larger powers would only make the page slow: every format here ends long before

/** The exact real that a text such as 0.1, 1/3, 2^-24, 1 + 2^-11, 0x1.8p-3, inf or nan means. Throws SyntaxError. */
export function parseReal(text) {
  const source = text
    .trim()
    .toLowerCase()
    .replace(/_/g, "")
    .replace(/[−–]/g, "-")
    .replace(/[×·]/g, "*")
    .replace(/\*\*/g, "^");
  const word = /^([+-]?)(inf|infinity|∞|nan)$/.exec(source);
  if (word) return word[2] === "nan" ? { kind: "nan" } : { kind: "inf", negative: word[1] === "-" };
  const tokens = source.match(TOKEN) || [];
  let at = 0;
  const [num, den] = sum();
  if (at < tokens.length) throw unreadable(tokens[at]);
  const negative = num < 0n || (num === 0n && /^-[0.]+$/.test(source));
  return { kind: "finite", negative, num: num < 0n ? -num : num, den };

  function sum() {
    let total = product();
    while (tokens[at] === "+" || tokens[at] === "-") {
      const sign = tokens[at++] === "-" ? -1n : 1n;
      const [num, den] = product();
      total = [total[0] * den + sign * num * total[1], total[1] * den];
    }
    return total;
  }
  function product() {
    let total = signed();
    while (tokens[at] === "*" || tokens[at] === "/") {
      const divide = tokens[at++] === "/";
      const [num, den] = signed();
      if (divide && num === 0n) throw new SyntaxError("Division by zero has no real value; type inf or nan for those.");
      const sign = num < 0n ? -1n : 1n; // a denominator stays positive
      total = divide ? [total[0] * den * sign, total[1] * num * sign] : [total[0] * num, total[1] * den];
    }
    return total;
  }
  function signed() {
    const sign = tokens[at] === "-" ? -1n : 1n;
    if (tokens[at] === "-" || tokens[at] === "+") at += 1;
    const [num, den] = power();
    return [sign * num, den];
  }
  function power() {
    const [num, den] = literal(tokens[at++]);
    if (tokens[at] !== "^") return [num, den];
    at += 1;
    const negative = tokens[at] === "-";
    if (tokens[at] === "-" || tokens[at] === "+") at += 1;
    const token = tokens[at++];
    if (!/^\d+$/.test(token ?? "")) throw new SyntaxError("A power needs a whole number as exponent, as in 2^-24.");
    within(Number(token) * Math.max(1, num.toString(2).length - 1, den.toString(2).length - 1));
    if (negative && num === 0n) throw new SyntaxError("Zero to a negative power has no value; type inf for infinity.");
    const result = [num ** BigInt(token), den ** BigInt(token)];
    return negative ? result.reverse() : result;
  }
}

const EXAMPLES = "Type a number such as 0.1, 1/3, 2^-24, 1 + 2^-11, 0x1.8p-3, inf or nan.";
const unreadable = (token) =>
  new SyntaxError(`${token === undefined ? "The number is not complete." : `Cannot read “${token}”.`} ${EXAMPLES}`);

function within(exponent) {
  if (Math.abs(exponent) <= LIMIT) return;
  throw new SyntaxError(`No format here reaches exponents beyond ±${LIMIT}. Type inf for infinity.`);
}

function literal(token) {
  const hex = /^0x([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?\d+))?$/.exec(token ?? "");
  if (hex && hex[1] + hex[2]) return shift(BigInt(`0x${hex[1]}${hex[2]}`), 2n, Number(hex[3] ?? 0) - 4 * hex[2].length);
  const decimal = /^(\d*)\.?(\d*)(?:e([+-]?\d+))?$/.exec(token ?? "");
  if (!decimal || !(decimal[1] + decimal[2])) throw unreadable(token);
  return shift(BigInt(decimal[1] + decimal[2]), 10n, Number(decimal[3] ?? 0) - decimal[2].length);
}

function shift(digits, base, exponent) {
  within(exponent);
  const factor = base ** BigInt(Math.abs(exponent));
  return exponent >= 0 ? [digits * factor, 1n] : [digits, factor];
}

const special = (x) => (x.kind === "nan" ? "NaN" : x.kind === "inf" ? (x.negative ? "−∞" : "+∞") : null);
const minus = (x) => (x.negative ? "−" : "");

/** Decimal point into a digit string whose first digit is worth 10**lead; scientific where plain would be long. */
function placePoint(digits, lead, plainTo) {
  if (lead >= 0 && lead <= plainTo) {
    const whole = digits.slice(0, lead + 1).padEnd(lead + 1, "0");
    return whole + (digits.length > lead + 1 ? "." + digits.slice(lead + 1) : "");
  }
  if (lead < 0 && lead >= -6) return "0." + "0".repeat(-lead - 1) + digits;
  return digits[0] + (digits.length > 1 ? "." + digits.slice(1) : "") + "e" + String(lead).replace("-", "−");
}

/** Every digit of a dyadic real, such as the value of a code. */
export function exactDecimal(x) {
  if (x.kind !== "finite") return special(x);
  if (x.num === 0n) return minus(x) + "0";
  let places = BigInt(x.den.toString(2).length - 1);
  let num = x.num;
  while (places > 0n && !(num & 1n)) {
    num >>= 1n;
    places -= 1n;
  }
  const digits = (num * 5n ** places).toString();
  const lead = digits.length - 1 - Number(places);
  return minus(x) + placePoint(digits.replace(/0+$/, ""), lead, 40);
}

/** A real rounded to so many significant decimal digits; trailing zeros dropped. */
export function approximate(x, digits = 4) {
  if (x.kind !== "finite") return special(x);
  if (x.num === 0n) return minus(x) + "0";
  let lead = Math.floor(floorLog2(x.num, x.den) * Math.LOG10E * Math.LN2);
  const round = () => {
    const places = digits - 1 - lead;
    const [num, den] = places >= 0 ? [x.num * 10n ** BigInt(places), x.den] : [x.num, x.den * 10n ** BigInt(-places)];
    return ((2n * num + den) / (2n * den)).toString();
  };
  let text = round();
  while (text.length > digits) {
    lead += 1;
    text = round();
  }
  return minus(x) + placePoint(text.replace(/0+$/, ""), lead, Math.max(digits, 6));
}

/** A dyadic real in C99 hexadecimal, normalized, without trailing zeros: 0x1.998p-4. */
export function hexFloat(x) {
  if (x.kind !== "finite") return special(x);
  const sign = x.negative ? "-" : "";
  if (x.num === 0n) return `${sign}0x0p+0`;
  const bits = x.num.toString(2).replace(/0+$/, "").slice(1);
  const digits = bits
    .match(/.{1,4}/g)
    ?.map((nibble) => parseInt(nibble.padEnd(4, "0"), 2).toString(16))
    .join("");
  const lead = floorLog2(x.num, x.den);
  return `${sign}0x1${digits ? `.${digits}` : ""}p${lead < 0 ? "" : "+"}${lead}`;
}

/** The code as binary digits, cut into its fields: {sign, exponent, mantissa}. */
export function binaryFields(code, f) {
  const text = code.toString(2).padStart(f.bits, "0");
  return {
    sign: text.slice(0, f.signBits),
    exponent: text.slice(f.signBits, f.signBits + f.exponentBits),
    mantissa: text.slice(f.signBits + f.exponentBits),
  };
}

export const hexCode = (code, f) => "0x" + code.toString(16).padStart(Math.ceil(f.bits / 4), "0");

/** The code that 0x2e66, 0b0_01011_1001100110 or a full row of binary digits means. Throws SyntaxError. */
export function parseCode(text, f) {
  const source = text
    .trim()
    .toLowerCase()
    .replace(/[_\s|]/g, "");
  const number = source.length === f.bits && /^[01]+$/.test(source) ? `0b${source}` : source;
  const last = (1n << BigInt(f.bits)) - 1n;
  const cure = `Type all ${f.bits} bits, or a code from ${hexCode(0n, f)} to ${hexCode(last, f)}.`;
  if (!/^(0x[0-9a-f]+|0b[01]+)$/.test(number)) throw new SyntaxError(`Cannot read “${text}”. ${cure}`);
  if (BigInt(number) >> BigInt(f.bits)) throw new SyntaxError(`“${text}” has more than ${f.bits} bits. ${cure}`);
  return BigInt(number);
}

/** The factors of a code's value: {base, exponent} texts and the significand as text; null for inf and NaN. */
export function formulaParts(code, f) {
  const { sign, exponent, mantissa, kind } = fields(code, f);
  if (kind === "nan" || kind === "inf") return null;
  const effective = kind === "normal" ? exponent : 1;
  return {
    sign: f.signBits ? { base: "(−1)", exponent: String(sign) } : null,
    power: { base: "2", exponent: `${effective} − ${f.bias}` },
    significand: f.mantissaBits ? `(${kind === "normal" ? 1 : 0} + ${mantissa}/${1n << BigInt(f.mantissaBits)})` : null,
  };
}
