// The tables below the lanes.

const FIRST = 6; // rows of a table that are seen at once
const PIECE_COLOURS = ["--kernel", "--launch", "--host", "--join"]; // as PIECES

class Tables {
  constructor(scene, actions) {
    this.scene = scene;
    this.actions = actions;
  }

  // A table; a row is {cells, to} where `to` is what a click does.
  table(caption, heads, rows) {
    const head = el("tr", {}, heads.map(([text, kind]) => el("th", { class: kind, scope: "col" }, text)));
    const body = rows.map(({ cells, to }) => {
      const made = el("tr", to ? { class: "link", tabindex: 0, onclick: to,
        onkeydown: (event) => { if (event.key === "Enter") to(); } } : {},
      cells.map((cell, i) => el("td", { class: heads[i][1] }, cell)));
      return made;
    });
    return el("div", { class: "scroll" }, el("table", {}, caption ? el("caption", {}, caption) : null, el("thead", {}, head), el("tbody", {}, body)));
  }

  put(id, title, ...content) {
    byId(id).replaceChildren(...el("div", {}, el("h2", {}, title), content).childNodes);
  }

  // Of a round.
  showRound() {
    this.parts();
    this.joins();
    this.comm();
    this.bubbles();
    this.answers();
  }

  bar(sums, total, names) {
    const made = el("div", { class: "share", role: "img", "aria-label": sums.map((ns, i) => `${names[i]} ${time(ns)}`).join(", ") });
    for (const [i, ns] of sums.entries()) {
      if (!ns) continue;
      const piece = el("i", { title: `${names[i]} ${time(ns)}` });
      piece.style.width = `${(100 * ns) / Math.max(total, 1)}%`;
      piece.style.background = `var(${PIECE_COLOURS[i]})`;
      made.append(piece);
    }
    return made;
  }

  parts() {
    const round = this.scene.round;
    const total = round ? round.end - round.start : 0;
    if (!round) return this.put("parts", "Critical path", el("p", { class: "muted" }, "There is no device, so there is no path."));
    const rows = round.parts.map((part) => {
      const took = part.sums.reduce((sum, ns) => sum + ns, 0);
      const named = part.host.length ? part.host : part.meanwhile;
      const longest = named.slice(0, 3).map(([name, ns]) => `${name} ${time(ns)}`).join(", ");
      const words = part.host.length ? "host: " : "the host meanwhile: ";
      return { cells: [
        part.label,
        time(took),
        percent(took / Math.max(total, 1)),
        [this.bar(part.sums, total, PIECES), longest ? el("div", { class: "more" }, words + longest) : ""],
      ] };
    });
    const rests = [...round.rests].sort((a, b) => b[2] - a[2]).slice(0, 6).map(([edge, sure, ns]) =>
      `${edge < 0 ? "no dependency" : EDGES[edge]} ${percent(ns / total)}${sure ? ` (${SURE[sure]})` : ""}`);
    const legend = el("p", { class: "more" }, PIECES.map((name, i) => {
      const swatch = el("i", { class: "swatch" });
      swatch.style.background = `var(${PIECE_COLOURS[i]})`;
      return el("span", { class: "keyed" }, swatch, `${name} ${time(round.sums[i])}`);
    }));
    this.put("parts", round.kind === "whole trace" ? "Critical path" : "Critical path of the round", legend,
      this.table(null, [["part", "name"], ["time", "n"], ["share", "n"], ["made of", "wide"]], rows),
      el("p", { class: "more" }, `It rests on: ${rests.join(", ")}.`));
  }

  joins() {
    const { scene } = this;
    const joins = scene.round?.joins || [];
    if (!joins.length) {
      return this.put("joins", "Joins", el("p", { class: "muted" }, this.absent("No operation of this round is known to wait for two streams.")));
    }
    const rows = joins.map((join, i) => ({
      cells: [
        el("span", { class: "dot" }, i + 1),
        [scene.shortOf(join.row), el("div", { class: "more" }, `waits for ${this.nameAndLane(join.branch)}, beside ${this.nameAndLane(join.other)}`)],
        time(join.waited),
        el("span", { class: `badge ${join.sure ? "inferred" : ""}` }, `${EDGES[join.edge]}${join.sure ? "?" : ""}`),
        !join.beside ? "in a row" : join.onPath ? "on the path" : "hidden",
      ],
      to: () => this.actions.go(join.row, Math.min(scene.endOf(join.other), scene.col.start[join.row] - join.waited)),
    }));
    const heads = [["", ""], ["operation", "wide name"], ["waits", "n"], ["known by", ""], ["costs", "n"]];
    this.put("joins", "Joins: who waits for whom",
      this.table("how much later the last branch was done than the one before it", heads, rows.slice(0, FIRST)),
      folded(rows.length - FIRST, () => this.table(null, heads, rows.slice(FIRST))));
  }

  nameAndLane(e) {
    return e < 0 ? "something not in the trace" : `${this.scene.shortOf(e)} on ${this.scene.laneOf(e).name}`;
  }

  absent(words) {
    const round = this.scene.round;
    return round && !round.here ? "The operations of this round are not in this page; write one with --round." : words;
  }

  comm() {
    const round = this.scene.round;
    if (!round?.comm.length) {
      return this.put("comm", "Communication", el("p", { class: "muted" }, "No operation of this round is known to be communication."));
    }
    const total = round.end - round.start;
    const rows = round.comm.map(([what, count, all, covered, exposed], i) => ({ cells: [
      i ? what : "all together", number(count), time(all), time(covered), time(exposed), percent(exposed / Math.max(total, 1)),
    ] }));
    this.put("comm", "Communication: total, covered, exposed",
      this.table("covered: while a kernel of the same rank ran", [["what", "wide name"], ["count", "n"], ["total", "n"], ["covered", "n"], ["exposed", "n"], ["of the round", "n"]], rows));
  }

  bubbles() {
    const { scene } = this;
    const bubbles = scene.round?.bubbles || [];
    if (!bubbles.length) {
      return this.put("bubbles", "Bubbles", el("p", { class: "muted" }, this.absent("No stream stood idle between two operations.")));
    }
    const rows = bubbles.map((bubble) => ({
      cells: [
        bubble.row < 0 ? "" : scene.laneOf(bubble.row).name,
        time(bubble.end - bubble.start),
        [bubble.row < 0 ? "" : `before ${scene.shortOf(bubble.row)}`,
          el("div", { class: "more" }, bubble.edge < 0 ? "nothing known held it up" : `waited for ${this.nameAndLane(bubble.waited)}`)],
        el("span", { class: `badge ${bubble.sure ? "inferred" : ""}` }, `${EDGES[bubble.edge]}${bubble.sure ? "?" : ""}`),
      ],
      to: () => this.actions.spot(bubble),
    }));
    const heads = [["stream", "name"], ["idle", "n"], ["before what, and who was waited for", "wide name"], ["known by", ""]];
    this.put("bubbles", "Bubbles: where a stream stood idle", this.table(null, heads, rows.slice(0, FIRST)),
      folded(rows.length - FIRST, () => this.table(null, heads, rows.slice(FIRST))));
  }

  answers() {
    const { scene } = this;
    const answers = scene.round?.answers || [];
    const made = answers.map((answer) => {
      const values = Object.entries(answer.values).map(([name, value]) => [name.replace(/_ns$/, "").replaceAll("_", " "),
        Array.isArray(value) ? value.join("; ") : name.endsWith("_ns") && typeof value === "number" ? exact(value) : String(value)]);
      const badge = answer.known ? ["in the trace", "by name", "inferred", "with --width"][answer.source] : "unknown";
      return el("li", {},
        el("b", {}, String(answer.q)),
        el("div", { class: answer.known ? "" : "unknown" },
          el("div", { class: "q" }, scene.model.questions[answer.q - 1]),
          el("div", {}, answer.text),
          values.length ? el("details", {}, el("summary", {}, "evidence"), factList(values)) : null),
        el("span", { class: `badge ${answer.source === 2 ? "inferred" : ""}` }, badge));
    });
    this.put("answers", scene.round && scene.round.kind !== "whole trace" ? `Nine questions, round ${scene.round.n}` : "Nine questions",
      made.length ? el("ol", { class: "answers" }, made) : el("p", { class: "muted" }, "There is no round to ask of."));
  }

  // Of a rank, over its rounds.
  showRank() {
    const { scene } = this;
    const named = Object.entries(scene.model.summary[scene.state.rank] || {}).filter(([name]) => name.endsWith("_ns"));
    if (!named.length || named[0][1][0] < 2) return byId("summary").replaceChildren();
    const heads = [["", "name"], ["rounds", "n"], ["median", "n"], ["p90", "n"], ["least", "n"], ["most", "n"], ["over 1.5 times the median", "name"]];
    const [first, rest] = [true, false].map((wanted) => named.filter(([name]) => !name.startsWith("q") === wanted).map((one) => this.overRounds(one)));
    this.put("summary", "Over rounds", el("p", { class: "more" }, `${scene.model.marked ? "" : "inferred: "}${scene.model.evidence[scene.state.rank] || ""}`),
      this.table("without prefill, warm-up and clipped rounds", heads, first),
      rest.length ? el("details", {}, el("summary", {}, `${plural(rest.length, "number")} of the nine answers`), this.table(null, heads, rest)) : null);
  }

  overRounds([name, [count, middle, p90, low, high, outliers]]) {
    const links = outliers.slice(0, 8).map((n) => el("a", { class: "round", role: "button", tabindex: 0,
      onclick: () => this.actions.round(n), onkeydown: (event) => { if (event.key === "Enter") this.actions.round(n); } }, String(n)));
    return { cells: [metricName(name), number(count), time(middle), time(p90), time(low), time(high), links] };
  }

  showQuality() {
    const { quality, ranks } = this.scene.model;
    const edges = quality.edges.map(([kind, count]) => `${EDGES[kind]} ${number(count)}`).join(", ");
    const lines = [
      `${percent(quality.launched)} of the devices' work time has its launch in the trace; ${plural(quality.work, "operation")} of devices.`,
      `Dependencies: ${edges || "none"}. Inferred by a rule: ${number(quality.inferredEdges)}; guessed: ${number(quality.guessedEdges)}; kinds of operations inferred: ${number(quality.inferredKinds)}.`,
    ];
    const totals = this.table("busy + idle = span; covered + exposed = communication", [["rank", ""], ["span", "n"], ["busy", "n"], ["idle", "n"],
      ["computing", "n"], ["communication", "n"], ["covered", "n"], ["exposed", "n"], ["copies alone", "n"]],
    quality.totals.map((t) => ({ cells: [String(t.rank), ...[t.span, t.busy, t.idle, t.computing, t.comm, t.covered, t.exposed, t.copying].map((ns) => time(ns))] })));
    const notes = quality.notes.map(([what, count, why, rank]) => ({ cells: [what, number(count), why, ranks.length < 2 ? "" : rank] }));
    const vendor = quality.vendor.map(([rank, word, theirs, ours]) => ({ cells: [String(rank), word, exact(theirs), exact(ours), exact(ours - theirs)] }));
    const sources = quality.sources.map((s) => ({ cells: [s.path, s.format, String(s.rank), number(s.read), number(s.rows), number(s.marks),
      Object.entries(s.dropped).map(([why, n]) => `${why} ${number(n)}`).join(", ") || "nothing"] }));
    this.put("quality", "The data",
      lines.map((line) => el("p", { class: "more" }, line)),
      quality.totals.length ? totals : null,
      notes.length ? this.table("what is missing, repaired or inferred", [["", "name"], ["count", "n"], ["why", "wide"], [ranks.length > 1 ? "ranks" : "", "nowrap"]], notes) : null,
      vendor.length ? this.table("the vendor's own totals, and ours", [["rank", ""], ["total", "wide"], ["vendor", "n"], ["ours", "n"], ["difference", "n"]], vendor) : null,
      sources.length ? this.table("files", [["path", "file"], ["format", "nowrap"], ["rank", ""], ["read", "n"], ["operations", "n"], ["marks", "n"], ["dropped", "wide name"]], sources) : null);
  }
}

// What can be unfolded, or nothing.
function folded(count, make) {
  return count > 0 ? el("details", {}, el("summary", {}, `${number(count)} more`), make()) : null;
}

// A number of the summary in words.
function metricName(name) {
  if (name === "round_ns") return "round";
  if (name === "token_ns") return "output token";
  const asked = /^q(\d) (.*?)(_ns)?$/.exec(name);
  if (asked) return `question ${asked[1]}: ${asked[2].replaceAll("_", " ")}`;
  return name.replace(/_ns$/, "").replace(/^path /, "on the path: ").replace(/^phase /, "phase ");
}
