"use strict";
// Tables of cells as pictures: examples by client and class, classes by client and neuron.
const CLASS_COLORS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"];
const NO_CLASS = 255;

function classColor(label, count) {
  if (label === NO_CLASS) return "transparent";
  return count <= CLASS_COLORS.length ? CLASS_COLORS[label] : `hsl(${(label * 137.5) % 360} 60% ${40 + (label % 3) * 12}%)`;
}

// Names beside or below a picture: as many as have room.
function edge(kind, names, most) {
  const step = Math.ceil(names.length / most);
  const shown = names.map((name, at) => make("span", {}, at % step ? "" : name));
  return make("div", { class: `edge ${kind}`, "aria-hidden": "true" }, ...shown);
}

// A grid of rows x columns: `color(row, column)` paints, `say(row, column)` is read at the pointer or by arrow keys.
class Cells {
  constructor(host, { name, rows, columns, color, say, row, beside, below = [] }) {
    Object.assign(this, { rows, columns, say });
    const canvas = make("canvas", { width: columns, height: rows, tabindex: "0", role: "img", "aria-label": `${name}; arrow keys read cells` });
    const paint = canvas.getContext("2d");
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++) {
        paint.fillStyle = color(r, c);
        paint.fillRect(c, r, 1, 1);
      }
    const height = Math.min(rows * row, 420);
    canvas.style.height = `${height}px`;
    this.canvas = canvas;
    this.frame = make("div", { class: "cell", hidden: "" });
    this.text = make("p", { class: "where", "aria-live": "polite" }, " ");
    const left = edge("beside", beside, Math.ceil(height / 12));
    const bottom = below.length ? [edge("below", below, 30)] : [];
    host.append(make("div", { class: "labelled" }, left, make("div", { class: "cells" }, canvas, this.frame), ...bottom), this.text);
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      const at = (part, number) => Math.min(number - 1, Math.max(0, Math.floor(part * number)));
      this.read(at((event.clientY - box.top) / box.height, rows), at((event.clientX - box.left) / box.width, columns));
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.clear(); });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const [r, c] = this.at || [0, -1];
    const next = { ArrowRight: [r, c + 1], ArrowLeft: [r, c - 1], ArrowDown: [r + 1, Math.max(c, 0)], ArrowUp: [r - 1, Math.max(c, 0)] }[event.key];
    if (event.key === "Escape") this.clear();
    if (!next) return;
    event.preventDefault();
    this.read(Math.min(this.rows - 1, Math.max(0, next[0])), Math.min(this.columns - 1, Math.max(0, next[1])));
  }

  read(row, column) {
    this.at = [row, column];
    this.text.textContent = this.say(row, column);
    const place = this.frame.style;
    this.frame.hidden = false;
    place.left = `${column / this.columns * 100}%`;
    place.width = `${100 / this.columns}%`;
    place.top = `${row / this.rows * 100}%`;
    place.height = `${100 / this.rows}%`;
  }

  clear() {
    this.at = null;
    this.frame.hidden = true;
    this.text.textContent = " ";
  }
}

function classLegend(classes, used) {
  const shown = classes.map((name, label) => [name, label]).filter(([, label]) => used.has(label)).slice(0, 40);
  return make("ul", { class: "classes" }, ...shown.map(([name, label]) => {
    const key = shape("svg", { viewBox: "0 0 10 10", class: "square", "aria-hidden": "true" },
      shape("rect", { width: 10, height: 10, fill: classColor(label, classes.length) }));
    return make("li", {}, key, name);
  }));
}

function drawSplit(host, one, alone) {
  const most = one.counts.flat().reduce((a, b) => Math.max(a, b), 1);
  const cut = one.clients.length < one.of ? `${one.clients.length} of ${one.of} clients` : `${one.of} clients`;
  const who = alone ? "" : `: ${one.settings.slice(0, 3).join("; ")}${one.settings.length > 3 ? ` and ${one.settings.length - 3} more settings` : ""}`;
  host.append(make("h3", {}, `${one.data}, ${cut}, seed ${one.seed}${who}`));
  const columns = Math.max(...one.counts.map((row) => row.length));
  const name = (column) => one.classes[column] ?? String(column);
  new Cells(host, {
    name: `Training examples of ${one.data}`, rows: one.counts.length, columns,
    color: (r, c) => `rgba(0, 114, 178, ${Math.sqrt((one.counts[r][c] || 0) / most)})`,
    say: (r, c) => `client ${one.clients[r]}, class ${name(c)}: ${one.counts[r][c] || 0} training examples of ${one.counts[r].reduce((a, b) => a + b, 0)}`,
    row: 18, beside: one.clients.map(String), below: Array.from({ length: columns }, (_, column) => name(column)),
  });
  host.append(make("p", { class: "note" }, `A row is a client, a column a class; the darkest cell has ${most} training examples.`));
}

function drawMap(host, one) {
  const part = make("article", { class: "map" });
  const agreement = one.agreement === null ? "" : `, agreement ${short(one.agreement)}`;
  const round = one.round === null ? "" : `, round ${one.round}`;
  part.append(make("h3", {}, `${one.setting}${agreement}`), make("p", { class: "note" }, `seed ${one.seed}${round}, ${one.clients.length} of ${one.of} rows`));
  const used = new Set();
  let most = one.classes.length;
  for (const layer of one.layers) {
    const data = Uint8Array.from(atob(layer.data), (letter) => letter.charCodeAt(0));
    data.forEach((label) => { if (label !== NO_CLASS) { used.add(label); most = Math.max(most, label + 1); } });
    layer.table = data;
  }
  const classes = Array.from({ length: most }, (_, label) => one.classes[label] ?? String(label));
  for (const { name, neurons, table, agreement: share } of one.layers) {
    part.append(make("h4", {}, name + (share === null ? "" : `: ${short(share)}`)));
    const label = (r, c) => table[r * neurons + c];
    new Cells(part, {
      name: `${one.setting}, ${name}`, rows: one.clients.length, columns: neurons,
      color: (r, c) => classColor(label(r, c), most),
      say: (r, c) => `client ${one.clients[r]}, neuron ${c}: ${label(r, c) === NO_CLASS ? "no class" : "class " + classes[label(r, c)]}`,
      row: 12, beside: one.clients,
    });
  }
  part.append(classLegend(classes, used));
  host.append(part);
}
