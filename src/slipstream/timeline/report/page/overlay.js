// What is drawn over the lanes: the critical path, joins, what was found, hovered and chosen.

const CRUMB = 2; // pieces of the path narrower than this many pixels are drawn, but no line leads to them

function paintOverlay(pen, scene, theme, painter) {
  const { state } = scene;
  if (state.range) paintRange(pen, scene, theme);
  if (state.joins && scene.round) paintJoins(pen, scene, theme, painter);
  if (state.path) paintPath(pen, scene, theme);
  if (state.spot) paintSpot(pen, scene, theme);
  if (state.selected >= 0) paintSelected(pen, scene, theme);
  if (state.hover >= 0 && state.hover !== state.selected) outline(pen, scene, state.hover, theme.get("text"), 1);
}

// The path: a heavy line under what works, a thin one from lane to lane, dashes for delays, dots for the unexplained.
function paintPath(pen, scene, theme) {
  const range = scene.paths.get(scene.state.rank);
  if (!range) return;
  const { bars, links, waits } = pathShapes(scene, ...range);
  const { width } = scene.view;
  const line = (colour, grow) => {
    pen.fillStyle = colour;
    for (let i = 0; i < bars.length; i += 3) {
      pen.fillRect(Math.max(bars[i], GUTTER) - grow, bars[i + 1] - 1 - grow, bars[i + 2] - Math.max(0, GUTTER - bars[i]) + 2 * grow, 3 + 2 * grow);
    }
    for (let i = 0; i < links.length; i += 3) {
      const [top, bottom] = [Math.min(links[i + 1], links[i + 2]), Math.max(links[i + 1], links[i + 2])];
      pen.fillRect(links[i] - 0.75 - grow, top - grow, 1.5 + 2 * grow, bottom - top + 2 + 2 * grow);
    }
  };
  line(theme.get("halo"), 1);
  line(theme.get("ink"), 0);
  pen.lineWidth = 2;
  for (let i = 0; i < waits.length; i += 4) {
    pen.strokeStyle = waits[i + 3] === PIECE.UNKNOWN ? theme.get("join") : theme.get("ink");
    pen.setLineDash(waits[i + 3] === PIECE.UNKNOWN ? [1.5, 3] : [4, 2.5]);
    pen.beginPath();
    // Cut to the screen: every dash outside of it costs time too.
    pen.moveTo(Math.max(waits[i], GUTTER), waits[i + 1] + 0.5);
    pen.lineTo(Math.min(waits[i + 2], width), waits[i + 1] + 0.5);
    pen.stroke();
  }
  pen.setLineDash([]);
}

// What the path of a rank looks like in view: bars (x, y, width), links (x, y, y), waits (x, y, x, piece).
function pathShapes(scene, from, to) {
  const { pathStart, pathDur, pathRow, pathPiece, lane, sub } = scene.col;
  const { t0, t1, width } = scene.view;
  const scale = scene.scale;
  const shapes = { bars: [], links: [], waits: [] };
  const crumbs = new Map(); // y -> the bar that is being made of narrow pieces there: [x, end]
  let before = -1; // the line of the last piece that is wide enough to lead on from
  let p = from + Math.max(0, upperBound(to - from, t0, (i) => pathStart[from + i]) - 1);
  for (; p < to && pathStart[p] < t1; p++) {
    const row = pathRow[p];
    const item = row < 0 ? null : scene.laneAt[lane[row]];
    if (!item) continue;
    const strip = item.strips[sub[row]];
    const y = strip.y + (strip.h || 1) - 1;
    const x0 = GUTTER + (pathStart[p] - t0) * scale;
    const wide = pathDur[p] * scale;
    if (x0 + wide < GUTTER || x0 > width) continue;
    const works = pathPiece[p] <= PIECE.HOST;
    if (wide < CRUMB) {
      if (!works) continue;
      const crumb = crumbs.get(y);
      if (crumb && x0 <= crumb[1] + 1) crumb[1] = Math.max(crumb[1], x0 + wide);
      else {
        if (crumb) shapes.bars.push(crumb[0], y, Math.max(1, crumb[1] - crumb[0]));
        crumbs.set(y, [x0, x0 + wide]);
      }
      continue;
    }
    if (before >= 0 && before !== y) shapes.links.push(x0, before, y);
    if (works) shapes.bars.push(x0, y, wide);
    else shapes.waits.push(x0, y, x0 + wide, pathPiece[p]);
    before = y;
  }
  for (const [y, [x0, x1]] of crumbs) shapes.bars.push(x0, y, Math.max(1, x1 - x0));
  return shapes;
}

// Joins of branches side by side: how long each stood for the later branch, a line from that branch, and its number
// in the table, as far as the stretch is wide enough to see. Of those that hide behind something longer only the line
// is drawn.
function paintJoins(pen, scene, theme, painter) {
  const colour = theme.get("join");
  const shown = [...scene.round.joins.entries()].filter(([, join]) => {
    return join.beside && join.waited * scene.scale >= 2 && scene.box(join.row);
  });
  const spans = [];
  pen.lineWidth = 1.3;
  for (const [, join] of shown) {
    const at = scene.box(join.row);
    if (at.x0 < GUTTER - 40 || at.x0 > scene.view.width + 40) continue;
    const branch = scene.box(join.branch);
    if (join.onPath) joinSpan(pen, scene, theme, painter, join, spans);
    pen.globalAlpha = join.onPath ? 1 : 0.4;
    if (branch && Math.abs(branch.y - at.y) > 1) arrow(pen, branch.x1, branch.y + branch.h / 2, at.x0, at.y + at.h / 2, colour);
    pen.globalAlpha = 1;
  }
  const taken = [];
  for (const [index, join] of shown) {
    const { x0, y } = scene.box(join.row);
    if (taken.some(([x, top]) => Math.abs(x - x0) < 17 && Math.abs(top - y) < 15)) continue;
    taken.push([x0, y]);
    pen.fillStyle = colour;
    pen.beginPath();
    pen.arc(x0, y - 1, 7.5, 0, 7);
    pen.fill();
    pen.fillStyle = theme.get("bg");
    pen.font = `700 10px ${FONT}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(String(index + 1), x0, y - 0.5);
  }
  pen.textAlign = "left";
}

// The stretch that a join stood, on the lane that was done before; `spans` are those drawn already.
function joinSpan(pen, scene, theme, painter, join, spans) {
  const at = scene.box(join.row);
  const branch = scene.box(join.branch);
  const lane = scene.box(join.other) || at;
  const until = branch ? Math.min(branch.x1, at.x0) : at.x0;
  const from = until - join.waited * scene.scale;
  if (spans.some(([y, x0, x1]) => y === lane.y && from < x1 - 1 && x0 < until - 1)) return;
  spans.push([lane.y, from, until]);
  const left = Math.max(from, GUTTER);
  const right = Math.min(until, scene.view.width);
  if (right <= left) return;
  pen.fillStyle = theme.hatched(pen);
  pen.globalAlpha = 0.75;
  pen.fillRect(left, lane.y + 2, right - left, lane.h - 5);
  pen.globalAlpha = 1;
  pen.font = `600 10.5px ${FONT}`;
  const text = painter.fitted(pen, `${time(join.waited)} for ${scene.shortOf(join.branch)}`, right - left - 12, 2);
  if (!text || text.endsWith("…") || lane.h < 14) return;
  const room = pen.measureText(text).width + 10;
  const middle = (left + right) / 2;
  pen.fillStyle = theme.get("bg");
  pen.fillRect(middle - room / 2, lane.y + 4, room, lane.h - 9);
  pen.fillStyle = theme.get("join");
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(text, middle, lane.y + lane.h / 2);
  pen.textAlign = "left";
}

function arrow(pen, x0, y0, x1, y1, colour) {
  pen.strokeStyle = pen.fillStyle = colour;
  const bend = Math.max(6, Math.min(40, Math.abs(x1 - x0) / 2));
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 1, y1);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x1 - 6, y1 - 3.5);
  pen.lineTo(x1 - 6, y1 + 3.5);
  pen.fill();
}

function outline(pen, scene, e, colour, width) {
  const box = scene.box(e);
  if (!box) return;
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  const x0 = Math.max(box.x0, GUTTER - 3);
  pen.strokeRect(x0, box.y - 0.5, Math.max(1.5, Math.min(box.x1, scene.view.width + 3) - x0), box.h + 1);
}

// What was chosen, the call that launched it, and what held it up.
function paintSelected(pen, scene, theme) {
  const e = scene.state.selected;
  const accent = theme.get("accent");
  outline(pen, scene, e, accent, 2.5);
  const at = scene.box(e);
  if (!at) return;
  pen.lineWidth = 1.6;
  const { launch, held } = scene.col;
  for (const [from, colour] of [[launch[e], accent], [held[e], theme.get("text")]]) {
    const box = scene.box(from);
    if (!box || (colour !== accent && from === launch[e])) continue;
    outline(pen, scene, from, colour, 1.5);
    if (box.y !== at.y) arrow(pen, Math.min(box.x1, at.x0), box.y + box.h / 2, at.x0, at.y + at.h / 2, colour);
  }
}

// A stretch that a table speaks of.
function paintSpot(pen, scene, theme) {
  const { start, end, row } = scene.state.spot;
  const [x0, x1] = [scene.x(start), scene.x(end)];
  const box = scene.box(row);
  pen.strokeStyle = theme.get("join");
  pen.lineWidth = 1.5;
  const [y, h] = box ? [box.y - 2, box.h + 4] : [1, scene.view.height - 3];
  pen.strokeRect(x0, y, Math.max(2, x1 - x0), h);
}

function paintRange(pen, scene, theme) {
  const [a, b] = scene.state.range;
  const [x0, x1] = [scene.x(Math.min(a, b)), scene.x(Math.max(a, b))];
  pen.globalAlpha = 0.13;
  pen.fillStyle = theme.get("accent");
  pen.fillRect(x0, 0, x1 - x0, scene.view.height);
  pen.globalAlpha = 1;
  pen.fillRect(x0, 0, 1, scene.view.height);
  pen.fillRect(x1, 0, 1, scene.view.height);
}
