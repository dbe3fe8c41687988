/* A trained network in the browser, in the report and on the documentation's page of the maze: the
 * recurrences of the specifications in stpn/ops, step by step.
 *
 * Notation: I inputs, H hidden units, R rows of synapses (H, or 4H with gates), D columns (inputs,
 * then hidden units). Every matrix is a flat array of rows. Lambda and gamma come expanded to
 * (R, D), zero where a synapse is not plastic, so their granularity needs no code here. Numbers are
 * computed in double precision from the float32 weights. */
"use strict";

const Network = (() => {
  const NORM_EPS = 1e-16;
  const LAYER_NORM_EPS = 1e-5;
  const sigmoid = (value) => 1 / (1 + Math.exp(-value));
  const ACTIVATIONS = { tanh: Math.tanh, sigmoid, relu: (value) => Math.max(value, 0) };

  /* Little-endian float32 in base64, as Python writes them. */
  function decode(text) {
    const raw = atob(text);
    const bytes = Uint8Array.from(raw, (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Float64Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
  }

  function load(exported) {
    const tensors = ["weight", "bias", "lambda", "gamma", "norm_scale", "layer_norm", "alpha", "modulator", "ln_weight", "ln_bias"];
    const layers = exported.layers.map((layer) => ({
      ...layer,
      ...Object.fromEntries(tensors.map((name) => [name, layer[name] && decode(layer[name])])),
    }));
    const readout = {
      weight: decode(exported.readout.weight),
      bias: exported.readout.bias && decode(exported.readout.bias),
    };
    return { ...exported, layers, readout };
  }

  /* Norm of each row, or of the whole matrix repeated for each row; 1 where all is zero. */
  function divisors(matrix, layer) {
    const { rows, columns, norm_over: over } = layer;
    const squares = new Float64Array(rows);
    for (let r = 0; r < rows; r++)
      for (let d = 0; d < columns; d++) squares[r] += matrix[r * columns + d] ** 2;
    if (over === "layer") squares.fill(squares.reduce((sum, value) => sum + value, 0));
    return squares.map((square) => (square > 0 ? Math.sqrt(square) + NORM_EPS : 1));
  }

  /* The efficacies as the neurons use them (R, D), and their divisors (R) if there is a norm. */
  function efficacies(layer, f) {
    const { rows, columns, weight } = layer;
    const g = weight.map((value, i) => value + f[i]);
    if (layer.norm === null || layer.norm === "f") return { g, n: null };
    const n = divisors(g, layer);
    for (let r = 0; r < rows; r++) {
      const factor = layer.norm_scale ? layer.norm_scale[r] : 1;
      for (let d = 0; d < columns; d++) g[r * columns + d] *= factor / n[r];
    }
    return { g, n };
  }

  /* F after the step; post (R) holds the activation of each row, u (D) what it is associated with. */
  function plasticity(layer, f, post, u, n) {
    const { rows, columns, gamma, lambda, weight, clamp } = layer;
    const pre = Float64Array.from(u);
    if (layer.rule === "oja")
      for (let r = 0; r < rows; r++)
        for (let d = 0; d < columns; d++) pre[d] -= post[r] * f[r * columns + d];
    const next = new Float64Array(f.length);
    for (let r = 0; r < rows; r++) {
      const divisor = layer.norm === "pre" ? n[r] : 1;
      for (let d = 0; d < columns; d++) {
        const i = r * columns + d;
        const value = gamma[i] * post[r] * pre[d] + (lambda[i] * f[i]) / divisor;
        next[i] = clamp === null ? value : Math.min(Math.max(value, -clamp), clamp);
      }
    }
    if (layer.norm === "post" || layer.norm === "f") {
      const total = layer.norm === "f" ? next : weight.map((value, i) => value + next[i]);
      const after = divisors(total, layer);
      for (let i = 0; i < next.length; i++) next[i] /= after[Math.floor(i / columns)];
    }
    return next;
  }

  function initialState(layer) {
    return {
      h: new Float64Array(layer.hidden_size),
      c: new Float64Array(layer.hidden_size),
      f: new Float64Array(layer.rows * (layer.kind === "stpn" ? layer.columns : layer.hidden_size)),
    };
  }

  /* What rows of synapses g (R, D) make of u (D), and the power that it takes. */
  function weigh(g, u, bias) {
    const columns = u.length;
    const sums = new Float64Array(g.length / columns);
    let power = 0;
    for (let r = 0; r < sums.length; r++) {
      for (let d = 0; d < columns; d++) {
        const efficacy = g[r * columns + d];
        sums[r] += efficacy * u[d];
        power += u[d] * u[d] * Math.abs(efficacy);
      }
      if (bias) sums[r] += bias[r];
    }
    return { sums, power };
  }

  /* One step of one layer: state {h, c, f} and input x to the next state, with g and power. */
  function step(layer, state, x) {
    return STEPS[layer.kind](layer, state, x);
  }

  const STEPS = { stpn: plasticStep, modplast: modulatedStep, fastweights: fastStep };

  /* Mean 0 and variance 1 over the units of each gate. */
  function standardise(values, units, eps) {
    const result = new Float64Array(values.length);
    for (let first = 0; first < values.length; first += units) {
      const part = values.subarray(first, first + units);
      const mean = part.reduce((sum, value) => sum + value, 0) / units;
      const variance = part.reduce((sum, value) => sum + (value - mean) ** 2, 0) / units;
      result.set(part.map((value) => (value - mean) / Math.sqrt(variance + eps)), first);
    }
    return result;
  }

  function plasticStep(layer, state, x) {
    const { hidden_size: hidden, bias, layer_norm: gain } = layer;
    const u = layer.recurrent ? [...x, ...state.h] : x;
    const { g, n } = efficacies(layer, state.f);
    let { sums, power } = weigh(g, u, gain ? null : bias);
    if (gain)
      sums = standardise(sums, hidden, LAYER_NORM_EPS).map((value, r) => gain[r] * value + (bias ? bias[r] : 0));
    let post, h, c = state.c;
    if (layer.gated) {
      const gates = [sigmoid, sigmoid, Math.tanh, sigmoid]; // i, f, g, o
      post = sums.map((value, r) => gates[Math.floor(r / hidden)](value));
      c = state.c.map((value, j) => post[hidden + j] * value + post[j] * post[2 * hidden + j]);
      h = c.map((value, j) => post[3 * hidden + j] * Math.tanh(value));
    } else {
      post = sums.map(ACTIVATIONS[layer.nonlinearity]);
      h = post;
    }
    const pre = layer.associate === "new" ? [...x, ...h] : u;
    return { h, c, f: plasticity(layer, state.f, post, pre, n), g, power };
  }

  /* f (H, H) is the Hebbian trace of the recurrent synapses; a scalar says how much is learnt. */
  function modulatedStep(layer, state, x) {
    const { columns, hidden_size: hidden, alpha, modulator } = layer;
    const inputs = columns - hidden;
    const g = layer.weight.map((value, i) => {
      const d = (i % columns) - inputs;
      const k = Math.floor(i / columns) * hidden + d;
      return d < 0 ? value : value + alpha[k] * state.f[k];
    });
    const { sums, power } = weigh(g, [...x, ...state.h], layer.bias);
    const h = sums.map(Math.tanh);
    const rate = modulator
      ? Math.tanh(h.reduce((sum, value, j) => sum + value * modulator[j], layer.modulator_bias))
      : layer.eta;
    const f = state.f.map((value, k) => {
      const learnt = value + rate * h[Math.floor(k / hidden)] * state.h[k % hidden];
      return Math.min(Math.max(learnt, -1), 1);
    });
    return { h, c: state.c, f, g, power };
  }

  /* f (H, H) are the fast weights. They see h of the inner loop, the slow ones see the last h: g
   * shows them side by side, (H, I + H + H). */
  function fastStep(layer, state, x) {
    const { hidden_size: hidden, columns, weight } = layer;
    const activate = (values) =>
      standardise(values, hidden, layer.eps).map((value, j) => Math.tanh(value * layer.ln_weight[j] + layer.ln_bias[j]));
    const f = state.f.map((value, k) =>
      layer.decay * value + layer.rate * state.h[Math.floor(k / hidden)] * state.h[k % hidden]);
    const slow = weigh(weight, [...x, ...state.h], layer.bias);
    let { power } = slow;
    let h = activate(slow.sums);
    for (let turn = 0; turn < layer.steps; turn++) {
      const fast = weigh(f, h, null);
      power += fast.power;
      h = activate(slow.sums.map((value, j) => value + fast.sums[j]));
    }
    const width = columns - hidden;
    const g = Float64Array.from({ length: hidden * columns }, (_, i) => {
      const [r, d] = [Math.floor(i / columns), i % columns];
      return d < width ? weight[r * width + d] : f[r * hidden + d - width];
    });
    return { h, c: state.c, f, g, power };
  }

  function softmax(scores) {
    const top = Math.max(...scores);
    const weights = scores.map((score) => Math.exp(score - top));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return weights.map((weight) => weight / sum);
  }

  /* What the readout makes of the last layer's h: a score for each of its rows. */
  function readOut(network, h) {
    const { weight, bias } = network.readout;
    return weigh(weight, h, bias).sums;
  }

  /* One time step: the states of the layers and an input to what each layer did (which is its next
   * state, too), the power of all layers together, and the scores of the readout. */
  function advance(network, states, input) {
    let x = input;
    const layers = network.layers.map((layer, k) => {
      const result = step(layer, states[k], x);
      x = Array.from(result.h);
      return result;
    });
    const power = layers.reduce((sum, layer) => sum + layer.power, 0);
    return { layers, power, scores: readOut(network, x) };
  }

  const start = (network) => network.layers.map(initialState);

  /* Read a sequence. For each step: the layers' h and g, the power of all layers together, and the
   * probability of each symbol if the answer were asked for now. */
  function run(network, text) {
    let states = start(network);
    return Array.from(text, (character) => {
      const symbol = network.symbols.indexOf(character);
      if (symbol < 0) throw new RangeError(`not a symbol of the task: "${character}"`);
      const x = Array.from(network.symbols, (_, i) => (i === symbol ? 1 : 0));
      const { layers, power, scores } = advance(network, states, x);
      states = layers;
      const probabilities = Array.from(softmax(scores));
      const answer = network.symbols[probabilities.indexOf(Math.max(...probabilities))];
      return { symbol: character, layers, power, probabilities, answer };
    });
  }

  /* The digit that a whole sequence asks for; null for text that is none. */
  function solve(text) {
    const form = /^((?:[a-z][0-9])+)\?\?([a-z])$/.exec(text);
    if (!form) return null;
    const pairs = form[1].match(/../g);
    const letters = new Set(pairs.map((pair) => pair[0]));
    if (letters.size < pairs.length) return null;
    const asked = pairs.find((pair) => pair[0] === form[2]);
    return asked ? asked[1] : null;
  }

  return { load, start, advance, softmax, run, solve };
})();
