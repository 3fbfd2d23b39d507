// Applies ampedu/static/floats.js and numerals.js to the codes and texts of a request and writes what they gave.
// usage: node floats_run.mjs FOLDER   (FOLDER holds the two modules as .mjs, request.json and NAME.codes files)

import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = process.argv[2];
const load = (name) => import(pathToFileURL(`${folder}/${name}.mjs`));
const floats = await load("floats");
const numerals = await load("numerals");
const histogram = await load("histogram");
const request = JSON.parse(readFileSync(`${folder}/request.json`, "utf8"));

const { FORMATS } = floats;
const KINDS = ["zero", "subnormal", "normal", "inf", "nan"];
const textOf = ({ sign, power, significand }) =>
  [sign && `${sign.base}^${sign.exponent}`, `${power.base}^(${power.exponent})`, significand]
    .filter(Boolean)
    .join(" × ");

function ofCode(code, f) {
  const value = floats.decode(code, f);
  const { sign, exponent, mantissa, kind } = floats.fields(code, f);
  const { below, above } = floats.neighbors(code, f);
  const of = (neighbor) => (neighbor === null ? NaN : floats.decode(neighbor, f));
  const finite = kind !== "inf" && kind !== "nan";
  let again = NaN;
  try {
    again = Number(floats.encode(value, f));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  return [
    value,
    again,
    sign,
    exponent,
    Number(mantissa),
    KINDS.indexOf(kind),
    of(below),
    of(above),
    finite ? 2 ** floats.ulpExponent(code, f) : NaN,
  ];
}

for (const name of request.codes) {
  const bytes = readFileSync(`${folder}/${name}.codes`);
  const codes = new BigUint64Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  const rows = new Float64Array(codes.length * 9);
  codes.forEach((code, index) => rows.set(ofCode(code, FORMATS[name]), 9 * index));
  writeFileSync(`${folder}/${name}.out`, rows);
}

const attempt = (action) => {
  try {
    return action();
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
};
const response = {
  registry: Object.fromEntries(
    Object.values(FORMATS).map((f) => [
      f.name,
      Object.fromEntries(
        Object.entries(f).map(([key, value]) => [key, typeof value === "bigint" ? String(value) : value]),
      ),
    ]),
  ),
  rounded: request.texts.map((text) => {
    const x = numerals.parseReal(text);
    return Object.values(FORMATS).map((f) => String(floats.roundReal(x, f)));
  }),
  ties: Object.fromEntries(
    Object.entries(request.ties).map(([name, values]) => [
      name,
      values.map((value) => Number(floats.encode(value, FORMATS[name]))),
    ]),
  ),
  written: request.samples.map(([name, code]) => {
    const f = FORMATS[name];
    const x = floats.real(BigInt(code), f);
    const parts = numerals.formulaParts(BigInt(code), f);
    return {
      exact: numerals.exactDecimal(x),
      hex: numerals.hexFloat(x),
      approximate: numerals.approximate(x, 5),
      formula: parts && textOf(parts),
    };
  }),
  errors: request.errors.map((text) => attempt(() => String(numerals.parseReal(text).num))),
  codeErrors: request.codeErrors.map(([name, text]) => attempt(() => String(numerals.parseCode(text, FORMATS[name])))),
  outcomes: Object.fromEntries(
    request.outcomes.map((name) => [
      name,
      Object.fromEntries(request.bins.map((k) => [k, histogram.outcome(k, FORMATS[name])])),
    ]),
  ),
  shares: histogram.shares({ "-30": 1, "-25": 1, "-14": 1, 0: 4, 16: 1 }, 0, FORMATS.fp16),
};
writeFileSync(`${folder}/response.json`, JSON.stringify(response));
