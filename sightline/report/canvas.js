"use strict";
// What every page of ours draws with: elements, maps on canvases, and canvases that respond to mouse, touch and keys.
// The report's page and the app share it. Names only ever reach a page as text, never as HTML.
const sightline = (() => {
  const make = (tag, props = {}, ...kids) => {
    const node = Object.assign(document.createElement(tag), props);
    node.append(...kids);
    return node;
  };
  const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
  const number = (x, digits = 3) => (Number.isFinite(x) ? x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1") : Number.isNaN(x) ? "not a number" : x > 0 ? "∞" : "-∞");
  const percent = (x) => (Number.isFinite(x) ? (x * 100).toFixed(x < 0.1 ? 1 : 0) + " %" : number(x));
  // JSON has no infinities and no NaN: they arrive as text, and text that reads the same has a backslash in front
  const revive = (key, v) => (typeof v === "string" && /^\\*(NaN|-?Infinity)$/.test(v) ? (v[0] === "\\" ? v.slice(1) : Number(v)) : v);
  let ramp = new Uint8Array(768);
  // the colors of maps, also for the scale in the style sheet
  function palette(text) {
    ramp = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    document.documentElement.style.setProperty("--ramp", [...Array(9).keys()].map((i) => {
      const c = 3 * Math.round((i * 255) / 8);
      return `rgb(${ramp[c]},${ramp[c + 1]},${ramp[c + 2]})`;
    }).join(","));
  }
  function theme(button) {
    button.addEventListener("click", () => {
      const root = document.documentElement.dataset;
      const dark = root.theme ? root.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.theme = dark ? "light" : "dark";
    });
  }

  async function inflate(text) {
    const raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }
  // integers to values; the three largest stand for NaN and the infinities
  async function unpack(p) {
    const buffer = await inflate(p.data);
    const whole = p.bits === 8 ? new Uint8Array(buffer) : new Uint16Array(buffer);
    const most = 2 ** p.bits - 4, step = (p.high - p.low) / most, out = new Float32Array(whole.length);
    for (let i = 0; i < whole.length; i++) out[i] = whole[i] > most ? [NaN, Infinity, -Infinity][whole[i] - most - 1] : p.low + whole[i] * step;
    return out;
  }
  function load(uri) {
    return new Promise((done, fail) => {
      const sprite = new Image();
      sprite.onload = () => done(sprite);
      sprite.onerror = fail;
      sprite.src = uri;
    });
  }
  // a small offscreen image of values between 0 and top
  function raster(values, height, width, { top = 1, flip = false, start = 0 } = {}) {
    const canvas = make("canvas", { width, height }), context = canvas.getContext("2d");
    const sprite = context.createImageData(width, height);
    for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
      const v = values[start + y * width + x], at = 4 * ((flip ? height - 1 - y : y) * width + x);
      if (Number.isNaN(v)) sprite.data.set([150, 155, 162, 255], at);
      else {
        const c = 3 * Math.round(clamp(v / top, 0, 1) * 255);
        sprite.data.set([ramp[c], ramp[c + 1], ramp[c + 2], 255], at);
      }
    }
    context.putImageData(sprite, 0, 0);
    return canvas;
  }
  function show(canvas, source, smooth) {
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = smooth;
    context.imageSmoothingQuality = "high";
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(source, 0, 0, canvas.width, canvas.height);
    return context;
  }
  function frame(context, x, y, w, h, color = "#56b4e9") {
    context.lineWidth = 4; context.strokeStyle = "#000a"; context.strokeRect(x, y, w, h);
    context.lineWidth = 2; context.strokeStyle = color; context.strokeRect(x, y, w, h);
  }
  function pane(title, canvas, ...more) { return make("div", { className: "pane" }, make("span", { textContent: title }), canvas, ...more); }
  function scale(top, label) {
    return make("div", { className: "scale" }, "0", make("i"), String(top), make("span", { textContent: label }));
  }
  // a canvas that responds to mouse, touch and arrow keys; the position is (x, y) within 0..1
  function onPoint(canvas, cells, move, label) {
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", label + " Arrow keys move.");
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      move(clamp((event.clientX - box.left) / box.width, 0, 0.9999), clamp((event.clientY - box.top) / box.height, 0, 0.9999));
    };
    canvas.addEventListener("pointermove", (e) => { if (e.pointerType === "mouse" || e.buttons) at(e); });
    canvas.addEventListener("pointerdown", at);
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const [x, y, columns, rows] = cells();
      move(clamp((Math.floor(x * columns) + step[0] + 0.5) / columns, 0, 0.9999), clamp((Math.floor(y * rows) + step[1] + 0.5) / rows, 0, 0.9999));
    });
  }

  return { make, clamp, number, percent, revive, inflate, unpack, load, raster, show, frame, pane, scale, onPoint, palette, theme };
})();
