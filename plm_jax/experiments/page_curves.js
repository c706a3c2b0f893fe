// Computes the curves of a report from its JSON, and the scales on which they are drawn.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const COLORS = "#0072b2 #d55e00 #009e73 #b8478f #e69f00 #56b4e9 #6a4c93 #8c564b #555555 #9aa500".split(" ");
const AXES = { step: "step", tokens: "tokens, including padding", flops: "model FLOPs", seconds: "training time" };
const BUTTONS = { step: "Steps", tokens: "Tokens", flops: "FLOPs", seconds: "Time" };
// Curves with fewer points have markers and are not smoothed.
const FEW = 30;
const hasSeeds = data.groups.length < data.runs.length;
const state = { axis: "step", logX: false, smoothing: 0, apart: !hasSeeds, hidden: new Set() };

for (const run of data.runs) {
  let at = 0;
  run.steps = run.steps.map((added) => ((at = 0), added.map((n) => (at += n))));
}

function color(index) {
  return COLORS[index] ?? `hsl(${Math.round(index * 137.5) % 360} 60% ${index % 2 ? 35 : 50}%)`;
}

/** Interpolates the values `ys` at the ascending `xs` linearly, and extrapolates beyond them. */
function between(xs, ys, at) {
  let low = 0,
    high = xs.length - 1;
  if (high < 1) return high < 0 ? NaN : ys[0];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= at) low = middle;
    else high = middle;
  }
  const width = xs[high] - xs[low];
  return width ? ys[low] + ((ys[high] - ys[low]) * (at - xs[low])) / width : ys[high];
}

function isKnown(run) {
  return state.axis === "step" || typeof run.axes[state.axis] !== "string";
}

function position(run, step) {
  return state.axis === "step" ? step : between(...run.axes[state.axis], step);
}

/** Returns the bias-corrected exponential moving average; short curves are not smoothed. */
function smooth(values, isNoisy) {
  if (!state.smoothing || !isNoisy || values.length < FEW) return values;
  let sum = 0,
    weight = 0;
  return values.map((value) => {
    sum = state.smoothing * sum + (1 - state.smoothing) * value;
    weight = state.smoothing * weight + 1 - state.smoothing;
    return sum / weight;
  });
}

/** Returns the items of the legend: variants, or single runs. */
function items() {
  if (state.apart) {
    return data.runs.map((run, index) => ({ name: run.name, color: color(run.group), runs: [index] }));
  }
  return data.groups.map((name, group) => {
    const runs = data.runs.flatMap((run, index) => (run.group === group ? [index] : []));
    return { name: runs.length > 1 ? `${name} ×${runs.length}` : name, color: color(group), runs };
  });
}

/** Returns the line of an item: ascending `steps`, positions `x`, values `y`, and optionally `low`, `high`, `raw`. */
function line(item, key, isNoisy) {
  const curves = item.runs
    .map((index) => data.runs[index])
    .filter((run) => key in run.curves && isKnown(run))
    .map((run) => {
      const [index, raw, low, high] = run.curves[key];
      return { run, steps: run.steps[index], raw, y: smooth(raw, isNoisy), low, high };
    });
  if (!curves.length) return null;
  if (curves.length === 1) {
    const [one] = curves;
    return { ...one, x: one.steps.map((step) => position(one.run, step)), raw: one.y === one.raw ? null : one.raw };
  }
  const { steps } = curves.reduce((a, b) => (b.steps.length > a.steps.length ? b : a));
  const merged = { steps, x: [], y: [], low: [], high: [], isBand: true };
  for (const step of steps) {
    const covering = curves.filter((one) => one.steps[0] <= step && step <= one.steps[one.steps.length - 1]);
    const ys = covering.map((one) => between(one.steps, one.y, step));
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    merged.x.push(mean(covering.map((one) => position(one.run, step))));
    merged.y.push(mean(ys));
    merged.low.push(Math.min(...ys));
    merged.high.push(Math.max(...ys));
  }
  return merged;
}

// -- Scales ----------------------------------------------------------------------------------------------------

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e15 || (size && size < 1e-3)) return value.toExponential(2).replace(/\.?0+e\+?/, "e");
  for (const [unit, suffix] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e4, "k"],
  ]) {
    if (size >= unit) return `${Number((value / (unit === 1e4 ? 1e3 : unit)).toPrecision(4))}${suffix}`;
  }
  return String(Number(value.toPrecision(4)));
}

function exact(value) {
  return Math.abs(value) >= 1e4 ? short(Number(value.toPrecision(5))) : String(Number(value.toPrecision(5)));
}

/** Returns the size and name of the unit of a time axis; 1 and no name for other axes. */
function unit(max) {
  if (state.axis !== "seconds") return [1, ""];
  return [
    [86400 * 2, 86400, "days"],
    [7200, 3600, "hours"],
    [180, 60, "minutes"],
    [0, 1, "seconds"],
  ]
    .find(([from]) => max >= from)
    .slice(1);
}

/** Returns the index of the finite value nearest to another, or -1 if there is none. */
function nearest(values, to) {
  let best = -1;
  values.forEach((value, i) => {
    if (Number.isFinite(value) && (best < 0 || Math.abs(value - to) < Math.abs(values[best] - to))) best = i;
  });
  return best;
}

/** Returns a function from values to pixels, with `ticks`. */
function scale(low, high, from, to, isLog, count) {
  if (high - low <= 1e-9 * Math.abs(high)) {
    // The limits are equal up to rounding.
    [low, high] = isLog
      ? [low / 1.1, high * 1.1]
      : [low - (Math.abs(low) || 1) * 0.05, high + (Math.abs(high) || 1) * 0.05];
  }
  const f = isLog ? Math.log10 : (value) => value;
  const map = (value) => from + ((f(value) - f(low)) / (f(high) - f(low))) * (to - from);
  map.ticks = [];
  const decades = Math.log10(high / low);
  if (isLog && decades > 0.7) {
    const every = Math.max(1, Math.ceil(decades / count));
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const n of decades < 3 ? [1, 2, 5] : [1]) {
        const tick = n * 10 ** power;
        if (power % every === 0 && tick >= low && tick <= high) map.ticks.push(tick);
      }
    }
  } else {
    const rough = (high - low) / count,
      power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
    for (let n = Math.ceil(low / step); n * step <= high; n++) map.ticks.push(n * step);
  }
  return map;
}
