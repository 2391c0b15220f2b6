"use strict";
// Details of one run, and what differs between several.

const PHASES = {train: "busy", evaluate: "eval", save: "save", compile: "wait", start: "wait"};
const GOOD_ENDS = ["done", "ended", "stopped"];
const LEAST_SECS = 60; // of a shorter run the start hides the useful time
const QUIET_SECS = 10; // a process that is quiet for longer is marked
const TIME_COLORS = {"train": "#0072b2", "input wait": "#e69f00", "start": "#8a8a8a",
  "compile": "#999933", "evaluate": "#cc79a7", "save": "#009e73", "interrupted": "#d55e00",
  "restart": "#a03a68", "end": "#6a5acd"};
const MOST_NUMBERED = 20; // a larger confusion matrix has colors only

/** Shows parts, [key, title or null, data, build], and builds those again whose data differ. */
function showParts(element, parts) {
  const old = new Map([...element.children].map((child) => [child.dataset.part, child]));
  const full = parts.filter(([, , data]) => data && Object.keys(data).length);
  setChildren(element, full.map(([key, title, data, build]) => {
    const text = JSON.stringify([title, data]);
    if (old.get(key)?.shown === text) return old.get(key);
    const part = el("section", {"data-part": key}, title && el("h3", {}, title), build(data));
    return Object.assign(part, {shown: text});
  }));
}

const alertOf = (text) => el("p", {class: "alert"}, text);
const wide = (...children) => el("div", {class: "wide"}, ...children);

/** Returns a table; a column of numbers is aligned at the right. */
function tableOf(head, rows, kind = "") {
  const kinds = (rows[0] ?? []).map((_, i) =>
    rows.every((row) => /^([-~]?\d[\d.,:e-]*( d)?|–)$/.test(row[i].textContent ?? row[i])) ? "number" : null);
  const line = (tag, row) =>
    el("tr", {}, ...row.map((cell, i) => el(tag, {class: kinds[i]}, cell)));
  const lines = rows.map((row) => line("td", row));
  return wide(el("table", {class: kind}, head.length ? el("thead", {}, line("th", head)) : null,
    el("tbody", {}, ...lines)));
}

function pairsOf(data) {
  const pairs = Object.entries(data).filter(([, value]) => value);
  return tableOf([], pairs.map(
    ([key, value]) => [el("span", {class: "soft"}, key), el("code", {}, value)]), "pairs");
}

function workersOf(workers) {
  const tag = "live" in document.body.dataset ? "button" : "div";
  const hosts = new Set(workers.map((worker) => worker.host));
  return el("div", {class: "workers"}, ...workers.map((worker) => {
    const {name, host, phase, step, quiet_secs: quiet, end} = worker;
    const kind = end ? GOOD_ENDS.includes(end) ? "off" : "bad"
      : quiet > QUIET_SECS ? "quiet" : PHASES[phase] ?? "wait";
    const soft = (text, kinds = "") => el("span", {class: `soft ${kinds}`}, text);
    return el(tag, {class: "worker", "data-kind": kind, "data-log": name,
      title: tag === "button" ? `${host}: show its log` : host}, el("b", {}, name),
      hosts.size > 1 ? soft(host) : null, el("span", {}, end || phase || "start"),
      soft(`step ${formatNumber(step)}`),
      quiet === null ? null : soft(`quiet ${formatDuration(quiet)}`, "quiet"));
  }));
}

/** Returns a bar of where the time went, with words. */
function timeOf({secs, wall_secs: wall, useful, attempts, sizes}) {
  const total = Object.values(secs).reduce((sum, each) => sum + each, 0) || 1;
  const entries = Object.entries(secs).map(([name, each]) =>
    ({each, text: `${name} ${formatShare(each / total)}`, color: TIME_COLORS[name] ?? "#56b4e9"}));
  const bar = el("div", {class: "bar"}, ...entries.map(({each, text, color}) => {
    const part = el("span", {title: text});
    part.style.width = `${100 * each / total}%`;
    part.style.backgroundColor = color;
    return part;
  }));
  const words = entries.map(({each, text, color}) =>
    el("span", {title: formatDuration(each)}, swatchOf(color), text));
  const all = [`${formatDuration(wall)} in all`,
    wall >= LEAST_SECS && `useful ${formatShare(useful)}`, attempts > 1 && `${attempts} attempts`, sizes && `workers: ${sizes}`];
  return el("div", {}, bar, el("p", {class: "words"}, ...words,
    el("span", {class: "soft"}, all.filter(Boolean).join(", "))));
}

function numbersOf(run) {
  const best = run.best === null ? "" : `${formatNumber(run.best)} at step ${run.best_step}`;
  const names = Object.keys({...run.metrics, ...run.test});
  return tableOf(["metric", "newest", "test", "best"], names.map((name) => [
    name, formatNumber(run.metrics[name]), formatNumber(run.test[name]),
    name === run.metric ? best : ""]));
}

function confusionOf({step, classes, matrix}) {
  const isNumbered = classes.length <= MOST_NUMBERED;
  const rows = matrix.map((counts, i) => {
    const total = counts.reduce((sum, count) => sum + count, 0) || 1;
    return el("tr", {}, el("th", {}, classes[i]), ...counts.map((count, k) => {
      const title = `${classes[i]}, predicted as ${classes[k]}: ${formatNumber(count)}`;
      const text = isNumbered ? count ? formatNumber(count) : "·" : "";
      const cell = el("td", {title, class: count > total / 2 ? "strong" : null}, text);
      cell.style.backgroundColor = `rgba(0, 96, 160, ${count / total})`;
      return cell;
    }));
  });
  const head = el("tr", {}, el("td", {}), ...classes.map((name) => el("th", {}, name)));
  const note = `step ${step}; labels in rows, predictions in columns`;
  return el("div", {}, el("p", {class: "soft"}, note),
    wide(el("table", {class: isNumbered ? "confusion" : "confusion small"}, head, ...rows)));
}

function picturesOf(pictures) {
  return el("div", {class: "pictures"}, ...pictures.map(({name, data}) =>
    el("figure", {}, el("img", {src: data, alt: name}), el("figcaption", {}, name))));
}

function textsOf(texts) {
  return el("div", {}, ...texts.map(({name, text}) =>
    el("details", {open: true}, el("summary", {}, name), el("pre", {}, text))));
}

function commandsOf({commands, changes}) {
  return el("div", {}, ...commands.map((command, i) => el("div", {class: "command"},
    el("code", {}, command), el("button", {onclick: (event) => copyText(event.target, command)}, "copy"),
    el("p", {class: "soft"}, changes?.[i] ?? ""))));
}

/** Shows all of a run in an element; `details` and `series` are undefined until they are read. */
function showRun(element, run, details, series) {
  if (!run || !details) {
    const text = run ? "Reading the run…" : "No run is chosen.";
    element.replaceChildren(el("p", {class: "empty"}, text));
    return;
  }
  const {directory, code, machine, devices, replicas, commands, changes} = details;
  const versions = Object.entries(details.versions ?? {}).map((pair) => pair.join(" ")).join(", ");
  const times = (rows) => tableOf(["worker", "steps", "in steps", "waiting"], rows.map((each) => [
    each.name, formatNumber(each.steps), formatDuration(each.step_secs),
    formatDuration(each.wait_secs)]));
  const problems = [...details.problems, ...series?.problems ?? []];
  showParts(element, [
    ["why", null, run.why, alertOf],
    ["problems", null, problems, (lines) => el("div", {}, ...lines.map(alertOf))],
    ["workers", "Workers", details.workers, workersOf],
    ["time", "Where the time goes", details.time, timeOf],
    ["straggler", null, details.straggler, alertOf],
    ["numbers", "Metrics", Object.keys({...run.metrics, ...run.test}).length && run, numbersOf],
    ["pictures", "Pictures", details.pictures, picturesOf],
    ["confusion", "Confusion", details.confusion, confusionOf],
    ["texts", "Texts", details.texts, textsOf],
    ["worker-times", "Time of each worker", details.worker_times, times],
    ["commands", "Commands", commands?.length && {commands, changes}, commandsOf],
    ["facts", "Run", {directory, code, machine, devices, replicas: replicas && String(replicas),
      versions}, pairsOf],
    ["changed", "Changed from the defaults", details.changed, pairsOf],
    ["config", "Defaults", details.config, pairsOf],
  ]);
}

/** Returns the columns of a comparison: {title, mode, value(run), text(run)}. */
function comparedColumns(runs) {
  const keysOf = (part) => [...new Set(runs.flatMap((run) => Object.keys(run[part])))];
  const keys = keysOf("differs").filter(
    (key) => new Set(runs.map((run) => run.differs[key])).size > 1);
  const metrics = keysOf("metrics").filter((name) => !name.includes("/"));
  const number = (title, value, mode, text = formatNumber) =>
    ({title, mode, value, text: (run) => text(value(run))});
  const modeOf = (name) => runs.map((run) => run.modes[name]).find(Boolean);
  const text = (title, value) => ({title, value, text: (run) => value(run) ?? "–"});
  return [
    text("run", (run) => run.name), ...keys.map((key) => text(key, (run) => run.differs[key])),
    text("state", (run) => run.state), number("step", (run) => run.step),
    number("best", (run) => run.best, modeOf(runs[0].metric)),
    ...metrics.map((name) => number(name, (run) => run.metrics[name], modeOf(name))),
    number("duration", (run) => run.secs, undefined, formatDuration),
  ];
}

/** Returns rows sorted by a value, ascending or descending; those without one are the last. */
function sortedBy(rows, value, descends) {
  const sign = descends ? -1 : 1, values = new Map(rows.map((row) => [row, value(row) ?? null]));
  return [...rows].sort((a, b) => {
    const [x, y] = [values.get(a), values.get(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (typeof x === "string" ? compareTexts(x, y) : x - y);
  });
}

/**
 * Shows what differs between runs: a row for each, and the best value of a metric bold.
 *
 * @param order {title, descends} of the column by which they are sorted.
 */
function showComparison(element, runs, colors, order) {
  if (runs.length < 2) {
    element.replaceChildren(el("p", {class: "empty"}, "Select several runs to compare them."));
    return;
  }
  const columns = comparedColumns(runs);
  const column = columns.find(({title}) => title === order.title);
  const rows = column ? sortedBy(runs, column.value, order.descends) : runs;
  const best = columns.map(({mode, value}) => mode
    && Math[mode](...runs.map(value).filter((each) => Number.isFinite(each))));
  const sort = ({title, mode}) => {
    const descends = order.title === title ? !order.descends : mode === "max";
    showComparison(element, runs, colors, Object.assign(order, {title, descends}));
  };
  const build = () => tableOf(
    columns.map((each) => el("button", {onclick: () => sort(each),
      "aria-sort": each !== column ? null : order.descends ? "descending" : "ascending"},
    each.title)),
    rows.map((run) => columns.map(({value, text}, i) => i
      ? best[i] !== undefined && value(run) === best[i] ? el("b", {}, text(run)) : text(run)
      : el("span", {}, swatchOf(colors.get(run.id)), text(run)))));
  const texts = rows.map((run) => [run.id, colors.get(run.id), ...columns.map(({text}) => text(run))]);
  showParts(element, [["comparison", null, {order, texts}, build]]);
}
