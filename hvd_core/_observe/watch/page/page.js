// The live timeline: asks the watcher for new spans and figures, and draws them. No library, no other server.
"use strict";
const ROWS = ["waits", "negotiates", "batches", "backend"];
const COLOURS = ["#d9513c", "#b9c0cb", "#4a86d8", "#39a06b"];
const RANK_COLOURS = ["#4a86d8", "#d9513c", "#39a06b", "#b07aa1", "#e0a13a", "#4fb3bf", "#8c6d5a", "#6a7484"];
const ROW_PX = 15, GAP_PX = 8, LABEL_PX = 144, PAUSE_MS = 250;
const MOST_FAILURES = 150;  // five minutes
const KEPT_SPANS = 120000;  // of each row
const $ = (id) => document.getElementById(id);

let last = 0, data = null, failures = 0, frozen = null, skipped = 0, drawn = 0;
let timer = 0;
const page = Math.random().toString(36).slice(2);
let windowS = 5, offset = 0;  // microseconds between the right edge and now; 0: follows
const rows = new Map();  // "rank/row" -> {begin: [], length: [], name: []}

function rowOf(rank, row) {
  const key = rank + "/" + row;
  if (!rows.has(key)) rows.set(key, { begin: [], length: [], name: [] });
  return rows.get(key);
}

// Spans of a row come in the order of their ends.
function take(answer) {
  for (const [rank, row, begin, length, name] of answer.spans) {
    const r = rowOf(rank, row);
    r.begin.push(begin); r.length.push(length); r.name.push(answer.names[name]);
    if (r.begin.length > KEPT_SPANS)
      for (const list of [r.begin, r.length, r.name]) list.splice(0, KEPT_SPANS / 4);
  }
  if (data && data.job !== answer.job) { rows.clear(); skipped = 0; }  // the watcher of another job has the port now
  last = answer.last; skipped += answer.skipped; data = answer;
}

// A hidden page asks nothing, so that the watcher has nothing to do.
async function ask() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const response = await fetch(`data?after=${last}&page=${page}`);
    if (!response.ok) throw new Error(await response.text());
    take(await response.json());
    failures = 0;
  } catch (error) {
    ++failures;
  }
  show();
  clearTimeout(timer);
  if (failures < MOST_FAILURES) timer = setTimeout(ask, failures > 3 ? 2000 : PAUSE_MS);
}

function cell(row, text, kind) {
  const td = document.createElement(kind === "th" ? "th" : "td");
  if (typeof text === "number" || kind === "number") td.className = "number";
  td.textContent = text;
  if (kind === "long") { td.className = "long"; td.title = text; }
  row.append(td);
}

function table(id, head, lines, bad) {
  const body = [];
  const top = document.createElement("tr");
  for (const [i, text] of head.entries()) {
    cell(top, text, "th");
    if (i && lines.length && typeof lines[0][i] === "number") top.lastChild.className = "number";
  }
  body.push(top);
  for (const line of lines) {
    const tr = document.createElement("tr");
    for (const [i, text] of line.entries()) cell(tr, text, i === 0 && head[0] !== "rank" ? "long" : undefined);
    if (bad && bad(line)) tr.className = "bad";
    body.push(tr);
  }
  $(id).replaceChildren(...body);
}

const seconds = (micros) => (micros / 1e6).toFixed(micros < 1e8 ? 1 : 0) + " s";
const round = (x, digits = 1) => Number(x.toFixed(digits));
const medianOf = (list) => { const s = [...list].sort((a, b) => a - b); return s.length ? s[s.length >> 1] : 0; };

const STATES = {
  died: (r) => `Rank ${r.rank} (pid ${r.pid}) DIED ${seconds(data.now - r.ended)} ago` +
    (r["not done"].length ? `; not done: ${r["not done"].join(", ")}` : ""),
  "no answer": (r) => `Rank ${r.rank} (pid ${r.pid}): the watcher of its host does not answer any more`,
  aborted: (r) => `Rank ${r.rank} (pid ${r.pid}) ended ${seconds(data.now - r.ended)} ago, after the job was aborted: ${r.aborted}`,
};

function notes() {
  const found = [];
  const add = (text, mild) => { const div = document.createElement("div"); div.textContent = text; if (mild) div.className = "mild"; found.push(div); };
  if (failures) add("The watcher does not answer: it has ended, or another one has its port. The page shows the last state." +
    (failures < MOST_FAILURES ? "" : " It asks no more: reload it."));
  const order = { died: 0, aborted: 1 };
  for (const r of [...data.ranks].sort((a, b) => (order[a.state] ?? 2) - (order[b.state] ?? 2) || a.rank - b.rank)) {
    if (STATES[r.state]) add(STATES[r.state](r));
    else if (r.aborted) add(`Rank ${r.rank}: the job was aborted: ${r.aborted}`);
    else if (r.failed) add(`Rank ${r.rank}: ${r.failures} operations failed, the last one: ${r.failed}`, true);
  }
  for (const s of data.stalls)
    add(`'${s.name}' has waited for ${seconds(s.age)}: submitted by rank ${s.submitted.join(", ")}` +
        (s.missing.length ? `, not by rank ${s.missing.join(", ")}` : s.set ? ` of process set ${s.set}` : (s.entered ? " (by all ranks)" : "")), true);
  const lost = data.ranks.reduce((sum, r) => sum + r.lost, 0);
  if (lost) add(`${lost} events were overwritten before they were read: sums are too small`, true);
  if (skipped) add(`${skipped} spans are not drawn: there are too many for a page. Figures count them`, true);
  if (data["other hosts"]) add(data["other hosts"], true);
  $("notes").replaceChildren(...found);
}

function show() {
  if (!data) { $("state").textContent = failures ? "no answer" : "connecting"; return; }
  const running = data.ranks.filter((r) => r.state === "runs").length;
  const state = failures ? "no answer" : running === data.ranks.length ? "runs" :
    data.ranks.every((r) => r.state === "ended") ? "ended" : running ? `${data.ranks.length - running} of ${data.ranks.length} ranks have ended` : "over";
  $("state").textContent = state;
  $("state").className = state === "runs" || state === "ended" ? "" : "bad";
  $("job").textContent = `job ${data.job}, host ${data.host}, ${data.ranks.length} of ${data.size} ranks`;
  $("backends").textContent = data.backends.join("; ");
  notes();
  const late = new Map(data.stragglers.map(([rank, n, behind]) => [rank, [n, behind]]));
  const hosts = new Set(data.ranks.map((r) => r.host)).size > 1;
  table("ranks", ["rank", "pid", "state", "MB/s", "operations/s", "exposed", "ms of a step", "exposed, ms", "pending", "last event", ...(hosts ? ["host"] : [])],
    data.ranks.map((r) => {
      const rate = r.rates.length && r.state === "runs" ? r.rates[r.rates.length - 1] : [0, 0, 0, 0];
      return [r.rank, r.pid, r.state, round(rate[1] / 1e6, 2), round(rate[2], 0), Math.round(rate[3] * 100) + " %",
        round(medianOf(r.steps.map((s) => s[1])) / 1e3, 2), round(medianOf(r.steps.map((s) => s[2])) / 1e3, 2),
        r.pending, r.silent === null ? "" : seconds(r.silent) + " ago", ...(hosts ? [r.host] : [])];
    }), (line) => line[2] === "died" || line[2] === "aborted");
  table("stragglers", ["rank", "times", "behind the one before, median ms"],
    [...late].map(([rank, [n, behind]]) => [rank, n, round(behind / 1e3, 3)]));
  table("collectives", ["collective", "times", "ms in all"], data.collectives.map(([n, c, t]) => [n, c, round(t / 1e3)]));
  table("tensors", ["tensor", "operations", "MB", "ms in all"],
    data.tensors.map(([n, c, b, t]) => [n, c, round(b / 1e6, 2), round(t / 1e3)]));
  draw();
  charts();
}

function canvasOf(id, height) {
  const canvas = $(id), ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  if (height) canvas.style.height = height + "px";
  const h = height || canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(h * ratio)) canvas.height = Math.round(h * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, h);
  pen.font = "11px system-ui, sans-serif";
  return [pen, width, h];
}

function view() {
  const right = (frozen === null ? data.read : frozen) - offset;
  return [right - windowS * 1e6, right];
}

// The first span of a row that may reach into the window: ends are in order.
function firstOf(r, left) {
  let a = 0, z = r.begin.length;
  while (a < z) { const m = (a + z) >> 1; if (r.begin[m] + r.length[m] < left) a = m + 1; else z = m; }
  return a;
}

function draw() {
  const block = ROWS.length * ROW_PX + GAP_PX;
  const [pen, width] = canvasOf("lanes", data.ranks.length * block + 22);
  const [left, right] = view(), scale = (width - LABEL_PX) / (right - left);
  drawn = 0;
  let y = 4;
  for (const rank of data.ranks) {
    pen.fillStyle = rank.state === "died" || rank.state === "aborted" ? "#fbe9e5" : "#f3f5f8";
    pen.fillRect(0, y - 2, width, ROWS.length * ROW_PX + 4);
    pen.fillStyle = rank.state === "runs" || rank.state === "ended" ? "#1c2330" : "#a3220b";
    pen.fillText("rank " + rank.rank, 6, y + 11);
    if (rank.state !== "runs") pen.fillText(rank.state, 6, y + 11 + ROW_PX);
    for (const [row, label] of ROWS.entries()) {
      pen.fillStyle = "#8a94a4";
      pen.fillText(label, 76, y + 11);
      const r = rowOf(rank.rank, row);
      let edge = -1;
      for (let i = firstOf(r, left); i < r.begin.length; ++i) {
        if (r.begin[i] > right) { if (row === 2) continue; break; }
        const from = LABEL_PX + Math.max(0, (r.begin[i] - left) * scale);
        const to = Math.min(width, LABEL_PX + (r.begin[i] + r.length[i] - left) * scale);
        const wide = Math.max(1, to - from);
        if (from + wide < edge + 0.7) continue;  // nothing new is to be seen
        edge = from + wide;
        pen.fillStyle = COLOURS[row];
        pen.fillRect(from, y + 1, wide, ROW_PX - 3);
        ++drawn;
        if (wide > 50) {
          pen.save(); pen.beginPath(); pen.rect(from, y, wide - 3, ROW_PX); pen.clip();
          pen.fillStyle = row === 1 ? "#1c2330" : "#fff"; pen.fillText(r.name[i], from + 4, y + 11); pen.restore();
        }
      }
      y += ROW_PX;
    }
    if (rank.ended !== null && rank.ended > left && rank.ended < right) {
      pen.fillStyle = "#a3220b"; pen.fillRect(LABEL_PX + (rank.ended - left) * scale, y - block + GAP_PX, 2, block - GAP_PX);
    }
    y += GAP_PX;
  }
  pen.fillStyle = "#6a7484";
  for (let i = 0; i <= 5; ++i) {
    const at = left + (right - left) * i / 5, x = LABEL_PX + (width - LABEL_PX) * i / 5;
    pen.textAlign = i === 5 ? "right" : "left";
    pen.fillText((at / 1e6).toFixed(windowS < 2 ? 3 : 1) + " s", x, y + 10);
  }
  pen.textAlign = "left";
}

// One line for each rank: points [x, y].
function chart(id, lines, digits) {
  const [pen, width, height] = canvasOf(id);
  const all = lines.flatMap(([, points]) => points);
  if (!all.length) return;
  let top = 0, from = Infinity, to = -Infinity;
  for (const [x, y] of all) { top = Math.max(top, y); from = Math.min(from, x); to = Math.max(to, x); }
  top = top || 1;
  pen.strokeStyle = "#e3e7ee"; pen.beginPath(); pen.moveTo(44, height - 6); pen.lineTo(width, height - 6); pen.stroke();
  pen.fillStyle = "#6a7484";
  pen.fillText(top.toFixed(digits), 2, 24); pen.fillText("0", 2, height - 4);
  for (const [rank, points] of lines) {
    pen.strokeStyle = RANK_COLOURS[rank % RANK_COLOURS.length];
    pen.beginPath();
    for (const [i, [x, y]] of points.entries()) {
      const px = 44 + (width - 48) * (to > from ? (x - from) / (to - from) : 0), py = height - 6 - (height - 26) * y / top;
      if (i) pen.lineTo(px, py); else pen.moveTo(px, py);
    }
    pen.stroke();
  }
  if (lines.length <= RANK_COLOURS.length)
    for (const [i, [rank]] of lines.entries()) {
      pen.fillStyle = RANK_COLOURS[rank % RANK_COLOURS.length];
      pen.fillText("rank " + rank, 60 + 50 * i, 12);
    }
}

function charts() {
  chart("steps", data.ranks.map((r) => [r.rank, r.steps.map((s) => [s[0], s[2] / 1e3])]), 2);
  chart("bytes", data.ranks.map((r) => [r.rank, r.rates.map((s) => [s[0], s[1] / 1e6])]), 2);
  chart("exposed", data.ranks.map((r) => [r.rank, r.rates.map((s) => [s[0], s[3]])]), 2);
}

function spanAt(x, y) {
  const block = ROWS.length * ROW_PX + GAP_PX, index = Math.floor((y - 4) / block);
  const row = Math.floor((y - 4 - index * block) / ROW_PX), rank = data && data.ranks[index];
  if (!rank || row < 0 || row >= ROWS.length || x < LABEL_PX) return "";
  const [left, right] = view(), scale = ($("lanes").clientWidth - LABEL_PX) / (right - left);
  const at = left + (x - LABEL_PX) / scale, r = rowOf(rank.rank, row), slack = 2 / scale;
  for (let i = firstOf(r, at - slack); i < r.begin.length && r.begin[i] <= at + slack; ++i)
    if (r.begin[i] + r.length[i] >= at - slack)
      return `rank ${rank.rank}, ${ROWS[row]}: ${r.name[i]}, ${(r.length[i] / 1e3).toFixed(3)} ms, from ${(r.begin[i] / 1e6).toFixed(6)} s on`;
  return "";
}

function freeze(on) {
  frozen = on ? data.read : null;
  if (!on) offset = 0;
  $("pause").textContent = on ? "go on" : "pause";
}

$("pause").onclick = () => { if (data) { freeze(frozen === null); draw(); } };
$("window").onchange = () => { windowS = Number($("window").value); if (data) draw(); };
$("lanes").onwheel = (event) => {
  event.preventDefault();
  if (!data) return;
  if (frozen === null) freeze(true);
  const [left, right] = view(), share = Math.max(0, (event.offsetX - LABEL_PX) / ($("lanes").clientWidth - LABEL_PX));
  const at = left + (right - left) * share;
  windowS = Math.min(120, Math.max(1e-4, windowS * Math.exp(event.deltaY / 400)));
  offset = frozen - (at + windowS * 1e6 * (1 - share));
  draw();
};
let dragged = null;
$("lanes").onmousedown = (event) => { dragged = event.offsetX; if (data && frozen === null) freeze(true); };
window.onmouseup = () => { dragged = null; };
$("lanes").onmousemove = (event) => {
  if (!data) return;
  if (dragged !== null) {
    const [left, right] = view();
    offset += (event.offsetX - dragged) * (right - left) / ($("lanes").clientWidth - LABEL_PX);
    dragged = event.offsetX;
    draw();
  }
  $("under").textContent = spanAt(event.offsetX, event.offsetY);
};
const closed = () => { fetch("closed?page=" + page, { keepalive: true }).catch(() => {}); };
document.onvisibilitychange = () => { if (document.hidden) closed(); else ask(); };
window.onpagehide = closed;
// For tests: what is shown.
window.hvd = { get data() { return data; }, get drawn() { return drawn; }, rows };
ask();
