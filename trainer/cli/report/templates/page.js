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
