// What is known of one operation: in the tooltip, and in full below the lanes.

function factsOf(scene, e) {
  const { col, model } = scene;
  const kind = col.kind[e];
  const lane = scene.laneOf(e);
  const round = scene.rounds.get(lane.rank)?.[col.round[e]];
  const zero = scene.round ? scene.round.start : model.range[0];
  const facts = [];
  const add = (name, value) => { if (value !== null && value !== undefined && value !== "") facts.push([name, value]); };
  const guessed = col.source[e] === 2 ? " (inferred)" : col.source[e] === 1 ? " (by its name)" : "";
  add("kind", KINDS[kind] + guessed);
  add("stream", `${lane.name}${model.ranks.length > 1 ? ` of rank ${lane.rank}` : ""}`);
  add("start", `${exact(col.start[e] - zero)} in ${scene.round ? `round ${scene.round.n}` : "the trace"}`);
  add("duration", exact(col.dur[e]));
  if (col.bytes[e] >= 0) add("bytes", bytesOf(col.bytes[e], col.dur[e]));
  if (kind !== KIND.MARK) add("launched by", launchOf(scene, e));
  add("held up by", heldOf(scene, e));
  if (col.graph[e] >= 0) {
    const graph = model.graphs[col.graph[e]];
    const node = col.node[e] >= 0 ? `, node ${col.node[e]} of ${graph.nodes}` : "";
    add("graph", `${graph.key}${graph.source === 2 ? " (inferred)" : ""}, replay ${col.replay[e]}${node}`);
  }
  if (col.group[e] >= 0) add("group", groupOf(model.groups[col.group[e]], col.sequence[e]));
  if (round && round.phases[col.phase[e]]) add("phase", `${round.phases[col.phase[e]].name} of round ${round.n}`);
  if (col.parent[e] >= 0) add("part of", scene.shortOf(col.parent[e]));
  add("on the path", onPath(scene, e));
  return facts;
}

function bytesOf(bytes, ns) {
  return ns > 0 ? `${size(bytes)}, ${(bytes / ns).toFixed(bytes / ns < 10 ? 2 : 1)} GB/s` : size(bytes);
}

function launchOf(scene, e) {
  const from = scene.col.launch[e];
  if (from < 0) return scene.laneOf(e).device === null ? "" : "not in the trace";
  const before = scene.col.start[e] - scene.endOf(from);
  const when = before >= 0 ? `${time(before)} after it returned` : `${time(-before)} before it returned`;
  return `${scene.shortOf(from)} on ${scene.laneOf(from).name}; begins ${when}`;
}

function heldOf(scene, e) {
  const from = scene.col.held[e];
  if (from < 0) return "";
  const sure = scene.col.heldSure[e] > 0 ? `, ${SURE[scene.col.heldSure[e]]}` : "";
  return `${scene.shortOf(from)} on ${scene.laneOf(from).name} (${EDGES[scene.col.heldBy[e]]}${sure})`;
}

function groupOf(group, sequence) {
  const ranks = group.ranks.length ? ` of ${plural(group.ranks.length, "rank")}` : "";
  return `${group.name || "unnamed"}${ranks}${sequence >= 0 ? `, number ${sequence}` : ""}`;
}

// How much of the chosen rank's path an element is.
function onPath(scene, e) {
  const range = scene.paths.get(scene.state.rank);
  if (!range) return "";
  const { pathStart, pathDur, pathRow, pathPiece } = scene.col;
  const [from, to] = range;
  // Its pieces lie within its time, delays in front of it before.
  let p = from + upperBound(to - from, scene.col.start[e] - 1, (i) => pathStart[from + i] + pathDur[from + i]);
  let sum = 0;
  for (; p < to && pathStart[p] <= scene.endOf(e); p++) if (pathRow[p] === e && pathPiece[p] <= PIECE.HOST) sum += pathDur[p];
  return sum ? `${exact(sum)} of it` : "no";
}

function factList(facts) {
  return el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
}

function fillTip(tip, scene, e) {
  const wanted = new Set(["kind", "stream", "start", "duration", "bytes", "launched by", "held up by", "graph", "on the path"]);
  const facts = factsOf(scene, e).filter(([name]) => wanted.has(name));
  tip.replaceChildren(el("h3", {}, scene.nameOf(e)), factList(facts));
}

function placeTip(tip, x, y) {
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > window.innerWidth ? x - width - 14 : x + 16;
  const top = y + 18 + height > window.innerHeight ? y - height - 12 : y + 18;
  tip.style.left = `${Math.max(6, left)}px`;
  tip.style.top = `${Math.max(6, top)}px`;
}

function fillInspector(target, scene, go) {
  const e = scene.state.selected;
  if (e < 0) {
    target.replaceChildren();
    return;
  }
  const { launch, held, parent } = scene.col;
  const links = [["the call that launched it", launch[e]], ["what held it up", held[e]], ["what it is part of", parent[e]]];
  const details = Object.entries(scene.model.details[e] || {}).map(([name, value]) => [name, value]);
  target.replaceChildren(
    el("h3", {}, scene.nameOf(e)),
    factList([...factsOf(scene, e), ["start by the trace's clock", clock(scene.model.baseNs, scene.col.start[e])],
      ...(scene.col.correlation[e] >= 0 ? [["correlation", scene.col.correlation[e]]] : []), ...details]),
    el("p", { class: "more" }, links.filter(([, to], i) => to >= 0 && (i !== 1 || to !== launch[e]))
      .map(([words, to]) => el("a", { class: "round", role: "button", tabindex: 0, onclick: () => go(to),
        onkeydown: (event) => { if (event.key === "Enter") go(to); } }, `go to ${words}`))),
  );
}
