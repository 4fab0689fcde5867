// Axes with round numbers.
const DECIMAL = [1, 2, 5, 10];
const CLOCK = [
  ...[1, 2, 5, 10, 15, 20, 30].map((n) => n * 1e6),
  ...[1, 2, 5, 10, 15, 20, 30].map((n) => n * 60e6),
  ...[1, 2, 3, 4, 6, 8, 12].map((n) => n * 3600e6),
];
const DAY = 86400e6;

function decimalStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return (DECIMAL.find((factor) => factor * power >= least * (1 - 1e-9)) ?? 10) * power;
}

// Returns the smallest round number of a unit that is at least `least`.
function roundStep(least, unit) {
  if (unit === "count" && least < 1) return 1;
  if (unit !== "duration" && unit !== "time") return decimalStep(least);
  if (least < 1e6) return Math.max(decimalStep(least), unit === "time" ? 1e6 : 1);
  return CLOCK.find((step) => step >= least) ?? decimalStep(least / DAY) * DAY;
}

// Returns a scale from `from` to `to`, which are pixels. With `isRound`, it ends at a round number.
export function makeScale({ min, max, unit, steps, from, to, isRound }) {
  const top = max > min ? max : min + 1;
  const step = roundStep((top - min) / steps, unit);
  const end = isRound ? Math.ceil(top / step - 1e-9) * step : top;
  const scale = (value) => from + ((value - min) / (end - min)) * (to - from);
  scale.step = step;
  scale.min = min;
  scale.max = end;
  scale.invert = (pixel) => min + ((pixel - from) / (to - from)) * (end - min);
  scale.ticks = [];
  for (let n = Math.ceil(min / step - 1e-9); n * step <= end + step * 1e-9; n++) scale.ticks.push(n * step);
  return scale;
}
