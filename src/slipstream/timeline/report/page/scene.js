// What there is to draw, where it lies, and what part of it is in view.

const GUTTER = 172; // left of the lanes: their names
const HEIGHTS = { mark: 15, tick: 8, part: 7 };
const SPAN_LEAST = 50; // ns that a view shows at least

class Scene {
  constructor(model, columns) {
    this.model = model;
    this.col = columns;
    this.strips = this.group();
    this.paths = this.pathsByRank();
    this.rounds = new Map(model.ranks.map((rank) => [rank, model.rounds[rank] || []]));
    this.view = { t0: 0, t1: 1, width: 800, height: 0 };
    this.state = {
      rank: model.first.rank, round: -1, metric: "round_ns", path: true, joins: true, threads: false,
      open: new Set(), filter: null, hover: -1, selected: -1, spot: null, range: null,
    };
    this.items = [];
  }

  // The elements of each strip of each lane, in the order of time.
  group() {
    const { lane, sub, start, dur } = this.col;
    const strips = this.model.lanes.map((one) => one.strips.map((what) => ({ what, count: 0, rows: null, over: false })));
    for (let e = 0; e < lane.length; e++) strips[lane[e]][sub[e]].count++;
    for (const strip of strips.flat()) strip.rows = new Uint32Array(strip.count), strip.count = 0;
    for (let e = 0; e < lane.length; e++) {
      const strip = strips[lane[e]][sub[e]];
      if (strip.count) {
        const last = strip.rows[strip.count - 1];
        // In the last of many strips elements may lie over each other.
        if (strip.what !== "tick" && start[last] + dur[last] > start[e]) strip.over = true;
      }
      strip.rows[strip.count++] = e;
    }
    for (const strip of strips.flat()) strip.blocks = strip.over || strip.what === "tick" ? [] : this.blocksOf(strip);
    return strips;
  }

  // Blocks of 16 and of 256 elements, so that what lies within one pixel is not looked at one by one: of each where it
  // begins and ends, how much of it is busy, and mostly with what.
  blocksOf(strip) {
    const { start, dur, kind } = this.col;
    const made = [];
    for (let size = 16; size * 4 <= strip.count; size *= 16) {
      const count = Math.floor(strip.count / size); // the last elements are in none
      const block = { size, from: new Float64Array(count), to: new Float64Array(count), busy: new Float64Array(count), kind: new Uint8Array(count) };
      const sums = new Float64Array(KINDS.length);
      for (let b = 0; b < count; b++) {
        sums.fill(0);
        for (let i = b * size; i < (b + 1) * size; i++) sums[kind[strip.rows[i]]] += dur[strip.rows[i]];
        const last = strip.rows[(b + 1) * size - 1];
        block.from[b] = start[strip.rows[b * size]];
        block.to[b] = start[last] + dur[last];
        block.busy[b] = sums.reduce((sum, ns) => sum + ns, 0);
        block.kind[b] = sums.indexOf(Math.max(...sums));
      }
      made.unshift(block);
    }
    return made;
  }

  // The pieces of each rank's paths: they follow each other in time. [from, to) among all pieces.
  pathsByRank() {
    const found = new Map();
    for (const rank of this.model.ranks) {
      const here = (this.model.rounds[rank] || []).filter((round) => round.here);
      if (here.length) found.set(rank, [here[0].path[0], here[here.length - 1].path[1]]);
    }
    return found;
  }

  get roundsHere() { return this.rounds.get(this.state.rank) || []; }
  get round() { return this.roundsHere[this.state.round]; }
  nameOf(e) { return this.model.names[this.col.name[e]]; }
  shortOf(e) { return this.model.shorts[this.col.name[e]] || this.nameOf(e); }
  endOf(e) { return this.col.start[e] + this.col.dur[e]; }
  laneOf(e) { return this.model.lanes[this.col.lane[e]]; }
  isWork(e) { return this.laneOf(e).device !== null && this.col.kind[e] <= KIND.COMM; }
  isOpen(rank) { return rank === this.state.rank || this.state.open.has(rank); }

  x(t) { return GUTTER + (t - this.view.t0) * this.scale; }
  t(x) { return this.view.t0 + (x - GUTTER) / this.scale; }
  get scale() { return (this.view.width - GUTTER) / (this.view.t1 - this.view.t0); }

  // Where every rank, strip of phases and lane lies, from top to bottom.
  layout() {
    const items = [];
    let y = 0;
    const { model, state } = this;
    const ordered = [state.rank, ...model.ranks.filter((rank) => rank !== state.rank)];
    const onPath = this.lanesOnPath();
    this.laneAt = new Array(model.lanes.length).fill(null);
    for (const rank of ordered) {
      const open = this.isOpen(rank);
      if (model.ranks.length > 1) {
        items.push({ type: "rank", rank, y, h: 24, open });
        y += 24;
      }
      if (open && this.rounds.get(rank)?.length) {
        const h = 17 * this.phaseRows(rank) + 6;
        items.push({ type: "phases", rank, y, h });
        y += h;
      }
      for (const [number, lane] of model.lanes.entries()) {
        if (lane.rank !== rank || !lane.strips.length) continue;
        const shown = onPath.has(number) || (open ? state.threads || lane.shown : lane.home);
        if (!shown) continue;
        const item = this.laneItem(number, lane, y, open);
        items.push(item);
        this.laneAt[number] = item;
        y += item.h;
      }
    }
    this.items = items;
    this.view.height = y + 6;
  }

  laneItem(number, lane, y, open) {
    const host = lane.device === null;
    const strips = [];
    let at = y + 5;
    let seen = 0;
    for (const [sub, what] of lane.strips.entries()) {
      let h = HEIGHTS[what];
      if (what === "op") h = host ? 14 : seen++ ? 14 : 24;
      if (!open && what !== "op") h = 0;
      strips.push({ sub, what, y: at, h });
      at += h ? h + 1 : 0;
    }
    return { type: "lane", lane: number, rank: lane.rank, host, y, h: Math.max(at + 5 - y, 30), strips };
  }

  lanesOnPath() {
    const found = new Set();
    const [from, to] = this.round?.path || [0, 0];
    for (let p = from; p < to; p++) {
      const row = this.col.pathRow[p];
      if (row >= 0) found.add(this.col.lane[row]);
    }
    return found;
  }

  // Phases of a round may run beside each other: how many rows they need.
  phaseRows(rank) {
    let most = 1;
    for (const round of this.rounds.get(rank)) {
      if (!round.placed) {
        const ends = [];
        for (const phase of round.phases) {
          let row = ends.findIndex((end) => end <= phase.start);
          if (row < 0) row = ends.length;
          ends[row] = phase.end;
          phase.row = row;
        }
        round.placed = ends.length || 1;
      }
      most = Math.max(most, round.placed);
    }
    return Math.min(most, 4);
  }

  // The box of an element on the canvas, or null where its lane is not shown.
  box(e) {
    const item = e >= 0 ? this.laneAt[this.col.lane[e]] : null;
    if (!item) return null;
    const strip = item.strips[this.col.sub[e]];
    return { y: strip.y, h: strip.h || 1, x0: this.x(this.col.start[e]), x1: this.x(this.endOf(e)) };
  }

  // The first index in a strip that can reach into view.
  firstIn(strip, t) {
    if (strip.over) return 0;
    const { start } = this.col;
    return Math.max(0, upperBound(strip.count, t, (i) => start[strip.rows[i]]) - 1);
  }

  // What lies at a point: of elements within two pixels the one that is nearest, then the longest.
  hit(x, y) {
    if (x < GUTTER) return -1;
    const item = this.items.find((one) => y >= one.y && y < one.y + one.h);
    if (!item || item.type !== "lane") return -1;
    let best = -1;
    let bestKey = [Infinity, 0];
    for (const place of item.strips) {
      if (!place.h || y < place.y - 1 || y > place.y + place.h) continue;
      const strip = this.strips[item.lane][place.sub];
      const reach = 2 / this.scale;
      const t = this.t(x);
      for (let i = this.firstIn(strip, t - reach * 3); i < strip.count; i++) {
        const e = strip.rows[i];
        if (this.col.start[e] > t + reach) break;
        const far = Math.max(0, this.col.start[e] - t, t - this.endOf(e));
        if (far > reach) continue;
        const key = [far, -this.col.dur[e]];
        if (key[0] < bestKey[0] || (key[0] === bestKey[0] && key[1] < bestKey[1])) [best, bestKey] = [e, key];
      }
    }
    return best;
  }

  show(t0, t1) {
    const [least, most] = this.model.range;
    const whole = Math.max(most - least, SPAN_LEAST);
    const span = Math.min(Math.max(t1 - t0, SPAN_LEAST), whole * 1.2);
    let from = (t0 + t1 - span) / 2;
    from = Math.min(Math.max(from, least - span * 0.5), most - span * 0.5);
    this.view.t0 = from;
    this.view.t1 = from + span;
  }

  zoom(factor, at = (this.view.t0 + this.view.t1) / 2) {
    const { t0, t1 } = this.view;
    const span = Math.max(SPAN_LEAST, (t1 - t0) * factor);
    const share = (at - t0) / (t1 - t0);
    this.show(at - span * share, at + span * (1 - share));
  }

  pan(pixels) {
    const by = pixels / this.scale;
    this.show(this.view.t0 + by, this.view.t1 + by);
  }

  fit() {
    const round = this.round;
    const [from, to] = round ? [round.start, round.end] : this.model.range;
    const room = (to - from) * 0.02;
    this.show(from - room, to + room);
  }
}
