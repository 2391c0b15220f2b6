"use strict";
// The page as a whole: its state, toolbar, keyboard, theme.

/** Okabe and Ito's without black and yellow, which vanish on one background; then some of Tol's. */
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a",
  "#a03a68", "#6a5acd", "#999933"];
const MOST_SELECTED_AT_FIRST = 10;
const TABS = ["curves", "run", "compare", "sweep"];
const REMEMBER_MILLISECS = 300;

class Page {
  constructor() {
    const data = document.getElementById("data");
    const named = [...document.querySelectorAll("[id]")];
    this.$ = Object.fromEntries(named.map((each) => [each.id, each]));
    this.tab = "curves";
    this.view = {range: null, log: false, smooth: 0, byTime: false, bySeed: false, theme: {}};
    this.order = {title: null, descends: false}; // of the comparison
    this.choice = {key: null}; // of the scatter plot
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
      sorted: () => this.remember(),
      hover: (id) => id === null ? this.board.clear() : this.board.highlight(id),
    });
    this.board = new Board(this.$, this, {
      focus: (id) => this.list.mark(id),
      change: () => this.viewChanged(),
    });
    this.listen();
    this.setTheme(this.recall("theme"));
    const tab = this.restore();
    this.changed("runs");
    this.show(tab);
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
    $.seeds.addEventListener("click", () => this.viewChanged({bySeed: !this.view.bySeed}));
    $.reset.addEventListener("click", () => this.viewChanged({range: null}));
    $.theme.addEventListener("click", () => this.setTheme(this.isDark() ? "light" : "dark"));
    $.helper.addEventListener("click", () => $.help.showModal());
    for (const tab of TABS) $[`tab-${tab}`].addEventListener("click", () => this.show(tab));
    document.addEventListener("keydown", (event) => this.press(event));
    document.addEventListener("visibilitychange", () => this.store.poll());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change",
      () => this.setTheme(this.recall("theme")));
    document.addEventListener("click", (event) => {
      const name = event.target.closest("button[data-log]")?.dataset.log;
      if (name) this.showLog(this.opened(), name);
    });
    setInterval(() => this.showConnection(), 1000);
  }

  /** Shows the end of the log of a process, and follows it until the dialog is closed. */
  async showLog(id, process) {
    const {$} = this;
    setText($["log-name"], `${process}, ${id}`);
    setText($["log-text"], "");
    $.logs.showModal();
    while ($.logs.open) {
      const {text} = await this.store.log(id, process).catch(() => null) ?? {text: ""};
      const isAtEnd = $["log-text"].scrollTop + $["log-text"].clientHeight
        >= $["log-text"].scrollHeight - 4;
      setText($["log-text"], text || "The log is empty.");
      if (isAtEnd) $["log-text"].scrollTop = $["log-text"].scrollHeight;
      await new Promise((resolve) => { setTimeout(resolve, POLL_MILLISECS); });
    }
  }

  /** Puts what is shown into the address, so that it survives a reload and can be sent. */
  remember() {
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => {
      const {view, list} = this;
      const ids = this.restored ?? (this.isChosen ? [...this.selected] : []);
      const values = new URLSearchParams(ids.map((id) => ["run", id]));
      const state = {tab: this.tab, cursor: this.tab === "run" && this.cursor, filter: list.filter,
        sort: list.sort && `${list.descends ? "-" : ""}${list.sort}`, smooth: view.smooth,
        zoom: view.range?.join("_"), log: view.log, time: view.byTime, seeds: view.bySeed};
      for (const [name, value] of Object.entries(state)) if (value) values.set(name, value);
      history.replaceState(null, "", `#${values}`);
    }, REMEMBER_MILLISECS);
  }

  /** Takes what the address has, and returns the tab. */
  restore() {
    const {$, view} = this, values = new URLSearchParams(location.hash.slice(1));
    const range = values.get("zoom")?.split("_").map(Number), sort = values.get("sort");
    if (values.has("run")) this.restored = values.getAll("run");
    this.cursor = values.get("cursor");
    $.filter.value = this.list.filter = values.get("filter") ?? "";
    if (sort) this.list.setSort(sort.replace("-", ""), sort.startsWith("-"));
    $.smooth.value = +(values.get("smooth") ?? 0);
    this.viewChanged({log: values.has("log"), byTime: values.has("time"),
      bySeed: values.has("seeds"), smooth: +$.smooth.value,
      range: range?.every(Number.isFinite) ? range : null});
    return TABS.includes(values.get("tab")) ? values.get("tab") : "curves";
  }

  changed(what) {
    if (what === "connection") return this.showConnection();
    if (what === "runs") return this.runsChanged();
    this.isLate ||= requestAnimationFrame(() => { this.isLate = 0; this.showTab(); });
  }

  runsChanged() {
    const {runs} = this.store, ids = new Set(runs.map((run) => run.id));
    if (this.restored && runs.length) {
      this.selected = new Set(this.restored);
      this.isChosen = true;
      this.restored = null;
    }
    for (const id of this.selected) if (!ids.has(id)) this.selected.delete(id);
    if (!this.isChosen) {
      const newest = [...runs].sort((a, b) => b.active - a.active).slice(0, MOST_SELECTED_AT_FIRST);
      if (newest.length) this.selected = new Set(newest.map((run) => run.id));
      this.isChosen = runs.length > MOST_SELECTED_AT_FIRST;
    }
    if (runs.length && !ids.has(this.cursor)) this.cursor = runs[0]?.id ?? null;
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
    this.remember();
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
    if (this.tab === "sweep") this.showTab();
    this.remember();
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
    this.remember();
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
    } else if (tab === "sweep") {
      const open = (each) => { this.move(each); this.show("run"); };
      showSweep($.sweep, this.list.visible, this.colors, this.choice, open, store.searches);
    } else {
      const runs = store.runs.filter((each) => this.selected.has(each.id));
      showComparison($.compare, runs, this.colors, this.order);
    }
  }

  viewChanged(changes = {}) {
    const {$, view} = this;
    Object.assign(view, changes);
    setText($.weight, view.smooth.toFixed(2));
    $.log.setAttribute("aria-pressed", view.log);
    $.time.setAttribute("aria-pressed", view.byTime);
    $.seeds.setAttribute("aria-pressed", view.bySeed);
    $.reset.hidden = !view.range;
    if ("byTime" in changes || "bySeed" in changes) this.board.update();
    this.remember();
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
    for (const name of ["ink", "ground", "soft", "rule", "accent", "warn"]) {
      this.view.theme[name] = style.getPropertyValue(`--${name}`).trim();
    }
    for (const chart of this.board.panels.values()) chart.request();
  }

  press(event) {
    const {$} = this, target = event.target, isField = target.matches("input[type=search]");
    if (event.ctrlKey || event.metaKey || event.altKey || $.help.open || $.logs.open) return;
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
      m: () => $.seeds.click(),
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
