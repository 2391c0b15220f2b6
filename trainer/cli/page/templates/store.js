"use strict";
// The data of the page: inlined in a report, else fetched from the server while the page is visible.

const POLL_MILLISECS = 2000;
const DETAILS_MILLISECS = 5000;
const REQUESTS_AT_ONCE = 6;
const MOST_POINTS = 3000; // of a curve; it is thinned to half of them when it has more
const MOST_POINTS_OF_ALL = 4e6; // of all curves: many runs have fewer points each
const MOST_UNSELECTED = 20; // runs whose curves are kept for when they are selected again

/** Returns a curve with at most `most` points: the least and the greatest of equal parts. */
function thinned({step, value}, most) {
  const parts = Math.floor(most / 2) - 1, count = step.length, kept = [0];
  for (let part = 0; part < parts; part++) {
    const begin = 1 + Math.floor(part * (count - 2) / parts);
    const end = 1 + Math.floor((part + 1) * (count - 2) / parts);
    let low = begin, high = begin;
    for (let i = begin; i < end; i++) {
      if (value[i] === null) continue; // it compares as zero
      if (value[i] < value[low] || value[low] === null) low = i;
      if (value[i] > value[high] || value[high] === null) high = i;
    }
    kept.push(...(low === high ? [low] : [Math.min(low, high), Math.max(low, high)]));
  }
  kept.push(count - 1);
  const pick = (values) => kept.map((i) => values[i]);
  return {step: pick(step), value: pick(value)};
}

class Store {
  /**
   * @param data what a report has inlined; null: the server has it.
   * @param wanted returns {selected: ids whose curves are shown, opened: id or null of details}.
   * @param changed is called with "runs", "curves", "details" or "connection".
   */
  constructor(data, wanted, changed) {
    Object.assign(this, {isLive: !data, wanted, changed, lostSince: null});
    this.folder = data?.folder ?? "";
    this.runs = data?.runs ?? [];
    this.searches = data?.searches ?? [];
    this.now = data?.now ?? 0;
    this.details = new Map(Object.entries(data?.details ?? {}));
    this.series = new Map(); // id: {offset, active, problems, curves: Map of "<split>/<metric>"}
    for (const [id, answer] of Object.entries(data?.series ?? {})) this.#add(id, answer);
  }

  /** Polls now, and every two seconds. */
  async poll() {
    clearTimeout(this.timer);
    if (!this.isLive || document.hidden) return;
    if (this.isAsking) { this.isLate = true; return; }
    this.isAsking = true;
    try {
      await this.#ask();
      this.#connected(true);
    } catch (error) {
      this.#connected(false, error);
    }
    this.isAsking = false;
    this.timer = setTimeout(() => this.poll(), this.isLate ? 0 : POLL_MILLISECS);
    this.isLate = false;
  }

  async #ask() {
    const {folder, now, runs, searches} = await this.#get("runs");
    Object.assign(this, {folder, now, runs, searches});
    const ids = new Set(runs.map((run) => run.id));
    for (const id of this.series.keys()) if (!ids.has(id)) this.series.delete(id);
    for (const id of this.details.keys()) if (!ids.has(id)) this.details.delete(id);
    this.changed("runs");
    const {selected, opened} = this.wanted();
    this.#forget(selected);
    const stale = runs.filter((run) =>
      selected.has(run.id) && this.series.get(run.id)?.active !== run.active);
    const details = ids.has(opened) ? this.#askDetails(opened) : null;
    const next = async () => {
      for (let run = stale.shift(); run; run = stale.shift()) {
        const offset = this.series.get(run.id)?.offset ?? "0";
        const answer = await this.#get("series", {id: run.id, offset});
        if (answer) this.#add(run.id, answer, run.active, selected.size);
        this.changed("curves");
      }
    };
    await Promise.all([details, ...Array.from({length: REQUESTS_AT_ONCE}, next)]);
  }

  async #askDetails(id) {
    const {id: last, at} = this.askedDetails ?? {};
    if (last === id && Date.now() - at < DETAILS_MILLISECS) return;
    this.askedDetails = {id, at: Date.now()};
    const details = await this.#get("details", {id});
    if (details) this.details.set(id, details);
    for (const other of this.details.keys()) {
      if (this.details.size > MOST_UNSELECTED && other !== id) this.details.delete(other);
    }
    this.changed("details");
  }

  /** Returns {text} with the end of the log of a process. */
  log(id, process) { return this.#get("log", {id, process}); }

  async #get(path, query = {}) {
    const token = new URLSearchParams(location.search).get("token") ?? "";
    const response = await fetch(`api/${path}?${new URLSearchParams({...query, token})}`,
      {signal: AbortSignal.timeout(30000)});
    // A run that has just been deleted is in the next list no more.
    if (response.status === 404) return null;
    if (!response.ok) throw new Error((await response.text()).trim().slice(0, 200));
    return response.json();
  }

  #connected(isConnected, error) {
    this.lostSince = isConnected ? null : this.lostSince ?? Date.now();
    this.problem = isConnected || error instanceof TypeError ? "" : error.message;
    this.changed("connection");
  }

  #forget(selected) {
    const others = [...this.series.keys()].filter((id) => !selected.has(id));
    for (const id of others.slice(0, -MOST_UNSELECTED)) this.series.delete(id);
  }

  /** Adds points, which replace those of the same step. */
  #add(id, answer, active = 0, count = 1) {
    const known = this.series.get(id);
    const series = known && !answer.reset ? known : {curves: new Map()};
    Object.assign(series, {offset: answer.offset, active, problems: answer.problems ?? []});
    this.series.set(id, series);
    const most = Math.max(500, Math.min(MOST_POINTS, MOST_POINTS_OF_ALL / 30 / count));
    for (const [key, points] of Object.entries(answer.points)) {
      const curve = series.curves.get(key) ?? {step: [], value: []};
      points.step.forEach((step, i) => {
        const at = lowerBound(curve.step, step), replaced = curve.step[at] === step ? 1 : 0;
        for (const name of ["step", "value"]) curve[name].splice(at, replaced, points[name][i]);
      });
      if (curve.step.length > most) Object.assign(curve, thinned(curve, most / 2));
      series.curves.set(key, curve);
    }
    for (const curve of series.curves.values()) curve.line = null;
  }
}

/** Returns the seconds of training at a step, by the lines of the training; null: unknown. */
function secsAt(series, step) {
  const clock = series?.curves.get("train/train_secs");
  if (!clock) return null;
  // After the last line it continues as until there.
  const after = Math.min(lowerBound(clock.step, step), clock.step.length - 1);
  const isInside = clock.step[after] >= step && after;
  const [begin, secs] = isInside ? [clock.step[after - 1], clock.value[after - 1]] : [0, 0];
  const slope = (clock.value[after] - secs) / (clock.step[after] - begin || 1);
  return secs + slope * (step - begin);
}
