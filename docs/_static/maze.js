/* Two trained agents in the same maze, live. The networks run in network.js, the maze is a few
 * look-ups in the tables of maze-data.js; here are episodes and what is drawn of them. */
"use strict";

const Maze = (() => {
  const { size, actions, centre, open, walls, step: STEP, view: VIEW, episode_steps: STEPS, reward: REWARD } = MAZE_DATA;
  const agents = MAZE_DATA.agents.map(Network.load);

  /* Random numbers from a seed (mulberry32), so that an episode can be seen again. */
  function generator(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let mixed = Math.imul(state ^ (state >>> 15), state | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
  }

  const anyOf = (cells, random) => cells[Math.floor(random() * cells.length)];

  function begin(agent, rewardCell) {
    return {
      agent, rewardCell, cell: centre, path: [centre], time: 0, earned: 0, finds: 0,
      lastReward: 0, lastAction: 0, states: Network.start(agent), powers: [],
    };
  }

  /* What the network gets: 9 walls, 0, 1, the clock, its last reward and its last action. */
  function observe(episode) {
    const last = actions.map((_, action) => (action === episode.lastAction ? 1 : 0));
    const reward = (episode.lastReward / REWARD) * episode.agent.reward_input;
    const seen = [...VIEW[episode.cell], 0, 1, Math.fround(episode.time / STEPS), reward, ...last];
    const { normalized } = episode.agent;
    if (!normalized) return seen;
    const { mean, factor, largest } = normalized;
    return seen.map((value, i) => Math.min(Math.max((value - mean[i]) * factor[i], -largest), largest));
  }

  /* The network's step: logits of the actions, value and power. */
  function think(episode) {
    const { layers, power, scores } = Network.advance(episode.agent, episode.states, observe(episode));
    episode.states = layers;
    episode.powers.push(power);
    return { logits: scores.slice(0, actions.length), value: scores[actions.length], power };
  }

  function choose(logits, random) {
    let rest = random();
    const probabilities = Network.softmax(logits);
    for (let action = 0; action < probabilities.length - 1; action++) {
      rest -= probabilities[action];
      if (rest < 0) return action;
    }
    return probabilities.length - 1;
  }

  /* The maze's step. Whoever finds the reward cell earns and is put elsewhere by `land`. */
  function move(episode, action, land) {
    episode.cell = STEP[episode.cell][action];
    episode.path.push(episode.cell);
    episode.lastAction = action;
    episode.lastReward = 0;
    episode.time += 1;
    if (episode.cell === episode.rewardCell) {
      episode.lastReward = REWARD;
      episode.earned += REWARD;
      episode.finds += 1;
      episode.cell = land(open.filter((cell) => cell !== episode.rewardCell));
      episode.path = [episode.cell];
    }
  }

  function act(episode, random) {
    if (episode.time >= STEPS) return;
    const { logits } = think(episode);
    move(episode, choose(logits, random), (cells) => anyOf(cells, random));
  }

  return { agents, generator, anyOf, begin, observe, think, move, act, open, walls, size, STEPS };
})();

const MazePage = ((root) => {
  if (!root) return null;
  const FULL = { f: 0.3, g: 0.5 }; // what is drawn in full colour
  const find = (name) => root.querySelector(`[data-maze=${name}]`);
  const state = { seed: 0, random: null, episodes: [], timer: null, shown: "f" };

  const panels = Maze.agents.map((agent, k) => {
    const panel = document.createElement("section");
    panel.className = "maze-panel";
    panel.innerHTML = `
      <h3><span class="maze-key" style="background:${agent.colour}"></span>${agent.title}</h3>
      <canvas class="maze-grid" role="img" width="390" height="390"></canvas>
      <p class="maze-facts"><span>reward <b data-of="earned"></b></span>
        <span>power <b data-of="power"></b></span><span>mean <b data-of="mean"></b></span></p>
      <p class="maze-note">On average over many episodes: reward ${agent.mean_reward.toFixed(1)}, power
        ${agent.mean_power.toFixed(1)}. ${agent.parameters.toLocaleString("en")} parameters.</p>
      <canvas class="maze-map" role="img"></canvas><p class="maze-note" data-of="note"></p>`;
    find("panels").append(panel);
    const grid = panel.querySelector(".maze-grid");
    grid.addEventListener("click", (event) => {
      const box = grid.getBoundingClientRect();
      const at = (offset, extent) => Math.floor((offset / extent) * Maze.size);
      const cell = at(event.clientY - box.top, box.height) * Maze.size + at(event.clientX - box.left, box.width);
      if (Maze.open.includes(cell)) startEpisodes(cell);
    });
    const part = (name) => panel.querySelector(`[data-of=${name}]`);
    return { agent, k, grid, map: panel.querySelector(".maze-map"), note: part("note"), part };
  });

  const theme = () => {
    const style = getComputedStyle(document.body);
    const value = (name) => style.getPropertyValue(name).trim();
    const ground = value("--color-background-primary");
    const dark = document.body.dataset.theme === "dark" ||
      (document.body.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
    return {
      ink: value("--color-foreground-primary"), soft: value("--color-foreground-muted"),
      line: value("--color-background-border"), ground,
      floor: dark ? "#23272f" : "#f3f4f1", wall: dark ? "#59616d" : "#3a3f47",
      agent: dark ? "#7aa7ff" : "#1d4ed8", path: dark ? "122,167,255" : "29,78,216", reward: "#f0b429",
    };
  };

  function drawGrid({ grid }, episode, colours) {
    const canvas = grid.getContext("2d");
    const unit = grid.width / Maze.size;
    const corner = (cell) => [(cell % Maze.size) * unit, Math.floor(cell / Maze.size) * unit];
    Maze.walls.forEach((wall, cell) => {
      canvas.fillStyle = wall ? colours.wall : colours.floor;
      canvas.fillRect(...corner(cell), unit + 0.5, unit + 0.5);
    });
    episode.path.forEach((cell, age) => {
      canvas.fillStyle = `rgba(${colours.path},${0.08 + (0.3 * (age + 1)) / episode.path.length})`;
      canvas.fillRect(...corner(cell), unit, unit);
    });
    const shape = (cell, points) => {
      const [x, y] = corner(cell);
      canvas.beginPath();
      points(x + unit / 2, y + unit / 2);
      canvas.closePath();
      canvas.fill();
    };
    canvas.fillStyle = colours.reward;
    shape(episode.rewardCell, (x, y) => {
      const r = 0.44 * unit;
      canvas.moveTo(x - r, y); canvas.lineTo(x, y - r); canvas.lineTo(x + r, y); canvas.lineTo(x, y + r);
    });
    canvas.fillStyle = colours.agent;
    shape(episode.cell, (x, y) => canvas.arc(x, y, 0.34 * unit, 0, 2 * Math.PI));
    const place = (cell) => `row ${Math.floor(cell / Maze.size)}, column ${cell % Maze.size}`;
    grid.setAttribute("aria-label", `Maze: agent at ${place(episode.cell)}, reward cell at ${place(episode.rewardCell)}`);
  }

  /* Synapses, one pixel each: rows of neurons, columns of inputs and then neurons. */
  function drawMap({ agent, map, note }, episode) {
    const { rows, columns, lambda, weight } = agent.layers[0];
    const plastic = lambda.some((value) => value !== 0);
    const { f, g } = episode.states[0];
    const values = state.shown === "f" ? f : g ?? weight;
    map.width = columns;
    map.height = rows;
    const canvas = map.getContext("2d");
    const image = canvas.createImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) {
      const [red, green, blue] = values[i] > 0 ? [214, 84, 10] : [40, 110, 210];
      image.data.set([red, green, blue, 255 * Math.min(Math.abs(values[i]) / FULL[state.shown], 1)], 4 * i);
    }
    canvas.putImageData(image, 0, 0);
    const what = state.shown === "f" ? "Short-term weights F" : "Efficacies G";
    const sizes = `${what}: ${rows} rows, ${columns} columns.`;
    note.textContent = plastic ? sizes : `${sizes} ${state.shown === "f" ? "It has none: its synapses never change." : "They never change."}`;
    map.setAttribute("aria-label", note.textContent);
  }

  function drawPower(colours) {
    const chart = find("power"), canvas = chart.getContext("2d");
    const ratio = devicePixelRatio || 1;
    const [width, height] = [chart.clientWidth, chart.clientHeight];
    [chart.width, chart.height] = [width * ratio, height * ratio];
    canvas.scale(ratio, ratio);
    canvas.clearRect(0, 0, width, height);
    const [left, right, top, bottom] = [44, 64, 10, 24];
    const [lowest, highest] = [1, 4]; // powers of ten
    const x = (time) => left + (time / Maze.STEPS) * (width - left - right);
    const y = (power) => {
      const share = (Math.log10(Math.max(power, 10)) - lowest) / (highest - lowest);
      return height - bottom - Math.min(share, 1) * (height - top - bottom);
    };
    canvas.font = "12px system-ui, sans-serif";
    canvas.lineWidth = 1;
    for (let tick = 10 ** lowest; tick <= 10 ** highest; tick *= 10) {
      canvas.strokeStyle = colours.line;
      canvas.beginPath(); canvas.moveTo(left, y(tick)); canvas.lineTo(width - right, y(tick)); canvas.stroke();
      canvas.fillStyle = colours.soft;
      canvas.textAlign = "right";
      canvas.fillText(tick, left - 6, y(tick) + 4);
    }
    canvas.textAlign = "center";
    for (const tick of [0, 50, 100, 150, 200]) canvas.fillText(tick, x(tick), height - 6);
    canvas.lineWidth = 2;
    canvas.textAlign = "left";
    state.episodes.forEach(({ agent, powers }) => {
      if (!powers.length) return;
      canvas.strokeStyle = agent.colour;
      canvas.beginPath();
      powers.forEach((power, time) => canvas[time ? "lineTo" : "moveTo"](x(time), y(power)));
      canvas.stroke();
      canvas.fillStyle = colours.ink;
      canvas.fillText(agent.title, x(powers.length - 1) + 6, y(powers.at(-1)) + 4);
    });
    const means = state.episodes.filter((e) => e.powers.length).map((e) => `${e.agent.title} ${mean(e.powers).toFixed(0)}`);
    chart.setAttribute("aria-label", `Power at each step. Means: ${means.join(", ") || "none yet"}`);
  }

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  function draw() {
    const colours = theme();
    panels.forEach((panel, k) => {
      const episode = state.episodes[k];
      drawGrid(panel, episode, colours);
      drawMap(panel, episode);
      panel.part("earned").textContent = episode.earned;
      panel.part("power").textContent = episode.powers.length ? episode.powers.at(-1).toFixed(0) : "–";
      panel.part("mean").textContent = episode.powers.length ? mean(episode.powers).toFixed(0) : "–";
    });
    drawPower(colours);
    find("clock").textContent = `step ${time()} of ${Maze.STEPS}`;
    find("step").disabled = over();
  }

  const time = () => state.episodes[0].time;
  const over = () => time() >= Maze.STEPS;

  function startEpisodes(rewardCell) {
    state.seed += 1;
    state.random = Maze.agents.map((_, k) => Maze.generator(1000 * state.seed + k));
    const cell = rewardCell ?? Maze.anyOf(Maze.open, Maze.generator(state.seed));
    state.episodes = Maze.agents.map((agent) => Maze.begin(agent, cell));
    find("message").textContent = "";
    draw();
  }

  function step() {
    if (over()) return;
    state.episodes.forEach((episode, k) => Maze.act(episode, state.random[k]));
    if (over()) {
      pause();
      const ends = state.episodes.map((e) => `${e.agent.title} earned ${e.earned} at a mean power of ${mean(e.powers).toFixed(0)}`);
      find("message").textContent = `The episode is over: ${ends.join(", ")}.`;
    }
    draw();
  }

  function schedule() {
    state.timer = setTimeout(() => { step(); if (state.timer) schedule(); }, 1000 / find("speed").value);
  }

  function play() {
    if (over()) startEpisodes();
    find("play").textContent = "Pause";
    schedule();
  }

  function pause() {
    clearTimeout(state.timer);
    state.timer = null;
    find("play").textContent = "Play";
  }

  const buttons = {
    play: () => (state.timer ? pause() : play()),
    step: () => { pause(); step(); },
    new: () => startEpisodes(),
  };
  for (const [name, action] of Object.entries(buttons)) find(name).addEventListener("click", action);
  root.querySelectorAll("input[name=maze-shown]").forEach((input) =>
    input.addEventListener("change", () => { state.shown = input.value; draw(); }));
  root.addEventListener("keydown", (event) => {
    if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = { p: "play", s: "step", n: "new" }[event.key];
    if (key) { event.preventDefault(); buttons[key](); }
  });
  new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", draw);
  startEpisodes();
  root.hidden = false;
  draw();
  return { state, draw, startEpisodes, step };
})(document.getElementById("maze"));
