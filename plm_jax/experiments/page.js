// Draws the curves of a report. Strings from runs become text nodes, never markup.

// Values within this many pixels of the pointer are shown.
const NEAR = 24;
const MARGIN = { left: 58, right: 14, top: 12, bottom: 40 };
const container = document.getElementById("curves");
const redraws = [];

// -- Elements --------------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawing(name, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function toggle(text, isOn, change, attributes = {}) {
  const button = element("button", { type: "button", "aria-pressed": isOn, ...attributes }, text);
  button.addEventListener("click", () => change(button));
  return button;
}

/** Returns a button that toggles a boolean field of an object. */
function flip(text, target, field, redraw, attributes) {
  const change = (button) => {
    target[field] = !target[field];
    button.setAttribute("aria-pressed", target[field]);
    redraw();
  };
  return toggle(text, target[field], change, attributes);
}

function swatch(color) {
  const made = element("i", { class: "swatch" });
  made.style.background = color;
  return made;
}

// -- Plots -----------------------------------------------------------------------------------------------------

function path(xs, ys) {
  let commands = "",
    isOpen = false;
  xs.forEach((x, i) => {
    const isDrawn = Number.isFinite(x) && Number.isFinite(ys[i]);
    if (isDrawn) commands += `${isOpen ? "L" : "M"}${x.toFixed(1)},${ys[i].toFixed(1)}`;
    isOpen = isDrawn;
  });
  return commands;
}

function outline(xs, lows, highs) {
  const points = xs.map((x, i) => [x, lows[i], highs[i]]).filter((point) => point.every(Number.isFinite));
  return path(
    [...points.map((p) => p[0]), ...points.map((p) => p[0]).reverse()],
    [...points.map((p) => p[1]), ...points.map((p) => p[2]).reverse()],
  );
}

class Picture {
  constructor(card, isFirst) {
    this.card = card;
    this.labels = Object.keys(card.choices);
    this.choice = this.labels[0];
    this.isLog = false;
    this.svg = drawing("svg", { role: "img", "aria-label": card.title });
    this.tooltip = element("div", { class: "tooltip", hidden: "" });
    const log = flip("log y", this, "isLog", () => this.draw(), { title: "logarithmic vertical axis" });
    const has = ([, dashed]) => dashed && data.runs.some((run) => dashed in run.curves);
    this.hasDashed = Object.values(card.choices).some(has);
    this.unitLabel = element("small", {}, this.unitText());
    const head = element("header", {}, element("h3", {}, card.title), this.chooser(), this.unitLabel, log);
    this.box = element(
      "figure",
      { class: isFirst ? "card first" : "card" },
      head,
      element("div", { class: "plot" }, this.svg, this.tooltip),
    );
    this.svg.addEventListener("pointermove", (event) => this.showTooltip(event));
    this.svg.addEventListener("pointerdown", (event) => this.showTooltip(event));
    this.svg.addEventListener("pointerleave", () => this.hideTooltip());
    new ResizeObserver(() => this.svg.clientWidth !== this.width && this.draw()).observe(this.svg);
  }

  unitText() {
    return [this.card.units[this.choice], this.hasDashed ? "dashed: validation" : ""].filter(Boolean).join("; ");
  }

  chooser() {
    const [only] = this.labels;
    const isRedundant = !only || only === this.card.title.toLowerCase();
    if (this.labels.length < 2) return isRedundant ? "" : element("small", {}, only);
    const made = element(
      "select",
      { "aria-label": this.card.title },
      ...this.labels.map((name) => element("option", {}, name)),
    );
    made.addEventListener("change", () => {
      this.choice = this.labels[made.selectedIndex];
      this.unitLabel.textContent = this.unitText();
      this.draw();
    });
    return made;
  }

  lines() {
    const [solid, dashed] = this.card.choices[this.choice];
    const lines = [];
    for (const item of items()) {
      const shown = { ...item, runs: item.runs.filter((index) => !state.hidden.has(index)) };
      for (const key of [solid, dashed]) {
        const drawn = key && line(shown, key, this.card.is_noisy);
        if (drawn) lines.push({ ...drawn, name: item.name, color: item.color, isDashed: key === dashed, key });
      }
    }
    return lines;
  }

  /** Returns the smallest and largest value that an axis can show. */
  static range(values, isLog) {
    let low = Infinity,
      high = -Infinity;
    for (const value of values) {
      if (Number.isFinite(value) && (!isLog || value > 0)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    return low <= high ? [low, high] : isLog ? [1, 10] : [0, 1];
  }

  draw() {
    this.hideTooltip();
    const width = (this.width = this.svg.clientWidth),
      height = this.svg.clientHeight;
    this.svg.replaceChildren();
    if (!width) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawn = this.lines();
    const levels = this.levels();
    const xs = this.drawn.flatMap((one) => one.x);
    const ys = [
      ...this.drawn.flatMap((one) => (one.isBand ? [...one.y, ...one.low, ...one.high] : one.y)),
      ...levels.map((level) => level[1]),
    ];
    let [left, right] = Picture.range(xs, state.logX),
      [low, high] = Picture.range(ys, this.isLog);
    if (!state.logX) left = Math.min(left, 0);
    if (!this.isLog) [low, high] = [low - (high - low) * 0.04, high + (high - low) * 0.04];
    const [size, unitName] = unit(right);
    const [x0, x1, y0, y1] = [MARGIN.left, width - MARGIN.right, height - MARGIN.bottom, MARGIN.top];
    this.x = scale(left / size, right / size, x0, x1, state.logX, Math.max(3, Math.min(9, width / 90)));
    this.y = scale(low, high, y0, y1, this.isLog, 5);
    [this.size, this.unit] = [size, unitName];
    this.frame(x0, x1, y0, y1);
    const inside = drawing("svg", {
      x: x0,
      y: y1,
      width: Math.max(0, x1 - x0),
      height: y0 - y1,
      viewBox: `${x0} ${y1} ${Math.max(1, x1 - x0)} ${y0 - y1}`,
    });
    for (const one of this.drawn) this.curve(inside, one);
    for (const [name, value] of levels) {
      inside.append(drawing("path", { class: "level", d: `M${x0},${this.y(value)}H${x1}` }));
      inside.append(
        drawing(
          "text",
          { class: "level", x: x1 - 4, y: this.y(value) - 4, "text-anchor": "end" },
          `${name} ${exact(value)}`,
        ),
      );
    }
    this.rule = drawing("path", { class: "rule" });
    inside.append(this.rule);
    this.svg.append(inside);
    if (!this.drawn.length) {
      this.svg.append(drawing("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no data"));
    }
  }

  /** Returns the losses that the loss of a single run is compared with. */
  levels() {
    if (this.choice !== "loss" || data.runs.length !== 1) return [];
    return data.runs[0].levels.filter(([, value]) => !this.isLog || value > 0);
  }

  frame(x0, x1, y0, y1) {
    for (const tick of this.y.ticks) {
      this.svg.append(drawing("path", { class: "grid", d: `M${x0},${this.y(tick)}H${x1}` }));
      this.svg.append(drawing("text", { x: x0 - 6, y: this.y(tick) + 4, "text-anchor": "end" }, short(tick)));
    }
    for (const tick of this.x.ticks) {
      this.svg.append(drawing("path", { class: "grid", d: `M${this.x(tick)},${y0}V${y1}` }));
      this.svg.append(drawing("text", { x: this.x(tick), y: y0 + 16, "text-anchor": "middle" }, short(tick)));
    }
    const label = this.unit ? `${AXES[state.axis]}, ${this.unit}` : AXES[state.axis];
    this.svg.append(drawing("text", { x: (x0 + x1) / 2, y: y0 + 33, "text-anchor": "middle", class: "name" }, label));
  }

  curve(inside, one) {
    const xs = one.x.map((x) => this.x(x / this.size)),
      at = (values) => values.map((value) => this.y(value));
    if (one.low) {
      inside.append(
        drawing("path", {
          d: outline(xs, at(one.low), at(one.high)),
          fill: one.color,
          "fill-opacity": one.isBand ? 0.18 : 0.12,
        }),
      );
    }
    if (one.raw) inside.append(drawing("path", { class: "raw", d: path(xs, at(one.raw)), stroke: one.color }));
    const ys = at(one.y),
      solid = path(xs, ys);
    const attributes = { class: "curve", d: solid, stroke: one.color };
    inside.append(drawing("path", one.isDashed ? { ...attributes, "stroke-dasharray": "6 4" } : attributes));
    if (xs.length < FEW) {
      const dots = xs
        .map((x, i) => path([x], [ys[i]]))
        .filter(Boolean)
        .map((move) => `${move}h0`)
        .join("");
      inside.append(drawing("path", { class: "dots", d: dots, stroke: one.color }));
    }
  }

  showTooltip(event) {
    const bounds = this.svg.getBoundingClientRect(),
      pixel = event.clientX - bounds.left;
    if (!this.drawn?.length || pixel < MARGIN.left || pixel > this.width - MARGIN.right) return this.hideTooltip();
    // The point of each line that is nearest in pixels, ignoring points that the axis cannot show.
    const points = this.drawn.flatMap((one) => {
      const pixels = one.x.map((x) => this.x(x / this.size));
      const index = nearest(pixels, pixel);
      return index < 0 ? [] : [{ one, i: index, at: pixels[index] }];
    });
    if (!points.length) return this.hideTooltip();
    const closest = points.reduce((a, b) => (Math.abs(b.at - pixel) < Math.abs(a.at - pixel) ? b : a));
    this.rule.setAttribute("d", `M${closest.at},0V9999`);
    const { steps, x } = closest.one;
    const position = `${exact(x[closest.i] / this.size)} ${this.unit || BUTTONS[state.axis]}`;
    const head = state.axis === "step" ? `step ${steps[closest.i].toLocaleString("en")}` : position;
    const nearby = points.filter((point) => Math.abs(point.at - closest.at) < NEAR);
    const rows = nearby
      .sort((a, b) => b.one.y[b.i] - a.one.y[a.i])
      .slice(0, this.width < 500 ? 8 : 14)
      .map(({ one, i }) => {
        const spread = one.low ? ` (${exact(one.low[i])} to ${exact(one.high[i])})` : "";
        const kind = one.isDashed ? " · validation" : "";
        return element("div", {}, swatch(one.color), element("b", {}, exact(one.y[i])), `${spread} ${one.name}${kind}`);
      });
    if (nearby.length > rows.length) rows.push(element("div", {}, `and ${nearby.length - rows.length} more`));
    this.tooltip.replaceChildren(element("div", { class: "at" }, head), ...rows);
    this.tooltip.hidden = false;
    const width = this.tooltip.offsetWidth;
    const left = pixel > this.width / 2 ? pixel - width - 14 : pixel + 14;
    this.tooltip.style.left = `${Math.max(4, Math.min(this.box.clientWidth - width - 8, left))}px`;
  }

  hideTooltip() {
    this.tooltip.hidden = true;
    this.rule?.setAttribute("d", "");
  }
}

// -- Controls --------------------------------------------------------------------------------------------------

function draw() {
  for (const redraw of redraws) redraw();
}

function axes() {
  const note = element("p", { class: "note" });
  const buttons = Object.keys(AXES).map((axis) => {
    const isAvailable = axis === "step" || data.runs.some((run) => typeof run.axes[axis] !== "string");
    const button = toggle(BUTTONS[axis], axis === state.axis, () => ((state.axis = axis), draw()), {
      "data-axis": axis,
    });
    button.disabled = !isAvailable;
    if (!isAvailable) button.title = `unknown: ${data.runs[0].axes[axis]}`;
    return button;
  });
  redraws.push(() => {
    for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.axis === state.axis);
    const missing = data.runs.filter((run) => !isKnown(run));
    const names = missing
      .slice(0, 3)
      .map((run) => `${run.name} (${run.axes[state.axis]})`)
      .join("; ");
    note.textContent = missing.length
      ? `Not shown over ${AXES[state.axis]}: ${names}${missing.length > 3 ? ` and ${missing.length - 3} more` : ""}`
      : "";
  });
  return [element("span", { class: "buttons", role: "group", "aria-label": "horizontal axis" }, ...buttons), note];
}

function smoothing() {
  const value = element("output", {}, "0");
  const slider = element("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    value: 0,
    "aria-label": "smoothing",
  });
  slider.addEventListener("input", () => {
    state.smoothing = Number(slider.value);
    value.textContent = slider.value;
    draw();
  });
  return element("label", {}, "Smoothing ", slider, value);
}

function legend() {
  const box = element("div", { class: "legend", role: "group", "aria-label": "runs" });
  redraws.push(() => {
    const all = items();
    const chips = all.map((item) => {
      const isOn = !item.runs.every((index) => state.hidden.has(index));
      return toggle(
        "",
        isOn,
        () => {
          for (const index of item.runs) state.hidden[isOn ? "add" : "delete"](index);
          draw();
        },
        { class: "chip" },
      );
    });
    chips.forEach((chip, i) => chip.append(swatch(all[i].color), all[i].name));
    if (all.length > 2) {
      const every = (isHidden) => () => ((state.hidden = new Set(isHidden ? data.runs.keys() : [])), draw());
      chips.push(
        element("span", { class: "ends" }, toggle("all", false, every(false)), toggle("none", false, every(true))),
      );
    }
    const focused = [...box.querySelectorAll("button")].indexOf(document.activeElement);
    box.replaceChildren(...chips);
    if (focused >= 0) box.querySelectorAll("button")[focused]?.focus();
  });
  return box;
}

const [axisButtons, axisNote] = axes();
const logX = flip("log x", state, "logX", draw, { title: "logarithmic horizontal axis", id: "log-x" });
const controls = element("div", { class: "controls" }, axisButtons, logX, smoothing());
const bands = element("p", { class: "note" });
if (hasSeeds) {
  controls.append(flip("Individual seeds", state, "apart", draw));
  const explanation = "Lines are means over the seeds of a variant (×3: three seeds); bands span their minimum and maximum.";
  redraws.push(() => (bands.textContent = state.apart ? "" : explanation));
}
container.append(element("div", { class: "panel" }, controls, legend(), bands, axisNote));
const pictures = data.cards.map((card, index) => new Picture(card, index === 0));
container.append(element("div", { class: "cards" }, ...pictures.map((picture) => picture.box)));
redraws.push(...pictures.map((picture) => () => picture.draw()));
for (const mark of document.querySelectorAll("i[data-group]")) {
  mark.style.background = color(Number(mark.dataset.group));
}
draw();
