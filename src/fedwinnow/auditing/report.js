"use strict";
// Only the visible lines are in the page, so that a table of a hundred thousand lines scrolls smoothly.
const data = JSON.parse(document.getElementById("rows").textContent);
const HEIGHT = 32;
const COLUMNS = ["id", "given", "suggested", "score", "p_wrong", "decision"];
const [SCORE, P_WRONG, DECISION, GROUP] = [3, 4, 5, 6];
if (data.rows.length && data.rows[0].length > GROUP) COLUMNS.push("group");
const viewport = document.getElementById("viewport");
const spacer = document.getElementById("spacer");
const view = document.getElementById("window");
const fields = ["search", "given", "suggested", "decision", "least"].map((id) => document.getElementById(id));
let order = { column: SCORE, descending: true };
let shown = [];

function option(select, value, text) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = text;
  select.append(made);
}
data.classes.forEach((name, place) => { option(fields[1], place, name); option(fields[2], place, name); });
data.decisions.forEach((name, place) => option(fields[3], place, name));

COLUMNS.forEach((name, column) => {
  const button = document.createElement("button");
  button.type = "button";
  button.addEventListener("click", () => {
    order = { column, descending: order.column === column ? !order.descending : column === SCORE || column === P_WRONG };
    refresh();
  });
  document.getElementById("head").append(button);
});

function compare(one, two) {
  const [a, b] = [one[order.column], two[order.column]];
  if (order.column === 0 || order.column === GROUP) return String(a).localeCompare(String(b), undefined, { numeric: true });
  if (order.column === SCORE || order.column === P_WRONG) return (a === "" ? -Infinity : Number(a)) - (b === "" ? -Infinity : Number(b)) || 0;
  return a - b;
}

function refresh() {
  const [search, given, suggested, decision, least] = fields.map((field) => field.value);
  const wanted = search.toLowerCase();
  shown = data.rows.filter((row) =>
    (!wanted || `${row[0]}\n${row[GROUP] ?? ""}`.toLowerCase().includes(wanted)) &&
    (given === "" || row[1] === Number(given)) &&
    (suggested === "" || row[2] === Number(suggested)) &&
    (decision === "" || row[DECISION] === Number(decision)) &&
    (!(Number(least) > 0) || (row[P_WRONG] !== "" && Number(row[P_WRONG]) >= Number(least))));
  shown.sort((one, two) => (order.descending ? -compare(one, two) : compare(one, two)));
  document.querySelectorAll("#head button").forEach((button, column) => {
    button.setAttribute("aria-pressed", String(column === order.column));
    button.textContent = COLUMNS[column] + (column === order.column ? (order.descending ? " ↓" : " ↑") : "");
  });
  document.getElementById("count").textContent = `${shown.length} of ${data.rows.length}`;
  spacer.style.height = `${shown.length * HEIGHT}px`;
  viewport.scrollTop = 0;
  draw();
}

function digits(text, places) {
  return text === "" ? "–" : Number(text).toFixed(places);
}

function draw() {
  const first = Math.max(0, Math.floor(viewport.scrollTop / HEIGHT) - 5);
  const last = Math.min(shown.length, first + Math.ceil(viewport.clientHeight / HEIGHT) + 10);
  view.style.top = `${first * HEIGHT}px`;
  view.replaceChildren(...shown.slice(first, last).map((row) => {
    const line = document.createElement("div");
    line.className = `line ${data.decisions[row[DECISION]] === "review" ? "review" : ""}`;
    const texts = [row[0], data.classes[row[1]], data.classes[row[2]], digits(row[SCORE], 2), digits(row[P_WRONG], 3),
      data.decisions[row[DECISION]], ...row.slice(GROUP)];
    texts.forEach((text, column) => {
      const cell = document.createElement(column === 2 && row[1] !== row[2] ? "strong" : "span");
      cell.textContent = text;
      cell.title = text;
      line.append(cell);
    });
    return line;
  }));
}

fields.forEach((field) => field.addEventListener("input", refresh));
viewport.addEventListener("scroll", draw);
window.addEventListener("resize", draw);
refresh();

// A picture at the size of the window, and the fields of a table that are not shown at first.
const large = document.getElementById("large");
document.querySelectorAll(".enlarge").forEach((button) => button.addEventListener("click", () => {
  const [from, to] = [button.querySelector("img"), large.querySelector("img")];
  to.onerror = () => { to.onerror = null; to.src = from.src; }; // the page was moved without its folder
  to.src = button.dataset.whole || from.src;
  to.alt = from.alt;
  large.showModal();
}));
large.addEventListener("click", (event) => { if (event.target.tagName !== "BUTTON") large.close(); });
document.querySelectorAll(".unfold").forEach((button) => button.addEventListener("click", () => {
  button.closest("figure").querySelector(".more").hidden = false;
  button.remove();
}));
