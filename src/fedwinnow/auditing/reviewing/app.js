"use strict";
const token = document.querySelector('meta[name="token"]').content;
const at = (id) => document.getElementById(id);
const filters = ["given", "suggested", "status", "least"].map(at);
const SPEAKS = 0.5; // from this change of the log-odds on, a field speaks against a label
const MOST_TILES = 200;
let state = null;
let current = null; // the id of the sample on the page
let grid = false;
let drawing = 0; // the number of the latest request; answers to earlier ones are not drawn
let ready = false; // whether the page shows the sample `current`; no decision is taken before

// --- asking the server ---------------------------------------------------------------------------------------------

async function ask(path, body) {
  const request = { headers: { "X-Token": token } };
  if (body !== undefined) {
    request.method = "POST";
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, request);
  } catch {
    throw new Error("The server does not answer. Start fedwinnow review again; everything up to here is saved.");
  }
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

function picture(id) {
  return `/picture?token=${encodeURIComponent(token)}&id=${encodeURIComponent(id)}`;
}

async function change(path, body) {
  const before = ready;
  setReady(false);
  try {
    return await ask(path, body);
  } catch (problem) {
    setReady(before); // nothing has changed
    throw problem;
  }
}

async function attempt(work) {
  try {
    await work();
    at("problem").hidden = true;
  } catch (problem) {
    at("problem").textContent = problem.message;
    at("problem").hidden = false;
  }
}

function setReady(is) {
  ready = is;
  at("main").setAttribute("aria-busy", String(!is));
}

// --- parts of the page; a user's text always becomes a text node -----------------------------------------------------

function make(tag, options = {}, ...children) {
  const { text, ...rest } = options;
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(rest)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function seen(sample) {
  if (sample.picture) return make("img", { src: picture(sample.id), alt: `sample ${sample.id}`, "data-id": sample.id });
  const names = fieldOrder(sample);
  if (!names.length) return make("p", { class: "meta", text: "There is no preview of this sample." });
  const pairs = names.flatMap((name) => [make("dt", { text: fieldName(sample, name) }), make("dd", { text: sample.texts[name] })]);
  return make("dl", { class: "cells" }, ...pairs);
}

function score(value) {
  return value === null || value === undefined ? "not known" : value.toFixed(3);
}

function words(item) {
  if (!item.decision) return "";
  const { decision, label } = item.decision;
  return { accept: `accepted: ${label}`, keep: `kept: ${label}`, other: `changed to ${label}`, skip: "skipped" }[decision];
}

// The fields of a row of a table in the columns of one table, with those of similar samples; what speaks against the
// given label comes first, and what training did not use last. Nothing for pictures and single texts.
function alignedFields(item, sample) {
  const names = fieldOrder(sample);
  const near = [...sample.given.map((one) => [item.given, one]), ...sample.suggested.map((one) => [item.suggested, one])];
  if (sample.picture || names.length < 2 || !near.length) return null;
  const against = sample.against ?? {};
  const usual = Object.keys(against).length ? [make("th", { text: `usual for ${item.given}` })] : [];
  const head = make("tr", {}, make("th", { text: "field" }), make("th", { text: "this sample" }), ...usual,
    ...near.map(([label, one]) => make("th", {}, label, make("br"), make("span", { class: "meta", text: one.id }))));
  const lines = names.map((name) => make("tr", { class: (against[name]?.[0] ?? 0) >= SPEAKS ? "against" : false },
    make("th", { text: fieldName(sample, name) }), make("td", { text: sample.texts[name] }),
    ...usual.map(() => make("td", { text: against[name]?.[1] ?? "" })),
    ...near.map(([, one]) => make("td", { text: one.texts?.[name] ?? "" }))));
  return make("div", { class: "aligned" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines)));
}

function fieldOrder(sample) {
  const names = Object.keys(sample.texts ?? {});
  const rank = (name) => [sample.ignored?.includes(name) ? 1 : 0, -(sample.against?.[name]?.[0] ?? 0)];
  return names.map((name, place) => [...rank(name), place, name]).sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]).map((one) => one[3]);
}

function fieldName(sample, name) {
  return sample.ignored?.includes(name) ? `${name} (not used in training)` : name;
}

// --- what is shown -------------------------------------------------------------------------------------------------

function disputed(item) {
  return item.decision && item.decision.decision !== "skip" &&
    item.others.some((other) => other.decision !== "skip" && other.label !== item.decision.label);
}

function wanted(item) {
  const [given, suggested, status, least] = filters.map((filter) => filter.value);
  const fits = { open: !item.decision, all: true, done: item.decision, disputed: disputed(item),
    skipped: item.decision?.decision === "skip" };
  return (given === "" || item.given === given) && (suggested === "" || item.suggested === suggested) &&
    fits[status] && (item.p ?? 0) >= Number(least);
}

function shown() {
  return state.queue.filter((item) => wanted(item) || item.id === current);
}

function find(id) {
  return state.queue.find((item) => item.id === id);
}

function summary() {
  const done = state.queue.filter((item) => item.decision);
  const count = (decision) => done.filter((item) => item.decision.decision === decision).length;
  const total = state.looks?.total ?? state.queue.length; // the second half of the looks is drawn later
  at("who").textContent = `reviewer: ${state.reviewer}`;
  at("progress").textContent = `${done.length} of ${total} decided: ` + (state.blind
    ? `${count("keep")} right, ${count("other") + count("accept")} wrong, ${count("skip")} cannot be said`
    : `${count("accept")} accepted, ${count("keep")} kept, ${count("other")} changed, ${count("skip")} skipped`);
  at("fill").style.width = `${(100 * done.length) / Math.max(1, total)}%`;
  at("bar").setAttribute("aria-valuemax", total);
  at("bar").setAttribute("aria-valuenow", done.length);
  const agreement = state.agreement;
  at("agreement").hidden = !agreement;
  if (agreement) {
    at("agreement").textContent = `${state.reviewers.join(" and ")} agree on ${Math.round(100 * agreement.same)} % of ` +
      `${agreement.both} labels (kappa ${agreement.kappa.toFixed(2)})`;
  }
}

// What the looks say so far; the numbers change with every answer.
function looksSoFar() {
  const box = at("looks");
  const found = state.looks;
  box.hidden = !found;
  if (!found) return;
  const parts = [make("h2", { text: "What the looks say so far" }), make("p", { id: "said", text: found.said })];
  if (found.warning) parts.push(make("p", { class: "warning", text: found.warning }));
  if (found.worth_in_words) parts.push(make("p", { id: "worth", text: found.worth_in_words }));
  if (found.budget) parts.push(budgetChart(found.budget));
  box.replaceChildren(...parts);
}

const SVG = "http://www.w3.org/2000/svg";

function drawn(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function budgetChart(points) {
  const [labels, wrong] = points[points.length - 1];
  const chart = drawn("svg", { viewBox: "0 0 320 120", class: "budget", role: "img",
    "aria-label": `Wrong labels found, from 0 to ${wrong} expected, over looks from the top, 0 to ${labels}` });
  const path = points.map(([n, found]) => `${(300 * n / Math.max(1, labels) + 10).toFixed(1)},${(95 - 80 * found / Math.max(1e-9, wrong)).toFixed(1)}`);
  chart.append(drawn("path", { class: "axis", d: "M10 15V95H310" }), drawn("polyline", { points: path.join(" ") }),
    drawn("text", { x: 10, y: 10 }, `${Math.round(wrong)} wrong labels expected`),
    drawn("text", { x: 310, y: 112, "text-anchor": "end" }, `looks from the top: ${labels}`));
  return chart;
}

async function draw() {
  setReady(false);
  summary();
  looksSoFar();
  at("mode").firstChild.textContent = grid ? "One at a time " : "Grid ";
  const items = shown();
  if (!items.length) return drawEmpty();
  if (!find(current) || !items.some((item) => item.id === current)) current = items[0].id;
  return grid ? drawGrid(items) : drawOne(items);
}

function drawEmpty() {
  current = null;
  drawing += 1;
  const all = state.queue.length > 0 && state.queue.every((item) => item.decision);
  const none = "No label is called here. To go through the labels in order: fedwinnow review with --first 50. To find out how many are wrong: with --anchor 30.";
  const title = !state.queue.length ? none : all ? "Everything is decided." : "Nothing fits these filters.";
  const command = state.blind ? "fedwinnow audit --update" : "fedwinnow apply";
  const next = all ? `Next: ${command}, with the same folder. You can still undo.` : "";
  at("main").replaceChildren(make("div", { class: "card empty" }, make("h2", { text: title }), make("p", { class: "meta", text: next }),
    make("div", { class: "actions" }, make("button", { type: "button", onclick: undo }, "Undo ", make("kbd", { text: "U" })))));
  setReady(true);
}

function action(key, name, item, decision, kind) {
  const pressed = item.decision?.decision === decision;
  return make("button", { type: "button", class: kind ?? "", "data-decision": decision, "aria-pressed": String(pressed),
    onclick: () => act(decision) }, `${name} `, make("kbd", { text: key }));
}

async function drawOne(items) {
  const number = ++drawing;
  const item = find(current);
  const sample = await ask(`/sample?id=${encodeURIComponent(item.id)}`);
  if (number !== drawing) return;
  const said = item.others.map((other) => `${other.reviewer}: ${other.decision === "skip" ? "skipped" : other.label}`).join(", ");
  const opinion = state.blind ? [] : [
    make("div", {}, make("span", { text: "suggested" }), make("strong", { class: "new", text: item.suggested })),
    make("div", {}, make("span", { text: "p_wrong" }), make("strong", { text: score(item.p), title: state.meaning }))];
  const answers = state.blind
    ? [action("K", "Right as given", item, "keep"), action("O", "Wrong, it is …", item, "other"), action("S", "Cannot say", item, "skip")]
    : [action("A", "Accept", item, "accept", "main"), action("K", "Keep", item, "keep"),
      action("O", "Other", item, "other"), action("S", "Skip", item, "skip")];
  const card = make("section", { class: "card seen", "aria-label": "The sample" }, seen(sample),
    make("div", { class: "labels" },
      make("div", {}, make("span", { text: "given" }), make("strong", { text: item.given })), ...opinion),
    make("p", { class: "meta", text: `${items.indexOf(item) + 1} of ${items.length} shown · id ${item.id}` }),
    make("p", { class: "meta", role: "status", text: [words(item), said].filter(Boolean).join(" · ") }),
    make("div", { class: "actions" }, ...answers,
      make("button", { type: "button", onclick: undo }, "Undo ", make("kbd", { text: "U" })),
      make("button", { type: "button", onclick: () => step(1) }, "Next ", make("kbd", { text: "→" }))));
  if (state.blind) {
    at("main").replaceChildren(make("div", { class: "one blind" }, card));
    setReady(true);
    at("main").focus({ preventScroll: true });
    return;
  }
  const side = make("aside", { class: "card compare", "aria-label": "For comparison" });
  const table = alignedFields(item, sample);
  if (table) side.append(make("h2", { text: "Beside similar samples" }), table);
  for (const [name, others] of table ? [] : [[item.given, sample.given], [item.suggested, sample.suggested]]) {
    side.append(make("h2", { text: `Similar samples labelled ${name}` }));
    const none = make("p", { class: "meta", text: "There is nothing to compare it with." });
    side.append(others.length ? make("div", { class: others[0].picture ? "three" : "three texts" }, ...others.map(seen)) : none);
  }
  at("main").replaceChildren(make("div", { class: "one" }, card, side));
  setReady(true);
  at("main").focus({ preventScroll: true });
}

async function drawGrid(items) {
  const number = ++drawing;
  const near = items.slice(0, MOST_TILES);
  if (!near.some((item) => item.id === current)) current = near[0].id;
  const samples = state.pictures ? near
    : await Promise.all(near.map((item) => ask(`/sample?id=${encodeURIComponent(item.id)}`)));
  if (number !== drawing) return;
  const tiles = near.map((item, place) => make("button", { type: "button", class: "tile", "data-id": item.id,
    onfocus: () => { current = item.id; }, onclick: () => { current = item.id; grid = false; attempt(draw); } },
    seen(samples[place]),
    make("span", { class: "caption" }, make("span", { class: "was", text: item.given }), " → ", make("strong", { text: item.suggested }),
      make("br"), `p_wrong ${score(item.p)} `, make("span", { class: "state", text: words(item) }))));
  const more = items.length > near.length ? [make("p", { class: "meta", text: `${items.length - near.length} more: filter, or decide these first.` })] : [];
  at("main").replaceChildren(make("div", { class: "grid" }, ...tiles), ...more);
  focusTile();
  setReady(true);
}

function focusTile() {
  at("main").querySelector(`[data-id="${CSS.escape(current)}"]`)?.focus();
}

// --- acting --------------------------------------------------------------------------------------------------------

function decide(decision, label) {
  return attempt(async () => {
    const items = shown();
    const place = items.findIndex((item) => item.id === current);
    const following = items[place + 1] ?? items.slice(0, place).find((item) => !item.decision);
    state = await change("/decide", { id: current, decision, label: label ?? "" });
    current = following?.id ?? null;
    await draw();
  });
}

function act(decision) {
  if (!current || !ready || (state.blind && decision === "accept")) return;
  if (decision === "other") openLabels();
  else decide(decision);
}

function undo() {
  return attempt(async () => {
    const answer = await change("/undo", {});
    state = answer;
    if (answer.undone && find(answer.undone)) current = answer.undone;
    await draw();
  });
}

function step(by) {
  return attempt(async () => {
    const items = grid ? shown().slice(0, MOST_TILES) : shown();
    const place = items.findIndex((item) => item.id === current);
    const next = items[Math.min(items.length - 1, Math.max(0, place + by))];
    if (next) current = next.id;
    if (grid && next) focusTile();
    else await draw();
  });
}

function columns() {
  return getComputedStyle(at("main").querySelector(".grid")).gridTemplateColumns.split(" ").length;
}

// --- another label -------------------------------------------------------------------------------------------------

function openLabels() {
  at("find").value = "";
  listLabels();
  at("labels").showModal();
  at("find").focus();
}

function listLabels() {
  const search = at("find").value.toLowerCase();
  const item = find(current);
  const names = state.classes.filter((name) => name !== item.given && name.toLowerCase().includes(search));
  at("choices").replaceChildren(...names.slice(0, 200).map((name, place) => make("li", { role: "option", "aria-selected": String(place === 0),
    text: name, onclick: () => takeLabel(name) })));
}

function moveChoice(by) {
  const all = [...at("choices").children];
  const place = all.findIndex((one) => one.getAttribute("aria-selected") === "true");
  const next = all[Math.min(all.length - 1, Math.max(0, place + by))];
  if (!next) return;
  all.forEach((one) => one.setAttribute("aria-selected", String(one === next)));
  next.scrollIntoView({ block: "nearest" });
}

function takeLabel(name) {
  at("labels").close();
  decide("other", name);
}

at("find").addEventListener("input", listLabels);
at("labels").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") moveChoice(event.key === "ArrowDown" ? 1 : -1);
  else if (event.key === "Enter") {
    const chosen = at("choices").querySelector('[aria-selected="true"]');
    if (chosen) takeLabel(chosen.textContent);
  } else return;
  event.preventDefault();
});

// --- keys ----------------------------------------------------------------------------------------------------------

function toggleGrid() {
  if (state.blind) return; // one at a time: others beside it would be a hint
  grid = !grid;
  attempt(draw);
}

const KEYS = {
  a: () => act("accept"), k: () => act("keep"), o: () => act("other"), s: () => act("skip"), u: undo, g: toggleGrid,
  z: () => { const shown = at("main").querySelector("img[data-id]"); if (shown && !grid) enlarge(shown.dataset.id); },
  "?": () => at("keys").showModal(), ArrowRight: () => step(1), ArrowLeft: () => step(-1),
  ArrowDown: () => grid && step(columns()), ArrowUp: () => grid && step(-columns()),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat && !event.key.startsWith("Arrow")) return;
  if (document.querySelector("dialog[open]") || event.target.matches("select, input")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!KEYS[key] || !state) return;
  event.preventDefault();
  KEYS[key]();
});

// A picture in its own size; in the grid a click opens the sample instead.
at("main").addEventListener("click", (event) => {
  const id = event.target.dataset.id;
  if (id !== undefined && !grid) enlarge(id);
});

function enlarge(id) {
  const image = at("large").querySelector("img");
  image.src = `${picture(id)}&whole=1`;
  image.alt = `sample ${id}`;
  at("large").showModal();
}

at("large").addEventListener("click", () => at("large").close());
at("mode").addEventListener("click", toggleGrid);
at("help").addEventListener("click", KEYS["?"]);
filters.forEach((filter) => filter.addEventListener("input", () => { current = null; attempt(draw); }));

attempt(async () => {
  state = await ask("/state");
  document.body.classList.toggle("blind", state.blind);
  if (state.blind) filters[2].value = "open";
  for (const [select, of] of [[filters[0], "given"], [filters[1], "suggested"]]) {
    const names = [...new Set(state.queue.map((item) => item[of]))].sort();
    select.replaceChildren(make("option", { value: "", text: "all" }), ...names.map((name) => make("option", { value: name, text: name })));
  }
  await draw();
});
