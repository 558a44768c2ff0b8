"use strict";
// The page's own script. The widgets of a section share one state (image, depth, position, head), so that
// two models move together. Names only ever reach the page as text, never as HTML.
(() => {
  const { make, clamp, number, percent, revive, inflate, unpack, load, raster, show, frame, pane, scale, onPoint, palette, theme } = sightline;
  const json = (id) => JSON.parse(document.getElementById(id).textContent, revive);
  const hinted = {};  // how to use a chart or a map is said once, below the first
  // what the model says of the image that is shown; nothing where a result does not say
  function prediction(d) {
    const line = make("div", { className: "said" }), said = d.captions || [];
    line.tell = (i) => { line.textContent = said[i] ? "Predicted: " + said[i].replace(/ %/g, "\u00a0%") : ""; };
    return said.length ? [line] : [];
  }
  // a canvas between its ticks: [position within 0..1, text] along the left side and below
  function plot(canvas, left, below) {
    const side = make("div", { className: "ticks up" }), foot = make("div", { className: "ticks across" });
    const longest = Math.max(1, ...left.map(([, text]) => text.length));
    side.style.setProperty("--room", `${Math.min(9, 0.45 * longest + 0.3)}rem`);
    for (const [at, text] of left) side.append(make("span", { textContent: text, style: `top:${100 * at}%` }));
    for (const [at, text] of below) foot.append(make("span", { textContent: text, style: `left:${100 * at}%` }));
    return left.length || below.length ? make("div", { className: "plot" }, side, canvas, foot) : canvas;
  }
  // at most so many of a list of names, evenly spread, short enough for an axis
  function some(names, most, letters) {
    const step = Math.ceil(names.length / most);
    return names.map((n, i) => [(i + 0.5) / names.length, n.length > letters ? n.slice(0, letters - 1) + "…" : n]).filter((_, i) => i % step === 0);
  }

  class Store {
    constructor() { this.state = { image: 0, depth: 0.5, x: 0.5, y: 0.5, head: -1, from: "patch" }; this.all = []; }
    set(change) { Object.assign(this.state, change); for (const f of this.all) f(this.state); }
  }

  const widgets = {
    async heat(host, d) {
      const planes = await Promise.all(d.planes.map(unpack));
      const rows = d.rows.length, columns = d.columns.length;
      const high = clamp(Math.round((640 * rows) / columns), 160, 900);
      const canvas = make("canvas", { width: 640, height: high });
      const out = make("output"), select = make("select", { ariaLabel: "What is shown" });
      out.setAttribute("aria-live", "polite");
      d.planes.forEach((p, i) => select.append(make("option", { value: i, textContent: p.name })));
      const hint = hinted.map ? "" : "Point at a cell, tap it, or use the arrow keys.";
      let x = 0.5, y = 0.5, shown = 0, touched = false;
      hinted.map = true;
      const images = planes.map((v, i) => raster(v, rows, columns, { top: d.planes[i].top, flip: d.lower }));
      const draw = () => {
        const context = show(canvas, images[shown], false);
        const column = Math.floor(x * columns), down = Math.floor(y * rows), row = d.lower ? rows - 1 - down : down;
        if (touched) {
          const w = canvas.width / columns, h = canvas.height / rows;
          context.fillStyle = "#fff3";
          context.fillRect(0, down * h, canvas.width, h); context.fillRect(column * w, 0, w, canvas.height);
          frame(context, column * w, down * h, w, h);
        }
        const at = row * columns + column;
        const text = d.planes.map((p, i) => `${p.name} ${number(planes[i][at])}`).join(" · ");
        const bar = d.bars ? ` · ${d.bar} ${percent(d.bars[row])}` + (Number.isNaN(d.whole) ? "" : ` (whole model: ${percent(d.whole)})`) : "";
        out.textContent = touched ? `${d.rows[row]} × ${d.columns[column]}: ${text}${bar}` : hint;
      };
      onPoint(canvas, () => [x, y, columns, rows], (a, b) => { x = a; y = b; touched = true; draw(); }, host.dataset.alt);
      const legend = scale(d.planes[0].top, d.planes[0].name), note = make("div", { className: "axis" });
      const explain = () => { legend.lastChild.textContent = d.planes[shown].name; note.textContent = (d.notes || {})[d.planes[shown].name] || ""; };
      select.addEventListener("change", () => { shown = +select.value; explain(); draw(); });
      const title = `↑ ${d.row || "first model"}${d.lower ? ", first layer at the bottom" : ""} · → ${d.column || "second model"}${d.unit ? ` (numbers: ${d.unit})` : ""}`;
      const tall = (Math.min(512, host.clientWidth || 512) * 0.6 * high) / 640;  // pixels, beside names as long as these
      const marks = d.marks || [some(d.rows, clamp(Math.floor(tall / 15), 2, 24), 18), d.across || (d.columns.length <= 12 ? some(d.columns, 12, Math.floor(60 / d.columns.length)) : [])];
      const up = marks[0].map(([at, text]) => [d.lower ? 1 - at : at, text]);
      const stage = make("div", { className: "stage one" }, make("div", { className: "pane" }, plot(canvas, up, marks[1]),
        make("div", { className: "axis", textContent: d.row === d.column && d.lower ? `both axes: layers of ${d.row || "the model"}${d.unit ? ` by ${d.unit}` : ""}, the first at the lower left` : title }),
        legend, note));
      explain();
      host.append(...(d.planes.length > 1 ? [make("div", { className: "controls" }, make("label", {}, "Show", select))] : []), stage, out);
      draw();
      return {};
    },

    async tiles(host, d, store) {
      const values = await unpack(d), [rows, columns] = d.grid, cells = rows * columns, count = d.shape[0];
      const left = make("canvas", { width: 420, height: Math.round((420 * rows) / columns) });
      const right = make("canvas", { width: 420, height: left.height });
      const out = make("output");
      out.setAttribute("aria-live", "polite");
      const own = new Float32Array(cells);
      for (let i = 0; i < cells; i++) own[i] = i < count ? values[i * cells + i] : NaN;
      // where each is the same at its own position (a cosine of 1), all maps beside each other say more
      const same = count === cells && own.every((v) => Math.abs(v - own[0]) < 0.01), wide = columns * (columns + 1) - 1;
      const all = new Float32Array(same ? (rows * (rows + 1) - 1) * wide : 0).fill(NaN);
      for (let i = 0; same && i < cells; i++)
        for (let j = 0; j < cells; j++)
          all[(Math.floor(i / columns) * (rows + 1) + Math.floor(j / columns)) * wide + (i % columns) * (columns + 1) + (j % columns)] = values[i * cells + j];
      const ground = same ? raster(all, rows * (rows + 1) - 1, wide, { top: d.top }) : raster(own, rows, columns, { top: d.top });
      const draw = (s) => {
        const c = Math.floor(s.x * columns), r = Math.floor(s.y * rows), i = r * columns + c;
        const w = left.width / columns, h = left.height / rows;
        frame(show(left, ground, false), c * w, r * h, w, h);
        frame(show(right, raster(values, rows, columns, { top: d.top, start: i * cells }), false), c * w, r * h, w, h);
        let best = 0;
        for (let j = 1; j < cells; j++) if (values[i * cells + j] > values[i * cells + best]) best = j;
        const text = best === i ? "the highest of all positions" : `highest at row ${Math.floor(best / columns) + 1}, column ${(best % columns) + 1} (${number(values[i * cells + best])})`;
        out.textContent = `Row ${r + 1}, column ${c + 1}: ${number(own[i])} at its own position; ${text}.`;
      };
      onPoint(left, () => [store.state.x, store.state.y, columns, rows], (x, y) => store.set({ x, y }), host.dataset.alt);
      onPoint(right, () => [store.state.x, store.state.y, columns, rows], (x, y) => store.set({ x, y }), host.dataset.alt);
      host.append(make("div", { className: "stage" }, pane(same ? `Every ${d.about}: one map each, at its position` : `Each ${d.about} at its own position`, left), pane("The selected one at every position", right)), scale(d.top, d.what), out);
      store.all.push(draw);
      return {};
    },

    async stack(host, d, store) {
      const values = await unpack(d), [count, rows, columns] = d.shape;
      const canvas = make("canvas", { width: 420, height: Math.round((420 * rows) / columns), className: "smooth" });
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", host.dataset.alt);
      const strip = make("div", { className: "strip" }), out = make("output");
      out.setAttribute("aria-live", "polite");
      const images = [...Array(count).keys()].map((i) => raster(values, rows, columns, { start: i * rows * columns }));
      const small = images.map((sprite, i) => {
        const c = make("canvas", { width: 96, height: Math.round((96 * rows) / columns), title: d.names[i] });
        show(c, sprite, true);
        c.addEventListener("click", () => store.set({ depth: count > 1 ? i / (count - 1) : 0 }));
        strip.append(c);
        return c;
      });
      const draw = (s) => {
        const i = Math.round(s.depth * (count - 1));
        const context = show(canvas, images[i], true);
        d.radii[i].forEach((radius, k) => {
          context.strokeStyle = k ? "#ffffff88" : "#56b4e9";
          context.lineWidth = 2;
          context.beginPath();
          context.arc(d.centers[i][1] * canvas.width, d.centers[i][0] * canvas.height, (radius / d.width) * canvas.width, 0, 7);
          context.stroke();
        });
        small.forEach((c, k) => c.setAttribute("aria-current", String(k === i)));
        out.textContent = `${d.names[i]}: half of the mass within ${number(d.radii[i][0], 0)} pixels (inner circle), 90 % within ${number(d.radii[i][1], 0)}; ${percent(d.own[i])} on its own cell.`;
      };
      host.append(make("div", { className: "stage one" }, make("div", { className: "pane" }, canvas)), strip, out);
      store.all.push(draw);
      return { depth: count };
    },

    async maps(host, d, store) {
      const [values, sprite] = await Promise.all([unpack(d), load(d.images.uri)]);
      const [count, heads, rows, columns] = d.shape, size = d.images;
      const plain = make("canvas", { width: 320, height: Math.round((320 * size.height) / size.width), className: "smooth" });
      const over = make("canvas", { width: plain.width, height: plain.height, className: "smooth" });
      const heat = make("canvas", { width: plain.width, height: plain.height });
      const strip = make("div", { className: "strip" }), said = prediction(d);
      const cut = (canvas, i) => {
        const context = canvas.getContext("2d");
        context.drawImage(sprite, i * size.width, 0, size.width, size.height, 0, 0, canvas.width, canvas.height);
        return context;
      };
      const shade = (canvas, i, h) => {
        const context = cut(canvas, i), mask = make("canvas", { width: columns, height: rows }), m = mask.getContext("2d");
        const pixels = m.createImageData(columns, rows);
        for (let k = 0; k < rows * columns; k++) pixels.data[4 * k + 3] = 215 * (1 - Math.sqrt(clamp(values[(i * heads + h) * rows * columns + k], 0, 1)));
        m.putImageData(pixels, 0, 0);
        context.imageSmoothingEnabled = true;
        context.drawImage(mask, 0, 0, canvas.width, canvas.height);
      };
      const small = [...Array(count).keys()].map((i) => {
        const c = make("canvas", { width: 96, height: Math.round((96 * size.height) / size.width), className: "smooth" });
        c.addEventListener("click", () => store.set({ image: i }));
        strip.append(c);
        return c;
      });
      let before = -1;
      const draw = (s) => {
        const i = Math.min(s.image, count - 1), h = clamp(s.head, 0, heads - 1);
        cut(plain, i);
        shade(over, i, h);
        show(heat, raster(values, rows, columns, { start: (i * heads + h) * rows * columns }), false);
        if (h !== before) small.forEach((c, k) => shade(c, k, h));
        before = h;
        small.forEach((c, k) => c.setAttribute("aria-current", String(k === i)));
        said.forEach((line) => line.tell(i));
      };
      for (const c of [plain, over, heat]) { c.setAttribute("role", "img"); c.setAttribute("aria-label", host.dataset.alt); }
      host.append(make("div", { className: "stage" }, pane("Image", plain, ...said), pane("Weighted by the map", over), pane("Map", heat)), strip, scale("largest", "share"));
      store.all.push(draw);
      return { images: count, heads: heads > 1 ? heads : 0 };
    },

    async headAttention(host, d, store) {
      const [buffer, peaks, sprite] = await Promise.all([inflate(d.data), unpack(d.peaks), load(d.images.uri)]);
      const bytes = new Uint8Array(buffer), [count, blocks, heads, queries, cells] = d.shape, [rows, columns] = d.grid, size = d.images;
      const image = make("canvas", { width: 420, height: Math.round((420 * size.height) / size.width), className: "smooth" });
      const seen = make("canvas", { width: 420, height: image.height, className: "smooth" });
      const across = Math.ceil(Math.sqrt(heads)), down = Math.ceil(heads / across), gap = 6, tile = Math.round((420 - gap * (across - 1)) / across);
      const tall = Math.round((tile * rows) / columns), wall = make("canvas", { width: 420, height: down * tall + (down - 1) * gap });
      const out = make("output"), said = prediction(d);
      out.setAttribute("aria-live", "polite");
      const row = (i, b, h, q) => {
        const start = (((i * blocks + b) * heads + h) * queries + q) * cells, v = new Float32Array(cells);
        for (let k = 0; k < cells; k++) v[k] = bytes[start + k] / 255;
        return v;
      };
      const draw = (s) => {
        const i = Math.min(s.image, count - 1), b = Math.round(s.depth * (blocks - 1));
        const c = Math.floor(s.x * columns), r = Math.floor(s.y * rows), whole = s.from === "class" && d.prefix > 0;
        const q = whole ? 0 : d.prefix + r * columns + c, h = s.head < heads ? s.head : -1;
        const context = image.getContext("2d");
        context.drawImage(sprite, i * size.width, 0, size.width, size.height, 0, 0, image.width, image.height);
        const w = image.width / columns, t = image.height / rows;
        if (!whole) frame(context, c * w, r * t, w, t);
        const mean = new Float32Array(cells), all = [...Array(heads).keys()].map((k) => row(i, b, k, q));
        const share = all.map((_, k) => peaks[((i * blocks + b) * heads + k) * queries + q]);
        for (let k = 0; k < cells; k++) {
          for (let j = 0; j < heads; j++) if (h < 0 || j === h) mean[k] += all[j][k] * share[j] / (h < 0 ? heads : 1);
        }
        const most = Math.max(...mean), best = mean.indexOf(most), mask = make("canvas", { width: columns, height: rows }), m = mask.getContext("2d");
        const pixels = m.createImageData(columns, rows);
        for (let k = 0; k < cells; k++) pixels.data[4 * k + 3] = 215 * (1 - Math.sqrt(mean[k] / Math.max(most, 1e-9)));
        m.putImageData(pixels, 0, 0);
        const view = seen.getContext("2d");
        view.drawImage(sprite, i * size.width, 0, size.width, size.height, 0, 0, seen.width, seen.height);
        view.imageSmoothingEnabled = true;
        view.drawImage(mask, 0, 0, seen.width, seen.height);
        if (!whole) frame(view, c * w, r * t, w, t);
        const board = wall.getContext("2d");
        board.clearRect(0, 0, wall.width, wall.height);
        board.imageSmoothingEnabled = false;
        all.forEach((v, k) => {
          const x = (k % across) * (tile + gap), y = Math.floor(k / across) * (tall + gap);
          board.drawImage(raster(v, rows, columns), x, y, tile, tall);
          if (k === h) frame(board, x + 1, y + 1, tile - 2, tall - 2);
        });
        const from = whole ? "the class token" : `the patch in row ${r + 1}, column ${c + 1}`;
        out.textContent = `${d.labels ? d.labels[i] + ": b" : "B"}lock ${b + 1}, ${h < 0 ? "mean of heads" : "head " + (h + 1)}, from ${from}: most attention on row ${Math.floor(best / columns) + 1}, column ${(best % columns) + 1} (${percent(most)}).`;
        said.forEach((line) => line.tell(i));
        wall.dataset.block = b;
      };
      const move = (x, y) => store.set({ x, y, from: "patch" });
      for (const c of [image, seen]) onPoint(c, () => [store.state.x, store.state.y, columns, rows], move, host.dataset.alt);
      wall.tabIndex = 0;
      wall.setAttribute("role", "application");
      wall.setAttribute("aria-label", "The heads of this block. Click or tap one, or use the arrow keys.");
      wall.addEventListener("keydown", (e) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[e.key];
        if (!step) return;
        e.preventDefault();
        store.set({ head: clamp(Math.max(store.state.head, 0) + step, 0, heads - 1) });
      });
      wall.addEventListener("click", (e) => {
        const box = wall.getBoundingClientRect();
        const k = Math.floor(((e.clientY - box.top) / box.height) * down) * across + Math.floor(((e.clientX - box.left) / box.width) * across);
        if (k < heads) store.set({ head: store.state.head === k ? -1 : k });
      });
      host.append(make("div", { className: "stage" }, pane("Point at a patch", image, ...said), pane("Where it attends", seen), pane("All heads of the block: choose one", wall)), scale("largest", "share of attention"), out);
      store.all.push(draw);
      return { images: count, depth: blocks, heads, classToken: d.prefix > 0 };
    },

    // maps of several measures by image and depth: a film, with what is known of the cell under the mouse
    async film(host, d, store) {
      const [sprite, other, buffer, ...planes] = await Promise.all([load(d.images.uri), d.other ? load(d.other.uri) : null, d.words ? inflate(d.words) : null, ...d.planes.map(unpack)]);
      const [count, places, rows, columns] = d.planes[0].shape, cells = rows * columns, size = d.images, words = buffer && new Uint16Array(buffer);
      const tall = Math.round((320 * size.height) / size.width), sheet = (kind) => make("canvas", { width: 320, height: tall, className: kind });
      const image = sheet("smooth"), second = sheet("smooth"), map = sheet(""), strip = make("div", { className: "strip" }), out = make("output");
      const select = make("select", { ariaLabel: "What is shown" }), legend = make("div"), said = prediction(d);
      out.setAttribute("aria-live", "polite");
      d.planes.forEach((p, i) => select.append(make("option", { value: i, textContent: p.name })));
      const small = [...Array(places).keys()].map((l) => {
        const c = make("canvas", { width: 72, height: Math.round((72 * rows) / columns), title: d.names[l] });
        c.addEventListener("click", () => store.set({ depth: places > 1 ? l / (places - 1) : 0 }));
        strip.append(c);
        return c;
      });
      const cut = (canvas, source, i) => {
        const context = canvas.getContext("2d");
        context.drawImage(source, i * size.width, 0, size.width, size.height, 0, 0, canvas.width, canvas.height);
        return context;
      };
      let shown = 0, before = "";
      const draw = (s) => {
        const i = Math.min(s.image, count - 1), l = Math.round(s.depth * (places - 1)), c = Math.floor(s.x * columns), r = Math.floor(s.y * rows);
        const w = map.width / columns, h = map.height / rows, top = d.planes[shown].top;
        const tile = (k) => raster(planes[shown], rows, columns, { top, start: (i * places + k) * cells });
        frame(cut(image, sprite, i), c * w, r * h, w, h);
        if (other) frame(cut(second, other, i), c * w, r * h, w, h);
        frame(show(map, tile(l), false), c * w, r * h, w, h);
        if (before !== `${i} ${shown}`) {
          small.forEach((canvas, k) => show(canvas, tile(k), false));
          legend.replaceChildren(scale(+top.toPrecision(2), d.planes[shown].name));
        }
        before = `${i} ${shown}`;
        small.forEach((canvas, k) => canvas.setAttribute("aria-current", String(k === l)));
        said.forEach((line) => line.tell(i));
        const at = (i * places + l) * cells + r * columns + c, word = words ? ` (${d.classes[words[at]]})` : "";
        const text = d.planes.map((p, k) => `${p.name} ${number(planes[k][at], 2)}`).join(" · ");
        out.textContent = `${d.names[l]}, row ${r + 1}, column ${c + 1}${word}: ${text}.${d.notes ? " " + d.notes[i][l] : ""}`;
      };
      select.addEventListener("change", () => { shown = +select.value; draw(store.state); });
      for (const canvas of [image, second, map]) onPoint(canvas, () => [store.state.x, store.state.y, columns, rows], (x, y) => store.set({ x, y }), host.dataset.alt);
      const panes = [pane(d.titles[0], image, ...said), ...(other ? [pane(d.titles[1], second)] : []), pane(d.titles[d.titles.length - 1], map)];
      host.append(...(d.planes.length > 1 ? [make("div", { className: "controls" }, make("label", {}, "Show", select))] : []), make("div", { className: "stage" }, ...panes), strip, legend, out);
      store.all.push(draw);
      return { images: count, depth: places };
    },

    async featurePca(host, d, store) {
      const [buffer, sprite] = await Promise.all([inflate(d.data), load(d.images.uri)]);
      const bytes = new Int8Array(buffer), [count, layers, most, parts] = d.shape, size = d.images;
      const image = make("canvas", { width: 320, height: Math.round((320 * size.height) / size.width), className: "smooth" });
      const colors = make("canvas", { width: 320, height: image.height }), similar = make("canvas", { width: 320, height: image.height });
      const out = make("output"), said = prediction(d);
      out.setAttribute("aria-live", "polite");
      const ranges = new Map();
      const range = (l) => {  // ends of the first three components over all images, without the outermost values
        if (!ranges.has(l)) {
          const n = d.grids[l][0] * d.grids[l][1];
          ranges.set(l, [0, 1, 2].map((k) => {
            const v = [];
            for (let i = 0; i < count; i++) for (let c = 0; c < n; c++) v.push(bytes[((i * layers + l) * most + c) * parts + k]);
            v.sort((a, b) => a - b);
            return [v[Math.floor(v.length * 0.02)], v[Math.floor(v.length * 0.98)]];
          }));
        }
        return ranges.get(l);
      };
      const draw = (s) => {
        const i = Math.min(s.image, count - 1), l = Math.round(s.depth * (layers - 1)), [rows, columns] = d.grids[l];
        const r = Math.floor(s.y * rows), c = Math.floor(s.x * columns), start = (i * layers + l) * most;
        const context = image.getContext("2d");
        context.drawImage(sprite, i * size.width, 0, size.width, size.height, 0, 0, image.width, image.height);
        const w = image.width / columns, h = image.height / rows;
        frame(context, c * w, r * h, w, h);
        const small = make("canvas", { width: columns, height: rows }), m = small.getContext("2d"), pixels = m.createImageData(columns, rows), ends = range(l);
        const cosines = new Float32Array(rows * columns), own = start + r * columns + c;
        let mine = 0;
        for (let k = 0; k < parts; k++) mine += bytes[own * parts + k] ** 2;
        for (let p = 0; p < rows * columns; p++) {
          let dot = 0, norm = 0;
          for (let k = 0; k < parts; k++) { const v = bytes[(start + p) * parts + k]; dot += v * bytes[own * parts + k]; norm += v * v; }
          cosines[p] = dot / Math.max(Math.sqrt(mine * norm), 1e-9);
          for (let k = 0; k < 3; k++) pixels.data[4 * p + k] = 255 * clamp((bytes[(start + p) * parts + k] - ends[k][0]) / Math.max(ends[k][1] - ends[k][0], 1), 0, 1);
          pixels.data[4 * p + 3] = 255;
        }
        m.putImageData(pixels, 0, 0);
        frame(show(colors, small, false), c * w, r * h, w, h);
        frame(show(similar, raster(cosines, rows, columns), false), c * w, r * h, w, h);
        said.forEach((line) => line.tell(i));
        const near = cosines.reduce((a, v) => a + (v > 0.5 ? 1 : 0), 0) / cosines.length;
        out.textContent = `${d.names[l]} (${rows} × ${columns} cells): ${percent(near)} of the image is similar to the selected cell (cosine above 0.5).`;
      };
      for (const canvas of [image, colors, similar]) onPoint(canvas, () => [store.state.x, store.state.y, ...[...d.grids[Math.round(store.state.depth * (layers - 1))]].reverse()], (x, y) => store.set({ x, y }), host.dataset.alt);
      host.append(make("div", { className: "stage" }, pane("Point at a position", image, ...said), pane("Features as colors", colors), pane("Similarity to that position", similar)), scale(1, "cosine"), out);
      store.all.push(draw);
      return { images: count, depth: layers };
    },
  };

  // a chart: the label of the point nearest to the mouse or finger, or of the next one by the arrow keys
  function chart(host) {
    const points = json(host.dataset.points), svg = host.querySelector("svg"), out = make("output", { textContent: hinted[host.className] ? "" : "Point at the chart, tap it, or use the arrow keys." });
    hinted[host.className] = true;
    const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    for (const [k, v] of Object.entries({ r: 5, fill: "none", stroke: "currentColor", "stroke-width": 2, visibility: "hidden", class: "ring" })) ring.setAttribute(k, v);
    svg.append(ring);
    svg.setAttribute("tabindex", 0);
    host.append(out);  // in the figure: of a wide and a slim one only one is shown
    let at = -1;
    const tell = (i) => {
      at = i;
      const [x, y, text] = points[i];
      ring.setAttribute("cx", x);
      ring.setAttribute("cy", y);
      ring.setAttribute("visibility", "visible");
      out.textContent = text;
    };
    const near = (event) => {
      const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      let best = -1, least = 30 ** 2;
      points.forEach(([x, y], i) => { const d = (x - p.x) ** 2 + (y - p.y) ** 2; if (d < least) { least = d; best = i; } });
      if (best >= 0) tell(best);
    };
    svg.addEventListener("pointermove", near);
    svg.addEventListener("pointerdown", near);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) { event.preventDefault(); tell(clamp(at + step, 0, points.length - 1)); }
    });
  }
  function slider(label, count, store, get, set) {
    const input = make("input", { type: "range", min: 1, max: count, step: 1 }), text = make("span");
    input.setAttribute("aria-label", label);
    input.addEventListener("input", () => store.set(set(+input.value - 1)));
    store.all.push((s) => { input.value = get(s) + 1; text.textContent = `${get(s) + 1} of ${count}`; });
    return make("label", {}, label, input, text);
  }
  function controls(section, store, needs) {
    const most = (key) => Math.max(0, ...needs.map((n) => n[key] || 0));
    const bar = make("div", { className: "controls" }), images = most("images"), depth = most("depth"), heads = most("heads");
    if (images > 1) bar.append(slider("Image", images, store, (s) => Math.min(s.image, images - 1), (v) => ({ image: v })));
    if (depth > 1) bar.append(slider("Depth", depth, store, (s) => Math.round(s.depth * (depth - 1)), (v) => ({ depth: v / (depth - 1) })));
    if (heads > 1) {
      const select = make("select", { ariaLabel: "Head" });
      if (depth > 1) select.append(make("option", { value: -1, textContent: "mean of heads" }));
      for (let i = 0; i < heads; i++) select.append(make("option", { value: i, textContent: `head ${i + 1}` }));
      select.addEventListener("change", () => store.set({ head: +select.value }));
      store.all.push((s) => { select.value = depth > 1 ? s.head : Math.max(s.head, 0); });
      bar.append(make("label", {}, "Head", select));
    }
    if (needs.some((n) => n.classToken)) {
      const button = make("button", { type: "button", textContent: "From the class token" });
      button.addEventListener("click", () => store.set({ from: store.state.from === "class" ? "patch" : "class" }));
      store.all.push((s) => button.setAttribute("aria-pressed", String(s.from === "class")));
      bar.append(button);
    }
    if (bar.childElementCount) section.querySelector(".pair").before(bar);
  }
  async function start(section) {
    if (section.dataset.begun) return;
    section.dataset.begun = "yes";
    const store = new Store(), needs = [];
    for (const host of section.querySelectorAll("[data-widget]")) {
      const d = json(host.dataset.source);
      try {
        needs.push(await widgets[host.dataset.widget](host, d, store));
      } catch (error) {
        host.append(make("p", { className: "small", textContent: "This browser cannot show this view: " + error.message }));
        console.error(error);  // the other widgets of the section still work
      }
    }
    section.querySelectorAll("[data-points]").forEach(chart);
    controls(section, store, needs);
    store.set({});
    section.dataset.ready = "yes";
  }
  palette(json("palette").ramp);
  // sections start when they come near the viewport, so that a long page opens at once
  const near = new IntersectionObserver((seen) => {
    for (const entry of seen) if (entry.isIntersecting) { near.unobserve(entry.target); start(entry.target); }
  }, { rootMargin: "600px" });
  for (const section of document.querySelectorAll("section.result")) near.observe(section);
  // what was never near would be missing on paper
  addEventListener("beforeprint", () => {
    for (const section of document.querySelectorAll("section.result:not([data-ready])")) { near.unobserve(section); start(section); }
  });
  // on a narrow screen the list of sections is a menu that closes itself; on a wide one it stands at the side
  const menu = document.getElementById("menu"), wide = matchMedia("(min-width: 62rem)");
  const fold = () => { menu.open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
  menu.addEventListener("click", (event) => { if (event.target.closest("a") && !wide.matches) menu.open = false; });
  theme(document.getElementById("theme"));
})();
