"""The style of the page, and the script that sorts its table; the page contains both."""

CSS = """\
:root {
  color-scheme: light dark;
  --ground: #ffffff; --card: #f6f7f9; --ink: #1c2430; --soft: #5b6675; --rule: #d9dee5;
  --accent: #0060a0;
  --good: #00734f; --bad: #b3400a; --busy: #0060a0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14181e; --card: #1c222a; --ink: #e4e9ef; --soft: #9ba7b5; --rule: #353e4a;
    --accent: #6db7ee;
    --good: #3fcf9f; --bad: #ff9a5c; --busy: #6db7ee;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 1240px; background: var(--ground);
  color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
    sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .8rem; padding-bottom: .25rem;
  border-bottom: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .4rem 0; }
a { color: var(--accent); }
.soft, figcaption .note { color: var(--soft); }
.small { font-size: .85rem; }
code, pre { font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono",
  monospace; }
code { overflow-wrap: anywhere; }
td.key, th.key { position: sticky; left: 0; background: var(--ground); }
th.key ~ th { white-space: normal; min-width: 9rem; }
td.key code { white-space: nowrap; }
td code { overflow-wrap: normal; }
pre { margin: .4rem 0; padding: .7rem .9rem; background: var(--card); border-radius: 6px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.runs { width: 100%; }
th, td { padding: .35rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 600; font-size: .85rem; white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
.runs th { white-space: normal; }
td.name { min-width: 15rem; }
th[data-sorts] { cursor: pointer; }
th[data-sorts]:hover { color: var(--ink); }
th[aria-sort=ascending]::after { content: " \\2191"; }
th[aria-sort=descending]::after { content: " \\2193"; }
.chip { display: inline-block; width: .75rem; height: .75rem; margin-right: .45rem;
  border-radius: 3px; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }
.state { font-weight: 600; }
.done { color: var(--good); } .failed { color: var(--bad); } .running { color: var(--busy); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .4rem 0 .8rem;
  font-size: .88rem; }
.legend svg { width: 2rem; height: .8rem; margin-right: .4rem; vertical-align: middle; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr));
  gap: 1rem; }
figure { margin: 0; }
.chart { padding: .6rem .6rem .2rem; background: var(--card); border-radius: 8px;
  break-inside: avoid; }
figcaption { font-weight: 600; font-size: .92rem; padding-left: .3rem; }
.chart svg, .grid-picture { width: 100%; height: auto; display: block; }
.grid-picture { max-width: 40rem; }
.samples { max-width: 100%; image-rendering: pixelated; }
.grid { stroke: var(--rule); stroke-width: 1; }
.axis, .tickmark { stroke: var(--soft); fill: none; }
.tick { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.line, .faint { fill: none; stroke-width: 2; stroke-linejoin: round; }
.faint { stroke-width: 1.4; stroke-dasharray: 4 3; opacity: .75; }
.sample { stroke: var(--ink); }
.bar { display: flex; height: 1.5rem; margin: .15rem 0; border-radius: 4px; overflow: hidden; }
.bar span { min-width: 1px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.time { margin-bottom: .9rem; break-inside: avoid; }
.confusion td, .confusion th { padding: .2rem .45rem; text-align: right;
  border: 1px solid var(--ground); font-size: .82rem; }
.confusion td { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.confusion td.strong { color: #fff; }
.bins { display: grid; grid-template-columns: max-content minmax(6rem, 24rem) max-content;
  gap: .1rem .7rem; align-items: center; font-size: .85rem; }
.bins .bar { height: .9rem; margin: 0; }
.same { color: var(--soft); }
details { margin: .5rem 0; }
summary { cursor: pointer; }
summary:hover { color: var(--accent); }
details.run { padding: .6rem .9rem; border: 1px solid var(--rule); border-radius: 8px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .6rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
@media (max-width: 600px) {
  body { padding: .9rem; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; }
  td.name { min-width: 11rem; }
}
@media print {
  :root { --ground: #fff; --card: #fff; --ink: #000; --soft: #444; --rule: #bbb; }
  body { max-width: none; padding: 0; font-size: 11px; }
  .wide { overflow: visible; }
  .chart { border: 1px solid var(--rule); }
}
"""

SCRIPT = """\
document.querySelectorAll("th[data-sorts]").forEach((head) => head.addEventListener("click", () => {
  const table = head.closest("table"), column = [...head.parentNode.children].indexOf(head);
  const descends = head.getAttribute("aria-sort") !== "descending";
  const value = (row) => {
    const text = row.children[column].dataset.value;
    return text === "" ? NaN : isNaN(text) ? text : +text;
  };
  const compare = (a, b) =>
    Number.isNaN(a) - Number.isNaN(b) || (a < b ? -1 : a > b ? 1 : 0) * (descends ? -1 : 1);
  table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", descends ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].sort((a, b) => compare(value(a), value(b)));
  table.tBodies[0].append(...rows);
}));
"""
