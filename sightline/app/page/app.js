"use strict";
// The page: images in, the state that all panels share, edits of the image, the tour, and what can be kept.
(() => {
  const { make, clamp, palette, theme } = sightline;
  const by = (id) => document.getElementById(id);
  const status = (text, wrong = false) => { by("status").textContent = text; by("status").classList.toggle("wrong", wrong); };
  const LARGEST = 20e6, FILES = 48;

  const app = {
    state: { view: "attention", depth: 0.92, x: null, y: null, head: -1, mode: "look" },
    panels: [], nearest: [], edits: [], resets: [], step: 0, tour: [],
    // change the shared state; both models follow, and the address remembers it
    set(change) {
      Object.assign(app.state, change);
      sync();
      for (const panel of app.panels) panel.refresh();
      link();
    },
    // the models or the image were changed: ask for new answers
    change(panel) {
      Wire.stamp("change");
      by("reset").disabled = false;
      app.wire.ask(`change ${panel.number}`, { do: "change", model: panel.number, off: [...panel.off], size: panel.size, checkpoint: panel.about.checkpoints.length ? panel.checkpoint : null, edits: app.edits });
    },
    edit(panel, edit) { app.edits = [...app.edits, edit]; app.change(panel); },
    reset() {
      app.edits = [];
      for (const f of app.resets) f();
      for (const panel of app.panels) { panel.off.clear(); app.change(panel); }
      by("reset").disabled = true;
    },
    drag,
  };
  window.app = app;  // for the console, and for tests

  function sync() {
    const s = app.state;
    by("view").value = s.view;
    by("depth").value = Math.round(1000 * s.depth);
    by("class").setAttribute("aria-pressed", String(s.x === null));
    for (const radio of document.getElementsByName("mode")) radio.checked = radio.value === s.mode;
  }
  let linked = 0;
  function link() {  // browsers refuse to change the address too often
    clearTimeout(linked);
    linked = setTimeout(() => {
      const s = app.state, parts = { view: s.view, depth: s.depth.toFixed(3), head: s.head, ...(s.x === null ? {} : { x: s.x.toFixed(3), y: s.y.toFixed(3) }), ...(app.step ? { tour: app.step } : {}) };
      history.replaceState(null, "", "#" + new URLSearchParams(parts));
    }, 250);
  }
  function fromLink() {
    const link = new URLSearchParams(location.hash.slice(1)), change = {};
    if ([...by("view").options].some((o) => o.value === link.get("view"))) change.view = link.get("view");
    for (const key of ["depth", "x", "y"]) if (link.has(key) && Number.isFinite(+link.get(key))) change[key] = clamp(+link.get(key), 0, 1);
    if (link.has("head") && Number.isInteger(+link.get("head"))) change.head = +link.get("head");
    if (("x" in change) !== ("y" in change)) { delete change.x; delete change.y; }
    Object.assign(app.state, change);
    sync();
    const step = +link.get("tour");
    if (step >= 1 && step <= app.tour.length) go(step);
  }

  // from the server
  function hear(frame) {
    const panel = app.panels[frame.model];
    if (frame.do === "hello") hello(frame);
    else if (frame.do === "thumbnail") thumbnail(frame);
    else if (frame.do === "answer") { panel.answer(frame); status(`${frame.name}: ${frame.image[0]} × ${frame.image[1]} pixels.`); }
    else if (frame.do === "untouched") panel.untouched();
    else if (frame.do === "place") panel.place(frame);
    else if (frame.do === "map") panel.map(frame);
    else if (frame.do === "skipped") panel.skipped(frame);
    else if (frame.do === "save") keep(frame);
    else if (frame.do === "python") { by("lines").textContent = frame.text; by("code").showModal(); }
    else if (frame.do === "error") { if (frame.to !== "place") status(frame.error, true); }
  }
  function hello(frame) {
    app.nearest = frame.nearest;
    app.panels = frame.models.map((about, i) => new panels.Panel(i, about, app));
    by("models").append(...app.panels.map((p) => p.root));
    // all scenes, and as many files as a strip can hold
    const shown = frame.offered.map(([name, file], number) => ({ name, file, number })), files = shown.filter((o) => o.file);
    for (const one of shown.filter((o) => !o.file || files.indexOf(o) < FILES)) offer(one);
    if (files.length > FILES) by("picker").append(make("span", { className: "small", textContent: `the first ${FILES} of ${files.length} files; drop any other` }));
    fromLink();
    document.body.dataset.ready = "yes";
  }
  function offer({ name, number }) {
    const c = make("canvas", { width: 72, height: 72, className: "smooth", title: name, tabIndex: 0 });
    c.setAttribute("role", "option");
    c.setAttribute("aria-label", name);
    c.dataset.number = number;
    const pick = () => { Wire.stamp("drop"); app.edits = []; app.wire.send({ do: "pick", number }); mark(c); };
    c.addEventListener("click", pick);
    c.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); pick(); } });
    by("picker").append(c);
    app.wire.send({ do: "thumbnail", number });
  }
  function mark(chosen) { for (const c of by("picker").children) c.setAttribute("aria-current", String(c === chosen)); }
  function thumbnail(frame) {
    const c = by("picker").querySelector(`[data-number="${frame.number}"]`), [height, width] = frame.shapes.image;
    Object.assign(c, { width, height });
    c.getContext("2d").drawImage(panels.toCanvas(frame.image, [height, width]), 0, 0);
  }
  function keep(frame) {
    const link = make("a", { href: URL.createObjectURL(new Blob([frame.html], { type: "text/html" })), download: frame.name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    status(`Saved as ${frame.name}.`);
  }

  // images in
  async function upload(file) {
    if (!file) return;
    if (file.size > LARGEST) return status(`The image has ${(file.size / 1e6).toFixed(0)} MB; at most 20 are read.`, true);
    Wire.stamp("drop");
    app.edits = [];
    mark(null);
    app.wire.upload(await file.arrayBuffer());
  }
  by("file").addEventListener("change", (e) => { upload(e.target.files[0]); e.target.value = ""; });
  addEventListener("dragover", (e) => { e.preventDefault(); document.body.classList.add("drop"); });
  addEventListener("dragleave", () => document.body.classList.remove("drop"));
  addEventListener("drop", (e) => { e.preventDefault(); document.body.classList.remove("drop"); upload(e.dataTransfer.files[0]); });
  addEventListener("paste", (e) => upload([...e.clipboardData.files].find((f) => f.type.startsWith("image/"))));
  let camera = null;
  const hang = () => { if (camera) for (const track of camera.getTracks()) track.stop(); camera = null; by("shot").close(); };
  by("camera").addEventListener("click", async () => {
    try {
      camera = await navigator.mediaDevices.getUserMedia({ video: true });
    } catch (error) {
      return status(`There is no webcam to use (${error.name}).`, true);
    }
    by("video").srcObject = camera;
    by("shot").showModal();
  });
  by("take").addEventListener("click", () => {
    const video = by("video"), c = make("canvas", { width: video.videoWidth, height: video.videoHeight });
    c.getContext("2d").drawImage(video, 0, 0);
    hang();
    c.toBlob(upload, "image/png");
  });
  by("hang").addEventListener("click", hang);
  by("shot").addEventListener("close", hang);

  // controls
  by("view").addEventListener("change", () => app.set({ view: by("view").value }));
  by("depth").addEventListener("input", () => { Wire.stamp("slide"); app.set({ depth: by("depth").value / 1000 }); });
  by("class").addEventListener("click", () => app.set(app.state.x === null ? { x: 0.5, y: 0.5 } : { x: null, y: null }));
  for (const radio of document.getElementsByName("mode")) radio.addEventListener("change", () => app.set({ mode: radio.value }));
  by("reset").addEventListener("click", app.reset);
  by("save").addEventListener("click", () => { status("Writing the page …"); app.wire.send({ do: "save" }); });
  by("python").addEventListener("click", () => app.wire.send({ do: "python" }));
  by("done").addEventListener("click", () => by("code").close());
  by("copy").addEventListener("click", async () => { await navigator.clipboard.writeText(by("lines").textContent); by("code").close(); status("Copied."); });
  let film = 0;
  by("play").addEventListener("click", () => {
    if (film) { clearInterval(film); film = 0; } else film = setInterval(() => {
      const steps = Math.max(1, ...app.panels.map((p) => (p.passes.plain ? p.passes.plain.places.length - 1 : 1)));
      app.set({ depth: app.state.depth >= 1 ? 0 : Math.min(1, app.state.depth + 1 / steps) });
    }, 450);
    by("play").setAttribute("aria-pressed", String(Boolean(film)));
  });

  // paint a line, or choose a rectangle and then drag it elsewhere
  let box = null;  // the rectangle that was chosen, in coordinates of the image
  function drag(panel, which, canvas, at, event) {
    const moving = app.state.mode === "move", start = panel.outside(...at(event), which), line = [start], context = canvas.getContext("2d");
    const view = panel.passes[which].view, here = ([x, y]) => [((x - view[0]) / view[2]) * canvas.width, ((y - view[1]) / view[3]) * canvas.height];
    const grab = moving && box && start[0] > box[0] && start[0] < box[0] + box[2] && start[1] > box[1] && start[1] < box[1] + box[3] ? box : null;
    const rect = (a, b) => [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.abs(a[0] - b[0]), Math.abs(a[1] - b[1])];
    const radius = 0.05 * view[2];
    const outline = ([x, y, w, h]) => { const [a, b] = here([x, y]), [c, d] = here([x + w, y + h]); panel.paint(which, canvas, panel.level(which), true); sightline.frame(context, a, b, c - a, d - b, "#e69f00"); };
    const move = (e) => {
      const p = panel.outside(...at(e), which);
      if (!moving) {
        line.push(p);
        context.fillStyle = "#8889";
        context.beginPath();
        context.arc(...here(p), (radius / view[2]) * canvas.width, 0, 7);
        context.fill();
      } else outline(grab ? [grab[0] + p[0] - start[0], grab[1] + p[1] - start[1], grab[2], grab[3]] : rect(start, p));
    };
    const up = (e) => {
      canvas.removeEventListener("pointermove", move);
      const p = panel.outside(...at(e), which);
      if (!moving) app.edit(panel, { paint: line.slice(0, 2000), radius });
      else if (grab) { app.edit(panel, { move: grab, to: [grab[0] + p[0] - start[0], grab[1] + p[1] - start[1]] }); box = null; }
      else { const r = rect(start, p); box = r[2] > 0.01 && r[3] > 0.01 ? r : null; if (box) { outline(box); status("Now drag this part elsewhere."); } }
    };
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", up, { once: true });
  }

  // the tour: each step is a state that can be linked to and left
  function go(step) {
    app.step = step;
    by("tour").setAttribute("aria-pressed", String(step > 0));
    by("step").hidden = !step;
    if (!step) return link();
    const { title, text, state } = app.tour[step - 1], { skip, ...shared } = state;
    const button = (label, to, current) => { const b = make("button", { type: "button", textContent: label }); b.addEventListener("click", () => go(to)); if (current) b.setAttribute("aria-current", "step"); return b; };
    by("step").replaceChildren(make("h2", { textContent: `${step}. ${title}` }), make("p", { textContent: text }),
      make("div", {}, ...(step > 1 ? [button("Back", step - 1)] : []), ...app.tour.map((t, i) => { const b = button(String(i + 1), i + 1, i + 1 === step); b.setAttribute("aria-label", `Step ${i + 1}: ${t.title}`); return b; }),
        ...(step < app.tour.length ? [button("Next", step + 1)] : []), button("Leave the tour", 0)));
    const touched = app.panels.some((p) => p.off.size) || app.edits.length;
    if (touched) app.reset();
    app.set({ ...shared, mode: "look" });
    if (skip) for (const panel of app.panels) if (panel.about.kind !== "cnn") panel.toggle(`skip ${Math.floor(panel.about.blocks / 2)}`);
    if (app.panels.length && !app.panels[0].passes.plain) by("picker").firstChild?.click();
  }
  by("tour").addEventListener("click", () => go(app.step ? 0 : 1));
  addEventListener("hashchange", fromLink);

  theme(by("theme"));
  (async () => {
    const [colors, tour] = await Promise.all(["palette.json", "tour.json"].map(async (name) => (await fetch(name)).json()));
    palette(colors.ramp);
    app.tour = tour;
    app.wire = new Wire(hear, () => status("The server has ended: start it again and reload this page. Nothing is lost but this view.", true));
    app.wire.send({ do: "hello" });
  })();
})();
