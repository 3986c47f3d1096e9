"use strict";
// Everything that a run says is put into the page as text (textContent) and never as HTML.
const { runs, looks, numbers } = JSON.parse(document.getElementById("data").textContent);
const FILTERS = { title: "method", data: "data", scene: "scene", seed: "seed", status: "state" };
const PER_CENT = /(accuracy|recall|precision|memorised|corrected|correct|f1|top5)$/;
const WIDEST = 900, NARROWEST = 300, HEIGHT = 400, LEFT = 58, RIGHT = 14, TOP = 12, BOTTOM = 40;
const chosen = {}, hidden = new Set(), sorting = { key: "folder", down: false };
const byId = (id) => document.getElementById(id);
const text = (value) => (value === null || value === undefined || value === "" ? "–" : String(value));

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

function drawn(tag, attributes, own) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (own) element.style.setProperty("--own", own);
  return element;
}

function ordered(values) {
  return [...new Set(values)].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : text(a).localeCompare(text(b), "en", { numeric: true })));
}

// --- filters --------------------------------------------------------------------------------------------------------

function makeFilters() {
  for (const [key, words] of Object.entries(FILTERS)) {
    const values = ordered(runs.map((run) => run[key]));
    chosen[key] = new Set(values);
    const boxes = [], choices = make("div", { className: "choices" });
    values.forEach((value) => {
      const box = make("input", { type: "checkbox", checked: true });
      box.addEventListener("change", () => {
        if (box.checked) chosen[key].add(value);
        else chosen[key].delete(value);
        show();
      });
      boxes.push([box, value]);
      const count = runs.filter((run) => run[key] === value).length;
      choices.append(make("label", {}, box, make("span", { textContent: text(value) }), make("span", { className: "count", textContent: count })));
    });
    const all = make("button", { type: "button", className: "all", textContent: "all / none", "aria-label": `${words}: all or none` });
    all.addEventListener("click", () => {
      const on = chosen[key].size < values.length;
      chosen[key] = new Set(on ? values : []);
      boxes.forEach(([box]) => { box.checked = on; });
      show();
    });
    const field = make("fieldset", { id: `filter-${key}` }, make("legend", { textContent: words }));
    if (values.length > 1) field.append(all);
    field.append(choices);
    byId("filters").append(field);
  }
}

const kept = () => runs.filter((run) => Object.keys(FILTERS).every((key) => chosen[key].has(run[key])));

// --- curves ---------------------------------------------------------------------------------------------------------

function linesOf(shown, metric) {
  const single = byId("seeds").checked, scenes = ordered(shown.map((run) => `${run.data} | ${run.scene}`));
  const found = new Map();
  for (const run of shown.filter((one) => one.curves[metric])) {
    const scene = `${run.data} | ${run.scene}`;
    const name = [run.title, ...(scenes.length > 1 ? [run.scene, run.data] : []), ...(single ? [`seed ${run.seed}`] : [])].filter(Boolean).join(", ");
    const key = JSON.stringify([run.row, scene, single ? run.folder : ""]);
    if (!found.has(key)) {
      const look = looks[run.row] || looks[""], dashes = ["", "7 4", "8 3 2 3", "2 3"];
      found.set(key, { key, name, colour: look.colour, dashes: scenes.length > 1 ? dashes[scenes.indexOf(scene) % 4] : look.dashes, runs: [] });
    }
    found.get(key).runs.push(run);
  }
  for (const line of found.values()) {
    const rounds = new Map();
    for (const run of line.runs) for (const [round, value] of run.curves[metric]) rounds.set(round, [...(rounds.get(round) || []), value]);
    // A mean is shown where all seeds have a value, so that a run that stopped early does not bend it.
    const most = Math.max(...[...rounds.values()].map((values) => values.length));
    line.points = [...rounds].filter(([, values]) => values.length === most).map(([round, values]) => [round, mean(values)]).sort((a, b) => a[0] - b[0]);
    line.seeds = most;
  }
  return [...found.values()];
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const deviation = (values) => Math.sqrt(values.reduce((sum, value) => sum + (value - mean(values)) ** 2, 0) / (values.length - 1));

function ticks(low, high, whole) {
  if (low === high) return [low];
  const rough = (high - low) / 5, size = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((one) => one * size).find((one) => one >= rough);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

function drawCurves(shown) {
  const metric = byId("metric").value, scale = PER_CENT.test(metric) ? 100 : 1;
  const lines = linesOf(shown, metric), visible = lines.filter((line) => !hidden.has(line.key));
  const points = visible.flatMap((line) => line.points);
  const plot = byId("plot");
  plot.replaceChildren();
  byId("legend").replaceChildren();
  if (!lines.length) {
    plot.append(make("p", { textContent: "No run that is shown has this curve." }));
    return;
  }
  const WIDTH = Math.max(NARROWEST, Math.min(WIDEST, plot.clientWidth || WIDEST)); // letters keep their size on a telephone
  const xs = points.map((point) => point[0]), ys = points.map((point) => point[1] * scale);
  const lowX = points.length ? Math.min(...xs) : 0, highX = points.length ? Math.max(...xs) : 1;
  let lowY = points.length ? Math.min(...ys) : 0, highY = points.length ? Math.max(...ys) : 1;
  if (lowY === highY) { lowY -= 0.5; highY += 0.5; }
  const x = (value) => (highX === lowX ? (LEFT + WIDTH - RIGHT) / 2 : LEFT + ((value - lowX) / (highX - lowX)) * (WIDTH - LEFT - RIGHT));
  const y = (value) => HEIGHT - BOTTOM - ((value * scale - lowY) / (highY - lowY)) * (HEIGHT - TOP - BOTTOM);
  const unit = scale === 100 ? " (%)" : "", words = metric.replaceAll("_", " ");
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${words} by round, ${visible.length} lines` });
  const write = (attributes, content) => { const one = drawn("text", attributes); one.textContent = content; svg.append(one); };
  for (const at of ticks(lowY, highY)) {
    svg.append(drawn("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(at / scale), y2: y(at / scale) }));
    write({ x: LEFT - 8, y: y(at / scale) + 4, "text-anchor": "end" }, at);
  }
  for (const at of ticks(lowX, highX, true)) write({ class: "round", x: x(at), y: HEIGHT - BOTTOM + 20, "text-anchor": "middle" }, at);
  write({ x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "round");
  write({ transform: `translate(13 ${(HEIGHT - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle" }, words + unit);
  const paths = new Map();
  for (const line of visible) {
    const path = drawn("path", { class: "curve", d: "M" + line.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join("L"), "stroke-dasharray": line.dashes }, line.colour);
    if (line.points.length === 1) svg.append(drawn("circle", { class: "dot", r: 4, cx: x(line.points[0][0]), cy: y(line.points[0][1]) }, line.colour));
    paths.set(line.key, path);
    svg.append(path);
  }
  const dot = drawn("circle", { class: "dot", r: 6, visibility: "hidden" }, "#000");
  svg.append(dot);
  plot.append(svg);
  const say = (line, point) => {
    for (const [key, path] of paths) {
      path.classList.toggle("strong", line !== null && key === line.key);
      path.classList.toggle("faint", line !== null && key !== line.key);
    }
    dot.setAttribute("visibility", line === null ? "hidden" : "visible");
    if (line === null) return;
    dot.style.setProperty("--own", line.colour);
    dot.setAttribute("cx", x(point[0]));
    dot.setAttribute("cy", y(point[1]));
    const seeds = line.seeds > 1 ? `, mean of ${line.seeds} seeds` : "";
    byId("tip").textContent = `${line.name}: ${Number((point[1] * scale).toPrecision(4))}${scale === 100 ? " %" : ""} in round ${point[0]}${seeds}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), place = WIDTH / box.width;
    const atX = (event.clientX - box.left) * place, atY = (event.clientY - box.top) * place;
    let best = null, least = Infinity;
    for (const line of visible) for (const point of line.points) {
      const distance = Math.hypot(x(point[0]) - atX, y(point[1]) - atY);
      if (distance < least) { least = distance; best = [line, point]; }
    }
    if (best) say(...best);
  });
  svg.addEventListener("pointerleave", () => say(null));
  for (const line of lines) byId("legend").append(make("li", {}, legendButton(line, say, shown)));
}

function legendButton(line, say, shown) {
  const swatch = drawn("svg", { class: "swatch", viewBox: "0 0 30 10", "aria-hidden": "true" });
  swatch.append(drawn("line", { x1: 0, x2: 30, y1: 5, y2: 5, "stroke-dasharray": line.dashes }, line.colour));
  const button = make("button", { type: "button", "aria-pressed": String(!hidden.has(line.key)) }, swatch, make("span", { textContent: line.name }));
  button.addEventListener("click", () => {
    const place = [...byId("legend").querySelectorAll("button")].indexOf(button);
    if (!hidden.delete(line.key)) hidden.add(line.key);
    drawCurves(shown);
    byId("legend").querySelectorAll("button")[place].focus();
  });
  const tell = () => { if (!hidden.has(line.key)) say(line, line.points.at(-1)); };
  button.addEventListener("focus", tell);
  button.addEventListener("pointerenter", tell);
  button.addEventListener("blur", () => say(null));
  button.addEventListener("pointerleave", () => say(null));
  return button;
}

// --- tables ---------------------------------------------------------------------------------------------------------

function inUnit(name, value) {
  if (/^(bytes|seconds)/.test(name)) return Number(value.toPrecision(4)).toLocaleString("en");
  return name.startsWith("AUROC") ? value.toFixed(3) : (100 * value).toFixed(2);
}

function showMeans(shown) {
  const name = byId("number").value, lower = /^(bytes|seconds)/.test(name);
  const done = shown.filter((run) => run.status === "finished" && name in run.numbers);
  const place = (run) => [run.data, run.scene].filter(Boolean).join(": ");
  const columns = ordered(done.map(place)), rows = ordered(done.map((run) => run.title));
  const cells = new Map();
  for (const run of done) {
    const key = JSON.stringify([run.title, place(run)]);
    cells.set(key, [...(cells.get(key) || []), run.numbers[name]]);
  }
  const table = byId("means");
  table.replaceChildren();
  if (!done.length) {
    table.append(make("tbody", {}, make("tr", {}, make("td", { textContent: "No finished run that is shown has this number." }))));
    return;
  }
  const head = make("tr", {}, make("th", { scope: "col", textContent: "method" }));
  for (const column of columns) head.append(make("th", { scope: "col", className: "n", textContent: column }));
  const body = make("tbody");
  for (const row of rows) {
    const line = make("tr", {}, make("th", { scope: "row", textContent: row }));
    for (const column of columns) {
      const values = cells.get(JSON.stringify([row, column]));
      const others = rows.map((one) => cells.get(JSON.stringify([one, column]))).filter(Boolean).map(mean);
      const best = values && others.length > 1 && mean(values) === (lower ? Math.min(...others) : Math.max(...others));
      const spread = values && values.length > 1 ? ` ± ${inUnit(name, deviation(values))}` : "";
      line.append(make("td", { className: best ? "n best" : "n", textContent: values ? `${inUnit(name, mean(values))}${spread} (n=${values.length})` : "–" }));
    }
    body.append(line);
  }
  table.append(make("thead", {}, head), body);
}

const COLUMNS = [["title", "method"], ["data", "data"], ["scene", "scene"], ["seed", "seed"], ["rounds", "rounds"], ["status", "state"], ["number", ""], ["folder", "report"]];

function showRuns(shown) {
  const name = byId("number").value, table = byId("runs");
  const value = (run, key) => (key === "number" ? run.numbers[name] ?? -Infinity : run[key] ?? "");
  const sorted = [...shown].sort((a, b) => {
    const [first, second] = [value(a, sorting.key), value(b, sorting.key)];
    const order = typeof first === "number" && typeof second === "number" ? first - second : text(first).localeCompare(text(second), "en", { numeric: true });
    return (sorting.down ? -1 : 1) * (order || 0);
  });
  const head = make("tr");
  for (const [key, words] of COLUMNS) {
    const button = make("button", { type: "button", textContent: words || name });
    button.addEventListener("click", () => {
      sorting.down = sorting.key === key && !sorting.down;
      sorting.key = key;
      showRuns(shown);
      byId("runs").querySelectorAll("thead button")[COLUMNS.findIndex((one) => one[0] === key)].focus();
    });
    const cell = make("th", { scope: "col", className: ["seed", "rounds", "number"].includes(key) ? "n" : "" }, button);
    if (sorting.key === key) cell.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
    head.append(cell);
  }
  const body = make("tbody");
  for (const run of sorted) {
    const state = make("td", { className: `state ${run.status.split(" ")[0]}`, textContent: run.status });
    if (run.note) state.append(make("div", { className: "note", textContent: run.note }));
    const link = run.report ? make("a", { href: run.report, textContent: run.folder || "report" }) : make("span", { className: "note", textContent: run.folder });
    const shownNumber = name in run.numbers ? inUnit(name, run.numbers[name]) : "–";
    const cells = [make("th", { scope: "row", textContent: text(run.title) }), make("td", { textContent: text(run.data) }), make("td", { textContent: text(run.scene) })];
    cells.push(make("td", { className: "n", textContent: text(run.seed) }), make("td", { className: "n", textContent: run.rounds }), state);
    cells.push(make("td", { className: "n", textContent: shownNumber }), make("td", {}, link));
    body.append(make("tr", {}, ...cells));
  }
  table.replaceChildren(make("thead", {}, head), body);
}

// --- the page -------------------------------------------------------------------------------------------------------

function show() {
  const shown = kept();
  const states = ordered(runs.map((run) => run.status)).map((state) => `${runs.filter((run) => run.status === state).length} ${state}`);
  byId("counts").textContent = `${runs.length} runs: ${states.join(", ")}; ${shown.length} shown`;
  drawCurves(shown);
  showMeans(shown);
  showRuns(shown);
}

function fill(select, values) {
  select.append(...values.map((value) => make("option", { value, textContent: value.replaceAll("_", " ") })));
}

const metrics = ordered(runs.flatMap((run) => Object.keys(run.curves)));
fill(byId("metric"), metrics.includes("accuracy") ? ["accuracy", ...metrics.filter((one) => one !== "accuracy")] : metrics);
fill(byId("number"), numbers.filter((name) => runs.some((run) => name in run.numbers)));
byId("filters").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["metric", "seeds", "number"]) byId(id).addEventListener("change", show);
makeFilters();
show();
let drawnFor = byId("plot").clientWidth;
addEventListener("resize", () => {
  if (byId("plot").clientWidth === drawnFor) return;
  drawnFor = byId("plot").clientWidth;
  drawCurves(kept());
});
