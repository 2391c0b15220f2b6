"use strict";
// The curves of the selected runs: one chart a metric, in groups, with a crosshair in all of them.

/** Groups of metrics, each with what the names of its metrics match; the last takes the rest. */
const GROUPS = [
  ["metrics", null],
  ...Object.entries(JSON.parse(document.body.dataset.groups))
    .map(([title, names]) => [title, new RegExp(`^(${names})$`)]),
  ["classes", /\//],
  ["more", /./],
];
const EVALUATIONS = ["validation", "test"];
const TOOLTIP_ROWS = 10;
const MOST_CHIPS = 24;
const MARK_PIXELS = 5;

/** Returns the columns of the tooltip: {title, split, text(point)}; a point may be of another step. */
function columnsOf(points, step) {
  const valueOf = (point) =>
    formatNumber(point.value) + (point.step === step ? "" : ` at ${formatNumber(point.step)}`);
  return [...new Set(points.map((point) => point.line.split))].sort().flatMap((split) => {
    const isSmoothed = points.some(
      (point) => point.line.split === split && point.smooth !== point.value);
    const smoothed = {title: "smoothed", split, text: (point) => formatNumber(point.smooth)};
    return [{title: split, split, text: valueOf}, ...(isSmoothed ? [smoothed] : [])];
  });
}

/** Returns {id, name, runs} of each run, or of each group of runs that differ in the seed alone. */
function groupsOf(runs, bySeed) {
  const groups = new Map();
  for (const run of runs) {
    const {seed, ...rest} = run.differs;
    const key = bySeed && seed !== undefined ? JSON.stringify(rest) : run.id;
    if (!groups.has(key)) groups.set(key, {id: run.id, runs: []});
    groups.get(key).runs.push(run);
  }
  for (const group of groups.values()) {
    const [{label, name}] = group.runs, count = group.runs.length;
    const shared = label.replace(/(^| )seed=\S+/, "");
    group.name = count > 1 ? `${shared} (${count} seeds)` : label || name;
  }
  return [...groups.values()];
}

/** Returns the value of a line at an x between two of its points; null: there are none. */
function valueAt({x, y}, at) {
  const i = lowerBound(x, at);
  if (x[i] === at || i === 0 || i === x.length) return x[i] === at ? y[i] : null;
  if (y[i] === null || y[i - 1] === null) return null;
  return y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1]);
}

/** Returns the mean of lines as a line, with a band from their least to their greatest value. */
function meanOf(lines) {
  if (lines.length === 1) return lines[0];
  const longest = lines.reduce((a, b) => b.x.length > a.x.length ? b : a);
  const columns = longest.x.map((x) =>
    lines.map((line) => valueAt(line, x)).filter((value) => value !== null));
  const over = (reduce) => columns.map((values) => values.length ? reduce(values) : null);
  const {x, steps} = longest, {owner, name, split, color} = lines[0];
  return {x, steps, owner, name, split, color, low: over((values) => Math.min(...values)),
    high: over((values) => Math.max(...values)),
    y: over((values) => values.reduce((sum, value) => sum + value, 0) / values.length)};
}

const bySplit = (a, b) => a.line.split < b.line.split ? -1 : 1;

class Board {
  /**
   * @param elements {charts, legend, tooltip}.
   * @param state the page's: {store, selected, hidden, colors, view, opened()}.
   * @param events {focus(id | null), change()}.
   */
  constructor(elements, state, events) {
    Object.assign(this, {...elements, state, events, offSplits: new Set(), splits: new Set()});
    this.panels = new Map(); // metric: Chart
    this.groups = GROUPS.map(([title], i) => {
      const grid = el("div", {class: "grid"}), count = el("span", {class: "soft"});
      const element = el("details", {class: "group", open: i === 0, hidden: true},
        el("summary", {}, title, " ", count), grid);
      return {element, grid, count};
    });
    this.empty = el("p", {class: "empty"});
    this.charts.replaceChildren(this.empty, ...this.groups.map((group) => group.element));
  }

  /** Shows what the store has of the selected runs. */
  update() {
    const {store, selected, hidden} = this.state;
    const runs = store.runs.filter((run) => selected.has(run.id));
    const groups = groupsOf(runs, this.state.view.bySeed);
    const metrics = new Map(); // name: lines
    this.splits = new Set();
    for (const group of groups) {
      const curves = new Map(); // key: lines of the runs of the group
      for (const run of group.runs) {
        for (const [key, curve] of store.series.get(run.id)?.curves ?? []) {
          const split = key.slice(0, key.indexOf("/")), name = key.slice(key.indexOf("/") + 1);
          if (name === "train_secs") continue; // it is the axis of time
          this.splits.add(split);
          if (!metrics.has(name)) metrics.set(name, []);
          if (hidden.has(group.id) || this.offSplits.has(split)) continue;
          if (!curves.has(key)) curves.set(key, {name, lines: []});
          curves.get(key).lines.push(this.#line(run, group, split, curve));
        }
      }
      for (const {name, lines} of curves.values()) metrics.get(name).push(meanOf(lines));
    }
    const marks = runs.length === 1 ? this.#marks(runs[0].id) : [];
    for (const [name, lines] of metrics) {
      const isEvaluated = lines.some((line) => EVALUATIONS.includes(line.split));
      const isValidated = lines.some((line) => line.split === "validation");
      for (const line of lines) {
        line.style = isEvaluated && !EVALUATIONS.includes(line.split) ? "faint"
          : isValidated && line.split === "test" ? "dashed" : "solid";
      }
      this.#chart(name).set(lines, marks);
    }
    this.#arrange(metrics, runs);
    this.#showLegend(groups);
    const isReading = runs.some((run) => !store.series.has(run.id));
    setText(this.empty, metrics.size || !store.runs.length ? "" : !runs.length
      ? "Select runs at the left to see their curves."
      : isReading ? "Reading the curves…" : "No curve yet.");
  }

  /** Returns the line of a curve; the same one while the curve has no new points. */
  #line(run, group, split, curve) {
    const {view, colors, store} = this.state, {byTime} = view, {step, value} = curve;
    if (curve.line?.byTime !== byTime) {
      const secs = byTime ? step.map((each) => secsAt(store.series.get(run.id), each)) : step;
      curve.line = {byTime, x: secs.filter((each) => each !== null), y: value, steps: step};
    }
    return Object.assign(curve.line,
      {owner: group.id, name: group.name, split, color: colors.get(group.id)});
  }

  #marks(id) {
    const {store, view} = this.state, series = store.series.get(id);
    return (store.details.get(id)?.marks ?? []).map((mark) =>
      ({...mark, x: view.byTime ? secsAt(series, mark.step) : mark.step}))
      .filter((mark) => mark.x !== null);
  }

  #chart(name) {
    if (!this.panels.has(name)) {
      this.panels.set(name, new Chart(name, this.state.view, {
        hover: (chart, x, y) => {
          this.pointer = {chart, x, y};
          this.#requestCross();
        },
        drawn: (chart) => { if (this.pointer) this.#requestCross(); else chart.cross(null); },
        leave: () => this.clear(),
        zoom: (range) => { this.state.view.range = range; this.events.change(); },
      }));
    }
    return this.panels.get(name);
  }

  /** Puts each chart into its group: the primary metric and the loss first. */
  #arrange(metrics, runs) {
    const first = [runs[0]?.metric, "loss"];
    const rank = (name) => first.includes(name) ? first.indexOf(name) : 2;
    const names = [...metrics.keys()].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
    const evaluated = new Set(runs.flatMap((run) => [run.metric, ...Object.keys(run.metrics)]));
    const members = GROUPS.map(() => []);
    for (const name of names) {
      const isMetric = !name.includes("/") && (evaluated.has(name) || name === "loss");
      members[isMetric ? 0 : GROUPS.findIndex(([, rule]) => rule?.test(name))].push(name);
    }
    this.groups.forEach(({element, grid, count}, i) => {
      element.hidden = !members[i].length;
      setText(count, String(members[i].length));
      setChildren(grid, members[i].map((name) => this.panels.get(name).element));
    });
    for (const name of this.panels.keys()) if (!metrics.has(name)) this.panels.delete(name);
  }

  #showLegend(groups) {
    const {hidden, colors} = this.state;
    const chip = (text, isOn, ...rest) => el("button",
      {class: "chip", "aria-pressed": String(isOn), ...rest[0]}, rest[1], el("span", {}, text));
    const splits = [...this.splits].sort().map((split) => chip(split, !this.offSplits.has(split), {
      "data-split": split, title: `Show or hide the curves of ${split}`,
      onclick: () => this.#toggle(this.offSplits, split)}, el("span", {class: `stroke ${EVALUATIONS.includes(split) ? "" : "faint"}`})));
    const chips = groups.slice(0, MOST_CHIPS).map(({id, name, runs}) => {
      return chip(name, !hidden.has(id), {"data-run": id,
        title: `Show or hide the curves of ${runs.map((run) => run.name).join(", ")}`,
        onclick: () => this.#toggle(hidden, id),
        onpointerenter: () => this.highlight(id),
        onpointerleave: () => this.clear()}, swatchOf(colors.get(id)));
    });
    const more = groups.length > MOST_CHIPS ? [`and ${groups.length - MOST_CHIPS} more`] : [];
    const text = [...splits, ...chips].map((each) => each.outerHTML).join("") + more;
    if (text === this.legendText) return;
    this.legendText = text;
    const focused = [...this.legend.children].indexOf(document.activeElement);
    this.legend.replaceChildren(...splits, el("span", {class: "gap"}), ...chips, ...more);
    this.legend.children[focused]?.focus();
  }

  /** Hides what is shown, or shows what is hidden. */
  #toggle(hidden, key) {
    if (!hidden.delete(key)) hidden.add(key);
    this.update();
  }

  #requestCross() {
    this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.#cross(); });
  }

  /** Draws the crosshair where the pointer is, in all charts in sight, at the nearest point. */
  #cross() {
    const {chart, x, y} = this.pointer ?? {};
    if (!chart?.lines.length || !chart.width) return;
    const distance = (point) => Math.hypot(point.px - x, 2 * (point.py - y));
    const points = chart.pointsAt(chart.valueAt(x)).sort((a, b) => distance(a) - distance(b));
    const nearest = points[0], at = chart.drag ? chart.valueAt(x) : nearest?.x ?? chart.valueAt(x);
    const focus = nearest?.line.owner ?? null;
    for (const other of this.panels.values()) {
      if (!other.isVisible || !other.xRange) continue;
      const all = other === chart ? points : other.pointsAt(at);
      const own = all.filter((point) => point.line.owner === focus);
      other.cross(at, all.length > 30 && other !== chart ? own : all, focus);
      setText(other.readout, own.sort(bySplit).map(
        (point) => `${point.line.split} ${formatNumber(point.value)}`).join("  "));
    }
    this.#showTooltip(chart, points, x, y);
    this.events.focus(focus);
  }

  #showTooltip(chart, points, x, y) {
    const step = points[0]?.step ?? null;
    const time = this.state.view.byTime && points[0] ? `, ${formatDuration(points[0].x)}` : "";
    const near = chart.marks.filter((mark) => Math.abs(chart.xOf(mark.x) - x) < MARK_PIXELS);
    const owners = [...new Set(points.map((point) => point.line.owner))];
    const columns = columnsOf(points, step);
    const rows = owners.slice(0, TOOLTIP_ROWS).map((owner, i) => {
      const own = points.filter((point) => point.line.owner === owner);
      const cells = columns.map(({split, text}) => {
        const point = own.find(({line}) => line.split === split);
        return el("td", {class: "number"}, point ? text(point) : "");
      });
      const {color, name} = own[0].line;
      return el("tr", {class: i ? "" : "nearest"}, el("td", {}, swatchOf(color), name), ...cells);
    });
    const title = step === null ? "" : `step ${formatNumber(step)}${time}`;
    const head = el("tr", {}, el("th", {}, title),
      ...columns.map((column) => el("th", {class: "number"}, column.title)));
    const more = owners.length - rows.length;
    this.tooltip.replaceChildren(el("table", {}, head, ...rows),
      ...near.slice(0, 3).map((mark) => el("div", {class: "soft"}, mark.text)),
      more > 0 ? el("div", {class: "soft"}, `and ${more} more`) : "");
    this.tooltip.hidden = !rows.length && !near.length;
    const box = chart.top.getBoundingClientRect(), size = this.tooltip.getBoundingClientRect();
    const right = box.left + x + 16, top = box.top + y + 16;
    const isTooWide = right + size.width > innerWidth - 8;
    this.tooltip.style.left = `${isTooWide ? Math.max(8, right - size.width - 32) : right}px`;
    this.tooltip.style.top = `${Math.max(8, Math.min(top, innerHeight - size.height - 8))}px`;
  }

  /** Draws the curves of a run stronger. */
  highlight(id) {
    for (const chart of this.panels.values()) {
      if (chart.isVisible && chart.xRange) chart.cross(null, [], id);
    }
  }

  /** Removes crosshair and highlight. */
  clear() {
    this.pointer = null;
    this.tooltip.hidden = true;
    for (const chart of this.panels.values()) {
      if (chart.width && chart.xRange) chart.cross(null);
      setText(chart.readout, "");
    }
    this.events.focus(null);
  }
}
