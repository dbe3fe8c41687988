/* The synapse viewer: a trained network reads a sequence of the associative retrieval task, and
 * every efficacy of every neuron is on show after each symbol. */
"use strict";

const Viewer = (() => {
  const { html } = Plots;
  const EXAMPLES = ["c9k8j3??k", "a1b2c3??a", "z0q7m4??m", "x5y5z5??y"];
  const MAX_LENGTH = 25;
  const PLAY_MS = 800;

  /* Okabe and Ito's colours: neurons must not look like the models of the other figures. */
  const NEURONS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#7A7A7A", "#B8A900"];

  function randomSequence() {
    const letters = Array.from("abcdefghijklmnopqrstuvwxyz");
    for (let i = letters.length - 1; i > 0; i--) {
      const j = Math.floor(Math.random() * (i + 1));
      [letters[i], letters[j]] = [letters[j], letters[i]];
    }
    const keys = letters.slice(0, 3);
    const pairs = keys.map((key) => key + Math.floor(Math.random() * 10)).join("");
    return `${pairs}??${keys[Math.floor(Math.random() * 3)]}`;
  }

  const percent = (part) => `${(100 * part).toFixed(part > 0.9995 || part < 0.1 ? 2 : 1)}%`;

  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

  class View {
    constructor(root, exported) {
      this.networks = exported.map(Network.load);
      this.network = this.networks[0];
      this.layer = 0;
      this.relative = false;
      this.timer = null;
      this.build(root);
      this.read(EXAMPLES[0]);
      this.go(this.steps.length - 1);
      new MutationObserver(() => this.paint()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
    }

    build(root) {
      const form = html("form", { class: "controls" }, root);
      form.addEventListener("submit", (event) => { event.preventDefault(); this.type(this.input.value); });
      if (this.networks.length > 1) {
        const label = html("label", {}, form, "Network ");
        const select = html("select", { id: "viewer-network" }, label);
        this.networks.forEach((network, i) => html("option", { value: i }, select, network.name));
        select.addEventListener("change", () => this.choose(this.networks[+select.value]));
      }
      const label = html("label", {}, form, "Sequence ");
      this.input = html("input", {
        id: "viewer-sequence", type: "text", maxlength: MAX_LENGTH, size: 12, spellcheck: "false",
        autocomplete: "off", autocapitalize: "none", "aria-describedby": "viewer-message",
      }, label);
      this.input.addEventListener("input", () => this.type(this.input.value));
      const random = html("button", { type: "button", id: "viewer-random" }, form, "Random");
      random.addEventListener("click", () => this.type(randomSequence()));
      const picks = html("span", { class: "picks" }, form);
      for (const example of EXAMPLES) {
        const pick = html("button", { type: "button", class: "pick" }, picks, example);
        pick.addEventListener("click", () => this.type(example));
      }
      this.message = html("p", { id: "viewer-message", class: "message", role: "status" }, root);
      this.about = html("p", { class: "about" }, root);

      html("p", { class: "about" }, root, "Bars: power of each step. A click goes to the step.");
      this.tape = html("div", { class: "tape", role: "group", "aria-label": "Symbols read so far, with the power of each step" }, root);
      const transport = html("div", { class: "controls transport" }, root);
      this.buttons = {};
      const actions = [["first", "|◀", "First step", () => this.go(0)], ["back", "◀", "Step back", () => this.go(this.now - 1)],
        ["play", "Play", "Play or pause", () => this.play()], ["next", "▶", "Next step", () => this.go(this.now + 1)],
        ["last", "▶|", "Last step", () => this.go(this.steps.length - 1)]];
      for (const [name, text, spoken, action] of actions) {
        const button = html("button", { type: "button", id: `viewer-${name}`, "aria-label": spoken }, transport, text);
        button.addEventListener("click", () => { if (name !== "play") this.pause(); action(); });
        this.buttons[name] = button;
      }
      this.slider = html("input", { type: "range", id: "viewer-step", min: 1, value: 1, "aria-label": "Step of the sequence" }, transport);
      this.slider.addEventListener("input", () => { this.pause(); this.go(+this.slider.value - 1); });

      const columns = html("div", { class: "columns" }, root);
      this.answer = html("div", { class: "answer", id: "viewer-answer", "aria-live": "polite" }, columns);
      this.changes = html("div", { class: "changes" }, columns);

      const heading = html("div", { class: "controls" }, root);
      html("h3", {}, heading, "Figure 5. Efficacy G of every synapse");
      this.layerChoice = html("label", { hidden: "" }, heading, "Layer ");
      this.layerSelect = html("select", { id: "viewer-layer" }, this.layerChoice);
      this.layerSelect.addEventListener("change", () => { this.layer = +this.layerSelect.value; this.arrange(); this.go(this.now); this.showRates(); });
      const mode = html("label", {}, heading);
      const box = html("input", { type: "checkbox", id: "viewer-relative" }, mode);
      mode.append(" change since the first step");
      box.addEventListener("change", () => { this.relative = box.checked; this.paint(); });
      this.scale = html("span", { class: "scale" }, heading);
      html("p", { class: "about" }, root, "One map a neuron: synapses down (letters, digits, ?, hidden units), steps across. Point at a cell for its value.");
      this.maps = html("div", { class: "maps" }, root);
      this.tip = html("div", { class: "tip", hidden: "" }, this.maps);
      html("h3", { class: "rates-title" }, root, "Figure 6. Learnt λ and γ");
      html("p", { class: "about" }, root, "One dot a synapse, one colour and shape a neuron. λ is the part of the short-term weight that is kept at each step, not limited to 0 to 1: beyond 1 it is amplified, which the normalisation holds, and below 0 it turns its sign. γ is what an association adds.");
      this.rates = html("div", { class: "rates" }, root);
      this.choose(this.network);
    }

    choose(network) {
      this.network = network;
      this.layer = 0;
      this.about.textContent = network.about;
      this.layerChoice.hidden = network.layers.length < 2;
      this.layerSelect.replaceChildren();
      network.layers.forEach((_, k) => html("option", { value: k }, this.layerSelect, k + 1));
      this.showRates();
      if (this.text) { this.read(this.text); this.go(Math.min(this.now, this.steps.length - 1)); }
    }

    /* Figure 6, of the chosen layer. Synapses with the same two numbers are one dot. */
    showRates() {
      const { rows, columns, lambda, gamma } = this.shape;
      this.rates.replaceChildren();
      if (!lambda) {
        html("p", {}, this.rates, "The synapses of this network learn by another rule, which has no λ and γ of each synapse.");
        return;
      }
      const seen = new Set();
      const clouds = Array.from({ length: rows }, (_, row) => {
        const cloud = { model: `row${row}`, x: [], y: [], final_x: [], final_y: [] };
        for (let i = row * columns; i < (row + 1) * columns; i++) {
          const key = `${lambda[i]},${gamma[i]}`;
          if (seen.has(key) || (lambda[i] === 0 && gamma[i] === 0)) continue;
          seen.add(key);
          cloud.x.push(lambda[i]);
          cloud.y.push(gamma[i]);
        }
        return cloud;
      }).filter((cloud) => cloud.x.length);
      if (!clouds.length) {
        html("p", {}, this.rates, "This network has no plastic synapses.");
        return;
      }
      const models = Object.fromEntries(clouds.map(({ model }) => {
        const row = +model.slice(3);
        // Beyond the colours there are squares, then both again.
        const square = Math.floor(row / NEURONS.length) % 2 === 1;
        return [model, { name: this.rowName(row), colour: NEURONS[row % NEURONS.length], square, dashes: [] }];
      }));
      const panel = { title: "", x_label: "λ", y_label: "γ", curves: [], clouds, references: [], log_y: false };
      const figure = { number: 6, models: Object.keys(models), panels: [panel] };
      Plots.render(this.rates, figure, models);
    }

    /* Take up what the user wrote; keep the last good sequence on show while it is not one. */
    type(raw) {
      const text = raw.trim().toLowerCase();
      if (this.input.value.trim().toLowerCase() !== text) this.input.value = text;
      const foreign = [...new Set(text)].filter((symbol) => !this.network.symbols.includes(symbol));
      if (!text || foreign.length) {
        this.input.setAttribute("aria-invalid", "true");
        this.message.textContent = text
          ? `Not a symbol of the task: ${foreign.join(" ")}. Letters, digits and ? are.`
          : "Write a sequence such as c9k8j3??k.";
        return;
      }
      this.pause();
      this.read(text);
      this.go(this.steps.length - 1);
    }

    read(text) {
      this.text = text;
      if (this.input.value.trim().toLowerCase() !== text) this.input.value = text;
      this.input.removeAttribute("aria-invalid");
      this.expected = Network.solve(text);
      this.message.textContent = this.expected === null
        ? "Not a whole ART sequence (letter-digit pairs with different letters, then ?? and one of the letters), so no answer is right or wrong. The network reads it all the same."
        : `The right answer is ${this.expected}.`;
      this.steps = Network.run(this.network, text);
      this.now = Math.min(this.now ?? 0, this.steps.length - 1);
      this.slider.max = this.steps.length;
      this.arrangeTape();
      this.arrange();
    }

    go(step) {
      this.now = Math.min(Math.max(step, 0), this.steps.length - 1);
      this.slider.value = this.now + 1;
      this.slider.setAttribute("aria-valuetext", `step ${this.now + 1}, ${this.steps[this.now].symbol}`);
      this.buttons.first.disabled = this.buttons.back.disabled = this.now === 0;
      this.buttons.last.disabled = this.buttons.next.disabled = this.now === this.steps.length - 1;
      [...this.tape.children].forEach((tile, t) => {
        tile.classList.toggle("read", t <= this.now);
        if (t === this.now) tile.setAttribute("aria-current", "step"); else tile.removeAttribute("aria-current");
      });
      this.showAnswer();
      this.showChanges();
      this.paint();
    }

    play() {
      if (this.timer) return this.pause();
      this.go(this.now === this.steps.length - 1 ? 0 : this.now + 1);
      this.buttons.play.textContent = "Pause";
      this.timer = setInterval(() => {
        this.go(this.now + 1);
        if (this.now === this.steps.length - 1) this.pause();
      }, PLAY_MS);
    }

    pause() {
      clearInterval(this.timer);
      this.timer = null;
      this.buttons.play.textContent = "Play";
    }

    arrangeTape() {
      const top = Math.max(...this.steps.map((step) => step.power));
      this.tape.replaceChildren();
      this.steps.forEach((step, t) => {
        const power = `${+step.power.toPrecision(3)}`;
        const tile = html("button", { type: "button", class: "tile", "aria-label": `Step ${t + 1}, ${step.symbol}, power ${power}` }, this.tape);
        const well = html("span", { class: "well", "aria-hidden": "true" }, tile);
        html("span", { class: "bar", style: `height:${(100 * step.power) / (top || 1)}%` }, well);
        html("span", { class: "power", "aria-hidden": "true" }, tile, power);
        html("span", { class: "symbol", "aria-hidden": "true" }, tile, step.symbol);
        tile.addEventListener("click", () => { this.pause(); this.go(t); });
      });
    }

    showAnswer() {
      const step = this.steps[this.now];
      const last = this.now === this.steps.length - 1;
      const order = step.probabilities.map((value, i) => [value, this.network.symbols[i]]).sort((a, b) => b[0] - a[0]);
      this.answer.replaceChildren();
      const title = html("p", { class: "verdict" }, this.answer);
      title.append(last ? "Answer " : `If asked after step ${this.now + 1}: `);
      html("strong", {}, title, step.answer);
      title.append(` with ${percent(order[0][0])}`);
      if (last && this.expected !== null) {
        const right = step.answer === this.expected;
        html("span", { class: right ? "right" : "wrong" }, title, right ? " ✓ right" : ` ✗ wrong, ${this.expected} is asked for`);
      }
      const list = html("ol", { class: "bars", "aria-label": "Most probable answers" }, this.answer);
      for (const [probability, symbol] of order.slice(0, 5)) {
        const row = html("li", {}, list);
        html("b", {}, row, symbol);
        const well = html("span", { class: "well", "aria-hidden": "true" }, row);
        html("span", { class: "bar", style: `width:${100 * probability}%` }, well);
        html("span", {}, row, percent(probability));
      }
    }

    /* What a heat map says to those who cannot see it: the synapses that moved most. */
    showChanges() {
      this.changes.replaceChildren();
      const title = html("p", { class: "verdict" }, this.changes);
      if (this.now === 0) {
        title.textContent = "Synapses start from their long-term weights.";
        return;
      }
      title.textContent = `Largest changes of G since step ${this.now}`;
      const [before, after] = [this.steps[this.now - 1], this.steps[this.now]].map((step) => step.layers[this.layer].g);
      const order = Array.from(after.keys()).sort((a, b) => Math.abs(after[b] - before[b]) - Math.abs(after[a] - before[a]));
      const list = html("ol", { class: "moves" }, this.changes);
      for (const i of order.slice(0, 5)) {
        if (after[i] === before[i]) continue;
        html("li", {}, list, `${this.synapse(i)}: ${signed(before[i])} → ${signed(after[i])}`);
      }
      if (!list.children.length) title.textContent = "No synapse has changed: the efficacies of this network are constant.";
    }

    get shape() { return this.network.layers[this.layer]; }

    rowName(row) {
      const { gated, hidden_size: hidden } = this.shape;
      return gated ? `neuron ${(row % hidden) + 1}, ${["input", "forget", "cell", "output"][Math.floor(row / hidden)]} gate` : `neuron ${row + 1}`;
    }

    columnName(column) {
      const inputs = this.shape.input_size;
      const hidden = this.shape.hidden_size;
      if (column >= inputs + hidden) return `fast, hidden ${column - inputs - hidden + 1}`;
      if (column >= inputs) return `hidden ${column - inputs + 1}`;
      return this.layer === 0 ? `“${this.network.symbols[column]}”` : `layer ${this.layer}, ${column + 1}`;
    }

    synapse(i) {
      const { columns } = this.shape;
      return `${this.rowName(Math.floor(i / columns))} ← ${this.columnName(i % columns)}`;
    }

    /* Groups of columns with their names, for the labels beside a map. */
    get groups() {
      const { input_size: inputs, hidden_size: hidden, columns } = this.shape;
      const groups = this.layer === 0 ? [[0, 26, "a–z"], [26, 36, "0–9"], [36, 37, "?"]] : [[0, inputs, "in"]];
      if (columns > inputs) groups.push([inputs, inputs + hidden, "h"]);
      if (columns > inputs + hidden) groups.push([inputs + hidden, columns, "fast"]);
      return groups;
    }

    arrange() {
      const { rows, columns } = this.shape;
      this.maps.replaceChildren(this.tip);
      this.canvases = Array.from({ length: rows }, (_, row) => {
        const figure = html("figure", { class: "map" }, this.maps);
        html("figcaption", {}, figure, this.rowName(row));
        const frame = html("div", { class: "frame" }, figure);
        for (const [from, to, name] of this.groups)
          html("span", { class: to - from > 1 ? "group" : "group single", style: `top:${(100 * from) / columns}%;height:${(100 * (to - from)) / columns}%` }, frame, name);
        const canvas = html("canvas", { width: this.steps.length, height: columns, role: "img" }, frame);
        const marker = html("span", { class: "marker", "aria-hidden": "true" }, frame);
        const foot = html("div", { class: "foot", "aria-hidden": "true" }, figure);
        for (const step of this.steps) html("span", {}, foot, step.symbol);
        canvas.addEventListener("pointermove", (event) => this.inspect(event, canvas, row));
        canvas.addEventListener("pointerdown", (event) => this.inspect(event, canvas, row));
        canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
        return { canvas, marker };
      });
    }

    value(t, i) {
      const g = this.steps[t].layers[this.layer].g[i];
      return this.relative ? g - this.steps[0].layers[this.layer].g[i] : g;
    }

    /* The ends of the colour scale stay the same for the whole sequence: steps can be compared. */
    get limit() {
      const { rows, columns } = this.shape;
      let limit = 0;
      for (let t = 0; t < this.steps.length; t++)
        for (let i = 0; i < rows * columns; i++) limit = Math.max(limit, Math.abs(this.value(t, i)));
      return limit;
    }

    paint() {
      const { columns } = this.shape;
      const limit = this.limit;
      const style = getComputedStyle(this.maps);
      const channels = (name) => style.getPropertyValue(name).match(/[\d.]+/g).map(Number);
      const neutral = channels("--map-zero");
      const ends = [channels("--map-negative"), channels("--map-positive")];
      const colour = (value) => {
        const part = limit ? Math.min(Math.abs(value) / limit, 1) ** 0.7 : 0;
        const end = ends[value > 0 ? 1 : 0];
        return neutral.map((channel, k) => Math.round(channel + part * (end[k] - channel)));
      };
      this.canvases.forEach(({ canvas, marker }, row) => {
        const image = new ImageData(this.steps.length, columns);
        for (let t = 0; t <= this.now; t++)
          for (let d = 0; d < columns; d++)
            image.data.set([...colour(this.value(t, row * columns + d)), 255], 4 * (d * this.steps.length + t));
        canvas.getContext("2d").putImageData(image, 0, 0);
        canvas.setAttribute("aria-label", `Efficacies of ${this.rowName(row)} after ${this.now + 1} of ${this.steps.length} steps`);
        marker.style.setProperty("--from", this.now / this.steps.length);
        marker.style.setProperty("--part", 1 / this.steps.length);
      });
      this.scale.replaceChildren();
      const text = `${+limit.toPrecision(2)}`;
      this.scale.append(`−${text}`);
      const stops = [-1, -0.5, 0, 0.5, 1].map((part) => `rgb(${colour(part * limit).join(",")})`);
      html("i", { style: `background:linear-gradient(90deg,${stops.join(",")})`, "aria-hidden": "true" }, this.scale);
      this.scale.append(`+${text}`);
    }

    inspect(event, canvas, row) {
      const box = canvas.getBoundingClientRect();
      const { columns } = this.shape;
      const t = Math.min(Math.floor(((event.clientX - box.left) / box.width) * this.steps.length), this.steps.length - 1);
      const d = Math.min(Math.floor(((event.clientY - box.top) / box.height) * columns), columns - 1);
      if (t < 0 || d < 0 || t > this.now) { this.tip.hidden = true; return; }
      this.tip.replaceChildren();
      html("b", {}, this.tip, this.synapse(row * columns + d));
      html("span", { class: "row" }, this.tip, `step ${t + 1}, ${this.steps[t].symbol}: ${signed(this.value(t, row * columns + d))}`);
      this.tip.hidden = false;
      const frame = this.maps.getBoundingClientRect();
      const left = event.clientX - frame.left + 14;
      this.tip.style.left = `${Math.max(Math.min(left, frame.width - this.tip.offsetWidth), 0)}px`;
      this.tip.style.top = `${event.clientY - frame.top + 14}px`;
    }
  }

  return { mount: (root, networks) => new View(root, networks) };
})();
