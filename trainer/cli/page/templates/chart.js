"use strict";
// Line charts on a canvas. A chart has lines and a view that is common to several, and no runs.
//
// A line: {owner, name, split, color, style: solid, dashed or faint, x: [], y: [] with nulls}
// low and high, if given, are the edges of a band around y.
// A view: {range: [low, high] or null, log, smooth: 0..1, byTime, theme: {soft, rule, ...}}

const INSET = {left: 50, right: 12, top: 8, bottom: 36};
const DRAG_PIXELS = 5; // a shorter drag is a click
const NEAR_PIXELS = 12; // so far from its end a line is still at the crosshair
const FRAME_MILLISECS = 9; // of drawing in one frame; the next frame continues
const MOST_RAW = 12; // so many smoothed lines have their raw points behind them
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200];

/** Returns round numbers in [low, high], about `most` of them. */
function ticksOf(low, high, most, byTime = false) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const factors = byTime && raw > 0.5 ? TIME_STEPS : [1, 2, 5, 10].map((factor) => factor * power);
  const step = factors.find((each) => each >= raw * 0.999) ?? 86400 * Math.ceil(raw / 86400);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= high / step + 1e-9; i++) ticks.push(i * step);
  return ticks;
}

/** Returns powers of ten in [low, high], with 2 and 5 times them where there are few. */
function logTicksOf(low, high) {
  const ticks = [], decades = Math.log10(high / low);
  const factors = decades > 3 ? [1] : decades > 1.2 ? [1, 3] : [1, 2, 5];
  const every = Math.max(1, Math.ceil(decades / 6));
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += every) {
    ticks.push(...factors.map((factor) => factor * 10 ** power));
  }
  const inside = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  return inside.length > 1 ? inside : ticksOf(low, high, 4);
}

/** Returns a number at an axis: 0.001, 250, 20k, 3M. */
function tickText(value) {
  for (const [unit, factor, least] of [["G", 1e9, 1e9], ["M", 1e6, 1e6], ["k", 1e3, 1e4]]) {
    const text = String(+(value / factor).toPrecision(4));
    if (Math.abs(value) >= least && text.length < 9) return text + unit;
  }
  const size = Math.abs(value);
  return size && size < 1e-3 ? value.toExponential(0) : String(+value.toPrecision(4));
}

/** Returns the exponential moving average of values, without the bias of its first points. */
function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0, rest = 1;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    rest *= weight;
    return sum / (1 - rest);
  });
}

/** Returns the first index whose value is not less than `value`, in ascending values. */
function lowerBound(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

/** Draws charts that have changed, those in sight first, and no frame longer than its budget. */
const painter = {
  waiting: new Set(),
  frame: 0,
  request(chart) {
    this.waiting.add(chart);
    this.frame ||= requestAnimationFrame(() => this.paint());
  },
  paint() {
    const began = performance.now();
    this.frame = 0;
    for (const chart of this.waiting) {
      if (!chart.isVisible) continue; // it fetches again when it becomes visible
      this.waiting.delete(chart);
      chart.draw();
      if (performance.now() - began > FRAME_MILLISECS) break;
    }
    if ([...this.waiting].some((chart) => chart.isVisible)) {
      this.frame ||= requestAnimationFrame(() => this.paint());
    }
  },
};

class Chart {
  /**
   * @param title text above it.
   * @param view what it shares with the other charts.
   * @param events {hover(chart, x, y in pixels), leave(), zoom(range | null), drawn(chart)}.
   */
  constructor(title, view, events) {
    Object.assign(this, {title, view, events, lines: [], marks: [], isVisible: false});
    this.base = el("canvas", {"aria-hidden": "true"});
    this.top = el("canvas", {role: "img", "aria-label": `Curves of ${title}`});
    this.readout = el("span", {class: "readout"});
    this.plot = el("div", {class: "plot"}, this.base, this.top);
    const save = (kind, onclick) =>
      el("button", {class: "save", title: `Download as ${kind}`, onclick}, kind);
    this.element = el("figure", {class: "chart", "data-title": title},
      el("figcaption", {}, el("b", {}, title), this.readout, save("CSV", () => this.#saveTable()),
        save("PNG", () => this.#savePicture())), this.plot);
    this.#listen();
    new ResizeObserver(() => this.#resize()).observe(this.plot);
    new IntersectionObserver(([entry]) => {
      this.isVisible = entry.isIntersecting;
      if (this.isVisible) this.request();
    }, {rootMargin: "80px"}).observe(this.plot);
  }

  /** Replaces the lines and the marks, [{x, kind, text}]. */
  set(lines, marks) {
    this.lines = lines;
    this.marks = marks;
    this.top.setAttribute("aria-label", `Curves of ${this.title}: ${lines.length} lines`);
    this.request();
  }

  request() { painter.request(this); }

  get #file() { return this.title.replace(/[^\w.-]+/g, "_"); }

  #saveTable() {
    const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
    const rows = this.lines.flatMap((line) => line.y.map((value, i) =>
      [quoted(line.name), line.split, line.steps[i], value ?? ""].join(",")));
    const text = ["run,split,step,value", ...rows, ""].join("\n");
    download(`${this.#file}.csv`, new Blob([text], {type: "text/csv"}));
  }

  /** Downloads the chart as it is seen, with its title and a legend. */
  #savePicture() {
    const names = new Map(this.lines.map(({owner, name, color}) => [owner, {name, color}]));
    const ratio = devicePixelRatio || 1, {ink, ground} = this.view.theme;
    const canvas = el("canvas", {width: this.base.width,
      height: this.base.height + ratio * (28 + 18 * names.size)});
    const context = canvas.getContext("2d");
    context.fillStyle = ground;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(this.base, 0, 24 * ratio);
    context.scale(ratio, ratio);
    context.font = "13px system-ui, sans-serif";
    context.fillStyle = ink;
    context.fillText(this.title, 8, 16);
    [...names.values()].forEach(({name, color}, i) => {
      context.fillStyle = color;
      context.fillRect(12, this.height + 30 + 18 * i, 10, 10);
      context.fillStyle = ink;
      context.fillText(name, 28, this.height + 39 + 18 * i);
    });
    canvas.toBlob((blob) => download(`${this.#file}.png`, blob));
  }

  #listen() {
    let from = null;
    const place = (event) => {
      const box = this.top.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.top.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch") return;
      from = place(event)[0];
      this.top.setPointerCapture(event.pointerId);
    });
    this.top.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      this.drag = from !== null && Math.abs(x - from) > DRAG_PIXELS ? [from, x] : null;
      this.events.hover(this, x, y);
    });
    this.top.addEventListener("pointerup", () => {
      const drag = this.drag;
      from = this.drag = null;
      if (drag) this.events.zoom(drag.map((x) => this.valueAt(x)).sort((a, b) => a - b));
    });
    this.top.addEventListener("pointercancel", () => { from = this.drag = null; });
    this.top.addEventListener("pointerleave", () => { if (from === null) this.events.leave(); });
    this.top.addEventListener("dblclick", () => this.events.zoom(null));
  }

  #resize() {
    const {clientWidth: width, clientHeight: height} = this.plot, ratio = devicePixelRatio || 1;
    if (!width || !height) return;
    for (const canvas of [this.base, this.top]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    Object.assign(this, {width, height});
    this.draw(); // immediately: a canvas is empty after a new size
  }

  /** Returns the values of a line as they are drawn: those of evaluations are never smoothed. */
  valuesOf(line) {
    const weight = EVALUATIONS.includes(line.split) ? 0 : this.view.smooth;
    if (line.weight !== weight) {
      const [smooth, low, high] = [line.y, line.low, line.high].map(
        (values) => values && smoothed(values, weight));
      Object.assign(line, {weight, smooth, band: low && {low, high}});
    }
    return line.smooth;
  }

  valueAt(pixel) {
    const [low, high] = this.xRange, width = this.width - INSET.left - INSET.right;
    return Math.min(high, Math.max(low, low + (high - low) * (pixel - INSET.left) / width));
  }

  xOf(value) {
    const [low, high] = this.xRange;
    return INSET.left + (this.width - INSET.left - INSET.right) * (value - low) / (high - low);
  }

  yOf(value) {
    const [low, high] = this.yRange, height = this.height - INSET.top - INSET.bottom;
    const share = this.isLog
      ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return this.height - INSET.bottom - height * share;
  }

  #setRanges() {
    const ends = this.lines.filter((line) => line.x.length);
    const last = Math.max(...ends.map((line) => line.x.at(-1)), ...this.marks.map(({x}) => x));
    const first = Math.min(0, ...ends.map((line) => line.x[0]));
    this.xRange = this.view.range ?? [first, last > first ? last : first + 1];
    let low = Infinity, high = -Infinity, least = Infinity;
    for (const line of ends) {
      const values = this.valuesOf(line), [begin, end] = this.#indices(line);
      for (const each of line.band ? [line.band.low, line.band.high] : [values]) {
        for (let i = begin; i < end; i++) {
          const value = each[i];
          if (value === null) continue;
          if (value < low) low = value;
          if (value > high) high = value;
          if (value > 0 && value < least) least = value;
        }
      }
    }
    if (low > high) [low, high] = [0, 1];
    this.isLog = this.view.log && high > 0;
    if (this.isLog) {
      low = least;
      this.yRange = high > low ? [low / (high / low) ** 0.04, high * (high / low) ** 0.04]
        : [low / 2, high * 2];
    } else {
      const pad = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
      this.yRange = [low >= 0 && low < pad ? 0 : low - pad, high + pad];
    }
  }

  /** Returns the first index and the one after the last of the points in sight, and a neighbor. */
  #indices(line) {
    const [low, high] = this.xRange;
    return [Math.max(0, lowerBound(line.x, low) - 1),
      Math.min(line.x.length, lowerBound(line.x, high) + 2)];
  }

  draw() {
    if (!this.width) return;
    this.#setRanges();
    const context = this.base.getContext("2d");
    context.clearRect(0, 0, this.width, this.height);
    this.#drawAxes(context);
    context.save();
    context.beginPath();
    const width = this.width - INSET.left - INSET.right + 1;
    context.rect(INSET.left, 0, width, this.height - INSET.bottom);
    context.clip();
    this.marks.forEach((mark) => this.#drawMark(context, mark));
    const isCrowded = this.lines.length > 40;
    this.lines.forEach((line) => line.band && this.#drawBand(context, line));
    if (this.view.smooth && this.lines.length <= MOST_RAW) {
      for (const line of this.lines) if (line.weight) this.#drawLine(context, line, line.y, 1, 0.2);
    }
    const order = {faint: 0, dashed: 1, solid: 2};
    for (const line of [...this.lines].sort((a, b) => order[a.style] - order[b.style])) {
      const alpha = (line.style === "faint" ? 0.5 : 1) * (isCrowded ? 0.7 : 1);
      this.#drawLine(context, line, this.valuesOf(line), isCrowded ? 1 : 1.6, alpha);
    }
    context.restore();
    this.events.drawn(this);
  }

  #drawAxes(context) {
    const {theme, byTime} = this.view, [left, bottom] = [INSET.left, this.height - INSET.bottom];
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = theme.soft;
    context.strokeStyle = theme.rule;
    context.lineWidth = 1;
    context.beginPath();
    context.textAlign = "right";
    context.textBaseline = "middle";
    const ticks = this.isLog
      ? logTicksOf(...this.yRange) : ticksOf(...this.yRange, Math.max(2, this.height / 45));
    for (const tick of ticks) {
      const y = Math.round(this.yOf(tick)) + 0.5;
      context.moveTo(left, y);
      context.lineTo(this.width - INSET.right, y);
      context.fillText(tickText(tick), left - 6, y);
    }
    context.stroke();
    context.textBaseline = "top";
    context.textAlign = "center";
    const span = this.xRange[1] - this.xRange[0];
    for (const tick of ticksOf(...this.xRange, Math.max(2, this.width / 85), byTime)) {
      if (!byTime && !Number.isInteger(tick)) continue;
      const time = span < 60 ? `${tickText(tick)} s` : formatDuration(tick);
      const text = byTime ? time : tickText(tick);
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(this.xOf(tick), this.width - half - 1), bottom + 7);
    }
    const title = byTime ? "training time" : "step";
    context.fillText(title, (left + this.width - INSET.right) / 2, bottom + 21);
  }

  #drawMark(context, mark) {
    const {theme} = this.view, x = Math.round(this.xOf(mark.x)) + 0.5;
    const bottom = this.height - INSET.bottom, isSave = mark.kind === "save";
    context.strokeStyle = context.fillStyle = isSave ? theme.soft : theme.warn;
    context.lineWidth = 1;
    context.setLineDash(isSave ? [] : [2, 3]);
    context.beginPath();
    context.moveTo(x, isSave ? bottom - 6 : INSET.top);
    context.lineTo(x, bottom);
    context.stroke();
    context.setLineDash([]);
    if (isSave) return;
    context.beginPath(); // a flag
    context.moveTo(x, INSET.top);
    context.lineTo(x + 7, INSET.top + 3.5);
    context.lineTo(x, INSET.top + 7);
    context.fill();
  }

  #drawBand(context, {x, color, band: {low, high}}) {
    const inside = x.map((_, i) => i).filter((i) => low[i] !== null && !(this.isLog && low[i] <= 0));
    context.fillStyle = color;
    context.globalAlpha = 0.15;
    context.beginPath();
    for (const i of inside) context.lineTo(this.xOf(x[i]), this.yOf(high[i]));
    for (const i of inside.reverse()) context.lineTo(this.xOf(x[i]), this.yOf(low[i]));
    context.fill();
    context.globalAlpha = 1;
  }

  #drawLine(context, line, values, width, alpha) {
    const [begin, end] = this.#indices(line);
    context.strokeStyle = line.color;
    context.globalAlpha = alpha;
    context.lineWidth = width;
    context.setLineDash(line.style === "dashed" ? [5, 3] : []);
    context.lineJoin = "round";
    context.beginPath();
    const isPoint = (i) => i < end && values[i] !== null && !(this.isLog && values[i] <= 0);
    for (let i = begin, isDown = false; i < end; i++) {
      if (isPoint(i)) {
        const x = this.xOf(line.x[i]), y = this.yOf(values[i]);
        if (isDown) context.lineTo(x, y); else context.moveTo(x, y);
        if (!isDown && !isPoint(i + 1)) context.rect(x - 1.5, y - 1.5, 3, 3); // it has no line
      }
      isDown = isPoint(i);
    }
    context.stroke();
    context.globalAlpha = 1;
    context.setLineDash([]);
  }

  /**
   * Returns {line, x, step, value, smooth, px, py} of each line that reaches an x, at its nearest
   * point: its value, and the one that is drawn.
   */
  pointsAt(x) {
    const points = [];
    for (const line of this.lines) {
      const after = lowerBound(line.x, x);
      if (!line.x.length) continue;
      const i = after && (after === line.x.length || x - line.x[after - 1] < line.x[after] - x)
        ? after - 1 : after;
      const value = line.y[i], smooth = this.valuesOf(line)[i], step = line.steps[i];
      const isOutside = after === 0 || after === line.x.length;
      if (isOutside && Math.abs(this.xOf(line.x[i]) - this.xOf(x)) > NEAR_PIXELS) continue;
      if (value === null || line.x[i] < this.xRange[0] || line.x[i] > this.xRange[1]) continue;
      if (this.isLog && smooth <= 0) continue;
      const px = this.xOf(line.x[i]), py = this.yOf(smooth);
      points.push({line, x: line.x[i], step, value, smooth, px, py});
    }
    return points;
  }

  /**
   * Draws the crosshair at an x, or removes it.
   *
   * @param points what pointsAt returned; each gets a dot.
   * @param focus the owner whose lines are drawn stronger, if any.
   */
  cross(x, points = [], focus = null) {
    const context = this.top.getContext("2d");
    context.clearRect(0, 0, this.width, this.height);
    if (focus !== null && this.lines.length > 2) {
      for (const line of this.lines.filter((each) => each.owner === focus)) {
        this.#drawLine(context, line, this.valuesOf(line), 2.5, line.style === "faint" ? 0.6 : 1);
      }
    }
    if (x === null) return;
    const bottom = this.height - INSET.bottom, px = Math.round(this.xOf(x)) + 0.5;
    context.strokeStyle = this.view.theme.soft;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(px, INSET.top);
    context.lineTo(px, bottom);
    context.stroke();
    for (const point of points) {
      context.fillStyle = point.line.color;
      context.beginPath();
      context.arc(point.px, point.py, point.line.owner === focus ? 4 : 2.5, 0, 2 * Math.PI);
      context.fill();
    }
    if (this.drag) {
      const [low, high] = [...this.drag].sort((a, b) => a - b);
      context.fillStyle = this.view.theme.accent;
      context.globalAlpha = 0.18;
      context.fillRect(low, INSET.top, high - low, bottom - INSET.top);
      context.globalAlpha = 1;
    }
  }
}
