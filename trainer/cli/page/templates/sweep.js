"use strict";
// What the keys that differ do to the metric: how much each explains, parallel coordinates, and a
// scatter plot of one key or of another metric. Of a search also how its points continued.

const FRAME = {left: 60, right: 30, top: 40, bottom: 44, height: 320};
const MOST_AXES = 10;
const LOG_RATIO = 20; // positive numbers that span so much have a logarithmic axis

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const scoreOf = (run) => run.best ?? run.value ?? null;

/** Returns an axis of values: {title, share(value) from 0 to 1, ticks: [value, text]}. */
function axisOf(title, values) {
  const known = [...new Set(values.filter((value) => value !== undefined))];
  const numbers = known.map(Number);
  if (numbers.some(Number.isNaN)) {
    known.sort(compareTexts);
    const share = (value) => known.length > 1 ? known.indexOf(value) / (known.length - 1) : 0.5;
    return {title, share, ticks: known.map((value) => [value, value])};
  }
  const low = Math.min(...numbers), high = Math.max(...numbers);
  const isLog = low > 0 && high / low >= LOG_RATIO;
  const scale = isLog ? Math.log : Number;
  const share = (value) =>
    high > low ? (scale(Number(value)) - scale(low)) / (scale(high) - scale(low)) : 0.5;
  const ticks = numbers.length <= 6 ? numbers : isLog ? logTicksOf(low, high) : ticksOf(low, high, 5);
  return {title, share, ticks: ticks.map((tick) => [tick, tickText(tick)])};
}

/** Returns the color of a share of the axis of the metric: from blue to red. */
const heatOf = (share) => `hsl(${Math.round(220 - 220 * share)} 75% 50%)`;

/** Returns an element of a chart that shows its run at the pointer, and opens it. */
function markOf(tag, run, attributes, open) {
  const mark = svg(tag, {...attributes, class: "mark", "data-run": run.id},
    svg("title", {}, `${run.label || run.name}\n${run.metric} ${formatNumber(scoreOf(run))}`));
  mark.addEventListener("click", () => open(run.id));
  return mark;
}

function parallelOf(runs, axes, width, open) {
  const {left, right, top, bottom, height} = FRAME, metric = axes.at(-1);
  const xOf = (i) => left + (width - left - right) * i / Math.max(1, axes.length - 1);
  const yOf = (axis, value) => height - bottom - (height - top - bottom) * axis.share(value);
  const lines = [...runs].sort((a, b) => scoreOf(a) - scoreOf(b)).map((run) => {
    const points = axes.map((axis, i) => [axis, i]).filter(([axis]) => axis.of(run) !== undefined);
    const path = points.map(([axis, i]) => `${xOf(i)},${yOf(axis, axis.of(run))}`).join("L");
    return markOf("path", run, {d: `M${path}`, fill: "none",
      stroke: heatOf(metric.share(scoreOf(run)))}, open);
  });
  const rulers = axes.map((axis, i) => svg("g", {},
    svg("line", {x1: xOf(i), x2: xOf(i), y1: top, y2: height - bottom}),
    svg("text", {x: xOf(i), y: top - 14, class: "axis"}, axis.title),
    ...axis.ticks.map(([value, text]) =>
      svg("text", {x: xOf(i) - 6, y: yOf(axis, value) + 4, class: "tick"}, text))));
  return svg("svg", {width, height}, ...lines, ...rulers);
}

/** Returns the runs that no other beats: as good on both axes, and better on one. */
function frontOf(runs, axes) {
  const costsOf = (run) => axes.map((axis) => axis.of(run) * (axis.mode === "min" ? 1 : -1));
  const beats = (a, b) => a.every((cost, i) => cost <= b[i]) && a.some((cost, i) => cost < b[i]);
  const costs = runs.map(costsOf);
  return new Set(runs.filter((_, i) => !costs.some((other) => beats(other, costs[i]))));
}

/** Returns a chart of two axes without its marks: {svg, xOf, yOf}. */
function chartOf(x, y, width) {
  const {left, right, top, bottom, height} = FRAME, low = height - bottom;
  const xOf = (value) => left + 20 + (width - left - right - 40) * x.share(value);
  const yOf = (value) => low - (low - top) * y.share(value);
  const text = (kind, x, y, content) => svg("text", {x, y, class: kind}, content);
  return {xOf, yOf, chart: svg("svg", {width, height},
    svg("line", {x1: left, x2: left, y1: top, y2: low}),
    svg("line", {x1: left, x2: width - right, y1: low, y2: low}),
    ...x.ticks.map(([value, name]) => text("axis", xOf(value), low + 16, name)),
    ...y.ticks.map(([value, name]) => text("tick", left - 6, yOf(value) + 4, name)),
    text("axis", (left + width - right) / 2, height - 8, x.title),
    text("axis", left, top - 14, y.title))};
}

function scatterOf(runs, axis, metric, width, colors, open) {
  const {chart, xOf, yOf} = chartOf(axis, metric, width);
  const shown = runs.filter((run) => axis.of(run) !== undefined && metric.of(run) !== undefined);
  const front = axis.mode ? frontOf(shown, [axis, metric]) : new Set();
  chart.append(...shown.map((run) => markOf("circle", run,
    {cx: xOf(axis.of(run)), cy: yOf(metric.of(run)), r: 5, "data-front": front.has(run),
      fill: colors.get(run.id) ?? heatOf(metric.share(metric.of(run)))}, open)));
  return chart;
}

/**
 * Returns the fraction of the variation of the metric's ranks that a key explains alone: epsilon
 * squared of Kruskal and Wallis, about 0 by chance. Mostly different values are four groups.
 */
function importanceOf(runs, axis) {
  const known = runs.filter((run) => axis.of(run) !== undefined);
  const scores = known.map(scoreOf).sort((a, b) => a - b);
  const rankOf = (run) => scores.indexOf(scoreOf(run)) + scores.lastIndexOf(scoreOf(run));
  const values = known.map(axis.of), isMany = 2 * new Set(values).size > known.length;
  const order = values.map((value) => axis.share(value)).sort((a, b) => a - b);
  const groupOf = (run) =>
    isMany ? Math.floor(4 * order.indexOf(axis.share(axis.of(run))) / order.length) : axis.of(run);
  const groups = [...Map.groupBy(known, groupOf).values()].map((group) => group.map(rankOf));
  const spreadOf = (ranks) => {
    const mean = ranks.reduce((sum, rank) => sum + rank, 0) / ranks.length;
    return ranks.reduce((sum, rank) => sum + (rank - mean) ** 2, 0);
  };
  const within = groups.reduce((sum, ranks) => sum + spreadOf(ranks), 0) / (known.length - groups.length);
  const all = spreadOf(groups.flat()) / (known.length - 1);
  return known.length > groups.length && all ? Math.max(0, 1 - within / all) : null;
}

/** Returns the table of what each key explains, the most first. */
function importanceTableOf(runs, axes) {
  const rows = axes.map((axis) => [axis.title, importanceOf(runs, axis)])
    .filter(([, share]) => share !== null).sort(([, a], [, b]) => b - a);
  return rows.map(([key, share]) => [key, formatShare(share)]);
}

/**
 * Draws the metric of each point of a search where it paused or ended. A point that continued is a
 * line, and a branch a dashed line from its origin.
 */
function continuationsOf({metric, points}, width) {
  const ends = points.flatMap((point) => point.ends);
  const y = axisOf(metric, ends.map(([, value]) => value));
  const {chart, xOf, yOf} = chartOf(axisOf("step", ends.map(([step]) => step)), y, width);
  const pathOf = (places) => `M${places.map(([step, value]) => [xOf(step), yOf(value)]).join("L")}`;
  for (const {label, origin, ends} of points) {
    const color = heatOf(y.share(ends.at(-1)[1]));
    const line = {fill: "none", stroke: color};
    const branch = origin && svg("path", {d: pathOf([origin, ends[0]]), "stroke-dasharray": 4, ...line});
    chart.append(svg("g", {class: "point"}, svg("title", {}, label), branch ?? "",
      svg("path", {d: pathOf(ends), ...line}),
      ...ends.map(([step, value]) => svg("circle", {cx: xOf(step), cy: yOf(value), r: 4, fill: color}))));
  }
  return chart;
}

/** Returns the axis of the last values of a metric; `mode`: which values are better. */
function axisOfMetric(name, runs) {
  const of = (run) => run.metrics[name] ?? undefined;
  return {...axisOf(name, runs.map(of)), of, mode: runs[0].modes[name]};
}

/**
 * Shows runs by the keys in which they differ and by their metric.
 *
 * @param choice {key} or metric of the scatter plot; the select changes it.
 * @param searches what their logs say of how points continued.
 */
function showSweep(element, listed, colors, choice, open, searches = []) {
  const runs = listed.filter((run) => scoreOf(run) !== null && run.metric === listed[0].metric);
  const counts = new Map();
  for (const run of runs) {
    for (const [key, value] of Object.entries(run.differs)) {
      counts.set(key, (counts.get(key) ?? new Set()).add(value));
    }
  }
  // Where a branch comes from is in the table below.
  const isAxis = (key) => counts.get(key).size > 1 && !key.startsWith("init_");
  const keys = [...counts.keys()].filter(isAxis).slice(0, MOST_AXES);
  const width = Math.max(420, element.clientWidth - 28);
  const tables = searches.flatMap((search, i) => searchParts(search, i, width));
  if (!keys.length) {
    showParts(element, [["empty", null, "The listed runs differ in no key.",
      (text) => el("p", {class: "empty"}, text)], ...tables]);
    return;
  }
  const axes = keys.map((key) => ({...axisOf(key, runs.map((run) => run.differs[key])),
    of: (run) => run.differs[key]}));
  const metric = {...axisOf(runs[0].metric, runs.map(scoreOf)), of: scoreOf};
  const others = Object.keys(runs[0].modes)
    .filter((name) => name !== metric.title && !name.includes("/") && !keys.includes(name));
  const other = others.find((name) => name === choice.key);
  const chosen = other ? axisOfMetric(other, runs)
    : axes.find(({title}) => title === choice.key) ?? axes[0];
  const select = el("select", {"aria-label": "Key of the scatter plot", onchange: () => {
    choice.key = select.value;
    showSweep(element, listed, colors, choice, open, searches);
  }}, ...[...keys, ...others].map((key) => el("option", {selected: key === chosen.title}, key)));
  const data = [runs.map((run) => [run.id, run.differs, scoreOf(run), colors.get(run.id),
    chosen.of(run), run.metrics[metric.title]]), width, chosen.title];
  showParts(element, [
    ["importance", `How much of ${metric.title} each key explains alone`,
      importanceTableOf(runs, axes), (rows) => tableOf(["key", "explains"], rows)],
    ["parallel", `${runs.length} runs, colored by ${metric.title}`, data,
      () => parallelOf(runs, [...axes, metric], width, open)],
    ["scatter", null, data, () => el("div", {}, el("label", {}, `${metric.title} by `, select),
      other ? el("span", {class: "soft"}, " outlined: the Pareto front") : "",
      scatterOf(runs, chosen, other ? axisOfMetric(metric.title, runs) : metric, width, colors,
        open))],
    ...tables,
  ]);
}

/** Returns what is shown of a search: the rungs, and how points continued. */
function searchParts(search, i, width) {
  const {problem, unit, metric, rungs, points} = search;
  if (problem) return [[`problem-${i}`, null, problem, alertOf]];
  return [
    [`rungs-${i}`, "Rungs of the search", rungs, (data) => tableOf(
      [unit, "points", "continued", "best", metric], data)],
    [`points-${i}`, "How points continued; dashed: branches", points.length ? [points, width] : [],
      () => continuationsOf(search, width)],
  ];
}
