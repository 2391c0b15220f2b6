"use strict";
// The page as a whole: its state, toolbar, keyboard, theme.

/** Okabe and Ito's without black and yellow, which vanish on one background; then some of Tol's. */
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a",
  "#a03a68", "#6a5acd", "#999933"];
const MOST_SELECTED_AT_FIRST = 10;
const TABS = ["curves", "run", "compare"];

class Page {
  constructor() {
    const data = document.getElementById("data");
    const named = [...document.querySelectorAll("[id]")];
    this.$ = Object.fromEntries(named.map((each) => [each.id, each]));
    this.tab = "curves";
    this.view = {range: null, log: false, smooth: 0, byTime: false, theme: {}};
    this.selected = new Set();
    this.hidden = new Set();
    this.colors = new Map(); // id: color of a selected run
    this.cursor = null;
    this.store = new Store(data && JSON.parse(data.textContent),
      () => ({selected: this.selected, opened: this.opened()}), (what) => this.changed(what));
    this.list = new RunList(this.$.list, {
      toggle: (id) => this.toggle(id),
      only: (id) => this.select([id]),
      move: (id) => this.move(id),
      open: () => this.show("run"),
      hover: (id) => id === null ? this.board.clear() : this.board.highlight(id),
    });
    this.board = new Board(this.$, this, {
      focus: (id) => this.list.mark(id),
      change: () => this.viewChanged(),
    });
    this.listen();
    this.setTheme(this.recall("theme"));
    this.changed("runs");
    this.show("curves");
    this.store.poll();
  }

  listen() {
    const {$} = this;
    $.filter.addEventListener("input", () => this.setFilter($.filter.value));
    $.all.addEventListener("click", () => this.select(this.list.visible.map((run) => run.id)));
    $.none.addEventListener("click", () => this.select([]));
    $.smooth.addEventListener("input", () => this.viewChanged({smooth: +$.smooth.value}));
    $.log.addEventListener("click", () => this.viewChanged({log: !this.view.log}));
    $.time.addEventListener("click",
      () => this.viewChanged({byTime: !this.view.byTime, range: null}));
    $.reset.addEventListener("click", () => this.viewChanged({range: null}));
    $.theme.addEventListener("click", () => this.setTheme(this.isDark() ? "light" : "dark"));
    $.helper.addEventListener("click", () => $.help.showModal());
    for (const tab of TABS) $[`tab-${tab}`].addEventListener("click", () => this.show(tab));
    document.addEventListener("keydown", (event) => this.press(event));
    document.addEventListener("visibilitychange", () => this.store.poll());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change",
      () => this.setTheme(this.recall("theme")));
    setInterval(() => this.showConnection(), 1000);
  }

  changed(what) {
    if (what === "connection") return this.showConnection();
    if (what === "runs") return this.runsChanged();
    this.isLate ||= requestAnimationFrame(() => { this.isLate = 0; this.showTab(); });
  }

  runsChanged() {
    const {runs} = this.store, ids = new Set(runs.map((run) => run.id));
    for (const id of this.selected) if (!ids.has(id)) this.selected.delete(id);
    if (!this.isChosen) {
      const newest = [...runs].sort((a, b) => b.active - a.active).slice(0, MOST_SELECTED_AT_FIRST);
      if (newest.length) this.selected = new Set(newest.map((run) => run.id));
      this.isChosen = runs.length > MOST_SELECTED_AT_FIRST;
    }
    if (!ids.has(this.cursor)) this.cursor = runs[0]?.id ?? null;
    this.showRuns();
    this.showTab();
  }

  /** Returns the run whose details are shown. */
  opened() {
    if (this.tab === "run") return this.cursor;
    return this.selected.size === 1 ? [...this.selected][0] : null;
  }

  select(ids) {
    this.isChosen = this.store.runs.length > 0;
    this.selected = new Set(ids);
    for (const id of this.hidden) if (!this.selected.has(id)) this.hidden.delete(id);
    this.showRuns();
    this.showTab();
    this.store.poll();
  }

  toggle(id) {
    const next = new Set(this.selected);
    if (!next.delete(id)) next.add(id);
    this.select(next);
  }

  move(id) {
    if (id === null) return;
    this.cursor = id;
    this.showRuns();
    if (this.tab === "run") this.show("run");
  }

  /** Gives each selected run a color that no other has, which it keeps while it is selected. */
  assignColors() {
    for (const id of this.colors.keys()) if (!this.selected.has(id)) this.colors.delete(id);
    const used = new Set(this.colors.values());
    let slot = 0;
    for (const {id} of this.store.runs) {
      if (!this.selected.has(id) || this.colors.has(id)) continue;
      let color;
      do {
        color = COLORS[slot] ?? `hsl(${Math.round(slot * 137.5) % 360} ${40 + slot % 3 * 12}% 50%)`;
        slot++;
      } while (used.has(color) && slot < 1000);
      used.add(color);
      this.colors.set(id, color);
    }
  }

  showRuns() {
    const {$, store} = this, {runs} = store;
    this.assignColors();
    this.list.show(runs, this);
    setText($.folder, store.folder);
    setText($.selected, `${this.selected.size} of ${runs.length} selected`);
    $.reading.hidden = !store.isLive || Boolean(store.folder);
    $.nothing.hidden = runs.length > 0 || !$.reading.hidden;
    const counts = new Map();
    for (const run of runs) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
    const text = JSON.stringify([...counts]);
    if (this.countsText === text) return;
    this.countsText = text;
    $.counts.replaceChildren(...[...counts].map(([state, count]) => el("button", {class: "state",
      "data-state": state, title: `Filter: state:${state}`, onclick: () => this.setFilter(
        this.list.filter === `state:${state}` ? "" : `state:${state}`)}, `${count} ${state}`)));
  }

  setFilter(text) {
    this.$.filter.value = this.list.filter = text;
    this.showRuns();
  }

  show(tab) {
    this.tab = tab;
    for (const each of TABS) {
      this.$[`tab-${each}`].setAttribute("aria-selected", each === tab);
      this.$[each].hidden = each !== tab;
    }
    this.$.tools.hidden = tab !== "curves";
    this.showTab();
    this.store.poll();
  }

  showTab() {
    const {$, store, tab} = this, id = this.opened();
    const run = store.runs.find((each) => each.id === id), details = store.details.get(id);
    if (tab === "curves") {
      this.board.update();
      showParts($.overview, [["why", null, id && run?.why, alertOf],
        ["workers", null, details?.workers, workersOf], ["time", null, details?.time, timeOf]]);
    } else if (tab === "run") {
      const name = el("span", {class: "soft"}, run?.label ? run.name : "");
      $.title.replaceChildren(run?.label || run?.name || "", " ", name);
      showRun($.details, run, details, store.series.get(id));
    } else {
      const runs = store.runs.filter((each) => this.selected.has(each.id));
      showComparison($.compare, runs, this.colors);
    }
  }

  viewChanged(changes = {}) {
    const {$, view} = this;
    Object.assign(view, changes);
    setText($.weight, view.smooth.toFixed(2));
    $.log.setAttribute("aria-pressed", view.log);
    $.time.setAttribute("aria-pressed", view.byTime);
    $.reset.hidden = !view.range;
    if ("byTime" in changes) this.board.update();
    for (const chart of this.board.panels.values()) chart.request();
  }

  showConnection() {
    const {$, store} = this;
    const secs = store.lostSince && Math.round((Date.now() - store.lostSince) / 1000);
    $.lost.hidden = !store.lostSince;
    if (store.lostSince) {
      setText($.lost, store.problem ? `The server refuses: ${store.problem}`
        : `The server has not answered for ${secs} s; the page goes on when it is back.`);
    }
    document.body.classList.toggle("is-lost", Boolean(store.lostSince));
  }

  recall(name) {
    try { return localStorage.getItem(`steadfast-${name}`); } catch { return null; }
  }

  isDark() { return getComputedStyle(document.documentElement).colorScheme === "dark"; }

  setTheme(theme) {
    const prefersDark = matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = theme ?? (prefersDark ? "dark" : "light");
    if (theme) try { localStorage.setItem("steadfast-theme", theme); } catch { /* private mode */ }
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "soft", "rule", "accent", "warn"]) {
      this.view.theme[name] = style.getPropertyValue(`--${name}`).trim();
    }
    for (const chart of this.board.panels.values()) chart.request();
  }

  press(event) {
    const {$} = this, target = event.target, isField = target.matches("input[type=search]");
    if (event.ctrlKey || event.metaKey || event.altKey || $.help.open) return;
    if (isField && !["Escape", "Enter", "ArrowDown"].includes(event.key)) return;
    const isControl = target.matches("button, summary, input[type=range]");
    if (isControl && [" ", "Enter", "ArrowDown", "ArrowUp"].includes(event.key)) return;
    const actions = {
      "/": () => $.filter.focus(),
      ArrowDown: () => { $.filter.blur(); this.move(this.list.moved(1)); },
      ArrowUp: () => this.move(this.list.moved(-1)),
      " ": () => this.cursor !== null && this.toggle(this.cursor),
      Enter: () => { if (isField) $.filter.blur(); else this.show("run"); },
      Escape: () => {
        if (isField) this.setFilter("");
        if (isField) $.filter.blur();
        else if (this.view.range) this.viewChanged({range: null});
        else this.show("curves");
      },
      a: () => this.select(this.selected.size ? [] : this.list.visible.map((run) => run.id)),
      o: () => this.cursor !== null && this.select([this.cursor]),
      l: () => $.log.click(),
      t: () => $.time.click(),
      d: () => $.theme.click(),
      "?": () => $.help.showModal(),
    };
    actions.j = actions.ArrowDown;
    actions.k = actions.ArrowUp;
    TABS.forEach((tab, i) => { actions[i + 1] = () => this.show(tab); });
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}

document.addEventListener("DOMContentLoaded", () => { window.page = new Page(); });
