// Mouse, touch, wheel and keyboard.

Page.prototype.events = function () {
  const { scene } = this;
  const on = (id, type, act) => byId(id).addEventListener(type, act);
  on("rank", "change", (event) => this.rank(Number(event.target.value), scene.state.round));
  on("metric", "change", (event) => { scene.state.metric = event.target.value; this.strip.draw(); });
  on("previous", "click", () => this.round(scene.state.round - 1));
  on("next", "click", () => this.round(scene.state.round + 1));
  on("show-path", "change", (event) => { scene.state.path = event.target.checked; this.soon(); });
  on("show-joins", "change", (event) => { scene.state.joins = event.target.checked; this.soon(); });
  on("show-threads", "change", (event) => { scene.state.threads = event.target.checked; this.all(); });
  on("find", "input", (event) => this.find(event.target.value));
  on("find", "keydown", (event) => { if (event.key === "Escape") { event.target.value = ""; this.find(""); byId("lanes").focus(); } });
  on("in", "click", () => { scene.zoom(0.6); this.soon(); });
  on("out", "click", () => { scene.zoom(1 / 0.6); this.soon(); });
  on("fit", "click", () => { scene.fit(); this.soon(); });
  on("help", "click", () => this.toggleHelp());
  on("lanes", "focus", () => this.hint(true));
  on("lanes", "blur", () => this.hint(false));
  on("strip", "keydown", (event) => this.stripKey(event));
  document.addEventListener("keydown", (event) => this.key(event));
  window.addEventListener("resize", () => this.all());
  window.addEventListener("scroll", () => this.soon(), { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.theme.read(); this.all(); });
  this.pointer();
};

Page.prototype.pointer = function () {
  const { scene } = this;
  const lanes = byId("lanes");
  const tip = byId("tip");
  let from = null; // where the button went down
  const inside = (event) => {
    const box = lanes.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  for (const canvas of [lanes, byId("axis")]) {
    canvas.addEventListener("wheel", (event) => this.wheel(event, inside(event)[0]), { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const [x, y] = inside(event);
      from = { x, y, t: scene.t(x), last: x, moved: false, range: event.shiftKey || canvas.id === "axis" };
      canvas.setPointerCapture(event.pointerId);
      if (canvas === lanes) lanes.focus({ preventScroll: true });
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = inside(event);
      if (from) return drag(x, y);
      if (canvas === lanes) this.over(x, y, event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerup", (event) => drop(...inside(event)));
    canvas.addEventListener("pointercancel", () => { from = null; scene.state.range = null; this.soon(); });
  }
  const drag = (x) => {
    if (!from.moved && Math.abs(x - from.x) < 4) return;
    from.moved = true;
    tip.hidden = true;
    lanes.classList.add("dragging");
    if (from.range) {
      scene.state.range = [from.t, scene.t(x)];
      byId("lanes-hint").textContent = `${time(Math.abs(scene.t(x) - from.t))}: let go to zoom to it`;
    } else scene.pan(from.last - x);
    from.last = x;
    this.soon();
  };
  const drop = (x, y) => {
    if (!from) return;
    const { moved, range } = from;
    from = null;
    lanes.classList.remove("dragging");
    const wanted = scene.state.range;
    scene.state.range = null;
    if (range && wanted) scene.show(Math.min(...wanted), Math.max(...wanted));
    else if (!moved) this.press(x, y);
    this.hint(document.activeElement === lanes);
    this.soon();
  };
  lanes.addEventListener("dblclick", () => { if (scene.state.selected >= 0) this.go(scene.state.selected); });
  lanes.addEventListener("pointerleave", () => { tip.hidden = true; scene.state.hover = -1; this.soon(); });
};

// A click: on the name of a rank it opens or closes it, else it chooses an operation.
Page.prototype.press = function (x, y) {
  const { scene } = this;
  const item = scene.items.find((one) => y >= one.y && y < one.y + one.h);
  if (item?.type === "rank" && item.rank !== scene.state.rank) {
    const { open } = scene.state;
    if (!open.delete(item.rank)) open.add(item.rank);
    return this.all();
  }
  this.select(scene.hit(x, y));
};

Page.prototype.over = function (x, y, pageX, pageY) {
  const { scene } = this;
  const tip = byId("tip");
  const e = scene.hit(x, y);
  if (e !== scene.state.hover) {
    scene.state.hover = e;
    if (e >= 0) fillTip(tip, scene, e);
    this.soon();
  }
  if (e >= 0) placeTip(tip, pageX, pageY);
  else tip.hidden = true;
};

// Alone the wheel moves the page, until the lanes were chosen; so nobody is caught in them by scrolling.
Page.prototype.wheel = function (event, x) {
  const { scene } = this;
  const step = event.deltaMode === 1 ? 16 : 1;
  const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
  if (sideways || event.shiftKey) {
    scene.pan((sideways ? event.deltaX : event.deltaY) * step);
  } else if (event.ctrlKey || event.metaKey || document.activeElement === byId("lanes")) {
    scene.zoom(Math.exp(event.deltaY * step * 0.0022), scene.t(Math.max(x, GUTTER)));
  } else return;
  event.preventDefault();
  byId("tip").hidden = true;
  this.soon();
};

Page.prototype.stripKey = function (event) {
  const last = this.scene.roundsHere.length - 1;
  const { round } = this.scene.state;
  const to = { ArrowLeft: round - 1, ArrowRight: round + 1, Home: 0, End: last, PageUp: round - 10, PageDown: round + 10 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  this.round(Math.max(0, Math.min(last, to)));
};

Page.prototype.toggleHelp = function () {
  byId("keys").hidden = !byId("keys").hidden;
  byId("help").setAttribute("aria-expanded", String(!byId("keys").hidden));
};

Page.prototype.toggle = function (id) {
  byId(id).checked = !byId(id).checked;
  byId(id).dispatchEvent(new Event("change"));
};

Page.prototype.key = function (event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT)$/.test(event.target.tagName)) return;
  const { scene } = this;
  const { state } = scene;
  const inLanes = document.activeElement === byId("lanes");
  const zoom = (factor) => () => { scene.zoom(factor); this.soon(); };
  const pan = (pixels) => () => { scene.pan(pixels); this.soon(); };
  const anywhere = {
    "[": () => state.round > 0 && this.round(state.round - 1),
    "]": () => state.round < scene.roundsHere.length - 1 && this.round(state.round + 1),
    "/": () => byId("find").focus(),
    "?": () => this.toggleHelp(),
    "+": zoom(0.6), "=": zoom(0.6), "-": zoom(1 / 0.6), w: zoom(0.6), s: zoom(1 / 0.6),
    a: pan(-120), d: pan(120),
    f: () => { scene.fit(); this.soon(); },
    p: () => this.toggle("show-path"),
    j: () => this.toggle("show-joins"),
    l: () => state.selected >= 0 && this.go(scene.col.launch[state.selected]),
    h: () => state.selected >= 0 && this.go(scene.col.held[state.selected]),
    Escape: () => { this.select(-1); byId("tip").hidden = true; byId("lanes").blur(); },
  };
  const here = {
    ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1),
    Enter: () => state.selected >= 0 && this.go(state.selected),
  };
  const act = anywhere[event.key.length === 1 ? event.key.toLowerCase() : event.key] || (inLanes && here[event.key]);
  if (!act) return;
  event.preventDefault();
  act();
};
