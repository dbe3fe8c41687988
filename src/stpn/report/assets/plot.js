/* Interactive figures in plain SVG.
 *
 * A general plotting library would be 3 to 5 MB inside a page whose data are a few hundred kB; the
 * report needs lines with bands, clouds of points, hover and a legend that hides models, which is
 * this file. A figure is { name, title, models, panels }, a panel has curves or clouds, as
 * stpn/report/plots.py builds them. */
"use strict";

const Plots = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 230;
  const MARGIN = { top: 12, right: 12, bottom: 40, left: 50 };
  const STRIP = 12; // pixels for each of the paper's diamonds, right of the curves

  function element(name, attributes = {}, parent = null, text = null) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  function html(name, attributes = {}, parent = null, text = null) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  function short(value) {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
      if (Math.abs(value) >= size) {
        const unit = letter === "k" ? 1e3 : size;
        return `${+(value / unit).toPrecision(3)}${letter}`;
      }
    return `${+value.toPrecision(6)}`;
  }

  const shown = (value) => (value === null ? "–" : `${+value.toPrecision(4)}`);

  function linearTicks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
    return ticks;
  }

  function logTicks(low, high) {
    const ticks = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++)
      for (const factor of [1, 2, 5]) ticks.push(factor * 10 ** decade);
    const inside = ticks.filter((tick) => tick >= low && tick <= high);
    return inside.length > 7 ? inside.filter((tick) => /^1(e|0*$)|^0?\.?0*1$/.test(`${tick}`)) : inside;
  }

  function scale(low, high, start, end, logarithmic) {
    const map = logarithmic ? Math.log : (value) => value;
    const [a, b] = [map(low), map(high)];
    return (value) => start + ((map(value) - a) / (b - a || 1)) * (end - start);
  }

  const finite = (values) => values.filter((value) => value !== null && Number.isFinite(value));

  function extent(values, logarithmic) {
    const kept = finite(values).filter((value) => !logarithmic || value > 0);
    if (!kept.length) return [0, 1];
    let low = kept.reduce((a, b) => Math.min(a, b)), high = kept.reduce((a, b) => Math.max(a, b));
    if (low === high) [low, high] = logarithmic ? [low / 2, high * 2] : [low - 1, high + 1];
    if (logarithmic) return [low / 1.12, high * 1.12];
    const pad = 0.04 * (high - low);
    return [low >= 0 && low < 0.3 * high ? 0 : low - pad, high + pad];
  }

  /* One panel; `isHidden` tells which models the legend has switched off. */
  class Panel {
    constructor(parent, panel, models, isHidden) {
      Object.assign(this, { panel, models, isHidden, cursor: null });
      const card = html("div", { class: "panel" }, parent);
      if (panel.title) html("h4", {}, card, panel.title);
      this.holder = html("div", { class: "canvas" }, card);
      this.svg = element("svg", {
        role: "img", tabindex: "0", height: HEIGHT,
        "aria-label": `${panel.title || "Plot"}: ${panel.y_label} by ${panel.x_label}. Arrow keys read values.`,
      }, this.holder);
      this.tip = html("div", { class: "tip", role: "status", hidden: "" }, this.holder);
      this.svg.addEventListener("pointermove", (event) => this.point(event));
      this.svg.addEventListener("pointerdown", (event) => this.point(event));
      this.svg.addEventListener("pointerleave", () => this.clear());
      this.svg.addEventListener("blur", () => this.clear());
      this.svg.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.draw()).observe(this.holder);
    }

    get curves() { return this.panel.curves.filter((item) => !this.isHidden(item.model)); }
    get clouds() { return this.panel.clouds.filter((item) => !this.isHidden(item.model)); }
    get references() {
      if (this.isHidden("paper")) return [];
      return this.panel.references.filter((item) => !this.isHidden(item.model));
    }

    draw() {
      const width = this.holder.clientWidth;
      if (!width) return;
      this.svg.setAttribute("width", width);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      this.svg.replaceChildren();
      this.clear();
      const { curves, clouds, references } = this;
      const log = this.panel.log_y;
      const strip = curves.length ? references.length * STRIP + (references.length ? 10 : 0) : 0;
      const xs = [...curves.flatMap((c) => c.x), ...clouds.flatMap((c) => [...c.x, ...c.final_x]),
        ...references.filter((r) => r.x !== null).map((r) => r.x)];
      const ys = [...curves.flatMap((c) => [...c.y, ...c.low, ...c.high]),
        ...clouds.flatMap((c) => [...c.y, ...c.final_y]),
        ...references.flatMap((r) => [r.y - r.y_std, r.y + r.y_std])];
      const [x0, x1] = curves.length ? [Math.min(...finite(xs)), Math.max(...finite(xs))] : extent(xs, false);
      const [y0, y1] = extent(ys, log);
      const right = width - MARGIN.right - strip;
      this.x = scale(x0, x1 === x0 ? x0 + 1 : x1, MARGIN.left, right, false);
      this.y = scale(y0, y1, HEIGHT - MARGIN.bottom, MARGIN.top, log);
      this.axes(x0, x1, y0, y1, right, width, log);
      this.marks = element("g", {}, this.svg);
      for (const curve of curves) this.curve(curve);
      for (const cloud of clouds) this.cloud(cloud);
      references.forEach((reference, k) => {
        const x = reference.x === null ? right + 12 + k * STRIP : this.x(reference.x);
        this.diamond(x, reference, log, y0);
      });
      this.pointer = element("g", { class: "pointer", "aria-hidden": "true" }, this.svg);
      if (!curves.length && !clouds.length)
        element("text", { x: width / 2, y: HEIGHT / 2, class: "empty" }, this.svg, "all models hidden");
    }

    axes(x0, x1, y0, y1, right, width, log) {
      const bottom = HEIGHT - MARGIN.bottom;
      const axes = element("g", { class: "axes", "aria-hidden": "true" }, this.svg);
      for (const tick of log ? logTicks(y0, y1) : linearTicks(y0, y1, 5)) {
        const y = this.y(tick);
        element("line", { x1: MARGIN.left, x2: right, y1: y, y2: y }, axes);
        element("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, axes, short(tick));
      }
      for (const tick of linearTicks(x0, x1, Math.max(2, Math.floor((right - MARGIN.left) / 70)))) {
        const x = this.x(tick);
        element("line", { x1: x, x2: x, y1: MARGIN.top, y2: bottom }, axes);
        element("text", { x, y: bottom + 15, "text-anchor": "middle" }, axes, short(tick));
      }
      element("path", { class: "frame", d: `M${MARGIN.left},${MARGIN.top}V${bottom}H${right}` }, axes);
      const middle = (MARGIN.left + right) / 2;
      element("text", { x: middle, y: HEIGHT - 6, "text-anchor": "middle", class: "label" }, axes, this.panel.x_label);
      element("text", {
        transform: `translate(12,${(MARGIN.top + bottom) / 2}) rotate(-90)`,
        "text-anchor": "middle", class: "label",
      }, axes, this.panel.y_label);
    }

    curve(curve) {
      const { colour, dashes } = this.models[curve.model];
      const floor = HEIGHT - MARGIN.bottom;
      const at = (value) => Math.min(this.y(Math.max(value, this.panel.log_y ? 1e-9 : -Infinity)), floor);
      const band = curve.x.map((x, i) => [x, curve.low[i], curve.high[i]]).filter((row) => row[1] !== null);
      if (band.length > 1) {
        const upper = band.map(([x, , high]) => `${this.x(x).toFixed(1)},${at(high).toFixed(1)}`);
        const lower = band.map(([x, low]) => `${this.x(x).toFixed(1)},${at(low).toFixed(1)}`).reverse();
        element("path", { d: `M${[...upper, ...lower].join("L")}Z`, fill: colour, class: "band" }, this.marks);
      }
      const points = curve.x.map((x, i) => `${this.x(x).toFixed(1)},${this.y(curve.y[i]).toFixed(1)}`);
      const solid = curve.x.filter((x) => x <= curve.solid_until).length;
      const line = { fill: "none", stroke: colour, "stroke-width": 2, "data-model": curve.model };
      if (solid === 1) element("path", { ...line, "stroke-width": 6, "stroke-linecap": "round", d: `M${points[0]}h0` }, this.marks);
      element("path", { ...line, d: `M${points.slice(0, solid).join("L")}`, "stroke-dasharray": dashes.join(" ") }, this.marks);
      if (solid < points.length)
        element("path", { ...line, "stroke-width": 1.2, d: `M${points.slice(Math.max(solid - 1, 0)).join("L")}`, "stroke-dasharray": "1 3" }, this.marks);
    }

    /* All points of a model are one path of dots: a thousand of them cost one element. */
    cloud(cloud) {
      const { colour, square } = this.models[cloud.model];
      const dots = (xs, ys) => xs.map((x, i) => `M${this.x(x).toFixed(1)},${this.y(ys[i]).toFixed(1)}h0`).join("");
      const line = { fill: "none", stroke: colour, "stroke-linecap": square ? "square" : "round", "data-model": cloud.model };
      element("path", { ...line, d: dots(cloud.x, cloud.y), "stroke-width": cloud.final_x.length ? 4.5 : 6, class: "dots" }, this.marks);
      element("path", { d: dots(cloud.final_x, cloud.final_y), class: "outline", "stroke-width": 10 }, this.marks);
      element("path", { ...line, d: dots(cloud.final_x, cloud.final_y), "stroke-width": 7 }, this.marks);
    }

    diamond(x, reference, log, y0) {
      const { colour } = this.models[reference.model];
      const y = this.y(reference.y);
      const low = this.y(Math.max(reference.y - reference.y_std, log ? y0 : -Infinity));
      const high = this.y(reference.y + reference.y_std);
      const group = element("g", { stroke: colour, "stroke-width": 1.6, class: "diamond" }, this.marks);
      element("line", { x1: x, x2: x, y1: low, y2: high, "stroke-width": 1 }, group);
      element("path", { d: `M${x},${y - 5}L${x + 5},${y}L${x},${y + 5}L${x - 5},${y}Z` }, group);
    }

    point(event) {
      const box = this.svg.getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top];
      if (this.clouds.length) this.readPoint(px, py);
      else this.readColumn(this.nearestX(px));
    }

    /* Every x that a visible curve has, in order. */
    get stops() {
      return [...new Set(this.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    }

    nearestX(px) {
      let best = null;
      for (const x of this.stops)
        if (best === null || Math.abs(this.x(x) - px) < Math.abs(this.x(best) - px)) best = x;
      return best;
    }

    key(event) {
      if (!["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) return;
      event.preventDefault();
      if (event.key === "Escape") return this.clear();
      const stops = this.clouds.length ? this.finals : this.stops;
      if (!stops.length) return;
      const last = stops.length - 1;
      const from = this.cursor ?? (event.key === "ArrowLeft" ? last + 1 : -1);
      const jumps = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last };
      const place = Math.min(Math.max(jumps[event.key], 0), last);
      if (this.clouds.length) this.showPoint(stops[place]);
      else this.readColumn(stops[place]);
      this.cursor = place;
    }

    readColumn(x) {
      if (x === null || x === undefined) return;
      const rows = [];
      this.pointer.replaceChildren();
      const px = this.x(x);
      element("line", { x1: px, x2: px, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, class: "cross" }, this.pointer);
      for (const curve of this.curves) {
        let i = 0;
        curve.x.forEach((value, k) => { if (Math.abs(value - x) < Math.abs(curve.x[i] - x)) i = k; });
        const reach = curve.x.length > 1 ? (curve.x.at(-1) - curve.x[0]) / (curve.x.length - 1) : 0;
        if (x > curve.x.at(-1) + reach || x < curve.x[0] - reach) continue;
        const { name, colour } = this.models[curve.model];
        const spread = curve.low[i] === null ? "" : ` [${shown(curve.low[i])}, ${shown(curve.high[i])}]`;
        rows.push([colour, `${name}: ${shown(curve.y[i])}${spread}`, curve.y[i]]);
        element("circle", { cx: this.x(curve.x[i]), cy: this.y(curve.y[i]), r: 3.5, fill: colour }, this.pointer);
      }
      rows.sort((a, b) => b[2] - a[2]);
      this.show(`${this.panel.x_label} ${short(x)}`, rows, px, MARGIN.top);
    }

    /* What the arrow keys go through in a cloud, from left to right: the final networks, or all. */
    get finals() {
      const final = this.clouds.some((cloud) => cloud.final_x.length);
      const points = this.clouds.flatMap((cloud) => (final ? cloud.final_x : cloud.x).map((x, i) => (
        { cloud, x, y: (final ? cloud.final_y : cloud.y)[i], final })));
      return points.sort((a, b) => a.x - b.x);
    }

    readPoint(px, py) {
      let best = null, distance = 20 ** 2;
      const consider = (cloud, xs, ys, final) => xs.forEach((x, i) => {
        const gap = (this.x(x) - px) ** 2 + (this.y(ys[i]) - py) ** 2;
        if (gap <= distance) { distance = gap; best = { cloud, x, y: ys[i], final }; }
      });
      for (const cloud of this.clouds) {
        consider(cloud, cloud.x, cloud.y, false);
        consider(cloud, cloud.final_x, cloud.final_y, true);
      }
      if (best) this.showPoint(best); else this.clear();
    }

    showPoint({ cloud, x, y, final }) {
      const { name, colour } = this.models[cloud.model];
      this.pointer.replaceChildren();
      element("circle", { cx: this.x(x), cy: this.y(y), r: 7, class: "ring" }, this.pointer);
      const rows = [[colour, `${this.panel.x_label} ${shown(x)}`], [colour, `${this.panel.y_label} ${shown(y)}`]];
      const kind = this.panel.references.length || cloud.final_x.length ? (final ? ", final network" : ", checkpoint") : "";
      this.show(`${name}${kind}`, rows, this.x(x), this.y(y) + 10);
    }

    show(title, rows, x, y) {
      this.tip.replaceChildren();
      html("b", {}, this.tip, title);
      for (const [colour, text] of rows) {
        const row = html("span", { class: "row" }, this.tip);
        html("i", { style: `background:${colour}` }, row);
        row.append(text);
      }
      this.tip.hidden = false;
      const room = this.holder.clientWidth - this.tip.offsetWidth - 4;
      const left = x + 14 > room ? Math.max(x - 14 - this.tip.offsetWidth, 0) : x + 14;
      this.tip.style.left = `${Math.min(left, Math.max(room, 0))}px`;
      this.tip.style.top = `${Math.min(y, Math.max(HEIGHT - this.tip.offsetHeight, 0))}px`;
    }

    clear() {
      this.cursor = null;
      this.tip.hidden = true;
      if (this.pointer) this.pointer.replaceChildren();
    }
  }

  function sample(style, dots) {
    const svg = element("svg", { width: 22, height: 10, "aria-hidden": "true" });
    if (style === null) element("path", { d: "M11,0L16,5L11,10L6,5Z", class: "diamond" }, svg);
    else if (dots) element("path", {
      d: "M11,5h0", stroke: style.colour, "stroke-width": 9, "stroke-linecap": style.square ? "square" : "round",
    }, svg);
    else element("path", {
      d: "M1,5H21", stroke: style.colour, "stroke-width": 3, "stroke-dasharray": style.dashes.join(" "),
    }, svg);
    return svg;
  }

  /* Draw a figure into `parent`: the legend, then its panels. */
  function render(parent, figure, models) {
    const hidden = new Set();
    const legend = html("div", { class: "legend", role: "group", "aria-label": `Models of figure ${figure.number}` }, parent);
    const grid = html("div", { class: "panels", "data-count": figure.panels.length }, parent);
    const panels = figure.panels.map((panel) => new Panel(grid, panel, models, (model) => hidden.has(model)));
    const dots = figure.panels.every((panel) => panel.clouds.length);
    const entries = figure.models.map((model) => [model, models[model].name, models[model]]);
    if (figure.panels.some((panel) => panel.references.length)) entries.push(["paper", "paper", null]);
    for (const [model, name, style] of entries) {
      const button = html("button", { type: "button", "aria-pressed": "true", title: "hide or show", "data-model": model }, legend);
      button.append(sample(style, dots), name);
      button.addEventListener("click", () => {
        if (!hidden.delete(model)) hidden.add(model);
        button.setAttribute("aria-pressed", String(!hidden.has(model)));
        panels.forEach((panel) => panel.draw());
      });
    }
    return panels;
  }

  return { render, html };
})();
