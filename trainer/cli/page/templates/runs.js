"use strict";
// The list of runs at the left: filter, sort, selection, cursor.

/** The columns: title, and what a run is sorted by; null comes last. */
const COLUMNS = [
  {key: "run", title: "Run", value: (run) => (run.label || run.name).toLowerCase()},
  {key: "state", title: "State", value: (run) => run.state},
  {key: "progress", title: "Steps", value: (run) => run.step / (run.total_steps || 1)},
  {key: "time", title: "Time", value: (run) => run.eta_secs ?? run.secs, help:
    "Time left (~) of a run that trains, duration of any other"},
  {key: "best", title: "best", value: (run) => run.best ?? run.value, help:
    "Best value of the run's primary metric"},
];

/** Compares texts as people do: numbers in them, such as 0.001 and 1e-2, by their values. */
function compareTexts(a, b) {
  const parts = (text) => text.split(/(\d+(?:\.\d+)?(?:e[-+]?\d+)?)/);
  const [x, y] = [parts(a), parts(b)];
  for (let i = 0; i < Math.min(x.length, y.length); i++) {
    const order = i % 2 ? x[i] - y[i] : x[i].localeCompare(y[i], "en");
    if (order) return order;
  }
  return x.length - y.length;
}

/** Returns whether a run has a word of a filter: text, a regular expression, lr>0.003, -failed. */
function matchesWord(run, word) {
  if (word.length > 1 && word.startsWith("-")) return !matchesWord(run, word.slice(1));
  const [, key, sign, text] = word.match(/^([^<>=:]+)(>=|<=|[<>=:])(.+)$/) ?? [];
  const {state, step, best, secs} = run;
  const values = {state, step, best, time: secs, ...run.metrics, ...run.differs};
  const name = Object.keys(values).find((each) => each.toLowerCase() === key);
  if (name !== undefined && values[name] !== null) {
    const value = values[name], order = value - text;
    if (Number.isNaN(order)) return ":=".includes(sign) && String(value).toLowerCase().startsWith(text);
    return {">": order > 0, "<": order < 0, ">=": order >= 0, "<=": order <= 0}[sign] ?? order === 0;
  }
  const pairs = Object.entries(run.differs).map(([each, value]) => `${each}=${value}`);
  const all = [run.id, run.label, run.why, run.state, ...pairs].join(" ").toLowerCase();
  try { return all.includes(word) || new RegExp(word).test(all); } catch { return false; }
}

function matches(run, filter) {
  return filter.toLowerCase().split(/\s+/).every((word) => matchesWord(run, word));
}

class RunList {
  /** @param events {select(ids, isOnly), move(id), open(id), hover(id | null)}. */
  constructor(element, events) {
    Object.assign(this, {element, events, sort: null, descends: false, filter: ""});
    this.rows = new Map(); // id: row
    this.head = el("div", {class: "row head", role: "row"}, el("span", {}), ...COLUMNS.map(
      (column) => el("button", {role: "columnheader", class: column.key, "aria-sort": "none",
        title: column.help ?? `Sort by ${column.title.toLowerCase()}`,
        onclick: () => this.sortBy(column.key)}, column.title)));
    this.body = el("div", {class: "rows", role: "rowgroup"});
    this.note = el("p", {class: "soft note"});
    element.append(this.head, this.body, this.note);
    const idOf = (event) => event.target.closest("[data-id]")?.dataset.id;
    this.body.addEventListener("click", (event) => {
      const id = idOf(event);
      if (id === undefined) return;
      events.move(id);
      const copy = event.target.closest(".copy");
      if (copy) copyText(copy, this.runs.find((run) => run.id === id).command);
      else if (event.target.closest(".open")) events.open(id);
      else events.toggle(id);
    });
    this.body.addEventListener("dblclick", (event) => idOf(event) && events.only(idOf(event)));
    this.body.addEventListener("pointerover", (event) => events.hover(idOf(event) ?? null));
    this.body.addEventListener("pointerleave", () => events.hover(null));
  }

  /** Sorts by a column, the other way at the second time, and as the server at the third. */
  sortBy(key) {
    const first = key === "best" && this.runs.some((run) => run.modes[run.metric] === "max");
    if (this.sort !== key) Object.assign(this, {sort: key, descends: first});
    else if (this.descends === first) this.descends = !first;
    else this.sort = null;
    this.setSort(this.sort, this.descends);
    this.events.sorted();
  }

  setSort(sort, descends) {
    Object.assign(this, {sort, descends});
    const order = this.descends ? "descending" : "ascending";
    for (const [i, {key: each}] of COLUMNS.entries()) {
      this.head.children[i + 1].setAttribute("aria-sort", each === this.sort ? order : "none");
    }
    if (this.runs) this.show(this.runs, this.state);
  }

  /** Shows runs; `state` has {selected, cursor, colors: Map}. */
  show(runs, state) {
    Object.assign(this, {runs, state});
    this.visible = runs.filter((run) => matches(run, this.filter));
    const column = COLUMNS.find(({key}) => key === this.sort);
    if (column) this.visible = sortedBy(this.visible, column.value, this.descends);
    const metrics = new Set(runs.filter((run) => run.best !== null).map((run) => run.metric));
    this.head.lastChild.textContent = metrics.size === 1 ? [...metrics][0] : "best";
    const rows = this.visible.map((run, index) => this.#row(run, index));
    setChildren(this.body, rows);
    const known = new Set(runs.map((run) => run.id));
    for (const id of this.rows.keys()) if (!known.has(id)) this.rows.delete(id);
    this.element.setAttribute("aria-activedescendant", `row-${state.cursor}`);
    this.element.setAttribute("aria-rowcount", rows.length + 1);
    const isNone = runs.length && !rows.length;
    setText(this.note, isNone ? `None of ${runs.length} runs matches the filter.` : "");
  }

  #row(run, index) {
    let row = this.rows.get(run.id);
    if (!row) {
      const cell = (kind) => el("span", {class: kind});
      const parts = {swatch: cell("swatch"), label: el("b"), state: cell("state"), fill: el("span"),
        time: cell("time number"), best: cell("best number")};
      const open = el("span", {class: "open", title: "Open (Enter)", "aria-hidden": "true"}, "›");
      const copy = el("span", {class: "copy", title: "Copy the command"}, "copy");
      row = el("div", {class: "row", role: "row", "data-id": run.id, id: `row-${run.id}`},
        parts.swatch, el("span", {class: "run"}, parts.label, copy, open),
        parts.state, el("span", {class: "meter"}, parts.fill), parts.time, parts.best);
      for (const cell of row.children) cell.setAttribute("role", "gridcell");
      this.rows.set(run.id, Object.assign(row, {parts}));
    }
    const {parts} = row, {selected, cursor, colors} = this.state;
    row.setAttribute("aria-selected", selected.has(run.id));
    row.setAttribute("aria-rowindex", index + 2);
    row.classList.toggle("cursor", run.id === cursor);
    const end = run.total_steps ? ` of ${formatNumber(run.total_steps)}` : "";
    const progress = `step ${formatNumber(run.step)}${end}`;
    row.title = [run.label, run.id, progress, run.why].filter(Boolean).join("\n");
    parts.swatch.style.backgroundColor = colors.get(run.id) ?? "";
    setText(parts.label, run.label || run.name);
    parts.state.dataset.state = run.state;
    setText(parts.state, run.state);
    const share = run.state === "done" ? 1 : Math.min(1, run.step / (run.total_steps || Infinity));
    parts.fill.style.width = `${100 * share}%`;
    parts.fill.dataset.state = run.state;
    const isLeft = run.eta_secs !== null;
    setText(parts.time, isLeft ? `~${formatDuration(run.eta_secs)}` : formatDuration(run.secs));
    parts.time.title = isLeft ? "time left" : "duration";
    setText(parts.best, formatNumber(run.best ?? run.value));
    parts.best.title = run.best_step === null ? "" : `${run.metric} at step ${run.best_step}`;
    return row;
  }

  /** Moves the cursor by rows, and returns the id there. */
  moved(by) {
    const at = this.visible.findIndex((run) => run.id === this.state.cursor);
    const next = this.visible[Math.max(0, Math.min(this.visible.length - 1, at + by))];
    if (next) this.rows.get(next.id).scrollIntoView({block: "nearest"});
    return next?.id ?? null;
  }

  /** Marks the row of the run nearest to the crosshair. */
  mark(id) {
    this.body.querySelector(".near")?.classList.remove("near");
    this.rows.get(id)?.classList.add("near");
  }
}
