// Drawing of lanes. What is narrower than a pixel is added up and drawn as how much of the pixel is busy, and with
// what; so the number of rectangles depends on the pixels, not on the operations.

const CLASSES = ["kernel", "copy", "set", "comm", "wait", "wait", "host", "launch", "sync", "part", "mark", "dim"];
const DIM = 11;
const LEVELS = 4;
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

class Theme {
  constructor() { this.read(); }

  read() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(`--${name}`).trim();
    this.get = get;
    this.fill = CLASSES.map((name) => get(name));
    this.text = CLASSES.map((name) => (name === "dim" ? get("muted") : get(`${name}-text`)));
    this.hatch = null;
    // Neighbouring kernels are told apart by three shades of one colour.
    this.shades = [0, 0.14, 0.28].map((share) => mixed(get("kernel"), get("bg"), share));
  }

  hatched(context) {
    if (this.hatch) return this.hatch;
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = this.get("join");
    pen.lineWidth = 1.4;
    pen.beginPath();
    for (const at of [-8, 0, 8]) {
      pen.moveTo(at, 8);
      pen.lineTo(at + 8, 0);
    }
    pen.stroke();
    this.hatch = context.createPattern(tile, "repeat");
    return this.hatch;
  }
}

function mixed(one, other, share) {
  const parse = (text) => {
    const hex = text.replace("#", "");
    const long = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
    return [0, 2, 4].map((at) => parseInt(long.slice(at, at + 2), 16));
  };
  const [a, b] = [parse(one), parse(other)];
  return `rgb(${a.map((value, i) => Math.round(value * (1 - share) + b[i] * share)).join(",")})`;
}

// Sizes a canvas for the screen's pixels and returns its pen, which counts in CSS pixels.
function penOf(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

// The largest block that begins at an index of a strip and lies within one pixel, or null.
function within(blocks, i, scale) {
  for (const block of blocks) {
    if (i % block.size) continue;
    const b = i / block.size;
    if (b < block.from.length && (block.to[b] - block.from[b]) * scale < 1) return block;
  }
  return null;
}

// What is narrower than a pixel, added up by pixel; neighbouring pixels of one look become one rectangle.
class Pixels {
  constructor(boxes, y, h) {
    Object.assign(this, { boxes, y, h, pixel: -1, style: -1, from: 0, to: 0 });
    this.sums = new Float64Array(CLASSES.length);
  }

  add(pixel, style, wide) {
    if (pixel !== this.pixel) {
      this.flush();
      this.pixel = pixel;
    }
    this.sums[style] += wide;
  }

  flush() {
    if (this.pixel < 0) return;
    const { sums } = this;
    let best = 0;
    let total = 0;
    for (let c = 0; c < sums.length; c++) {
      total += sums[c];
      if (sums[c] > sums[best]) best = c;
    }
    sums.fill(0);
    const level = Math.max(1, Math.min(LEVELS, Math.ceil(total * LEVELS)));
    const style = best * (LEVELS + 1) + level;
    if (style !== this.style || this.to !== this.pixel) {
      this.push();
      this.style = style;
      this.from = this.pixel;
    }
    this.to = this.pixel + 1;
    this.pixel = -1;
  }

  end() {
    this.flush();
    this.push();
  }

  push() {
    if (this.style >= 0) this.boxes[this.style].push(this.from, this.y, this.to - this.from, this.h);
    this.style = -1;
  }
}

class Painter {
  constructor(scene, theme, lanes, axis) {
    this.scene = scene;
    this.theme = theme;
    this.lanes = lanes;
    this.axis = axis;
    // By style: x, y, width, height after each other.
    this.boxes = Array.from({ length: CLASSES.length * (LEVELS + 1) + 3 }, () => []);
    this.labels = [];
    this.widths = new Map();
    this.took = [];
  }

  draw() {
    const begun = performance.now();
    const { scene } = this;
    scene.view.width = this.lanes.clientWidth;
    this.ruler();
    const pen = penOf(this.lanes, scene.view.width, scene.view.height);
    const box = this.lanes.getBoundingClientRect();
    // Only what is on the screen.
    this.top = Math.max(0, -box.top - 50);
    this.bottom = Math.min(scene.view.height, window.innerHeight - box.top + 50);
    const visible = scene.items.filter((item) => item.y + item.h >= this.top && item.y <= this.bottom);
    for (const list of this.boxes) list.length = 0;
    this.labels.length = 0;
    this.ground(pen, visible);
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, scene.view.width - GUTTER, scene.view.height);
    pen.clip();
    for (const item of visible) {
      if (item.type === "lane") this.lane(item);
      if (item.type === "phases") this.phases(pen, item);
    }
    this.fill(pen);
    this.write(pen);
    paintOverlay(pen, scene, this.theme, this);
    pen.restore();
    for (const item of visible) this.name(pen, item);
    this.took.push(performance.now() - begun);
    if (this.took.length > 500) this.took.shift();
  }

  // Lines between lanes, grid, and what lies outside the round.
  ground(pen, visible) {
    const { scene, theme } = this;
    const { width, height } = scene.view;
    pen.fillStyle = theme.get("line");
    for (const item of visible) if (item.y) pen.fillRect(item.type === "lane" ? GUTTER : 0, item.y, width, 0.5);
    for (const [x] of this.ticks()) pen.fillRect(x, 0, 0.5, height);
    pen.fillRect(GUTTER - 0.5, 0, 1, height);
    const round = scene.round;
    if (!round) return;
    pen.fillStyle = theme.get("shade");
    const [x0, x1] = [scene.x(round.start), scene.x(round.end)];
    if (x0 > GUTTER) pen.fillRect(GUTTER, 0, x0 - GUTTER, height);
    if (x1 < width) pen.fillRect(Math.max(GUTTER, x1), 0, width - Math.max(GUTTER, x1), height);
  }

  lane(item) {
    for (const place of item.strips) {
      if (!place.h) continue;
      const strip = this.scene.strips[item.lane][place.sub];
      if (place.what === "tick") this.tickStrip(strip, place);
      else this.strip(strip, place, item.host);
    }
  }

  strip(strip, place, host) {
    const { scene } = this;
    const { start, dur, kind, name } = scene.col;
    const { t0, t1, width } = scene.view;
    const scale = scene.scale;
    const filter = scene.state.filter;
    const { rows, count } = strip;
    const { y, h } = place;
    const sums = new Pixels(this.boxes, y, h);
    const blocks = filter ? [] : strip.blocks.filter((block) => block.size / strip.count < 0.5);
    for (let i = scene.firstIn(strip, t0); i < count; i++) {
      const block = blocks.length ? within(blocks, i, scale) : null;
      if (block) {
        const b = i / block.size;
        if (block.from[b] >= t1) break;
        sums.add(Math.floor(GUTTER + (block.from[b] - t0) * scale), block.kind[b], block.busy[b] * scale);
        i += block.size - 1;
        continue;
      }
      const e = rows[i];
      const from = start[e];
      if (from >= t1) break;
      const took = dur[e];
      if (from + took < t0) continue;
      const x0 = GUTTER + (from - t0) * scale;
      const wide = took * scale;
      const style = filter && !filter[name[e]] ? DIM : kind[e];
      if (wide < 1.2) {
        sums.add(Math.floor(x0), style, Math.max(wide, 0.1));
        continue;
      }
      sums.flush();
      const left = Math.max(x0, GUTTER - 2);
      const right = Math.min(x0 + wide, width + 2);
      const shade = style === KIND.KERNEL ? CLASSES.length * (LEVELS + 1) + (name[e] % 3) : style * (LEVELS + 1);
      const box = right - left > 4 ? right - left - 1 : right - left;
      this.boxes[shade].push(left, y, box, h);
      if (box > 22 && h >= 12) this.labels.push(left, y, box, h, e, style, host ? 1 : 0);
    }
    sums.end();
  }

  // Events take no time of the stream: a tick where they stand.
  tickStrip(strip, place) {
    const { scene } = this;
    const { t0, t1 } = scene.view;
    let last = -10;
    for (let i = scene.firstIn(strip, t0); i < strip.count; i++) {
      const e = strip.rows[i];
      if (scene.col.start[e] > t1) break;
      const x = scene.x(scene.col.start[e]);
      if (x < GUTTER || x - last < 2) continue;
      last = x;
      this.boxes[KIND.LAUNCH * (LEVELS + 1)].push(x - 0.75, place.y, 1.5, place.h);
    }
  }

  fill(pen) {
    const { theme } = this;
    for (let c = 0; c < CLASSES.length; c++) {
      pen.fillStyle = theme.fill[c];
      for (let level = 0; level <= LEVELS; level++) {
        pen.globalAlpha = level ? 0.25 + (0.75 * level) / LEVELS : 1;
        fillAll(pen, this.boxes[c * (LEVELS + 1) + level]);
      }
    }
    pen.globalAlpha = 1;
    for (let shade = 0; shade < 3; shade++) {
      pen.fillStyle = theme.shades[shade];
      fillAll(pen, this.boxes[CLASSES.length * (LEVELS + 1) + shade]);
    }
  }

  write(pen) {
    const { scene, theme, labels } = this;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (const small of [0, 1]) {
      pen.font = small ? `10px ${FONT}` : `11px ${FONT}`;
      for (let i = 0; i < labels.length; i += 7) {
        if (labels[i + 6] !== small) continue;
        const [x, y, w, h, e, style] = [labels[i], labels[i + 1], labels[i + 2], labels[i + 3], labels[i + 4], labels[i + 5]];
        const left = Math.max(x, GUTTER) + 4;
        const text = this.fitted(pen, scene.shortOf(e), x + w - left - 3, small);
        if (!text) continue;
        pen.fillStyle = theme.text[style];
        pen.fillText(text, left, y + h / 2 + 0.5);
      }
    }
  }

  // As much of a text as a width holds.
  fitted(pen, text, width, key) {
    if (width < 14) return "";
    const known = `${key}${text}`;
    let full = this.widths.get(known);
    if (full === undefined) {
      full = pen.measureText(text).width;
      this.widths.set(known, full);
    }
    if (full <= width) return text;
    const fits = Math.floor((text.length * (width - 8)) / full);
    return fits < 2 ? "" : `${text.slice(0, fits)}…`;
  }

  phases(pen, item) {
    const { scene, theme } = this;
    const { t0, t1 } = scene.view;
    const rounds = scene.rounds.get(item.rank);
    pen.font = `11px ${FONT}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    let at = Math.max(0, upperBound(rounds.length, t0, (i) => rounds[i].start) - 1);
    for (; at < rounds.length && rounds[at].start < t1; at++) {
      const round = rounds[at];
      if ((round.end - round.start) * scene.scale < 4) continue; // too many to tell apart
      const next = at + 1 < rounds.length ? scene.x(rounds[at + 1].start) : Infinity;
      for (const phase of round.phases) {
        const x0 = Math.max(scene.x(phase.start), GUTTER - 4);
        const x1 = Math.min(scene.x(phase.end), scene.view.width + 4);
        if (x1 <= GUTTER || x1 - x0 < 0.5) continue;
        const y = item.y + 4 + 17 * Math.min(phase.row, 3);
        pen.fillStyle = theme.get(round === scene.round ? "phase-alt" : "phase");
        pen.fillRect(x0, y, Math.max(1, x1 - x0 - 1), 15);
        const left = Math.max(x0, GUTTER) + 5;
        // Work outside of all phases lies around them: how far it reaches says nothing.
        const took = phase.name === "other" ? "" : time(phase.end - phase.start);
        const words = `${phase.name} ${took} ${phase.route === "unknown" ? "" : phase.route}`;
        // What reaches into the next round is drawn over by that one.
        const room = Math.min(x1, next > left ? next : x1) - left - 4;
        const text = this.fitted(pen, words, room, 0);
        pen.fillStyle = theme.get("phase-text");
        if (text) pen.fillText(text.endsWith("…") ? this.fitted(pen, phase.name, room, 0) : text, left, y + 8);
      }
    }
  }

  name(pen, item) {
    const { scene, theme } = this;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    const clip = (text, x, y, style, colour) => {
      pen.font = style;
      pen.fillStyle = theme.get(colour);
      pen.fillText(this.fitted(pen, text, GUTTER - x - 8, style), x, y);
    };
    if (item.type === "rank") {
      const text = `${item.rank === scene.state.rank ? "▾" : item.open ? "▾" : "▸"} rank ${item.rank}`;
      clip(text, 10, item.y + 12, `600 12px ${FONT}`, "text");
      return;
    }
    if (item.type === "phases") {
      clip("phases", 10, item.y + 12, `11px ${FONT}`, "muted");
      return;
    }
    const lane = scene.model.lanes[item.lane];
    clip(lane.name, 10, item.y + 11, `500 12px ${FONT}`, "text");
    const words = lane.device === null ? (lane.main ? "launches" : "thread") : lane.role;
    clip(`${lane.home ? "home, " : ""}${words}${lane.roleSource === 2 ? "?" : ""}`, 10, item.y + 24, `10.5px ${FONT}`, "muted");
  }

  // [x, ns since the round's start] of the marks of the axis.
  ticks() {
    const { scene } = this;
    const { t0, t1, width } = scene.view;
    const zero = scene.round ? scene.round.start : scene.model.range[0];
    const wanted = ((t1 - t0) * 110) / (width - GUTTER);
    const power = 10 ** Math.floor(Math.log10(Math.max(wanted, 1)));
    const step = Math.max(1, [1, 2, 5, 10].find((times) => times * power >= wanted) * power);
    const found = [];
    for (let at = Math.ceil((t0 - zero) / step) * step; at + zero < t1; at += step) found.push([scene.x(at + zero), at, step]);
    return found;
  }

  ruler() {
    const { scene, theme } = this;
    const width = scene.view.width;
    const pen = penOf(this.axis, width, 24);
    pen.font = `11px ${FONT}`;
    pen.textBaseline = "middle";
    pen.fillStyle = theme.get("muted");
    pen.textAlign = "left";
    pen.fillText(`${time(scene.view.t1 - scene.view.t0)} shown`, 10, 12.5);
    for (const [x, at, step] of this.ticks()) {
      if (x < GUTTER + 2 || x > width - 6) continue;
      pen.fillRect(x, 17, 0.75, 7);
      const unit = Math.abs(at) >= 1e6 || step >= 1e6 ? [1e6, "ms"] : step >= 100 ? [1e3, "us"] : [1, "ns"];
      const digits = Math.max(0, Math.round(Math.log10(unit[0]) - Math.floor(Math.log10(step) + 1e-9)));
      const text = at === 0 ? "0" : `${(at / unit[0]).toFixed(digits)} ${unit[1]}`;
      if (x + pen.measureText(text).width / 2 > width - 2) continue;
      pen.textAlign = x < GUTTER + 24 ? "left" : "center";
      pen.fillText(text, x, 10);
    }
  }
}

function fillAll(pen, boxes) {
  for (let i = 0; i < boxes.length; i += 4) pen.fillRect(boxes[i], boxes[i + 1], boxes[i + 2], boxes[i + 3]);
}
