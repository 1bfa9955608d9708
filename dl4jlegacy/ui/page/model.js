"use strict";
// The network on the page: its drawing, its parameters and updates, its filters, and how well it does. What costs the
// server something is asked for only while it is open, or when somebody presses the button.

const MODEL_MILLISECONDS = 2000; // between two looks at the parameters
const model = { run: "", network: "", found: null, version: -1, at: -MODEL_MILLISECONDS, isAsking: false, isEvaluationAsked: false };

async function answerOf(path, options = {}) {
  const answer = await fetch(path, { headers: HEADERS, ...options });
  const said = await answer.json();
  if (!answer.ok) throw new Error(`${said.error.message} [${said.error.code}]`);
  return said;
}

function showModel(view) {
  const run = view.run ? view.run.run : "";
  if (run !== model.run) {
    Object.assign(model, { run, network: "", found: null, version: -1, isEvaluationAsked: false });
    byId("model-shown").hidden = true;
    byId("model-note").textContent = "";
    showEvaluation(null);
  }
  if (!view.run) return;
  byId("evaluate").hidden = !TOKEN || !view.can.includes("evaluate");
  if (view.can.includes("evaluate")) byId("evaluation-section").hidden = false;
  if (!model.network) fetchNetwork();
  if (!model.isEvaluationAsked) fetchEvaluation();
  fetchModel(view);
}

// --- the network ----------------------------------------------------------------------------------------------------

async function fetchNetwork() {
  model.network = "asked for";
  try {
    const { network } = await answerOf("api/v1/network");
    for (const id of ["network-section", "model-section"]) byId(id).hidden = !network;
    if (network) showNetwork(network);
  } catch (error) {
    model.network = "";
    console.warn(error); // the next view tries again
  }
}

function showNetwork(network) {
  setText("network-note", `${network.kind}, ${network.dtype}: ${count(network.parameters)} parameters, ${count(network.multiply_adds)} multiply-adds for an example`);
  const [width, height] = network.box;
  const drawing = svg("svg", {
    viewBox: `0 0 ${network.width} ${network.height}`, role: "img",
    "aria-label": `Drawing of the network: ${network.boxes.map((box) => box.text).join("; ")}`.slice(0, 2000),
  });
  const marker = svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
  marker.append(svg("path", { class: "tip", d: "M0 0 L8 4 L0 8 z" }));
  const defs = svg("defs", {});
  defs.append(marker);
  drawing.append(defs);
  for (const arrow of network.arrows) {
    drawing.append(svg("path", { class: "arrow", d: arrow.path, ...(arrow.ends ? { "marker-end": "url(#tip)" } : {}) }));
  }
  for (const box of network.boxes) {
    const group = svg("g", {});
    group.append(svg("title", {}, box.text), svg("rect", { class: `box ${box.kind}`, x: box.x, y: box.y, width, height, rx: 7 }));
    box.lines.forEach((line, index) => {
      if (line) group.append(svg("text", { class: index ? "" : "name", x: box.x + width / 2, y: box.y + 17 + 16 * index }, line));
    });
    drawing.append(group);
  }
  drawing.style.width = `${network.width}px`; // no larger, and on a phone no smaller: it is scrolled
  byId("network-drawing").replaceChildren(drawing);
  byId("layers").replaceChildren(...network.layers.map((layer) => row([
    [layer.name], [layer.kind], [layer.inputs.join(", ") || "–"], [layer.output.map((size) => size || "T").join("x")],
    [count(layer.parameters), "number"], [count(layer.multiply_adds), "number"],
  ])));
}

// --- parameters and updates -----------------------------------------------------------------------------------------

async function fetchModel(view) {
  const isNew = view.run.version !== model.version && performance.now() - model.at > MODEL_MILLISECONDS;
  if (!byId("model").open || model.isAsking || !isNew) return;
  model.isAsking = true;
  model.at = performance.now();
  try {
    const { model: found } = await answerOf(`api/v1/model?points=${MOST_POINTS}`);
    if (!found) {
      setText("model-note", "There is no model to be read yet; it comes with the first checkpoint.");
      return;
    }
    if (found.version === view.run.version) model.version = found.version; // else it is looked for again
    const isSame = model.found && model.found.version === found.version;
    model.found = found;
    if (!isSame) {
      showParameters();
      const { filters } = await answerOf("api/v1/filters");
      byId("filters").replaceChildren(...(filters ? [imageOf(filters)] : []));
    }
  } catch (error) {
    setText("model-note", `It cannot be read: ${error.message}`);
  } finally {
    model.isAsking = false;
  }
}

function showParameters() {
  const found = model.found;
  const since = found.before === null ? "no other version is known yet, so nothing of its updates" : `the updates are what has changed since version ${found.before}`;
  setText("model-note", `Version ${found.version}; ${since}.`);
  byId("model-shown").hidden = false;
  const layers = Array.from(new Set(found.parameters.map((each) => each.layer)));
  const choice = byId("layer"), chosen = layers.includes(choice.value) ? choice.value : layers[0];
  choice.replaceChildren(...layers.map((layer) => {
    const option = element("option", layer);
    option.value = layer;
    return option;
  }));
  choice.value = chosen;
  showLayer();
  sameRows(byId("parameters"), found.parameters.map((each) => row([
    [each.name], [each.shape.join("x")], [each.values ? figure(each.values.mean_magnitude) : "not finite", "number"],
    [each.update ? figure(each.update.mean_magnitude) : "–", "number"], [each.ratio === null ? "–" : each.ratio.toExponential(2), "number"],
  ])));
}

function showLayer() {
  const layer = byId("layer").value, found = model.found;
  const parameters = found.parameters.filter((each) => each.layer === layer);
  const lines = parameters.slice(0, KINDS.length).map((each) => [
    each.parameter,
    found.ratios.filter((point) => point.ratios[each.name] > 0).map((point) => [point.version, Math.log10(point.ratios[each.name])]),
  ]).filter(([, line]) => line.length > 0);
  const made = [];
  if (lines.length) {
    const chart = element("figure"), caption = element("figcaption");
    caption.append(element("strong", "Update to parameter, mean magnitudes"));
    lines.forEach(([name, line], index) => {
      caption.append(" ", element("span", "", `key${KINDS[index]}`), `${name} ${(10 ** line[line.length - 1][1]).toExponential(1)}`);
    });
    const now = lines.map(([name, line]) => `${name} ${(10 ** line[line.length - 1][1]).toExponential(1)}`).join(", ");
    const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Ratio of update to parameter in layer ${layer} by version, on a logarithmic scale; now ${now}` });
    drawing.append(...plot(lines, (y) => (10 ** y).toExponential(1)));
    chart.append(caption, drawing);
    chart.id = "chart-ratio";
    made.push(chart);
  }
  for (const each of parameters) {
    if (each.values) made.push(histogram(`${each.name}`, each.values, ""));
    if (each.update) made.push(histogram(`change of ${each.name}`, each.update, " two"));
  }
  byId("model-charts").replaceChildren(...made);
}

function histogram(title, values, kind) {
  const made = element("figure"), caption = element("figcaption");
  caption.append(element("strong", title), ` from ${figure(values.low)} to ${figure(values.high)}, mean magnitude ${figure(values.mean_magnitude)}`);
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Histogram of ${title}, from ${figure(values.low)} to ${figure(values.high)}` });
  const most = Math.max(...values.counts, 1), [low, high] = values.low < values.high ? [values.low, values.high] : [values.low - 1, values.high + 1];
  const px = (x) => LEFT + ((x - low) / (high - low)) * (WIDTH - LEFT - RIGHT), bottom = HEIGHT - BOTTOM;
  const wide = (WIDTH - LEFT - RIGHT) / values.counts.length;
  for (const y of ticks(0, most, 4)) {
    const at = bottom - (y / most) * (bottom - TOP);
    drawing.append(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }));
    drawing.append(svg("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, count(y)));
  }
  values.counts.forEach((each, index) => {
    const tall = (each / most) * (bottom - TOP);
    drawing.append(svg("rect", { class: `bar-of${kind}`, x: LEFT + index * wide, y: bottom - tall, width: Math.max(1, wide - 1), height: tall }));
  });
  for (const x of ticks(low, high, 5)) {
    if (px(x) <= WIDTH - RIGHT - 12) drawing.append(svg("text", { x: px(x), y: HEIGHT - 8, "text-anchor": "middle" }, figure(x, 3)));
  }
  made.append(caption, drawing);
  return made;
}

function imageOf(image) {
  const made = element("figure"), canvas = element("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", image.text);
  const pixels = Uint8Array.from(atob(image.pixels), (letter) => letter.charCodeAt(0));
  const shades = new ImageData(image.width, image.height);
  for (let at = 0; at < image.width * image.height; at += 1) {
    for (let channel = 0; channel < 3; channel += 1) shades.data[4 * at + channel] = pixels[at * image.channels + Math.min(channel, image.channels - 1)];
    shades.data[4 * at + 3] = 255;
  }
  canvas.getContext("2d").putImageData(shades, 0, 0);
  made.append(element("figcaption", image.text), canvas);
  return made;
}

// --- evaluation -----------------------------------------------------------------------------------------------------

async function fetchEvaluation() {
  model.isEvaluationAsked = true;
  try {
    showEvaluation((await answerOf("api/v1/evaluation")).evaluation);
  } catch (error) {
    model.isEvaluationAsked = false;
    console.warn(error); // the next view tries again
  }
}

function showEvaluation(found) {
  byId("evaluation-figures").replaceChildren();
  byId("evaluation-findings").replaceChildren();
  byId("confusion").replaceChildren();
  byId("evaluation-images").replaceChildren();
  if (!found || found.run !== model.run) return;
  byId("evaluation-section").hidden = false;
  setText("evaluation-note", `Version ${found.version}, round ${found.round}, on ${count(found.examples)} examples that were held out.`);
  const figures = [["loss", found.loss], ...Object.entries(found.figures)];
  byId("evaluation-figures").replaceChildren(...figures.map(([name, value]) => {
    const pair = element("div");
    pair.append(element("dt", name.replaceAll("_", " ")), element("dd", figure(value)));
    return pair;
  }));
  const usual = found.baseline ? Object.entries(found.baseline).filter(([name]) => name !== "answer") : [];
  const baseline = usual.map(([name, value]) => `${name.replaceAll("_", " ")} ${figure(value)}`).join(", ");
  const lines = found.baseline ? [`Baseline, ${found.baseline.answer}: ${baseline}`, ...found.findings] : found.findings;
  byId("evaluation-findings").replaceChildren(...lines.map((line) => element("li", line)));
  if (found.confusion.length) byId("confusion").replaceChildren(confusionTable(found));
  byId("evaluation-images").replaceChildren(...found.images.map(imageOf));
}

function confusionTable(found) {
  const scroll = element("div", null, "scroll"), table = element("table", null, "confusion");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "group");
  scroll.setAttribute("aria-label", "Confusion matrix");
  const head = element("tr"), top = element("thead"), body = element("tbody");
  head.append(element("th", "actual, predicted"), ...found.labels.map((label) => element("th", label, "number")));
  head.querySelectorAll("th").forEach((cell) => { cell.scope = "col"; });
  top.append(head);
  found.confusion.forEach((counts, actual) => {
    const line = element("tr"), label = element("th", found.labels[actual]);
    label.scope = "row";
    line.append(label, ...counts.map((value, predicted) => element("td", count(value), `number ${predicted === actual ? "right" : value ? "wrong" : "none"}`)));
    body.append(line);
  });
  table.append(element("caption", "Confusion matrix: how many examples of a class were taken for each", "quiet"), top, body);
  scroll.append(table);
  return scroll;
}

byId("layer").addEventListener("change", showLayer);
byId("model").addEventListener("toggle", () => {
  model.version = -1;
  model.at = -MODEL_MILLISECONDS;
  if (shown.view && shown.view.run) fetchModel(shown.view);
});
byId("evaluate").addEventListener("click", async (event) => {
  event.target.disabled = true;
  setText("evaluation-note", "It is being evaluated …");
  try {
    showEvaluation((await answerOf("api/v1/evaluate", { method: "POST" })).evaluation);
  } catch (error) {
    setText("evaluation-note", `It cannot be evaluated: ${error.message}`);
  } finally {
    event.target.disabled = false;
  }
});
