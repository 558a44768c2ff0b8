"use strict";
// One model on the page: its answer, its maps on the image as it came and as it was changed, its heads, its switches.
const panels = (() => {
  const { make, clamp, number, percent, raster, show, frame, pane, onPoint } = sightline;
  const SIDE = 320;
  const AT_PLACE = ["attention", "to", "similarity"], BY_DEPTH = ["attention", "to", "similarity", "lens", "features", "norms"];

  // an RGB image in bytes as a canvas
  function toCanvas(bytes, [height, width]) {
    const canvas = make("canvas", { width, height }), context = canvas.getContext("2d"), data = context.createImageData(width, height);
    for (let i = 0, n = width * height; i < n; i++) data.data.set([bytes[3 * i], bytes[3 * i + 1], bytes[3 * i + 2], 255], 4 * i);
    context.putImageData(data, 0, 0);
    return canvas;
  }
  // dark where a map is low
  function shade(context, values, rows, columns) {
    const mask = make("canvas", { width: columns, height: rows }), m = mask.getContext("2d"), pixels = m.createImageData(columns, rows);
    for (let k = 0; k < rows * columns; k++) pixels.data[4 * k + 3] = 215 * (1 - Math.sqrt(clamp(values[k] / 255, 0, 1)));
    m.putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = true;
    context.drawImage(mask, 0, 0, context.canvas.width, context.canvas.height);
  }

  // the places of an adopted model have its own names behind a prefix that says nothing; people count blocks from 1
  const plain = (name) => name.replace(/^inner\./, "").replace(/^block (\d+)$/, (_, i) => `block ${Number(i) + 1}`);

  class Panel {
    constructor(number_, about, app) {
      Object.assign(this, { number: number_, about, app, passes: {}, places: {}, maps: {}, off: new Set(), size: about.size, checkpoint: about.checkpoint, target: null, last: {} });
      const sheet = () => make("canvas", { width: SIDE, height: SIDE, className: "smooth" });
      this.canvases = { plain: sheet(), changed: sheet() };
      this.wall = make("canvas", { width: SIDE, height: SIDE, className: "wall" });
      this.panes = { plain: pane("Image", this.canvases.plain), changed: pane("As changed", this.canvases.changed), wall: pane("Heads of the block", this.wall) };
      this.film = make("div", { className: "strip" });
      this.answers = make("div", { className: "answers" });
      this.switches = make("div", { className: "switches" });
      this.near = make("p", { className: "near" });
      this.out = make("output");
      this.out.setAttribute("aria-live", "polite");
      this.panes.changed.hidden = true;
      this.panes.wall.hidden = about.kind !== "vit";
      const header = make("header", {}, make("h2", { textContent: about.name, title: about.name }));
      if (about.sizes.length > 1) header.append(this.slider("Image size", about.sizes, about.sizes.indexOf(about.size), (i) => { this.size = about.sizes[i]; }, (i) => `${about.sizes[i]} px`));
      if (about.checkpoints.length > 1) header.append(this.slider("Checkpoint", about.checkpoints, about.checkpoint, (i) => { this.checkpoint = i; }, (i) => about.checkpoints[i]));
      this.root = make("section", { className: "panel" }, header,
        make("div", { className: "inside" }, this.answers, make("div", { className: "stage" }, this.panes.plain, this.panes.changed, this.panes.wall)),
        this.film, this.switches, this.near, this.out);
      this.root.setAttribute("aria-label", about.name);
      this.root.dataset.model = number_;
      for (const which of ["plain", "changed"]) this.listen(which);
      this.listenWall();
    }
    slider(label, values, start, set, name) {
      const input = make("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: start }), text = make("span", { textContent: name(start) });
      input.setAttribute("aria-label", `${label} of ${this.about.name}`);
      input.addEventListener("input", () => { text.textContent = name(+input.value); set(+input.value); this.app.change(this); });
      this.app.resets.push(() => { if (label === "Image size") { input.value = start; text.textContent = name(start); set(start); } });
      return make("label", {}, label, input, text);
    }
    get changed() { return "changed" in this.passes; }

    // where: from the coordinates of the image to those of what this model sees, and back
    inside(x, y, which = "plain") { const v = this.passes[which].view; return [clamp((x - v[0]) / v[2], 0, 0.9999), clamp((y - v[1]) / v[3], 0, 0.9999)]; }
    outside(x, y, which = "plain") { const v = this.passes[which].view; return [v[0] + x * v[2], v[1] + y * v[3]]; }
    // which place of the stream a share of the depth is, and which block's attention leads there
    level(which = "plain") { return Math.round(this.app.state.depth * (this.passes[which].places.length - 1)); }
    block(which = "plain") { return this.about.kind === "cnn" ? this.level(which) : Math.max(0, this.level(which) - 1); }
    // what is shown here: a CNN has no attention to show
    view() {
      const view = this.app.state.view;
      if (this.about.kind === "vit") return view;
      if (view === "attention" || view === "to") return "similarity";
      return view === "rollout" || view === "identity" || view === "gradient_rollout" ? "grad_cam" : view;
    }

    // from the server
    answer(frame) {
      const which = frame.which;
      this.passes[which] = frame;
      frame.places = frame.places.map(plain);
      frame.canvas = toCanvas(frame.pixels, frame.shapes.pixels);
      this.places[which] = { x: null, frame };
      this.maps[which] = {};
      this.panes.changed.hidden = !this.changed;
      this.root.classList.toggle("changed", this.changed);
      this.panes.plain.firstChild.textContent = this.changed ? "Untouched" : "Image";
      const tall = Math.round((SIDE * frame.size[0]) / frame.size[1]);
      if (this.canvases[which].height !== tall) this.canvases[which].height = tall;
      this.list();
      this.buttons();
      this.ask();
      this.draw();
      Wire.stamp(`answer-${this.number}-${which}`);
      this.root.dataset[which] = frame.version;
    }
    untouched() {
      delete this.passes.changed;
      if (!this.passes.plain) return;
      this.panes.changed.hidden = true;
      this.root.classList.remove("changed");
      this.panes.plain.firstChild.textContent = "Image";
      this.list();
      this.buttons();
      this.draw();
    }
    place(frame) {
      if (!(frame.which in this.passes)) return;
      this.places[frame.which] = { x: frame.x, y: frame.y, frame };
      this.draw();
      Wire.stamp(`place-${this.number}`);
    }
    map(frame) {
      if (!(frame.which in this.passes)) return;
      if (frame.places) frame.places = frame.places.map(plain);
      if (frame.view === "field") frame.map = frame.map.map((v) => Math.sqrt(v * 255));  // most of it is close to 0
      this.maps[frame.which][frame.view] = frame;
      this.draw();
      Wire.stamp(`map-${this.number}`);
    }
    // another view was asked for before this one was computed
    skipped(frame) { delete this.last[frame.which + frame.view]; this.ask(); }
    // ask for what is shown and not there yet
    ask() {
      const s = this.app.state, view = this.view();
      for (const which of Object.keys(this.passes)) {
        const about = { model: this.number, changed: +(which === "changed") };
        const [x, y] = s.x === null ? [null, null] : this.inside(s.x, s.y, which);
        const there = this.places[which];
        if ((view === "similarity" || this.about.kind === "vit") && (there.x !== x || there.y !== y)) this.app.wire.ask(`place ${this.number} ${which}`, { do: "place", ...about, x, y });
        if (AT_PLACE.includes(view)) continue;
        const depth = this.level(which);
        if (this.wanted(which, view, depth, x, y)) this.app.wire.ask(`map ${this.number} ${which} ${view}`, { do: "map", ...about, view, depth, x: x ?? 0.5, y: y ?? 0.5, target: this.target });
      }
    }
    // whether this was not asked for already
    wanted(which, view, depth, x, y) {
      const key = `${this.passes[which].version} ${which} ${view} ${this.target}` + (view === "field" ? ` ${depth} ${x} ${y}` : "");
      if (this.last[which + view] === key) return false;
      this.last[which + view] = key;
      return true;
    }

    // what is drawn
    draw() {
      if (!this.passes.plain) return;
      for (const which of Object.keys(this.passes)) this.paint(which, this.canvases[which], this.level(which), true);
      if (this.about.kind === "vit") this.heads();
      this.strip();
      this.tell();
      this.neighbor();
    }
    paint(which, canvas, level, full) {
      const pass = this.passes[which], context = show(canvas, pass.canvas, true), found = this.values(which, level);
      if (found) {
        const [rows, columns] = found.grid;
        if (found.colors) { context.globalAlpha = 0.9; context.imageSmoothingEnabled = false; context.drawImage(toCanvas(found.colors, [rows, columns]), 0, 0, canvas.width, canvas.height); context.globalAlpha = 1; }
        else if (found.heat) { context.globalAlpha = 0.72; context.imageSmoothingEnabled = false; context.drawImage(raster(found.values, rows, columns, { top: 255 }), 0, 0, canvas.width, canvas.height); context.globalAlpha = 1; }
        else shade(context, found.values, rows, columns);
      }
      if (full) this.marks(which, canvas, context, level);
    }
    // the bytes of the map at one level, and its grid
    values(which, level) {
      const pass = this.passes[which], view = this.view(), place = this.places[which].frame, map = this.maps[which][view];
      const cells = pass.grid[0] * pass.grid[1];
      if (view === "attention" || view === "to") return { values: this.mean(which, Math.max(0, level - 1)).bytes, grid: pass.grid };
      if (view === "similarity") { const v = place[`similarity${level}`]; return v && { values: v, grid: pass.grids[level], heat: true }; }
      if (!map) return null;
      if (view === "features") return { colors: map[`colors${level}`], grid: map.grids[level] };
      if (view === "norms") return { values: map[`norm${level}`], grid: pass.grids[level], heat: true };
      if (view === "lens") { const at = this.lensLevel(which, map, level); return { values: map.probability.subarray(at * cells, (at + 1) * cells), grid: map.grid, heat: true }; }
      return { values: map.map, grid: map.shapes.map, heat: view === "field" };
    }
    // the head reads only the last levels of a CNN
    lensLevel(which, map, level) { return clamp(level - (this.passes[which].places.length - map.places.length), 0, map.places.length - 1); }
    // attention of one head, or of all heads on average: bytes, and the share that 255 stands for
    mean(which, block) {
      const frame = this.places[which].frame, kind = this.app.state.view === "to" ? "to" : "from", [, heads, cells] = frame.shapes[kind], h = this.app.state.head;
      const one = h >= 0 && h < heads, at = one ? block * heads + h : block, name = one ? kind : kind + "Mean";
      return { bytes: frame[name].subarray(at * cells, (at + 1) * cells), top: frame[name + "Peaks"][at] };
    }
    marks(which, canvas, context, level) {
      const pass = this.passes[which], s = this.app.state, [rows, columns] = pass.grids[level] || pass.grid;
      const w = canvas.width / columns, h = canvas.height / rows;
      context.lineWidth = 2;
      for (const cell of pass.outliers[level] || []) {
        context.strokeStyle = "#d55e00";
        context.beginPath();
        context.arc(((cell % columns) + 0.5) * w, (Math.floor(cell / columns) + 0.5) * h, Math.min(w, h) * 0.42, 0, 7);
        context.stroke();
      }
      context.fillStyle = "#000c";
      for (const cell of pass.gone) context.fillRect((cell % columns) * w, Math.floor(cell / columns) * h, w, h);
      const map = this.maps[which].field;
      if (s.view === "field" && map) for (const radius of map.radii) {
        context.strokeStyle = "#ffffffcc";
        context.beginPath();
        context.arc((map.center[1] / pass.size[1]) * canvas.width, (map.center[0] / pass.size[0]) * canvas.height, (radius / pass.size[1]) * canvas.width, 0, 7);
        context.stroke();
      }
      if (s.x !== null) { const [x, y] = this.inside(s.x, s.y, which); frame(context, Math.floor(x * columns) * w, Math.floor(y * rows) * h, w, h); }
    }
    heads() {
      const which = this.changed ? "changed" : "plain", frame_ = this.places[which].frame, kind = this.app.state.view === "to" ? "to" : "from";
      const [, heads, cells] = frame_.shapes[kind], [rows, columns] = this.passes[which].grid, block = this.block(which);
      const across = Math.ceil(Math.sqrt(heads)), tile = Math.floor(SIDE / across), tall = Math.floor((tile * rows) / columns);
      const height = Math.ceil(heads / across) * tall;
      if (this.wall.height !== height) this.wall.height = height;
      const context = this.wall.getContext("2d");
      context.clearRect(0, 0, SIDE, height);
      context.imageSmoothingEnabled = false;
      for (let h = 0; h < heads; h++) {
        const x = (h % across) * tile, y = Math.floor(h / across) * tall, off = this.off.has(`head ${block}.${h}`);
        context.globalAlpha = off ? 0.25 : 1;
        context.drawImage(raster(frame_[kind], rows, columns, { top: 255, start: (block * heads + h) * cells }), x, y, tile - 3, tall - 3);
        context.globalAlpha = 1;
        if (h === this.app.state.head) frame(context, x + 1, y + 1, tile - 5, tall - 5);
      }
      this.wall.dataset.across = across;
      this.panes.wall.firstChild.textContent = `Heads of block ${block + 1}; click one`;
    }
    strip() {
      const which = this.changed ? "changed" : "plain", pass = this.passes[which], view = this.view(), count = BY_DEPTH.includes(view) ? pass.places.length : 0;
      while (this.film.childElementCount > count) this.film.lastChild.remove();
      while (this.film.childElementCount < count) {
        const at = this.film.childElementCount, c = make("canvas", { width: 56, height: 56, className: "smooth" });
        c.setAttribute("role", "img");
        c.addEventListener("click", () => this.app.set({ depth: count > 1 ? at / (this.passes.plain.places.length - 1) : 0 }));
        this.film.append(c);
      }
      [...this.film.children].forEach((c, i) => {
        c.title = pass.places[i];
        c.setAttribute("aria-label", pass.places[i]);
        c.setAttribute("aria-current", String(i === this.level(which)));
        this.paint(which, c, i, false);
      });
    }
    tell() { this.out.textContent = Object.keys(this.passes).map((which) => (this.changed ? (which === "plain" ? "Untouched: " : "Changed: ") : "") + this.sentence(which)).join(" "); }
    sentence(which) {
      const pass = this.passes[which], level = this.level(which), view = this.view(), s = this.app.state, map = this.maps[which][view];
      const [x, y] = s.x === null ? [null, null] : this.inside(s.x, s.y, which);
      const name = (cell, grid) => `row ${Math.floor(cell / grid[1]) + 1}, column ${cell % grid[1] + 1}`;
      const cell = (grid) => Math.floor(y * grid[0]) * grid[1] + Math.floor(x * grid[1]);
      const at = x === null ? (this.about.classToken ? "the class token" : "the mean of the patches") : name(cell(pass.grid), pass.grid);
      if (view === "attention" || view === "to") {
        const block = this.block(which), { bytes, top } = this.mean(which, block), best = Math.max(bytes.indexOf(255), 0), head = s.head < 0 ? "mean of heads" : `head ${s.head + 1}`;
        return `Block ${block + 1}, ${head}, ${view === "to" ? "to" : "from"} ${at}: most ${view === "to" ? "from" : "on"} ${name(best, pass.grid)} (${percent(top)}).`;
      }
      if (view === "similarity") {
        const v = this.places[which].frame[`similarity${level}`];
        if (!v || x === null) return "Point at the image: how similar is every other place to this one?";
        return `${pass.places[level]}: ${percent(v.reduce((a, b) => a + (b > 127 ? 1 : 0), 0) / v.length)} of the image is similar to ${name(cell(pass.grids[level]), pass.grids[level])} (cosine above 0.5).`;
      }
      if (!map) return "…";
      if (view === "field") return `${pass.places[level]}: half of what moves this place lies within ${number(map.radii[0], 0)} pixels, 90 % within ${number(map.radii[1], 0)}; ${percent(map.own)} on its own cell.`;
      if (view === "lens") {
        const l = this.lensLevel(which, map, level), here = x === null ? null : l * map.grid[0] * map.grid[1] + cell(map.grid);
        const patch = here === null ? "" : ` Here the head reads ${map.classes[map.top[here]]}.`;
        return `${map.places[l]}: read now, ${map.classes[map.target]} has ${percent(map.answer[l])}.${patch}`;
      }
      if (view === "norms") return `${pass.places[level]}: largest norm ${number(map.peaks[level], 1)}; ${(pass.outliers[level] || []).length} outlier tokens.`;
      if (view === "features") return `${pass.places[level]}: the first three principal components of ${map.grids[level].join(" × ")} cells as colors.`;
      const best = map.map.indexOf(255);
      return `${{ rollout: "Rollout", identity: "Rollout with skips", gradient_rollout: "Gradient rollout", grad_cam: "Grad-CAM" }[view]}: most on ${name(Math.max(best, 0), map.shapes.map)} (${percent(map.mass ? map.peak / map.mass : 0)} of the map).`;
    }
    neighbor() {
      const rows = this.app.nearest[this.number] || [], row = rows.find((r) => r.block === this.block());
      this.near.textContent = row ? `Nearest by CKA: block ${row.other + 1} of ${this.app.panels[1 - this.number].about.name} (${number(row.cka, 2)}).` : "";
    }

    // the answer
    list() {
      this.answers.replaceChildren(...Object.entries(this.passes).map(([which, pass]) => {
        const list = make("ul", { className: "classes" });
        pass.top.forEach(([name, index, p], i) => {
          const bar = make("i"), button = make("button", { type: "button" }, make("b", { textContent: percent(p) }), name, bar);
          bar.style.width = `${100 * p}%`;
          if (which === "changed") {
            const d = p - pass.before[i], b = make("b", { textContent: `${d < 0 ? "−" : "+"}${percent(Math.abs(d))}`, className: d < 0 ? "down" : "up" });
            button.prepend(b);
          }
          button.dataset.probability = p;
          button.setAttribute("aria-pressed", String(this.target === index));
          button.setAttribute("aria-label", `${name}, ${percent(p)}: follow this class in gradient maps and the logit lens`);
          button.addEventListener("click", () => { this.target = this.target === index ? null : index; this.list(); this.ask(); });
          list.append(make("li", {}, button));
        });
        if (which === "changed" && pass.was.length) {
          const [name, before, now] = pass.was;
          list.append(make("li", { className: "was" }, make("b", { textContent: `${percent(before)} → ${percent(now)}` }), name));
        }
        const empty = make("p", { className: "small", textContent: "It has no classes: features only." });
        return make("div", {}, make("h3", { textContent: which === "plain" ? (this.changed ? "Untouched" : "It says") : "As changed" }), pass.top.length ? list : empty);
      }));
      this.answers.dataset.changed = this.changed;
    }
    // the switches of the block at this depth
    buttons() {
      const block = this.block(), both = [["skip", "skips"], ["block", "whole block"]];
      const kinds = this.about.kind === "vit" ? [["attention", "attention"], ["mlp", "MLP"], ...both] : this.about.kind === "mixer" ? [["mixing", "token mixing"], ["mlp", "channel mixing"], ...both] : this.about.blocks ? [["block", "convolutions"]] : [];
      const rows = kinds.map(([kind, label]) => [`${kind} ${block}`, label]);
      const head = this.app.state.head;
      if (this.about.kind === "vit" && head >= 0 && head < this.about.heads) rows.unshift([`head ${block}.${head}`, `head ${head + 1}`]);
      const button = ([off, label]) => {
        const b = make("button", { type: "button", textContent: label, title: off });
        b.setAttribute("aria-pressed", String(this.off.has(off)));
        b.setAttribute("aria-label", `Switch ${off} of ${this.about.name} off or on`);
        b.addEventListener("click", () => this.toggle(off));
        return b;
      };
      const tokens = this.about.prefix.map((name, i) => [`prefix ${i}`, name]);
      const elsewhere = [...this.off].filter((o) => !rows.some((r) => r[0] === o) && !o.startsWith("prefix") && !o.startsWith("token"));
      const gone = [...this.off].filter((o) => o.startsWith("token")).length;
      this.switches.replaceChildren(...(rows.length ? [`Switch off in block ${block + 1}:`] : []), ...rows.map(button), ...(tokens.length ? ["or the", ...tokens.map(button)] : []),
        ...(elsewhere.length ? ["off:", ...elsewhere.map((o) => button([o, o]))] : []), ...(gone ? [`${gone} patches are gone`] : []));
      this.block_ = block;
    }
    toggle(off) {
      if (!this.off.delete(off)) this.off.add(off);
      this.buttons();
      this.app.change(this);
    }

    // the mouse
    listen(which) {
      const canvas = this.canvases[which];
      onPoint(canvas, () => { const s = this.app.state, [x, y] = s.x === null ? [0.5, 0.5] : this.inside(s.x, s.y, which), [r, c] = this.passes[which].grids[this.level(which)]; return [x, y, c, r]; },
        (x, y) => { if (this.passes[which] && this.app.state.mode === "look") { Wire.stamp("hover"); const [a, b] = this.outside(x, y, which); this.app.set({ x: a, y: b }); } },
        `What ${this.about.name} sees${which === "changed" ? ", as changed" : ""}. Point at a patch.`);
      const at = (event) => { const box = canvas.getBoundingClientRect(); return [clamp((event.clientX - box.left) / box.width, 0, 0.9999), clamp((event.clientY - box.top) / box.height, 0, 0.9999)]; };
      canvas.addEventListener("keydown", (event) => { if (event.key === "Enter" && this.app.state.x !== null) this.patch(...this.inside(this.app.state.x, this.app.state.y, which), which); });
      canvas.addEventListener("pointerdown", (event) => {
        if (!this.passes[which] || this.app.state.mode === "look") return;
        event.preventDefault();
        if (this.app.state.mode === "patch") return this.patch(...at(event), which);
        canvas.setPointerCapture(event.pointerId);
        this.app.drag(this, which, canvas, at, event);
      });
    }
    // a patch is taken out of a ViT's sequence; for a CNN its place is painted over
    patch(x, y, which) {
      const [rows, columns] = this.passes[which].grid;
      if (this.about.kind === "vit") return this.toggle(`token ${Math.floor(y * rows) * columns + Math.floor(x * columns)}`);
      this.app.edit(this, { paint: [this.outside(x, y, which)], radius: 0.5 * this.passes[which].view[2] / columns });
    }
    listenWall() {
      const choose = (h) => { if (h < this.about.heads && h >= 0) this.app.set({ head: this.app.state.head === h ? -1 : h }); };
      this.wall.tabIndex = 0;
      this.wall.setAttribute("role", "application");
      this.wall.setAttribute("aria-label", `The heads of this block of ${this.about.name}. Click one, or use the arrow keys; Enter switches it off.`);
      this.wall.addEventListener("click", (e) => {
        const box = this.wall.getBoundingClientRect(), across = +this.wall.dataset.across, down = Math.ceil(this.about.heads / across);
        choose(Math.floor(((e.clientY - box.top) / box.height) * down) * across + Math.floor(((e.clientX - box.left) / box.width) * across));
      });
      this.wall.addEventListener("keydown", (e) => {
        const across = +this.wall.dataset.across, step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[e.key];
        if (e.key === "Enter" && this.app.state.head >= 0) this.toggle(`head ${this.block()}.${this.app.state.head}`);
        if (!step) return;
        e.preventDefault();
        this.app.set({ head: clamp(Math.max(this.app.state.head, 0) + step, 0, this.about.heads - 1) });
      });
    }
    // the state that all panels share has changed
    refresh() {
      if (!this.passes.plain) return;
      for (const canvas of Object.values(this.canvases)) canvas.dataset.mode = this.app.state.mode;
      this.buttons();
      this.ask();
      this.draw();
    }
  }
  return { Panel, toCanvas };
})();
