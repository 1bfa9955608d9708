"use strict";
// The page of a dashboard. It asks the server that it came from, and nobody else; whatever it shows is put into the
// page as text, never as markup.

const byId = (id) => document.getElementById(id);
const TOKEN = takenToken();
const HEADERS = TOKEN ? { accept: "application/json", authorization: `Bearer ${TOKEN}` } : { accept: "application/json" };
const MOST_POINTS = 300;
const MOST_EVENTS = 300;
const LOG_LINES = 200;
const CURVES_MILLISECONDS = 2000; // between two looks at the whole history
const KINDS = ["", " two", " three", " four"]; // of the lines of a chart, as the style sheet has them
const FAULTS = new Set([
  "worker_gone", "worker_set_aside", "worker_crashed", "job_suspected", "job_set_aside", "lease_broken", "job_failed",
  "paused", "checkpoint_failed", "frame_refused", "master_took_over",
]);
const TOLD = new Set([...FAULTS, "backup_issued", "checkpoints_back", "state_changed"]); // beside faults, none themselves

const GOES_ON = new Set(["running", "degraded"]); // the states in which a run computes

const shown = { view: null, at: 0, history: [], historyMark: "", historyAt: -CURVES_MILLISECONDS, eventsMark: "", logMark: "", kind: "" };

// --- the token, which the link to this page has behind its #, where no server sees it ---------------------------------

function takenToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) keepToken(given);
  return sessionStorage.getItem("dl4j-token") || "";
}

function keepToken(token) {
  sessionStorage.setItem("dl4j-token", token);
  history.replaceState(null, "", location.pathname);
}

function demandToken() {
  setText("state", "the token of this dashboard is demanded");
  byId("token-form").hidden = false;
}

addEventListener("hashchange", () => { if (takenToken() !== TOKEN) location.reload(); });
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").value.trim());
  location.reload();
});

// --- small things ---------------------------------------------------------------------------------------------------

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = String(text);
  if (className) made.className = className;
  return made;
}

function setText(id, text) {
  const where = byId(id);
  if (where.textContent !== text) where.textContent = text;
}

function count(value) {
  return value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US");
}

function figure(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return value.toLocaleString("en-US", { maximumFractionDigits: size >= 100 ? 0 : digits });
}

function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function clock(seconds) { // by the reader's own locale; the day is said of what is of another one
  const when = new Date(seconds * 1000);
  return when.toDateString() === new Date().toDateString() ? when.toLocaleTimeString() : date(seconds);
}

function date(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
}

async function ask(path) {
  const answer = await fetch(path, { headers: HEADERS });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer;
}

// --- state, alerts, figures -----------------------------------------------------------------------------------------

function showState(view) {
  const run = view.run;
  setText("run-name", run ? `Run ${run.run}` : "dl4j dashboard");
  document.title = run ? `${run.state} · ${run.run} · dl4j` : "dl4j dashboard";
  setText("source", view.source);
  const state = byId("state");
  let words = run ? run.state : "unknown";
  if (run && GOES_ON.has(run.state) && run.phase) words = `${run.state}: ${run.phase}`;
  if (run && run.state === "ended") words = run.status;
  if (view.away) words = `${words} (not reached now)`;
  setText("state", words);
  state.classList.toggle("bad", Boolean(view.away) || (run !== null && (run.state === "stalled" || run.status === "failed")));
  state.classList.toggle("mild", run !== null && ["waiting", "degraded"].includes(run.state));
  byId("stop").hidden = !TOKEN || !view.can.includes("stop") || !run || !["running", "not begun"].includes(run.status);
  byId("save").hidden = !TOKEN || !view.can.includes("save") || !run || run.version === 0;
}

function stateText(run) {
  return `${run.state}${run.reason.startsWith("for ") ? " " : ": "}${run.reason}`;
}

function showAlerts(view) {
  const run = view.run;
  const lines = [];
  if (view.away) {
    const since = view.read_at ? `; what is shown is of ${clock(view.read_at)}` : "";
    lines.push([`The run cannot be reached since ${clock(view.away.since)} [${view.away.code}]: ${view.away.message}${since}`, ""]);
  }
  if (run && run.failure) lines.push([`The run failed [${run.failure.code}]: ${run.failure.message}`, ""]);
  for (const notice of view.notices) lines.push([notice, "mild"]);
  if (run && run.waiting) lines.push([run.waiting, "mild"]);
  if (run && run.reason && !view.away && run.state !== "ended") lines.push([stateText(run), run.state === "stalled" ? "" : "mild"]);
  if (run && run.stopped_by) lines.push([`Stopped by ${run.stopped_by}`, "mild"]);
  const alerts = byId("alerts");
  const before = Array.from(alerts.children, (child) => child.textContent).join("\n");
  if (before === lines.map(([text]) => text).join("\n")) return; // a screen reader says it once
  alerts.replaceChildren(...lines.map(([text, kind]) => element("p", text, kind)));
}

function entries(list, pairs) {
  const old = list.children;
  pairs.forEach(([name, value], index) => {
    let group = old[index];
    if (!group) {
      group = element("div");
      group.append(element("dt"), element("dd"));
      list.append(group);
    }
    if (group.firstChild.textContent !== name) group.firstChild.textContent = name;
    if (group.lastChild.textContent !== value) group.lastChild.textContent = value;
    group.lastChild.className = name === "last news" ? "line" : "";
  });
  while (old.length > pairs.length) list.lastChild.remove();
}

function rate() {
  const recent = shown.history.slice(-20).filter((point) => point.examples_per_second !== null);
  if (recent.length === 0) return null;
  return recent.reduce((sum, point) => sum + point.examples_per_second, 0) / recent.length;
}

function timeLeft(run) {
  const speed = rate();
  if (!GOES_ON.has(run.state) || run.total_examples === null || !speed) return "–";
  return duration(Math.max(0, run.total_examples - run.examples) / speed);
}

function showFigures(view) {
  const run = view.run;
  if (!run) return;
  const total = run.total_examples;
  const done = run.status === "done" ? 1 : total ? run.examples / total : null;
  const progress = byId("progress");
  if (done === null) progress.removeAttribute("value");
  else progress.value = done;
  setText("progress-text", done === null ? "how much there is to do is not known here" : `${Math.floor(done * 100)} %`);
  const pairs = [
    ["round", run.rounds === null ? count(run.round) : `${count(run.round)} of ${count(run.rounds)}`],
    ["examples", total === null ? count(run.examples) : `${count(run.examples)} of ${count(total)}`],
    ["examples/s", GOES_ON.has(run.state) ? figure(rate(), 0) : "–"],
    ["time left", timeLeft(run)],
    ["score", figure(run.score)],
    ["version", count(run.version)],
    ["updates dropped", count(run.updates_dropped)],
  ];
  if (run.validation) {
    pairs.push(["validation loss", figure(run.validation.loss)]);
    if (run.validation.accuracy !== undefined && run.validation.accuracy !== null) {
      pairs.push(["validation accuracy", figure(run.validation.accuracy)]);
    }
  }
  if (run.best) pairs.push([`best ${run.metric || "score"}`, `${figure(run.best.score)} in round ${run.best.round}`]);
  if (run.master) pairs.push(["master", `${run.master.host}, pid ${run.master.pid}`]);
  run.standbys.forEach((each) => pairs.push(["standby", `${each.host}, pid ${each.pid}`]));
  if (run.last_news) pairs.push(["last news", date(run.last_news)]);
  entries(byId("figures"), pairs);
  entries(byId("conf"), Object.entries(run.conf).filter(([, value]) => value !== "" && value !== null)
    .map(([name, value]) => [name, String(value)]));
}

// --- tables ---------------------------------------------------------------------------------------------------------

function row(cells, className) {
  const made = element("tr", null, className);
  cells.forEach(([text, kind], index) => {
    const cell = element(index === 0 ? "th" : "td", text, kind);
    if (index === 0) cell.scope = "row";
    made.append(cell);
  });
  return made;
}

function sameRows(body, rows) { // cells change in place, so that a button in a row keeps its focus
  rows.forEach((made, index) => {
    const old = body.children[index];
    if (!old) return void body.append(made);
    if (old.children.length !== made.children.length) return void old.replaceWith(made);
    if (old.className !== made.className) old.className = made.className;
    Array.from(made.children).forEach((cell, place) => {
      const there = old.children[place];
      if (!there.isEqualNode(cell)) there.replaceChildren(...cell.childNodes);
    });
  });
  while (body.children.length > rows.length) body.lastChild.remove();
}

const WORKER_COLUMNS = ["Worker", "Host", "State", "Job", "Jobs done", "Last beat", "Staleness", "Examples/s", "Device and its memory", "Leave"];

function showWorkers(view) {
  const known = view.workers.some((worker) => worker.state !== "");
  const note = byId("workers-note");
  note.hidden = known;
  if (!known) {
    note.textContent = view.workers.length
      ? "From the history alone: what the workers do now is known of a run on a cluster only."
      : "No workers are known.";
  }
  const later = (performance.now() - shown.at) / 1000;
  sameRows(byId("workers"), view.workers.map((worker) => {
    const silent = worker.silent_seconds === null ? "–" : `${duration(worker.silent_seconds + (view.away ? later : 0))} ago`;
    const state = worker.gone ? `gone (${worker.gone})` : worker.state || "–";
    const made = row([
      [worker.id], [worker.pid === null ? worker.host || "–" : `${worker.host}, pid ${worker.pid}`], [state],
      [worker.job || "–"], [count(worker.jobs_done), "number"], [silent, "number"],
      [count(worker.staleness), "number"], [figure(worker.examples_per_second, 0), "number"],
      [worker.device || worker.kernels || "–"], ["–"],
    ], worker.gone ? "gone" : "");
    Array.from(made.children).forEach((cell, index) => { cell.dataset.name = WORKER_COLUMNS[index]; });
    if (TOKEN && view.can.includes("drain") && !worker.gone && worker.state && view.run.status === "running") made.lastChild.replaceChildren(drainButton(worker));
    return made;
  }));
}

function drainButton(worker) {
  const made = element("button", "Drain…");
  made.type = "button";
  made.dataset.worker = worker.id;
  made.setAttribute("aria-label", `Drain worker ${worker.id}`);
  return made;
}

function showJobs(view) {
  byId("jobs-section").hidden = view.jobs.length === 0;
  sameRows(byId("jobs"), view.jobs.slice(0, 200).map((job) => row([
    [`${job.round}/${job.slot}`], [job.state], [job.worker || "–"], [count(job.token), "number"],
    [count(job.progress), "number"], [job.seconds ? figure(job.seconds, 3) : "–", "number"],
    [job.failures.map((each) => `${each.code} on ${each.worker}: ${each.message}`).join("; ") || "–", "wraps"],
  ], job.state === "failed" ? "failed" : "")));
}

// --- curves ---------------------------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 420, HEIGHT = 210, LEFT = 62, RIGHT = 8, TOP = 8, BOTTOM = 32;

function svg(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function ticks(low, high, most) {
  const step0 = (high - low) / Math.max(1, most);
  const size = 10 ** Math.floor(Math.log10(step0));
  const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= step0) || size;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

function isPretraining(point) {
  return point.phase.split(" ")[0] === "pretrain";
}

const CHARTS = [
  { id: "pretrain-score", title: "Pretraining score", unit: "", axis: "score", scales: true, lines: [["pretraining", (point) => (isPretraining(point) ? point.score : null)]] },
  { id: "score", title: "Training score", unit: "", axis: "score", scales: true, lines: [["training", (point) => (isPretraining(point) ? null : point.score)]] },
  { id: "validation-loss", title: "Validation loss", unit: "", axis: "loss", scales: true, lines: [["validation", (point) => point.validation && point.validation.loss]] },
  { id: "validation-accuracy", title: "Validation accuracy", unit: "", axis: "share", lines: [
    ["accuracy", (point) => point.validation && point.validation.accuracy], ["f1", (point) => point.validation && point.validation.f1],
  ] },
  { id: "rate", title: "Speed", unit: "examples/s", lines: [["examples/s", (point) => point.examples_per_second]] },
  { id: "staleness", title: "Staleness", unit: "versions", lines: [["staleness", (point) => point.staleness]], onlyIf: (points) => points.some((point) => point.staleness > 0) },
];

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function frame(chart) {
  let made = byId(`chart-${chart.id}`);
  if (made) return made;
  made = element("figure");
  made.id = `chart-${chart.id}`;
  const table = element("details");
  table.append(element("summary", "as a table"), element("div"));
  table.addEventListener("toggle", () => showCurves());
  made.append(element("figcaption"), svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" }), table);
  const order = CHARTS.findIndex((each) => each.id === chart.id);
  const next = Array.from(byId("charts").children).find((each) => CHARTS.findIndex((c) => `chart-${c.id}` === each.id) > order);
  byId("charts").insertBefore(made, next || null);
  return made;
}

function drawChart(chart, points) {
  const lines = chart.lines.map(([name, value]) => [name, points.map((point) => [point.version, value(point)]).filter(([, y]) => isNumber(y))])
    .filter(([, line]) => line.length > 0);
  const isThere = lines.length > 0 && (!chart.onlyIf || chart.onlyIf(points));
  if (!isThere) {
    byId(`chart-${chart.id}`)?.remove();
    return;
  }
  const where = frame(chart), [caption, drawing, table] = where.children;
  const last = lines.map(([name, line]) => `${name} ${figure(line[line.length - 1][1])}`).join(", ");
  const title = `${chart.title}${chart.unit ? ` (${chart.unit})` : ""}`;
  caption.replaceChildren(element("strong", title));
  lines.forEach(([name, line], index) => {
    caption.append(" ", element("span", "", `key${KINDS[index]}`), `${name} ${figure(line[line.length - 1][1])}`);
  });
  const all = lines.flatMap(([, line]) => line);
  drawing.setAttribute("aria-label", `${title} by version of the model; now ${last}, from ${figure(Math.min(...all.map(([, y]) => y)))} to ${figure(Math.max(...all.map(([, y]) => y)))}`);
  const isLog = chart.scales && byId("logarithmic").checked && all.every(([, y]) => y > 0);
  const names = { y: (chart.axis || chart.unit) + (isLog ? ", logarithmic" : ""), phases: phasesOf(points) };
  drawing.replaceChildren(...(isLog
    ? plot(lines.map(([name, line]) => [name, line.map(([x, y]) => [x, Math.log10(y)])]), (y) => figure(10 ** y, 3), false, names)
    : plot(lines, (y) => figure(y, 3), true, names)));
  if (table.open) showTable(table.lastChild, title, lines);
}

function powers(low, high) { // logarithms of round values between two
  for (const factors of [[1], [1, 2, 5]]) {
    const found = [];
    for (let decade = Math.floor(low); decade <= high; decade += 1) found.push(...factors.map((each) => decade + Math.log10(each)));
    const inside = found.filter((each) => each >= low && each <= high);
    if (inside.length >= 2) return inside.filter((each, index) => index % Math.ceil(inside.length / 6) === 0);
  }
  return ticks(low, high, 4);
}

function phasesOf(points) { // where each phase after the first one begins
  return points.flatMap((point, index) => (index && point.phase && points[index - 1].phase && point.phase !== points[index - 1].phase
    ? [[points[index - 1].version, point.phase]] : []));
}

function plot(lines, label, isCut = false, names = { y: "", phases: [] }) {
  const all = lines.flatMap(([, line]) => line);
  let [x0, x1] = [Math.min(...all.map(([x]) => x)), Math.max(...all.map(([x]) => x))];
  const [y0, y1] = range(all.map(([, y]) => y), isCut);
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const py = (y) => TOP + (1 - (Math.min(Math.max(y, y0), y1) - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const made = [];
  for (const y of names.y.endsWith("logarithmic") ? powers(y0, y1) : ticks(y0, y1, 4)) {
    made.push(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: py(y), y2: py(y) }));
    made.push(svg("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, label(y)));
  }
  made.push(svg("text", { class: "name", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 1, "text-anchor": "middle" }, "version of the model"));
  if (names.y) made.push(svg("text", { class: "name", transform: `translate(9 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle" }, names.y));
  for (const [x, name] of names.phases.filter(([at]) => at > x0 && at < x1)) {
    made.push(svg("line", { class: "phase", x1: px(x), x2: px(x), y1: TOP, y2: HEIGHT - BOTTOM }));
    made.push(svg("text", { class: "name", x: px(x) + 3, y: TOP + 9 }, name));
  }
  for (const x of ticks(x0, x1, 5)) {
    if (x < 0 || px(x) > WIDTH - RIGHT - 12) continue;
    made.push(svg("text", { x: px(x), y: HEIGHT - 14, "text-anchor": "middle" }, count(Math.round(x))));
  }
  lines.forEach(([, line], index) => {
    const kind = KINDS[index];
    made.push(svg("path", { class: `curve${kind}`, d: line.map(([x, y], at) => `${at ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("") }));
    const [x, y] = line[line.length - 1];
    made.push(svg("circle", { class: `dot${kind}`, cx: px(x), cy: py(y), r: 3 }));
  });
  return made;
}

function range(values, isCut) { // cut: without the few that would press all others flat, as the first versions of a run
  const sorted = values.slice().sort((a, b) => a - b);
  const low = sorted[0], high = isCut && sorted.length > 20 ? sorted[Math.floor(0.98 * (sorted.length - 1))] : sorted[sorted.length - 1];
  const space = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return [isCut && low >= 0 ? Math.max(0, low - space) : low - space, high + space];
}

function showTable(where, title, lines) {
  const table = element("table"), head = element("tr");
  table.append(element("caption", `${title}: the last 20 points`, "quiet"));
  head.append(...["version", ...lines.map(([name]) => name)].map((name) => {
    const cell = element("th", name, "number");
    cell.scope = "col";
    return cell;
  }));
  const body = element("tbody"), versions = new Map();
  lines.forEach(([, line], index) => line.slice(-20).forEach(([x, y]) => {
    if (!versions.has(x)) versions.set(x, lines.map(() => null));
    versions.get(x)[index] = y;
  }));
  for (const [x, values] of Array.from(versions).sort(([a], [b]) => a - b).slice(-20)) {
    body.append(row([[count(x), "number"], ...values.map((value) => [figure(value), "number"])]));
  }
  const top = element("thead");
  top.append(head);
  table.append(top, body);
  where.className = "scroll";
  where.replaceChildren(table);
}

function showCurves() {
  CHARTS.forEach((chart) => drawChart(chart, shown.history));
  const note = byId("curves-note");
  const view = shown.view;
  note.hidden = shown.history.length > 0 && !(view && view.is_observed);
  if (shown.history.length === 0) note.textContent = "No version of the model has been made yet.";
  else if (view && view.is_observed) note.textContent = "As seen by this dashboard since it was started: the run keeps no history that can be read from here (--checkpoint-dir).";
}

// --- what is fetched when the view says that it has changed -----------------------------------------------------------

async function fetchHistory(view) {
  const mark = `${view.history.first}|${view.history.last}|${view.history.count}`;
  if (mark === shown.historyMark || performance.now() - shown.historyAt < CURVES_MILLISECONDS) return;
  const found = await (await ask(`api/v1/history?points=${MOST_POINTS}`)).json();
  shown.history = found.history;
  shown.historyMark = mark;
  shown.historyAt = performance.now();
  showCurves();
  showFigures(view);
}

async function fetchEvents(view) {
  const mark = `${view.events.first}|${view.events.last}|${view.events.count}`;
  if (mark !== shown.eventsMark) {
    const found = await (await ask(`api/v1/events?limit=${MOST_EVENTS}`)).json();
    shown.events = found.events;
    showEvents();
    const log = await (await ask(`api/v1/log?lines=${LOG_LINES}`)).text();
    const where = byId("log"), atEnd = where.scrollTop + where.clientHeight >= where.scrollHeight - 8;
    where.textContent = log || "Nothing is in the journal. A run in one process keeps none; one on a cluster does.";
    if (atEnd) where.scrollTop = where.scrollHeight;
    shown.eventsMark = mark;
  }
}

function eventItem(entry) {
  const item = element("li", null, FAULTS.has(entry.event) ? "fault" : "");
  item.dataset.key = entry.key;
  const when = element("time", clock(entry.time));
  when.dateTime = new Date(entry.time * 1000).toISOString();
  const hidden = new Set(["key", "time", "source", "host", "pid", "event", "traceback"]);
  const rest = Object.entries(entry).filter(([name]) => !hidden.has(name)).map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "object" ? JSON.stringify(value) : value}`);
  item.append(when, element("strong", entry.event.replaceAll("_", " ")), ` ${rest.join(", ")}`, element("span", ` (${entry.host}, pid ${entry.pid})`, "quiet"));
  if (entry.traceback) {
    const details = element("details");
    details.append(element("summary", "traceback"), element("pre", entry.traceback));
    item.append(details);
  }
  return item;
}

function showEvents() {
  const list = byId("events"), wanted = (shown.events || []).filter((entry) => shown.kind === "" || TOLD.has(entry.event)).reverse();
  const old = new Map(Array.from(list.children, (item) => [item.dataset.key, item]));
  list.replaceChildren(...wanted.map((entry) => old.get(entry.key) || eventItem(entry)));
  byId("events-note").hidden = wanted.length > 0;
  setText("events-note", shown.kind ? "None of these has happened." : "Nothing is in the journal of this run.");
}

let isFetching = false, isAgain = false;
async function fetchRest() { // one at a time; what came meanwhile is fetched after it
  if (isFetching) {
    isAgain = true;
    return;
  }
  isFetching = true;
  try {
    do {
      isAgain = false;
      await fetchHistory(shown.view);
      await fetchEvents(shown.view);
    } while (isAgain);
  } catch (error) {
    console.warn(error); // the next view tries again
  } finally {
    isFetching = false;
  }
}

function show(view) {
  shown.view = view;
  shown.at = performance.now();
  showState(view);
  showAlerts(view);
  showFigures(view);
  showWorkers(view);
  showJobs(view);
  showModel(view);
  fetchRest();
}

// --- the stream -----------------------------------------------------------------------------------------------------

async function follow() { // an EventSource could not send the token
  try {
    const answer = await fetch("api/v1/stream", { headers: HEADERS });
    if (answer.status === 401) return demandToken();
    if (!answer.ok) throw new Error(`it answers ${answer.status}`);
    byId("token-form").hidden = true;
    await showAll(answer.body.pipeThrough(new TextDecoderStream()).getReader());
  } catch (error) {
    console.warn(error);
  }
  setText("state", "the dashboard does not answer; trying again");
  byId("state").classList.add("bad");
  setTimeout(follow, 3000);
}

async function showAll(stream) {
  let rest = "";
  for (;;) {
    const { value, done } = await stream.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    const views = events.filter((event) => event.startsWith("event: view\n"));
    if (views.length) show(JSON.parse(views.at(-1).slice("event: view\ndata: ".length)));
  }
}

// --- what one can do ------------------------------------------------------------------------------------------------

let answered = () => {};
byId("ask").addEventListener("close", (event) => {
  if (!event.target.open) answered(event.target.returnValue === "yes"); // else it tells of a question before
});

function confirmed(title, text, yes) {
  const dialog = byId("ask");
  answered(false);
  setText("ask-title", title);
  setText("ask-text", text);
  setText("ask-yes", yes);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => { answered = resolve; });
}

async function act(button, path) {
  const result = byId("result");
  button.disabled = true;
  result.hidden = false;
  result.textContent = "…";
  try {
    const answer = await fetch(path, { method: "POST", headers: HEADERS });
    const said = await answer.json();
    result.textContent = answer.ok ? said.status : `${said.error.message} [${said.error.code}]`;
  } catch (error) {
    result.textContent = `The dashboard does not answer: ${error.message}`;
  } finally {
    button.disabled = false;
  }
}

byId("stop").addEventListener("click", async (event) => {
  const run = shown.view.run;
  const text = `The master and all workers of run ${run.run} leave, in round ${run.round}. What its last checkpoint has stays; nobody goes on with it by himself.`;
  if (await confirmed(`Stop run ${run.run}?`, text, "Stop the run")) act(event.target, "api/v1/stop");
});

byId("save").addEventListener("click", async (event) => {
  const text = "The newest checkpoint is written as a model file into the folder in which this dashboard was started. The run goes on.";
  if (await confirmed("Save the model?", text, "Save the model")) act(event.target, "api/v1/save");
});

byId("workers").addEventListener("click", async (event) => {
  const worker = event.target.dataset.worker;
  if (!worker) return;
  const text = "Its process finishes the jobs that it has begun, hands them in, and leaves; all workers in it do. The run goes on with the others.";
  if (await confirmed(`Drain worker ${worker}?`, text, "Drain it")) act(event.target, `api/v1/workers/${encodeURIComponent(worker)}/drain`);
});

byId("logarithmic").addEventListener("change", showCurves);

byId("kind").addEventListener("change", (event) => {
  shown.kind = event.target.value;
  showEvents();
});

const THEMES = { automatic: "", light: "light", dark: "dark" };
function setTheme(name) {
  if (THEMES[name]) document.documentElement.dataset.theme = THEMES[name];
  else delete document.documentElement.dataset.theme;
  setText("theme", `Theme: ${name}`);
}
function keptTheme() {
  try {
    const kept = localStorage.getItem("dl4j-theme");
    return kept in THEMES ? kept : "automatic";
  } catch {
    return "automatic"; // a browser that keeps nothing
  }
}
let theme = keptTheme();
setTheme(theme);
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  theme = names[(names.indexOf(theme) + 1) % names.length];
  setTheme(theme);
  try {
    localStorage.setItem("dl4j-theme", theme);
  } catch {
    // it counts for this visit
  }
});

document.addEventListener("DOMContentLoaded", follow); // the other script is there by then, which a view needs, too
