// Numbers as text.
const SPANS = [["d", 86400e6], ["h", 3600e6], ["m", 60e6], ["s", 1e6], ["ms", 1e3], ["µs", 1]];
const PREFIXES = ["", "k", "M", "G", "T", "P"];

const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

// Returns a number with at most three decimals: 1234.5
export const decimalText = (value) => trim(value.toFixed(3));

// Returns a number with a metric prefix: 1.5k
export function shortText(value) {
  if (Math.abs(value) < 1000) return decimalText(value);
  const power = Math.min(Math.floor(Math.log10(Math.abs(value)) / 3 + 1e-9), PREFIXES.length - 1);
  return trim((value / 1000 ** power).toFixed(1)) + PREFIXES[power];
}

// Returns a duration in microseconds: 200ms, 1.25s, 1m 40s
export function spanText(us) {
  const index = SPANS.findIndex(([, unit]) => us >= unit);
  if (index < 0) return "0s";
  const [name, unit] = SPANS[index];
  if (unit <= 1e6) return trim((Math.floor((us * 100) / unit) / 100).toFixed(2)) + name;
  const [below, part] = SPANS[index + 1];
  const rest = Math.floor((us % unit) / part);
  return Math.floor(us / unit) + name + (rest ? ` ${rest}${below}` : "");
}

// Returns microseconds since 1970 as date and time in UTC.
export const timeText = (us) => new Date(us / 1000).toISOString().slice(0, 19).replace("T", " ");

// Returns a value with all digits that matter.
export function valueText(unit, value) {
  if (value === null || value === undefined) return "-";
  if (unit === "percent") return `${decimalText(value)}%`;
  if (unit === "duration") return spanText(Math.round(value));
  if (unit === "time") return timeText(value);
  return decimalText(value);
}

// Returns a number of an axis whose labels are `step` apart.
export function tickText(unit, value, step) {
  if ((unit === "number" || unit === "count") && value >= 1000 && step >= 100) return shortText(value);
  if (unit !== "time") return valueText(unit, value);
  const text = timeText(value);
  if (step >= 86400e6) return text.slice(0, 10);
  return step >= 60e6 ? text.slice(11, 16) : text.slice(11);
}
