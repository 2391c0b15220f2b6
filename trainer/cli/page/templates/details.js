"use strict";
// What is known of one run besides its curves, and what differs between several.

const PHASES = {train: "busy", evaluate: "eval", save: "save", compile: "wait", start: "wait"};
const QUIET_SECS = 10; // a process that is quiet for longer is marked
const TIME_COLORS = {"steps": "#0072b2", "waiting for input": "#e69f00", "start": "#8a8a8a",
  "compile": "#999933", "evaluation": "#cc79a7", "saving": "#009e73", "lost work": "#d55e00",
  "restart": "#a03a68", "end": "#6a5acd"};
const MOST_NUMBERED = 20; // a larger confusion matrix has colors only

/** Replaces the parts of an element whose data have changed: [key, title | null, data, build]. */
function showParts(element, parts) {
  const old = new Map([...element.children].map((child) => [child.dataset.part, child]));
  const children = parts.filter(([, , data]) => data && Object.keys(data).length).map(
    ([key, title, data, build]) => {
      const text = JSON.stringify(data), known = old.get(key);
      if (known?.shown === text) return known;
      const part = el("section", {"data-part": key}, title && el("h3", {}, title), build(data));
      part.shown = text;
      return part;
    });
  if (children.length !== old.size || children.some((child, i) => child !== element.children[i])) {
    element.replaceChildren(...children);
  }
}

function tableOf(head, rows, kind = "") {
  const isNumber = (cell) => typeof cell === "string" && /^([-~]?\d[\d.,:e-]*|–)( d .*)?$/.test(cell);
  const kinds = rows[0]?.map((_, i) => rows.every((row) => isNumber(row[i])) ? "number" : null);
  const cells = (tag, row) => el("tr", {}, ...row.map((cell, i) => el(tag, {class: kinds[i]}, cell)));
  return el("div", {class: "wide"}, el("table", {class: kind},
    head.length ? el("thead", {}, cells("th", head)) : null, el("tbody", {}, ...rows.map((row) => cells("td", row)))));
}

function workersOf(workers) {
  const hosts = new Set(workers.map((worker) => worker.host));
  return el("div", {class: "workers"}, ...workers.map((worker) => {
    const isQuiet = worker.quiet_secs !== null && worker.quiet_secs > QUIET_SECS;
    const hasFailed = worker.end && !["done", "ended", "stopped"].includes(worker.end);
    const kind = hasFailed ? "bad" : worker.end ? "off" : isQuiet ? "quiet" : PHASES[worker.phase] ?? "wait";
    return el("div", {class: "worker", "data-kind": kind, title: worker.host},
      el("b", {}, worker.name), hosts.size > 1 ? el("span", {class: "soft"}, worker.host) : null,
      el("span", {}, worker.end || worker.phase || "starts"),
      el("span", {class: "soft"}, `step ${worker.step.toLocaleString("en-US")}`),
      worker.quiet_secs === null ? null
        : el("span", {class: "soft quiet"}, `quiet ${formatDuration(worker.quiet_secs)}`));
  }));
}

function barOf(entries) {
  const total = entries.reduce((sum, [, , size]) => sum + size, 0) || 1;
  return el("div", {class: "bar"}, ...entries.map(([text, color, size]) => {
    const part = el("span", {title: `${text}: ${formatShare(size / total)}`});
    part.style.width = `${100 * size / total}%`;
    part.style.backgroundColor = color;
    return part;
  }));
}

function timeOf(time) {
  const entries = Object.entries(time.secs).map(([name, secs]) => [name, TIME_COLORS[name] ?? "#56b4e9", secs]);
  const total = entries.reduce((sum, [, , secs]) => sum + secs, 0) || 1;
  const words = entries.map(([name, color, secs]) => {
    return el("span", {title: formatDuration(secs)}, swatchOf(color), `${name} ${formatShare(secs / total)}`);
  });
  const attempts = time.attempts > 1 ? `, ${time.attempts} attempts` : "";
  const sizes = time.sizes ? `, workers: ${time.sizes}` : "";
  return el("div", {class: "time-spent"}, barOf(entries), el("p", {class: "words"}, ...words,
    el("span", {class: "soft"},
      `${formatDuration(time.wall_secs)} in all, useful ${formatShare(time.useful)}${attempts}${sizes}`)));
}

function confusionOf({classes, matrix}) {
  const isNumbered = classes.length <= MOST_NUMBERED;
  const rows = matrix.map((counts, i) => {
    const total = counts.reduce((sum, count) => sum + count, 0) || 1;
    return el("tr", {}, el("th", {}, classes[i]), ...counts.map((count, k) => {
      const cell = el("td", {title: `${classes[i]}, predicted as ${classes[k]}: ${formatNumber(count)}`},
        isNumbered ? count ? formatNumber(count) : "·" : "");
      cell.style.backgroundColor = `rgba(0, 96, 160, ${count / total})`;
      if (count / total > 0.5) cell.className = "strong";
      return cell;
    }));
  });
  const head = el("tr", {}, el("td", {}), ...classes.map((name) => el("th", {}, name)));
  return el("div", {class: "wide"}, el("table", {class: `confusion ${isNumbered ? "" : "small"}`}, head, ...rows));
}

function commandsOf({commands, changes}) {
  return el("div", {}, ...commands.flatMap((command, i) => [
    el("div", {class: "command"}, el("code", {}, command), el("button", {title: "Copy this command",
      onclick: (event) => navigator.clipboard?.writeText(command).then(() => setText(event.target, "copied"))}, "copy")),
    el("p", {class: "soft"}, changes?.[i] ?? "")]));
}

/** Shows all of a run in an element; `details` is undefined until they have been read. */
function showRun(element, run, details, series) {
  if (!run || !details) {
    element.replaceChildren(el("p", {class: "empty"}, run ? "Reading the run…" : "No run is chosen."));
    return;
  }
  const facts = {directory: details.directory, code: details.code, machine: details.machine,
    devices: details.devices, replicas: details.replicas && String(details.replicas),
    versions: Object.entries(details.versions ?? {}).map((pair) => pair.join(" ")).join(", ")};
  const names = Object.keys({...run.metrics, ...run.test}), time = details.time;
  const pairs = (data) => tableOf([], Object.entries(data).filter(([, value]) => value).map(
    ([key, value]) => [el("span", {class: "soft"}, key), el("code", {}, value)]), "pairs");
  showParts(element, [
    ["why", null, run.why, (why) => el("p", {class: "alert"}, why)],
    ["problems", null, [...details.problems, ...series?.problems ?? []], (lines) => el("ul", {class: "alert"}, ...lines.map((line) => el("li", {}, line)))],
    ["workers", "Workers", details.workers, workersOf],
    ["time", "Where the time goes", time, timeOf],
    ["straggler", null, details.straggler, (text) => el("p", {class: "alert"}, text)],
    ["numbers", "Metrics", names.length && [run.metrics, run.test, run.best, run.best_step], () => tableOf(
      ["metric", "newest", "test", "best"], names.map((name) => [name, formatNumber(run.metrics[name]),
        formatNumber(run.test[name]), name === run.metric && run.best !== null
          ? `${formatNumber(run.best)} at step ${run.best_step}` : "–"]))],
    ["pictures", "Pictures", details.pictures, (pictures) => el("div", {class: "pictures"}, ...pictures.map(
      (picture) => el("figure", {}, el("img", {src: picture.data, alt: picture.name}), el("figcaption", {}, picture.name))))],
    ["confusion", `Confusion${details.confusion ? `, step ${details.confusion.step}` : ""}: labels in rows, predictions in columns`,
      details.confusion, confusionOf],
    ["texts", "Texts", details.texts, (texts) => el("div", {}, ...texts.map(
      (text) => el("details", {open: true}, el("summary", {}, text.name), el("pre", {}, text.text))))],
    ["crash", "Crash", details.crash, (text) => el("pre", {}, text)],
    ["worker-times", "Time of each worker", details.worker_times, (rows) => tableOf(
      ["worker", "steps", "in steps", "waiting"], rows.map((each) => [each.name, formatNumber(each.steps),
        formatDuration(each.step_secs), formatDuration(each.wait_secs)]))],
    ["staleness", "Staleness of the updates", details.staleness, (bins) => tableOf(["steps behind", "updates"],
      bins.map(([bin, count]) => [String(bin), formatNumber(count)]))],
    ["commands", "Commands", details.commands?.length && details, commandsOf],
    ["facts", "Run", facts, pairs],
    ["config", "Configuration", details.config, pairs],
  ]);
}

/** Shows what differs between runs: a row for each. */
function showComparison(element, runs, colors) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.differs)))].filter(
    (key) => new Set(runs.map((run) => run.differs[key])).size > 1);
  const metrics = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].filter((name) => !name.includes("/"));
  const rows = runs.map((run) => {
    return [el("span", {}, swatchOf(colors.get(run.id)), run.name), ...keys.map((key) => run.differs[key] ?? "–"), run.state,
      formatNumber(run.step), formatNumber(run.best), ...metrics.map((name) => formatNumber(run.metrics[name])),
      formatDuration(run.secs)];
  });
  showParts(element, [["comparison", null, {keys, rows: rows.map((row) => row.slice(1)), ids: runs.map((run) => run.id),
    colors: runs.map((run) => colors.get(run.id))}, () => runs.length < 2
    ? el("p", {class: "empty"}, "Select several runs to compare them.")
    : tableOf(["run", ...keys, "state", "step", "best", ...metrics, "duration"], rows, "comparison")]]);
}
