"use strict";
const AXIS_NAMES = {
  round: "round", bytes: "communication, up and down (B)", examples: "training examples processed", seconds: "wall time (s)",
};
const DASHES = ["", "7 4", "2 3", "8 3 2 3"];
const FIRST_SHOWN = 12;

// A setting's colour and dashes, the same in every picture.
function look(number) {
  const colors = DATA.palette.length;
  return { series: number % colors, dash: DASHES[Math.floor(number / colors) % DASHES.length] };
}

function select(name, options, words, onChange) {
  const list = make("select", {}, ...options.map((one) => make("option", { value: one }, words[one] || one)));
  list.addEventListener("change", () => onChange(list.value));
  return make("label", {}, name + " ", list);
}

class Curves {
  constructor(host, data) {
    this.data = data;
    this.labels = Object.keys(data.settings);
    this.hidden = new Set(this.labels.slice(FIRST_SHOWN));
    this.metric = data.metrics[0];
    this.axis = data.axes[0];
    this.cursor = null;
    const redraw = (what) => (value) => { this[what] = value; this.cursor = null; this.draw(); };
    const controls = make("div", { class: "controls" },
      select("quantity", data.metrics, {}, redraw("metric")), select("over", data.axes, AXIS_NAMES, redraw("axis")));
    if (this.labels.length > 1) {
      const button = make("button", { type: "button" }, "hide all");
      button.addEventListener("click", () => {
        this.hidden = new Set(this.hidden.size < this.labels.length ? this.labels : []);
        button.textContent = this.hidden.size ? "show all" : "hide all";
        this.draw();
      });
      controls.append(button);
    }
    this.picture = shape("svg", { class: "chart", tabindex: "0", role: "img", "aria-label": "Curves; arrow keys read values" });
    this.where = make("p", { class: "where" });
    this.legend = make("ul", { class: "legend" });
    this.spoken = make("p", { class: "unseen", "aria-live": "polite" });
    host.append(controls, this.picture, this.where, this.legend, this.spoken);
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerdown", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.read(null); });
    this.picture.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(host);
    this.draw();
  }

  // The points of the curves that are shown: label, number of the setting, and [x, mean, std] in order.
  series() {
    return this.labels.map((label, number) => {
      const one = this.data.settings[label];
      const xs = one.axes[this.axis], values = one.values[this.metric];
      if (!xs || !values) return null;
      const points = xs.map((x, at) => [x, values.mean[at], values.std[at]]);
      return { label, number, points: points.filter(([x, mean]) => x !== null && mean !== null) };
    }).filter((one) => one !== null && one.points.length);
  }

  draw() {
    const width = Math.max(280, this.picture.parentElement.clientWidth), height = Math.min(420, Math.max(260, width * 0.5));
    const all = this.series(), shown = all.filter((one) => !this.hidden.has(one.label));
    const flat = shown.flatMap((one) => one.points);
    const xs = flat.map(([x]) => x), low = flat.map(([, m, s]) => m - s), high = flat.map(([, m, s]) => m + s);
    const bounds = (list, other) => list.reduce((a, b) => other(a, b), list.length ? list[0] : 0);
    this.box = { left: 58, top: 10, right: width - 12, bottom: height - 40 };
    this.range = { x: [bounds(xs, Math.min), bounds(xs, Math.max)], y: [bounds(low, Math.min), bounds(high, Math.max)] };
    for (const range of Object.values(this.range)) if (range[0] === range[1]) { range[0] -= 0.5; range[1] += 0.5; }
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.replaceChildren(...this.frame(width, height), ...shown.flatMap((one) => this.curve(one)));
    this.picture.classList.toggle("crowded", shown.length > 5);
    this.mark = shape("g", { class: "cursor" });
    this.picture.append(this.mark);
    this.drawn = shown;
    this.list(all);
    this.read(this.cursor);
  }

  x(value) { const [a, b] = this.range.x; return this.box.left + (value - a) / (b - a) * (this.box.right - this.box.left); }
  y(value) { const [a, b] = this.range.y; return this.box.bottom - (value - a) / (b - a) * (this.box.bottom - this.box.top); }

  frame(width, height) {
    const { left, top, right, bottom } = this.box, parts = [];
    const counts = /bytes|examples|flops/.test(this.metric);
    for (const at of ticks(...this.range.y, 5)) {
      parts.push(shape("line", { class: "grid", x1: left, x2: right, y1: this.y(at), y2: this.y(at) }));
      parts.push(shape("text", { class: "tick", x: left - 6, y: this.y(at) + 4, "text-anchor": "end" }, short(at, counts)));
    }
    for (const at of ticks(...this.range.x, width < 500 ? 4 : 8)) {
      parts.push(shape("line", { class: "grid", y1: top, y2: bottom, x1: this.x(at), x2: this.x(at) }));
      parts.push(shape("text", { class: "tick", x: this.x(at), y: bottom + 16, "text-anchor": "middle" }, short(at, this.axis !== "round")));
    }
    parts.push(shape("text", { class: "name", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, AXIS_NAMES[this.axis]));
    return parts;
  }

  curve({ number, points }) {
    const { series, dash } = look(number), at = ([x, y]) => `${this.x(x).toFixed(1)},${this.y(y).toFixed(1)}`;
    const edge = [...points.map(([x, m, s]) => [x, m + s]), ...points.map(([x, m, s]) => [x, m - s]).reverse()];
    const parts = points.some(([, , s]) => s) ? [shape("path", { class: `band s${series}`, d: "M" + edge.map(at).join("L") + "Z" })] : [];
    if (points.length === 1) return [...parts, shape("circle", { class: `dot s${series}`, cx: this.x(points[0][0]), cy: this.y(points[0][1]), r: 4 })];
    return [...parts, shape("path", { class: `line s${series}`, "stroke-dasharray": dash, d: "M" + points.map(at).join("L") })];
  }

  list(all) {
    this.values = {};
    this.legend.replaceChildren(...all.map(({ label, number }) => {
      const { series, dash } = look(number);
      const key = shape("svg", { viewBox: "0 0 24 8", class: "key", "aria-hidden": "true" },
        shape("line", { class: `line s${series}`, "stroke-dasharray": dash, x1: 0, x2: 24, y1: 4, y2: 4 }));
      const value = make("output");
      this.values[label] = value;
      const button = make("button", { type: "button", "aria-pressed": String(!this.hidden.has(label)) }, key, make("span", {}, label));
      button.addEventListener("click", () => {
        if (!this.hidden.delete(label)) this.hidden.add(label);
        this.draw();
        this.legend.querySelectorAll("button")[all.findIndex((one) => one.label === label)].focus();
      });
      return make("li", {}, button, value);
    }));
  }

  point(event) {
    const inside = this.picture.getBoundingClientRect(), [a, b] = this.range.x, { left, right } = this.box;
    const scale = this.picture.viewBox.baseVal.width / inside.width;
    this.read(a + ((event.clientX - inside.left) * scale - left) / (right - left) * (b - a));
  }

  key(event) {
    const places = [...new Set(this.drawn.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
    const last = places.length - 1, now = this.cursor === null ? null : places.findIndex((x) => x >= this.cursor);
    const start = now === -1 ? last : now;
    const next = { ArrowRight: start === null ? 0 : Math.min(last, start + 1), ArrowLeft: start === null ? last : Math.max(0, start - 1), Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.read(null);
    if (next === undefined || last < 0) return;
    event.preventDefault();
    this.read(places[next]);
    this.spoken.textContent = this.where.textContent + ": " + this.drawn.map(({ label }) => `${label} ${this.values[label].textContent}`).join("; ");
  }

  // Show every curve's nearest point to a place on the axis; null shows none.
  read(place) {
    this.cursor = null;
    this.mark.replaceChildren();
    for (const value of Object.values(this.values)) value.textContent = "";
    this.where.textContent = " ";
    if (place === null || !this.drawn.length) return;
    const nearest = (points) => points.reduce((best, one) => Math.abs(one[0] - place) < Math.abs(best[0] - place) ? one : best);
    const found = this.drawn.map(({ label, number, points }) => ({ label, number, point: nearest(points) }));
    const snapped = nearest(found.map(({ point }) => point))[0];
    this.cursor = snapped;
    this.mark.append(shape("line", { class: "pointer", x1: this.x(snapped), x2: this.x(snapped), y1: this.box.top, y2: this.box.bottom }));
    const counts = /bytes|examples|flops/.test(this.metric);
    for (const { label, number, point: [x, mean, std] } of found) {
      this.mark.append(shape("circle", { class: `dot s${look(number).series}`, cx: this.x(x), cy: this.y(mean), r: 3.5 }));
      this.values[label].textContent = short(mean, counts) + (std ? " ± " + short(std, counts) : "");
    }
    this.where.textContent = `${AXIS_NAMES[this.axis]}: ${short(snapped, this.axis !== "round")}`;
  }
}
