// State, events and the beginning.

class Page {
  constructor(model, columns) {
    this.scene = new Scene(model, columns);
    this.theme = new Theme();
    this.painter = new Painter(this.scene, this.theme, byId("lanes"), byId("axis"));
    this.strip = new Strip(this.scene, this.theme, byId("strip"), byId("histogram"), (n) => this.round(n));
    this.tables = new Tables(this.scene, {
      go: (e, from) => this.go(e, from), spot: (bubble) => this.spot(bubble), round: (n) => this.round(n),
    });
    this.waiting = false;
  }

  begin() {
    const { scene } = this;
    byId("main").hidden = false;
    const several = scene.model.ranks.some((rank) => scene.rounds.get(rank).length > 1) || scene.model.ranks.length > 1;
    byId("rounds").hidden = !several;
    const any = scene.model.ranks.some((rank) => scene.rounds.get(rank).length);
    for (const id of ["parts", "comm", "joins", "bubbles", "answers"]) byId(id).hidden = !any;
    for (const rank of scene.model.ranks) byId("rank").append(el("option", { value: rank }, `rank ${rank}`));
    byId("rank").parentElement.hidden = scene.model.ranks.length < 2;
    if (scene.model.leftOut) {
      byId("left-out").textContent = scene.model.leftOut;
      byId("left-out").hidden = false;
    }
    this.legend();
    this.keys();
    this.tables.showQuality();
    const asked = new URLSearchParams(location.hash.slice(1));
    const rank = Number(asked.get("rank") ?? scene.model.first.rank);
    this.rank(scene.rounds.has(rank) ? rank : scene.model.ranks[0], Number(asked.get("round") ?? scene.model.first.round));
    this.events();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.painter.draw();
    });
  }

  all() {
    this.scene.layout();
    this.strip.draw();
    this.soon();
  }

  rank(rank, round) {
    const { scene } = this;
    scene.state.rank = rank;
    byId("rank").value = String(rank);
    this.metrics();
    this.tables.showRank();
    const rounds = scene.roundsHere;
    this.round(rounds[round] ? round : Math.max(0, rounds.findIndex((one) => one.counts)));
  }

  metrics() {
    const { scene } = this;
    const names = Object.keys(scene.model.summary[scene.state.rank] || {});
    const wanted = names.filter((name) => /^(round_ns|token_ns|path |phase |q[23457] .*_ns)/.test(name));
    const list = wanted.length ? wanted : ["round_ns"];
    byId("metric").replaceChildren(...list.map((name) => el("option", { value: name }, metricName(name))));
    if (!list.includes(scene.state.metric)) scene.state.metric = list[0];
    byId("metric").value = scene.state.metric;
  }

  round(n) {
    const { scene } = this;
    const { state } = scene;
    Object.assign(state, { round: n, selected: -1, hover: -1, spot: null, range: null });
    const round = scene.round;
    const count = scene.roundsHere.length;
    byId("previous").disabled = n <= 0;
    byId("next").disabled = n >= count - 1;
    byId("strip").parentElement.hidden = byId("metric").parentElement.hidden = count < 2;
    byId("previous").hidden = byId("next").hidden = count < 2;
    byId("round-title").textContent = !round ? "Lanes" : round.kind === "whole trace" ? "The whole trace" : `Round ${round.n}`;
    byId("round-facts").textContent = round ? this.roundWords(round) : "";
    byId("tip").hidden = true;
    fillInspector(byId("inspect"), scene, (e) => this.go(e));
    scene.fit();
    this.tables.showRound();
    this.all();
    this.remember();
  }

  roundWords(round) {
    const words = [time(round.end - round.start)];
    if (round.kind !== "round" && round.kind !== "whole trace") words.push(`${round.kind}${round.why ? `: ${round.why}` : ""}`);
    const facts = Object.entries(round.facts).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
    words.push(...facts);
    if (round.advanced) words.push(plural(round.advanced.reduce((sum, n) => sum + n, 0), "token"));
    if (round.cost) words.push(`${time(round.cost)} a token`);
    if (!round.here) words.push("its operations are not in this page");
    return words.join(" · ");
  }

  remember() {
    const { rank, round } = this.scene.state;
    try {
      history.replaceState(null, "", `#rank=${rank}&round=${round}`);
    } catch {
      // A browser may forbid it for a file; then the page has no address of its own.
    }
  }

  select(e) {
    this.scene.state.selected = e;
    this.scene.state.spot = null;
    fillInspector(byId("inspect"), this.scene, (other) => this.go(other));
    this.soon();
  }

  // Bring an element into view, its lane too, and choose it.
  go(e, from) {
    if (e < 0) return;
    const { scene } = this;
    const { start } = scene.col;
    const [t0, t1] = [Math.min(from ?? start[e], start[e]), scene.endOf(e)];
    const room = Math.max((t1 - t0) * 1.5, 2000);
    scene.show(t0 - room, t1 + room);
    const lane = scene.laneOf(e);
    if (!scene.laneAt[scene.col.lane[e]]) {
      scene.state.open.add(lane.rank);
      scene.state.threads = byId("show-threads").checked = true;
      scene.layout();
    }
    this.select(e);
    byId("frame").scrollIntoView({ block: "nearest" });
  }

  spot(bubble) {
    const { scene } = this;
    const room = (bubble.end - bubble.start) * 0.6;
    scene.show(bubble.start - room, bubble.end + room);
    this.select(bubble.row);
    scene.state.spot = bubble;
    byId("frame").scrollIntoView({ block: "nearest" });
  }

  find(text) {
    const { scene } = this;
    const wanted = text.trim().toLowerCase();
    const found = byId("found");
    if (!wanted) {
      scene.state.filter = null;
      found.textContent = "";
    } else {
      const filter = Uint8Array.from(scene.model.names, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0));
      scene.state.filter = filter;
      let count = 0;
      let sum = 0;
      const [from, to] = scene.round ? [scene.round.start, scene.round.end] : scene.model.range;
      for (let e = 0; e < scene.col.name.length; e++) {
        if (!filter[scene.col.name[e]] || scene.col.start[e] < from || scene.col.start[e] >= to) continue;
        count++;
        sum += scene.col.dur[e];
      }
      found.textContent = `${number(count)} in the round, ${time(sum)}`;
    }
    this.soon();
  }

  // Choose the next operation of the same strip, or of all that were found.
  step(by) {
    const { scene } = this;
    const { selected, filter } = scene.state;
    if (selected < 0) {
      scene.pan(by * 80);
      return this.soon();
    }
    const strip = scene.strips[scene.col.lane[selected]][scene.col.sub[selected]];
    let i = strip.rows.indexOf(selected) + by;
    while (filter && i >= 0 && i < strip.count && !filter[scene.col.name[strip.rows[i]]]) i += by;
    if (i < 0 || i >= strip.count) return;
    const e = strip.rows[i];
    const { t0, t1 } = scene.view;
    if (scene.col.start[e] < t0 || scene.endOf(e) > t1) {
      const middle = scene.col.start[e] + scene.col.dur[e] / 2;
      scene.show(middle - (t1 - t0) / 2, middle + (t1 - t0) / 2);
    }
    this.select(e);
  }

  legend() {
    const kinds = new Set(this.scene.col.kind);
    const entries = [["kernel", "kernel", 0], ["comm", "communication", 3], ["copy", "copy", 1], ["set", "set", 2], ["wait", "wait", 5],
      ["launch", "graph launch", 7], ["host", "host call", 6], ["sync", "host waits", 8], ["part", "part", 9]];
    const made = entries.filter(([, , kind]) => kinds.has(kind)).map(([name, words]) => {
      const swatch = el("i");
      swatch.style.background = `var(--${name})`;
      return el("span", {}, swatch, words);
    });
    const path = el("i");
    Object.assign(path.style, { background: "var(--ink)", height: "3px", verticalAlign: "3px" });
    const delay = el("i");
    Object.assign(delay.style, { height: "0", borderTop: "2px dashed var(--ink)", verticalAlign: "3px", borderRadius: "0" });
    const join = el("i");
    join.style.background = "repeating-linear-gradient(135deg, var(--join) 0 1.5px, transparent 1.5px 5px)";
    byId("legend").replaceChildren(...made, el("span", {}, path, "critical path"), el("span", {}, delay, "its delays"), el("span", {}, join, "a join waits"));
    this.hint(false);
  }

  hint(focused) {
    byId("lanes-hint").textContent = focused
      ? "wheel zooms · drag pans · shift+drag zooms to a stretch · Esc lets the wheel go"
      : "ctrl+wheel zooms · drag pans · click to let the wheel zoom alone · ? for keys";
  }

  keys() {
    const keys = [["+ −", "zoom (also W, S)"], ["← →", "pan, or the next operation of the stream"], ["A D", "pan"], ["F", "the whole round"],
      ["[ ]", "previous, next round"], ["Enter", "zoom to the chosen operation"], ["L", "go to the call that launched it"],
      ["H", "go to what held it up"], ["P", "critical path on, off"], ["J", "joins on, off"], ["/", "find operations"], ["Esc", "choose nothing"]];
    byId("keys").replaceChildren(...keys.map(([key, words]) => el("div", {}, key.split(" ").map((one) => [el("kbd", {}, one), " "]), words)));
  }
}
