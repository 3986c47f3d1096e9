"use strict";
// Only the visible lines are in the page, so that a table of a hundred thousand lines scrolls smoothly.
const data = JSON.parse(document.getElementById("rows").textContent);
const HEIGHT = 32;
const COLUMNS = ["id", "given", "suggested", "p_wrong", "decision"];
const viewport = document.getElementById("viewport");
const spacer = document.getElementById("spacer");
const view = document.getElementById("window");
const fields = ["search", "given", "suggested", "decision", "least"].map((id) => document.getElementById(id));
let order = { column: 3, descending: true };
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
    order = { column, descending: order.column === column ? !order.descending : column === 3 };
    refresh();
  });
  document.getElementById("head").append(button);
});

function compare(one, two) {
  const [a, b] = [one[order.column], two[order.column]];
  if (order.column === 0) return String(a).localeCompare(String(b), undefined, { numeric: true });
  if (order.column === 3) return (a === "" ? -1 : Number(a)) - (b === "" ? -1 : Number(b));
  return a - b;
}

function refresh() {
  const [search, given, suggested, decision, least] = fields.map((field) => field.value);
  const wanted = search.toLowerCase();
  shown = data.rows.filter((row) =>
    (!wanted || String(row[0]).toLowerCase().includes(wanted)) &&
    (given === "" || row[1] === Number(given)) &&
    (suggested === "" || row[2] === Number(suggested)) &&
    (decision === "" || row[4] === Number(decision)) &&
    (!(Number(least) > 0) || (row[3] !== "" && Number(row[3]) >= Number(least))));
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

function draw() {
  const first = Math.max(0, Math.floor(viewport.scrollTop / HEIGHT) - 5);
  const last = Math.min(shown.length, first + Math.ceil(viewport.clientHeight / HEIGHT) + 10);
  view.style.top = `${first * HEIGHT}px`;
  view.replaceChildren(...shown.slice(first, last).map((row) => {
    const line = document.createElement("div");
    line.className = `line ${data.decisions[row[4]] === "review" ? "review" : ""}`;
    const texts = [row[0], data.classes[row[1]], data.classes[row[2]], row[3] === "" ? "–" : Number(row[3]).toFixed(3),
      data.decisions[row[4]]];
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
