"use strict";
// A row of dots per setting: the accuracies of single clients.
class Clients {
  constructor(host, data, labels) {
    this.rows = labels.map((label, number) => ({ label, number, ...data.settings[label] })).filter((one) => one.dots);
    this.list = make("ul", { class: "strips" });
    this.text = make("p", { class: "where", "aria-live": "polite" }, " ");
    host.append(this.list, this.text);
    new ResizeObserver(() => this.draw()).observe(host);
    this.draw();
  }

  draw() {
    const width = Math.max(240, this.list.clientWidth), at = (value) => 8 + value * (width - 16);
    const rows = this.rows.map((one) => make("li", {}, this.name(one), this.strip(one, width, at)));
    const axis = shape("svg", { class: "strip", viewBox: `0 0 ${width} 18`, "aria-hidden": "true" }, ...[0, 0.25, 0.5, 0.75, 1].map((value) =>
      shape("text", { class: "tick", x: at(value), y: 13, "text-anchor": value === 0 ? "start" : value === 1 ? "end" : "middle" }, String(value))));
    this.list.replaceChildren(...rows, make("li", {}, axis));
  }

  name({ label, of, box, num }) {
    const what = { global_acc: "server's model", personal_acc: "own models", local_acc: "after local fits", final_acc: "fine-tuned" }[of];
    return make("p", {}, make("b", {}, label), ` ${what}: ${num} clients, median ${short(box[2])}, ${short(box[0])} to ${short(box[4])}`);
  }

  strip({ label, number, box, dots }, width, at) {
    const { series } = look(number), height = 34;
    const parts = [0, 0.25, 0.5, 0.75, 1].map((value) => shape("line", { class: "grid", x1: at(value), x2: at(value), y1: 0, y2: height }));
    parts.push(shape("rect", { class: `band s${series}`, x: at(box[1]), width: Math.max(1, at(box[3]) - at(box[1])), y: 4, height: height - 8 }));
    parts.push(shape("line", { class: `line s${series}`, x1: at(box[2]), x2: at(box[2]), y1: 2, y2: height - 2 }));
    // Dots of equal height would hide each other: they take turns in five lanes.
    dots.forEach(([, , value], order) => parts.push(shape("circle", { class: `client s${series}`, cx: at(value), cy: 7 + order % 5 * 5, r: 3 })));
    const picture = shape("svg", { class: "strip", viewBox: `0 0 ${width} ${height}`, tabindex: "0", role: "img", "aria-label": `Clients of ${label}; arrow keys read them` }, ...parts);
    let now = -1;
    const marks = [...picture.querySelectorAll("circle")];
    const read = (order) => {
      marks.forEach((mark, other) => mark.classList.toggle("on", other === order));
      now = order;
      const dot = dots[order];
      this.text.textContent = dot ? `${label}: client ${dot[1]} of seed ${dot[0]}, accuracy ${short(dot[2])}, ${dot[3]} training examples` : " ";
    };
    const point = (event) => {
      const inside = picture.getBoundingClientRect(), scale = width / inside.width;
      const [x, y] = [(event.clientX - inside.left) * scale, (event.clientY - inside.top) * scale];
      const far = dots.map(([, , value], order) => Math.hypot(at(value) - x, 7 + order % 5 * 5 - y));
      read(far.indexOf(Math.min(...far)));
    };
    picture.addEventListener("pointermove", point);
    picture.addEventListener("pointerdown", point);
    picture.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") read(-1); });
    picture.addEventListener("keydown", (event) => {
      const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: dots.length - 1 }[event.key];
      if (event.key === "Escape") read(-1);
      if (next === undefined) return;
      event.preventDefault();
      read(Math.min(dots.length - 1, Math.max(0, next)));
    });
    return picture;
  }
}
