// The distribution over rounds: a bar a round, and a histogram. Both choose a round.

const LEFT = 72; // of the bars: how long they are

class Strip {
  constructor(scene, theme, bars, histogram, choose) {
    Object.assign(this, { scene, theme, bars, histogram, choose });
    bars.addEventListener("click", (event) => this.choose(this.roundAt(event.offsetX)));
    bars.addEventListener("pointermove", (event) => this.tell(event));
    histogram.addEventListener("click", (event) => this.chooseBin(event.offsetX));
    histogram.addEventListener("pointermove", (event) => this.tellBin(event));
  }

  // Each number that a round has, by the names of the summary.
  static value(round, metric) {
    if (metric === "round_ns") return round.end - round.start;
    if (metric === "token_ns") return round.cost ?? NaN;
    const named = /^(phase|path) (.*)_ns$/.exec(metric);
    if (named?.[1] === "phase") {
      const mine = round.phases.filter((phase) => phase.name === named[2]);
      return mine.length ? mine.reduce((sum, phase) => sum + phase.end - phase.start, 0) : NaN;
    }
    if (named) {
      const part = round.parts.find((one) => one.label === named[2]);
      return part ? part.sums.reduce((sum, ns) => sum + ns, 0) : NaN;
    }
    const asked = /^q(\d) (.*)$/.exec(metric);
    const answer = asked && round.answers.find((one) => one.q === Number(asked[1]));
    const value = answer?.values[asked[2]];
    return typeof value === "number" ? value : NaN;
  }

  get values() { return this.scene.roundsHere.map((round) => Strip.value(round, this.scene.state.metric)); }

  geometry() {
    const width = this.bars.clientWidth;
    const count = this.scene.roundsHere.length;
    const gap = Math.min((width - LEFT) / Math.max(count, 1), 44);
    return { width, left: LEFT, gap, count };
  }

  roundAt(x) {
    const { left, gap, count } = this.geometry();
    return Math.max(0, Math.min(count - 1, Math.floor((x - left) / gap)));
  }

  draw() {
    const { scene, theme } = this;
    const rounds = scene.roundsHere;
    const values = this.values;
    const known = values.filter((value) => !Number.isNaN(value));
    const counted = values.filter((value, i) => rounds[i].counts && !Number.isNaN(value));
    this.drawBars(rounds, values, Math.max(1, maxOf(known)), median(counted));
    this.drawHistogram(counted.length ? counted : known, values[scene.state.round]);
    const label = this.words(scene.state.round);
    this.bars.setAttribute("aria-valuemin", "0");
    this.bars.setAttribute("aria-valuemax", String(rounds.length - 1));
    this.bars.setAttribute("aria-valuenow", String(scene.state.round));
    this.bars.setAttribute("aria-valuetext", label);
  }

  drawBars(rounds, values, most, middle) {
    const { scene, theme } = this;
    const { width, left, gap, count } = this.geometry();
    const height = 96;
    const pen = penOf(this.bars, width, height);
    const floor = height - 16;
    const y = (value) => floor - (value / most) * (floor - 8);
    pen.font = `11px ${FONT}`;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.fillStyle = theme.get("muted");
    pen.fillText(this.format(most), left - 6, y(most) + 2);
    pen.fillText("0", left - 6, floor - 3);
    const shown = new Map(); // pixel -> the largest of it: what stands out must not vanish
    for (let i = 0; i < count; i++) {
      const x = left + i * gap;
      const pixel = gap < 1 ? Math.floor(x) : i;
      const best = shown.get(pixel);
      if (best === undefined || values[i] > values[best]) shown.set(pixel, i);
    }
    const bar = Math.max(1, gap > 4 ? gap - 1.5 : gap);
    for (const i of shown.values()) {
      if (Number.isNaN(values[i])) continue;
      const x = gap < 1 ? Math.floor(left + i * gap) : left + i * gap;
      const mine = i === scene.state.round;
      pen.globalAlpha = mine || rounds[i].here ? 1 : 0.45;
      pen.fillStyle = mine ? theme.get("accent") : rounds[i].counts ? theme.get("launch") : theme.get("host");
      pen.fillRect(x, y(values[i]), bar, Math.max(1, floor - y(values[i])));
      if (!rounds[i].counts && !mine && bar > 3) {
        pen.fillStyle = theme.hatched(pen);
        pen.globalAlpha = 0.35;
        pen.fillRect(x, y(values[i]), bar, floor - y(values[i]));
      }
    }
    pen.globalAlpha = 1;
    if (!Number.isNaN(middle) && count > 1) {
      const end = left + count * gap;
      pen.fillStyle = theme.get("text");
      pen.fillRect(left, y(middle), end - left, 0.75);
      pen.textAlign = "left";
      const text = `median ${this.format(middle)}`;
      if (end + pen.measureText(text).width + 8 < width) pen.fillText(text, end + 6, y(middle));
    }
    const mine = scene.state.round;
    if (mine >= 0 && mine < count) {
      const x = left + (mine + 0.5) * gap;
      pen.fillStyle = theme.get("accent");
      pen.beginPath();
      pen.moveTo(x, floor + 2);
      pen.lineTo(x - 4, floor + 8);
      pen.lineTo(x + 4, floor + 8);
      pen.fill();
      pen.textAlign = "left";
      const text = `round ${mine}`;
      const room = pen.measureText(text).width;
      pen.textAlign = x + 8 + room < width ? "left" : "right";
      pen.fillText(text, x + (pen.textAlign === "left" ? 8 : -8), floor + 9);
    }
  }

  bins(values) {
    if (!values.length) return null;
    const [low, high] = [minOf(values), maxOf(values)];
    const count = Math.min(30, Math.max(1, Math.ceil(Math.sqrt(values.length) * 1.5)));
    const step = (high - low) / count || 1;
    const found = Array.from({ length: high > low ? count : 1 }, () => 0);
    for (const value of values) found[Math.min(found.length - 1, Math.floor((value - low) / step))]++;
    return { low, high, step, found };
  }

  drawHistogram(values, mine) {
    const { theme } = this;
    const width = this.histogram.clientWidth;
    const height = 96;
    const pen = penOf(this.histogram, width, height);
    const bins = (this.shownBins = values.length > 2 ? this.bins(values) : null);
    pen.font = `11px ${FONT}`;
    pen.textBaseline = "middle";
    if (!bins) return;
    const floor = height - 16;
    const gap = width / bins.found.length;
    const most = Math.max(...bins.found);
    for (const [i, count] of bins.found.entries()) {
      const here = mine >= bins.low + i * bins.step && (mine < bins.low + (i + 1) * bins.step || i === bins.found.length - 1);
      pen.fillStyle = theme.get(here ? "accent" : "launch");
      const h = count ? Math.max(1.5, (count / most) * (floor - 8)) : 0;
      pen.fillRect(i * gap, floor - h, Math.max(1, gap - 1), h);
    }
    pen.fillStyle = theme.get("muted");
    pen.fillText(this.format(bins.low), 0, height - 6);
    pen.textAlign = "right";
    if (bins.high > bins.low) pen.fillText(this.format(bins.high), width, height - 6);
    pen.textAlign = "left";
  }

  // The rounds of a bin, one after the other with each click.
  chooseBin(x) {
    const bins = this.shownBins;
    if (!bins) return;
    const i = Math.floor((x / this.histogram.clientWidth) * bins.found.length);
    const values = this.values;
    const inside = this.scene.roundsHere.map((_, n) => n).filter((n) => {
      const at = Math.min(bins.found.length - 1, Math.floor((values[n] - bins.low) / bins.step));
      return at === i && this.scene.roundsHere[n].counts;
    });
    if (!inside.length) return;
    const next = inside.findIndex((n) => n > this.scene.state.round);
    this.choose(inside[next < 0 ? 0 : next]);
  }

  format(value) {
    return this.scene.state.metric.endsWith("_ns") ? time(value) : number(Math.round(value * 100) / 100);
  }

  words(index) {
    const round = this.scene.roundsHere[index];
    if (!round) return "no round";
    const value = Strip.value(round, this.scene.state.metric);
    const apart = round.counts ? "" : ` · ${round.kind}${round.why ? `: ${round.why}` : ""}`;
    return `round ${round.n}: ${Number.isNaN(value) ? "unknown" : this.format(value)}${apart}`;
  }

  tell(event) {
    byId("strip-note").textContent = this.words(this.roundAt(event.offsetX));
  }

  tellBin(event) {
    const bins = this.shownBins;
    if (!bins) return;
    const i = Math.min(bins.found.length - 1, Math.floor((event.offsetX / this.histogram.clientWidth) * bins.found.length));
    const from = bins.low + i * bins.step;
    byId("strip-note").textContent = `${plural(bins.found[i], "round")} of ${this.format(from)} to ${this.format(from + bins.step)}`;
  }
}

const minOf = (values) => values.reduce((least, value) => Math.min(least, value), Infinity);
const maxOf = (values) => values.reduce((most, value) => Math.max(most, value), -Infinity);

function median(values) {
  if (!values.length) return NaN;
  const ordered = [...values].sort((a, b) => a - b);
  const middle = ordered.length >> 1;
  return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}
