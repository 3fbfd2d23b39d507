// Number formats in pure JavaScript: codes, values and rounding, all exact (BigInt), none of it touching the page.
//
// A code is a BigInt, the bits as an unsigned integer. A value is a "real":
//   {kind: "finite", negative, num, den}   num ≥ 0 and den > 0 are BigInts; -0 is negative with num 0
//   {kind: "inf", negative}   {kind: "nan"}
// The rules are those of ampedu/formats.py; tests/js compares the two code by code.

const format = (name, title, exponentBits, mantissaBits, bias, flavor) => {
  const signBits = flavor === "scale" ? 0 : 1;
  const bits = signBits + exponentBits + mantissaBits;
  const magnitudes = (1n << BigInt(exponentBits + mantissaBits)) - 1n;
  // Largest finite code without its sign: what is left of the magnitudes after infinity and NaN have taken theirs.
  const reserved = { ieee: 1n << BigInt(mantissaBits), fn: 1n, fnuz: 0n, finite: 0n, scale: 1n }[flavor];
  return {
    name,
    title,
    exponentBits,
    mantissaBits,
    bias,
    flavor,
    signBits,
    bits,
    hasInf: flavor === "ieee",
    hasNaN: flavor !== "finite",
    maxCode: magnitudes - reserved,
    infCode: flavor === "ieee" ? magnitudes - reserved + 1n : null,
    nanCode: {
      ieee: magnitudes - reserved + 1n + (1n << BigInt(mantissaBits)) / 2n,
      fn: magnitudes,
      fnuz: magnitudes + 1n,
      finite: null,
      scale: magnitudes,
    }[flavor],
    signBit: signBits ? 1n << BigInt(bits - 1) : 0n,
    minExponent: flavor === "scale" ? -bias : 1 - bias,
  };
};

export const FORMATS = Object.fromEntries(
  [
    format("fp64", "double precision", 11, 52, 1023, "ieee"),
    format("fp32", "single precision", 8, 23, 127, "ieee"),
    format("tf32", "inside Tensor Cores", 8, 10, 127, "ieee"),
    format("bf16", "the range of fp32", 8, 7, 127, "ieee"),
    format("fp16", "half precision", 5, 10, 15, "ieee"),
    format("e4m3fn", "fp8, more precision", 4, 3, 7, "fn"),
    format("e5m2", "fp8, more range", 5, 2, 15, "ieee"),
    format("e4m3fnuz", "fp8 of MI300, more precision", 4, 3, 8, "fnuz"),
    format("e5m2fnuz", "fp8 of MI300, more range", 5, 2, 16, "fnuz"),
    format("e3m4", "fp8 with four mantissa bits", 3, 4, 3, "ieee"),
    format("e8m0", "scale of MX blocks", 8, 0, 127, "scale"),
    format("e3m2", "fp6, more range", 3, 2, 3, "finite"),
    format("e2m3", "fp6, more precision", 2, 3, 1, "finite"),
    format("e2m1", "fp4", 2, 1, 1, "finite"),
  ].map((f) => [f.name, f]),
);

// ---------------------------------------------------------------- codes

const magnitude = (code, f) => (code & f.signBit ? code ^ f.signBit : code);

/** The three fields of a code as Numbers (mantissa: BigInt), and its kind. */
export function fields(code, f) {
  const mag = magnitude(code, f);
  const exponent = Number(mag >> BigInt(f.mantissaBits));
  const mantissa = mag & ((1n << BigInt(f.mantissaBits)) - 1n);
  const sign = code & f.signBit ? 1 : 0;
  let kind = exponent === 0 && f.flavor !== "scale" ? (mantissa ? "subnormal" : "zero") : "normal";
  if (f.infCode !== null && mag === f.infCode) kind = "inf";
  else if (mag > f.maxCode || (f.flavor === "fnuz" && code === f.nanCode)) kind = "nan";
  return { sign, exponent, mantissa, kind };
}

/** Exponent of the gap between this finite code and the next larger magnitude: ulp = 2 ** ulpExponent. */
export function ulpExponent(code, f) {
  const { exponent } = fields(code, f);
  return (f.flavor === "scale" ? exponent : Math.max(exponent, 1)) - f.bias - f.mantissaBits;
}

/** The exact value of a code, as a real. */
export function real(code, f) {
  const { sign, exponent, mantissa, kind } = fields(code, f);
  if (kind === "nan") return { kind: "nan" };
  if (kind === "inf") return { kind: "inf", negative: sign === 1 };
  const hidden = kind === "normal" ? 1n << BigInt(f.mantissaBits) : 0n;
  return scaled(hidden + mantissa, ulpExponent(code, f), sign === 1);
}

/** The value of a code as a JavaScript number: exact, for every format here fits into fp64. */
export function decode(code, f) {
  const { sign, mantissa, kind } = fields(code, f);
  if (kind === "nan") return NaN;
  const significand = Number(mantissa) + (kind === "normal" ? 2 ** f.mantissaBits : 0);
  return (sign ? -1 : 1) * (kind === "inf" ? Infinity : significand * 2 ** ulpExponent(code, f));
}

/** Codes of the next smaller and the next larger value; null where there is none. Infinity counts as a value. */
export function neighbors(code, f) {
  const { sign, kind } = fields(code, f);
  if (kind === "nan") return { below: null, above: null };
  const mag = magnitude(code, f);
  const last = f.hasInf ? f.infCode : f.maxCode;
  const away = mag < last ? (code & f.signBit) | (mag + 1n) : null;
  if (kind === "zero") return { below: f.signBit | 1n, above: 1n };
  const minusZeroIsNaN = f.flavor === "fnuz" && mag === 1n;
  const toward = mag === 0n ? null : minusZeroIsNaN ? 0n : (code & f.signBit) | (mag - 1n);
  return sign ? { below: away, above: toward } : { below: toward, above: away };
}

/** Code of a JavaScript number: nearest, ties to even, each format's own overflow rule. */
export const encode = (x, f) => roundReal(realOfNumber(x), f);

// ---------------------------------------------------------------- reals

const scaled = (significand, exponent, negative) => ({
  kind: "finite",
  negative,
  num: exponent > 0 ? significand << BigInt(exponent) : significand,
  den: exponent < 0 ? 1n << BigInt(-exponent) : 1n,
});

/** The exact value of a JavaScript number. */
export function realOfNumber(x) {
  const bits = new DataView(new ArrayBuffer(8));
  bits.setFloat64(0, x);
  return real(bits.getBigUint64(0), FORMATS.fp64);
}

const bitLength = (n) => n.toString(2).length;

/** floor(log2(num / den)) of a positive fraction. */
export function floorLog2(num, den) {
  const guess = bitLength(num) - bitLength(den);
  const reached = guess >= 0 ? num >= den << BigInt(guess) : num << BigInt(-guess) >= den;
  return reached ? guess : guess - 1;
}

/** Round num / den to an integer, ties to even. */
function divideToEven(num, den) {
  const quotient = num / den;
  const twice = 2n * (num - quotient * den);
  return twice > den || (twice === den && quotient & 1n) ? quotient + 1n : quotient;
}

/** Code of the nearest value, in one rounding from the exact real. Throws RangeError where the format has no code. */
export function roundReal(x, f) {
  if (x.kind === "nan" && !f.hasNaN) throw new RangeError(`${f.name} has no NaN: every code is a number`);
  const scale = f.flavor === "scale";
  if (x.kind === "nan" || (scale && x.negative && x.num !== 0n)) return f.nanCode;
  const sign = x.negative ? f.signBit : 0n;
  if (x.kind === "inf") return overflow(sign, f);
  if (x.num === 0n) return f.flavor === "fnuz" ? 0n : sign;
  const exponent = Math.max(floorLog2(x.num, x.den), f.minExponent);
  const quantum = exponent - f.mantissaBits;
  const steps =
    quantum >= 0 ? divideToEven(x.num, x.den << BigInt(quantum)) : divideToEven(x.num << BigInt(-quantum), x.den);
  // Counting steps from the start of the binade makes a carry run into the exponent by itself.
  const mag = (BigInt(exponent - f.minExponent) << BigInt(f.mantissaBits)) + steps;
  if (scale) return mag === 0n ? 0n : mag - 1n > f.maxCode ? f.nanCode : mag - 1n;
  if (mag > f.maxCode) return overflow(sign, f);
  return mag === 0n && f.flavor === "fnuz" ? 0n : sign | mag;
}

const overflow = (sign, f) =>
  f.hasInf ? sign | f.infCode : f.flavor === "fnuz" || f.flavor === "scale" ? f.nanCode : sign | f.maxCode;

const signedNum = (x) => (x.negative ? -x.num : x.num);

/** a − b of two finite reals. */
export function subtract(a, b) {
  const num = signedNum(a) * b.den - signedNum(b) * a.den;
  return { kind: "finite", negative: num < 0n, num: num < 0n ? -num : num, den: a.den * b.den };
}

/** a × 2**k of a finite real. */
export const timesPowerOfTwo = (a, k) =>
  k >= 0 ? { ...a, num: a.num << BigInt(k) } : { ...a, den: a.den << BigInt(-k) };

/** A finite real as the nearest JavaScript number. */
export const toNumber = (x) => decode(roundReal(x, FORMATS.fp64), FORMATS.fp64);
