// Runs the states and patterns of a request through ampedu/static/loss_scale.js and writes what it gave.
// usage: node loss_scale_run.mjs FOLDER   (FOLDER holds loss_scale.mjs and request.json)

import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = process.argv[2];
const { LONGEST, PRESETS, numberText, patternOf, simulate } = await import(pathToFileURL(`${folder}/loss_scale.mjs`));
const request = JSON.parse(readFileSync(`${folder}/request.json`, "utf8"));

const refused = (text) => {
  try {
    return patternOf(text);
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
};
const rows = ({ start, pattern }) =>
  simulate(start, pattern).map(({ after, event }) => [String(after.scale), after.growth_tracker, event]);
writeFileSync(
  `${folder}/response.json`,
  JSON.stringify({
    runs: request.runs.map(rows),
    texts: request.numbers.map(numberText),
    patterns: request.patterns.map(refused),
    presets: PRESETS,
    longest: LONGEST,
  }),
);
