"use strict";
// What a page does beyond being read: details of layers, timelines, light and dark.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  const PASSES = data.pass_rows; // by number: name, and whose colour it has
  const OTHER = PASSES.length - 1;

  // Texts out of files only ever become text nodes.
  const element = (tag, text, ...children) => {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    made.append(...children);
    return made;
  };

  const duration = (ns) => {
    for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
      if (Math.abs(ns) >= size) return `${Number((ns / size).toPrecision(4))} ${unit}`;
    }
    return `${Math.round(ns)} ns`;
  };

  const percent = (share) => `${Number((100 * share).toPrecision(3))} %`;

  // Only what is shown of a name is cut, in its middle.
  const short = (name) => (name.length > 200 ? `${name.slice(0, 128)} ... ${name.slice(-66)}` : name);

  // --- light and dark ---

  const redraws = [];
  const redraw = () => redraws.forEach((draw) => draw());
  const dark = matchMedia("(prefers-color-scheme: dark)");
  byId("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);

  // --- where one is ---

  const links = all("nav a");
  const seen = new Map();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) seen.set(entry.target.id, entry.isIntersecting);
    const now = links.find((link) => seen.get(link.hash.slice(1)));
    for (const link of links) {
      if (link === now) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-12% 0px -80% 0px" });
  all("main > section").forEach((section) => watch.observe(section));

  // --- the graph ---

  const show = (node) => {
    const panel = byId("node");
    const facts = element("dl");
    const fact = (name, value) => facts.append(element("dt", name), element("dd", value));
    fact("type", node.types);
    fact(node.operators ? "output" : "shape", node.shapes.join(", "));
    if (node.operators > 1) fact("operators", `${node.operators}`);
    if (node.weights) fact("weights", node.weights.toLocaleString("en"));
    for (const [pass, ns] of Object.entries(node.times)) fact(pass, `${duration(ns)}, all devices`);
    const configs = element("ul");
    for (const config of node.configs) {
      const times = config.number > 1 ? ` ×${config.number}` : "";
      configs.append(element("li", short(config.operators) + times, element("span", config.configuration)));
    }
    if (node.more) configs.append(element("li", `and ${node.more} more configurations`));
    panel.replaceChildren(element("h3", node.repeats > 1 ? `${short(node.name)} ×${node.repeats}` : short(node.name)), facts, configs);
  };

  all(".level").forEach((level) => {
    const nodes = data.graphs[Number(level.dataset.level)];
    const boxes = all(".node", level);
    const choose = (box) => {
      all(".node").forEach((other) => other.setAttribute("aria-pressed", String(other === box)));
      show(nodes[Number(box.dataset.node)]);
    };
    boxes.forEach((box) => {
      box.addEventListener("click", () => choose(box));
      box.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          choose(box);
        }
      });
    });
  });

  // Where a graph is wider than its place, the first of its layers are seen first.
  const centre = () => all(".level .scroll").forEach((place) => {
    const boxes = all(".node", place).slice(0, 12).map((box) => box.getBoundingClientRect());
    const middle = boxes.reduce((sum, box) => sum + box.x + box.width / 2, 0) / boxes.length;
    const here = place.getBoundingClientRect();
    if (boxes.length) place.scrollLeft += middle - here.x - here.width / 2;
  });
  centre();

  all("[data-graph]").forEach((button) => button.addEventListener("click", () => {
    all("[data-graph]").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    all(".level").forEach((level) => { level.hidden = level.dataset.level !== button.dataset.graph; });
    centre();
  }));

  all(".more").forEach((button) => button.addEventListener("click", () => {
    const rows = byId(button.getAttribute("aria-controls"));
    rows.hidden = !rows.hidden;
    button.setAttribute("aria-expanded", String(!rows.hidden));
    button.textContent = rows.hidden ? button.dataset.text : "show fewer";
  }));
  all(".more").forEach((button) => { button.dataset.text = button.textContent; });

  // --- timelines ---

  if (!data.timeline) return;
  const whole = Math.max(data.timeline.end, data.measured ? data.measured.end : 0, 1);
  let from = 0;
  let to = whole;
  const tip = byId("tip");
  const charts = [];

  const zoom = (factor, at = (from + to) / 2) => {
    const length = Math.min(whole, Math.max(100, (to - from) * factor));
    const start = at - ((at - from) / (to - from)) * length;
    from = Math.min(Math.max(0, start), whole - length);
    to = from + length;
    draw();
  };
  const move = (share) => {
    const length = to - from;
    from = Math.min(Math.max(0, from + share * length), whole - length);
    to = from + length;
    draw();
  };
  const everything = () => { from = 0; to = whole; draw(); };
  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25), all: everything,
  };
  const draw = () => {
    byId("span").textContent = `${duration(from)} to ${duration(to)}`;
    charts.forEach((chart) => chart.draw());
  };
  all("[data-zoom]").forEach((button) => button.addEventListener("click", () => actions[button.dataset.zoom]()));

  class Chart {
    constructor(canvas, rows) {
      this.canvas = canvas;
      this.rows = rows;
      this.row = 0;
      this.chosen = -1;
      charts.push(this);
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
        event.preventDefault();
        zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event.offsetX));
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => {
        this.drag = event.offsetX;
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointerup", () => { this.drag = null; });
      canvas.addEventListener("pointercancel", () => { this.drag = null; });
      canvas.addEventListener("dblclick", (event) => zoom(0.4, this.time(event.offsetX)));
      canvas.addEventListener("pointermove", (event) => this.point(event));
      canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
      canvas.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.draw()).observe(canvas);
    }

    measure() {
      const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
      this.font = rem * 0.74;
      // Whole pixels, or rows would be blurred.
      this.height = Math.max(Math.round(rem * this.rowRem()), 8);
      this.axis = Math.round(rem * 1.3);
      this.width = this.canvas.clientWidth;
      this.left = Math.round(Math.min(this.width * 0.3, this.label() * this.font * 0.62 + 14));
    }

    // The same for all, so that times are below each other.
    label() { return Math.max(5, ...charts.flatMap((chart) => chart.rows.map((row) => short(row.name).length))); }

    x(time) { return this.left + ((time - from) / (to - from)) * (this.width - this.left); }

    time(x) { return from + ((x - this.left) / Math.max(1, this.width - this.left)) * (to - from); }

    draw() {
      this.measure();
      const ratio = window.devicePixelRatio || 1;
      const height = this.rows.length * this.height + this.axis;
      this.canvas.style.height = `${height}px`;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(height * ratio);
      const pen = this.canvas.getContext("2d");
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(`--${name}`).trim();
      pen.scale(ratio, ratio);
      pen.clearRect(0, 0, this.width, height);
      pen.font = `${this.font}px system-ui, sans-serif`;
      pen.textBaseline = "middle";
      this.ticks(pen, height, colour);
      this.rows.forEach((row, i) => {
        const y = i * this.height;
        pen.save();
        pen.beginPath();
        pen.rect(this.left, y, this.width - this.left, this.height);
        pen.clip();
        this.drawRow(pen, row, y + 1, this.height - 2, colour, i);
        pen.restore();
        pen.fillStyle = i === this.row && document.activeElement === this.canvas ? colour("mark") : colour("soft");
        pen.textAlign = "left";
        pen.fillText(short(row.name), 6, y + this.height / 2, this.left - 10);
      });
    }

    ticks(pen, height, colour) {
      const length = to - from;
      const rough = length / Math.max(2, (this.width - this.left) / 110);
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = power * [1, 2, 5, 10].find((n) => n * power >= rough);
      pen.strokeStyle = colour("line");
      pen.fillStyle = colour("soft");
      pen.textAlign = "center";
      for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
        const x = this.x(t);
        pen.beginPath();
        pen.moveTo(x, 0);
        pen.lineTo(x, height - this.axis);
        pen.stroke();
        const half = pen.measureText(duration(t)).width / 2;
        if (x + half <= this.width && x - half >= 0 && x >= this.left) pen.fillText(duration(t), x, height - this.axis / 2);
      }
    }

    point(event) {
      if (this.drag != null) {
        move((this.drag - event.offsetX) / Math.max(1, this.width - this.left));
        this.drag = event.offsetX;
        return;
      }
      const row = this.rows[Math.floor(event.offsetY / this.height)];
      const text = row && event.offsetX >= this.left ? this.told(row, this.time(event.offsetX)) : "";
      tip.hidden = !text;
      tip.textContent = text;
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
    }

    key(event) {
      const keys = {
        ArrowLeft: actions.left, ArrowRight: actions.right, "+": actions.in, "=": actions.in,
        "-": actions.out, 0: actions.all, Home: actions.all,
        ArrowUp: () => this.step(-1, 0), ArrowDown: () => this.step(1, 0),
        ",": () => this.step(0, -1), ".": () => this.step(0, 1),
      };
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    }

    step(rows, tasks) {
      this.row = Math.min(Math.max(0, this.row + rows), this.rows.length - 1);
      const row = this.rows[this.row];
      if (rows) this.chosen = -1;
      this.choose(row, tasks);
      this.draw();
    }
  }

  class Tasks extends Chart {
    constructor(canvas, timeline) {
      super(canvas, timeline.devices.map(({ name, track }) => {
        const tasks = [];
        let now = 0;
        for (let i = 0; i < track.length; i += 4) {
          const start = now + track[i];
          now = start + track[i + 1];
          tasks.push([start, now, track[i + 2], track[i + 3]]);
        }
        return { name, tasks };
      }));
      this.labels = timeline.labels;
    }

    rowRem() { return this.rows.length > 32 ? 1.1 : 1.5; }

    // The first task that ends after a time: tasks of a device follow each other.
    first(tasks, time) {
      let low = 0;
      let high = tasks.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (tasks[middle][1] > time) high = middle;
        else low = middle + 1;
      }
      return low;
    }

    drawRow(pen, row, y, height, colour, number) {
      const colours = PASSES.map(([, like]) => colour(like));
      let last = -1;
      for (let i = this.first(row.tasks, from); i < row.tasks.length && row.tasks[i][0] < to; i++) {
        const [start, end, label] = row.tasks[i];
        const x = this.x(start);
        const width = Math.max(0.6, this.x(end) - x);
        if (x + width < last + 0.25) continue; // nothing that could be seen
        last = x + width;
        const pass = label < 0 ? OTHER : this.labels[label][0];
        pen.fillStyle = colours[pass] || colours[OTHER];
        pen.fillRect(x, y, width > 3 ? width - 0.6 : width, height);
        if (number === this.row && i === this.chosen) {
          pen.strokeStyle = colour("ink");
          pen.lineWidth = 2;
          pen.strokeRect(x + 1, y + 1, Math.max(1, width - 2), height - 2);
          pen.lineWidth = 1;
        }
        if (label >= 0 && width > 60) {
          pen.save();
          pen.beginPath();
          pen.rect(x, y, width, height);
          pen.clip();
          pen.fillStyle = "#fff";
          pen.textAlign = "left";
          pen.fillText(short(this.labels[label][1]), x + 5, y + height / 2);
          pen.restore();
        }
      }
    }

    describe([start, end, label, part]) {
      const what = label < 0 ? `${part} short tasks` : `${this.labels[label][0] < OTHER ? `${PASSES[this.labels[label][0]][0]} ` : ""}${short(this.labels[label][1])} [${part}]`;
      return `${what}: ${duration(end - start)}, from ${duration(start)}`;
    }

    told(row, time) {
      const task = row.tasks[this.first(row.tasks, time)];
      const near = (to - from) / Math.max(1, this.width - this.left);
      const text = task && task[0] <= time + near ? `${row.name}: ${this.describe(task)}` : "";
      if (text) byId("task").textContent = text;
      return text;
    }

    choose(row, tasks) {
      if (!row.tasks.length) {
        byId("task").textContent = `${row.name}: nothing runs`;
        return;
      }
      if (this.chosen < 0) this.chosen = Math.min(this.first(row.tasks, from), row.tasks.length - 1);
      else this.chosen = Math.min(Math.max(0, this.chosen + tasks), row.tasks.length - 1);
      const task = row.tasks[this.chosen];
      if (task[0] < from || task[1] > to) {
        const length = Math.max(to - from, (task[1] - task[0]) * 1.2);
        from = Math.min(Math.max(0, task[0] - length * 0.1), whole - Math.min(whole, length));
        to = Math.min(whole, from + length);
        draw();
      }
      byId("task").textContent = `${row.name}: ${this.describe(task)}`;
    }
  }

  class Loads extends Chart {
    constructor(canvas, links) {
      super(canvas, links);
      // For each link, how much of its load lies before each bin, in bins of full load.
      this.before = links.map(({ bins }) => {
        const sums = [0];
        for (const load of bins) sums.push(sums[sums.length - 1] + load / 1000);
        return sums;
      });
    }

    rowRem() { return 1; }

    // The load before a time, which may be within a bin.
    loadBefore(number, time) {
      const sums = this.before[number];
      const at = Math.min(Math.max(0, time / data.timeline.end), 1) * (sums.length - 1);
      const bin = Math.min(Math.floor(at), sums.length - 2);
      return sums[bin] + (at - bin) * (sums[bin + 1] - sums[bin]);
    }

    // A column of pixels shows the mean load during its time: a bin may be wider or narrower.
    drawRow(pen, row, y, height, colour, number) {
      pen.fillStyle = colour("link");
      const ratio = window.devicePixelRatio || 1;
      const bins = row.bins.length;
      const first = Math.ceil(this.left * ratio);
      const last = Math.min(Math.ceil(this.x(data.timeline.end) * ratio), this.canvas.width);
      const share = (column) => {
        const [start, end] = [this.time(column / ratio), this.time((column + 1) / ratio)];
        const length = ((end - start) / data.timeline.end) * bins;
        return Math.min(1, (this.loadBefore(number, end) - this.loadBefore(number, start)) / length);
      };
      for (let column = first; column < last;) {
        const load = share(column);
        const begin = column++;
        while (column < last && Math.abs(share(column) - load) < 1e-3) column++;
        if (load < 1e-6) continue;
        pen.globalAlpha = 0.12 + 0.88 * load;
        pen.fillRect(begin / ratio, y, (column - begin) / ratio, height);
      }
      pen.globalAlpha = 1;
    }

    told(row, time) {
      if (time >= data.timeline.end) return "";
      const share = row.bins[Math.floor((time / data.timeline.end) * row.bins.length)] / 1000;
      return `${row.name}: busy ${percent(share)} about ${duration(time)}`;
    }

    choose(row) {
      byId("task").textContent = `${row.name}: busy for ${percent(row.busy_ns / data.timeline.end)} of the iteration`;
    }
  }

  new Tasks(byId("simulated"), data.timeline);
  if (byId("measured")) new Tasks(byId("measured"), data.measured);
  if (byId("linkloads")) new Loads(byId("linkloads"), data.timeline.links);
  redraws.push(draw);
  draw();
})();
