// The packed data back into numbers, and how numbers are written.

const KINDS = ["kernel", "copy", "set", "communication", "event record", "event wait", "host call", "graph launch",
  "synchronisation", "part of an operation", "mark"];
const KIND = { KERNEL: 0, COPY: 1, SET: 2, COMM: 3, RECORD: 4, WAIT: 5, HOST: 6, LAUNCH: 7, SYNC: 8, SUBTASK: 9, MARK: 10 };
const EDGES = { "-1": "nothing known", 0: "launch", 1: "stream order", 2: "event", 3: "inferred event", 4: "graph edge",
  5: "the host's order", 6: "collective" };
const SURE = ["in the trace", "inferred by a rule", "guessed from times"];
const SOURCES = ["given by the trace", "by a rule on its name", "inferred"];
const PIECES = ["device", "host", "delay", "unexplained"];
const PIECE = { WORK: 0, HOST: 1, DELAY: 2, UNKNOWN: 3 };

const ARRAYS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array, i64: BigInt64Array };
// Columns whose values may need more than 32 bits: doubles hold them exactly up to 2**53.
const WIDE = new Set(["start", "dur", "bytes", "correlation", "sequence", "pathStart", "pathDur"]);
// Of those the ones that are ids: nothing is computed with them, so where they are longer they stay whole (BigInt).
const IDS = new Set(["correlation", "sequence"]);

async function unpack(text) {
  const packed = atob(text.trim());
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = packed.charCodeAt(i);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(inflated).arrayBuffer();
  const size = new DataView(buffer).getUint32(0, true);
  const model = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const columns = {};
  for (const [name, column] of Object.entries(model.columns)) {
    columns[name] = unpackColumn(buffer, 4 + size + column.at, column, name);
  }
  return { model, columns };
}

function unpackColumn(buffer, at, column, name) {
  const { type, count, least, delta } = column;
  const raw = new ARRAYS[type](buffer, at, count);
  if (type === "i64") return IDS.has(name) ? raw : Float64Array.from(raw, Number);
  const made = WIDE.has(name) ? new Float64Array(count) : new Int32Array(count);
  let sum = 0;
  for (let i = 0; i < count; i++) {
    sum = delta ? sum + raw[i] + least : raw[i] + least;
    made[i] = sum;
  }
  return made;
}

// The first index in a sorted array whose value is above `value`; `of` maps an index to its value.
function upperBound(count, value, of) {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of(middle) <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// A time as people read it: 20.80 ms, 118.4 us.
function time(ns, digits = 1) {
  const size = Math.abs(ns);
  if (size >= 0.9995e9) return `${(ns / 1e9).toFixed(digits + 1)} s`;
  if (size >= 0.99995e6) return `${(ns / 1e6).toFixed(digits + 1)} ms`;
  if (size < 1000 && ns === Math.round(ns)) return `${ns} ns`;
  return `${(ns / 1e3).toFixed(digits)} us`;
}

// A time on the trace's own clock, in us as most profilers write it: the sum of the table's begin and a time from there.
function clock(baseNs, ns) {
  const whole = BigInt(baseNs) + BigInt(Math.round(ns));
  const [size, sign] = whole < 0n ? [-whole, "−"] : [whole, ""];
  return `${sign}${size / 1000n}.${String(size % 1000n).padStart(3, "0")} us`;
}

// Every nanosecond of it.
function exact(ns) {
  const sign = ns < 0 ? "−" : "";
  const size = Math.abs(ns);
  if (size < 1000) return `${sign}${size} ns`;
  const unit = size < 1e6 ? [1e3, "us", 3] : size < 1e9 ? [1e6, "ms", 6] : [1e9, "s", 9];
  return `${sign}${(size / unit[0]).toFixed(unit[2])} ${unit[1]}`;
}

function percent(share) {
  if (share > 0 && share < 0.0005) return "<0.1 %";
  if (share >= 0.9995 && share < 1) return ">99.9 %";
  return `${(100 * share).toFixed(1).replace(/\.0$/, "")} %`;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit ? value.toFixed(value < 10 ? 2 : 1) : value} ${units[unit]}`;
}

const number = (value) => value.toLocaleString("en-US");
const plural = (count, one, several = `${one}s`) => `${number(count)} ${count === 1 ? one : several}`;

// An element. Text is only ever set as text: names in a trace are anybody's.
function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const byId = (id) => document.getElementById(id);
