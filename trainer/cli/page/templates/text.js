"use strict";
// Texts and elements of the page. Data reaches the page as text nodes only, never as HTML.

/** Returns an element with properties (`class`, `data-x`, `onclick` ...) and children. */
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Returns the small square in the color of a run. */
function swatchOf(color) {
  const swatch = el("span", {class: "swatch"});
  swatch.style.backgroundColor = color;
  return swatch;
}

/** Changes the text of an element only if it differs, so that a selection in it survives. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replaces the children of an element only if they differ, so that focus and scroll survive. */
function setChildren(element, children) {
  const isSame = children.length === element.childElementCount
    && children.every((child, i) => child === element.children[i]);
  if (!isSame) element.replaceChildren(...children);
}

/** Copies a text, and shows at an element that it is. */
function copyText(element, text) {
  navigator.clipboard?.writeText(text).then(() => setText(element, "copied"));
}

/** Offers content as a file. */
function download(name, blob) {
  const url = URL.createObjectURL(blob);
  el("a", {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Returns a number of a metric with four significant digits: 0.9714, 1,234, 1.2e-6. */
function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e7)) return value.toExponential(2).replace("e+", "e");
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return size >= 1000
    ? Math.round(value).toLocaleString("en-US") : value.toPrecision(4);
}

/** Returns seconds as 5 s, 12:07 min, 3:20:00 h or 5 d. */
function formatDuration(secs) {
  if (secs === null || secs === undefined) return "–";
  const whole = Math.round(secs), hours = Math.floor(whole / 3600);
  if (hours >= 48) return `${Math.floor(hours / 24)} d`;
  const pad = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(whole / 60) % 60;
  if (hours) return `${hours}:${pad(minutes)}:${pad(whole % 60)} h`;
  return minutes ? `${minutes}:${pad(whole % 60)} min` : `${whole} s`;
}

/** Returns a fraction as 0.4 % or 71 %. */
function formatShare(share) {
  return `${100 * share < 9.95 ? +(100 * share).toFixed(1) : Math.round(100 * share)} %`;
}
