"use strict";
// What every part uses. Text from runs is only ever set as text.
const SVG = document.getElementById("svg").namespaceURI;

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function shape(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Four digits; counts with a prefix.
function short(value, counts = false) {
  if (value === null || value === undefined) return "";
  for (const [unit, sign] of counts ? [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]] : [])
    if (Math.abs(value) >= unit) return +(value / unit).toPrecision(4) + " " + sign;
  return String(+value.toPrecision(4));
}

// About `wanted` round numbers between two.
function ticks(low, high, wanted) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) found.push(+(at * step).toPrecision(12));
  return found;
}

function sortBy(table, column, down) {
  const body = table.tBodies[0];
  const key = (row) => {
    const cell = row.cells[column];
    return cell.hasAttribute("data-value") ? Number(cell.getAttribute("data-value")) : cell.textContent;
  };
  const isEmpty = (value) => value === "" || value === "-" || value === "nan";
  const rows = [...body.rows].map((row) => [key(row), row]);
  rows.sort(([one], [other]) => {
    // What is not there comes last, whichever way.
    if (isEmpty(one) || isEmpty(other)) return isEmpty(one) - isEmpty(other);
    const both = typeof one === "number" && typeof other === "number";
    const order = both ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
    return down ? -order : order;
  });
  body.append(...rows.map(([, row]) => row));
  [...table.tHead.rows[0].cells].forEach((cell, at) => {
    if (at === column) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
}

// A name may be broken behind dots, slashes and underscores, and only there.
function breakable(text) {
  return text.split(/(?<=[./_,])(?=[A-Za-z_])/).flatMap((part, at) => (at ? [make("wbr"), part] : [part]));
}

function makeSortable(table) {
  const words = table.classList.contains("many") ? "th, td" : "th";
  for (const cell of table.tBodies[0].querySelectorAll(words)) cell.replaceChildren(...breakable(cell.textContent));
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = make("button", { type: "button" }, ...breakable(cell.textContent));
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const numbers = table.tBodies[0].querySelector(`tr > :nth-child(${column + 1})[data-value]`) !== null;
      const now = cell.getAttribute("aria-sort");
      sortBy(table, column, now === null ? numbers : now === "ascending");
    });
  });
}
