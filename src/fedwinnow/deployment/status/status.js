"use strict";
// Asks for the state every two seconds and shows it. All text is set as text, never as HTML.
const part = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token") || "";
const phases = {
  waiting: "Waiting for the sites", running: "Running", finished: "Finished",
  failed: "Ended with an error", interrupted: "Interrupted",
  training: "Training", judging: "Sites judge their labels", counting: "Sites count", writing: "Sites write their reports",
  looks: "Sites count what people found",
};
// What the sites are asked to count in an audit.
const questions = {
  losses: "how well the models predict the labels", classes: "labels and predictions of each class",
  sureness: "labels by how sure the models are", errors: "where wrong labels stand", decoys: "how odd labels are",
  hundredths: "labels by their p_wrong", scores: "labels by their score", figures: "the labels that are called",
};

function heading(state) {
  const phase = phases[state.phase] || state.phase;
  if (!state.trainings || state.phase === "finished") return phase;
  if (state.phase === "counting") return `Audit: sites count ${questions[state.question] || state.question}`;
  const which = state.trainings > 1 && ["running", "training", "judging"].includes(state.phase)
    ? `training ${state.training} of ${state.trainings}` : "";
  if (["running", "training"].includes(state.phase)) return `Audit: ${which || "training"}`;
  return `Audit: ${phase.toLowerCase()}${which ? ` (${which})` : ""}`;
}

function reason(site) {
  if (site.lost) return `left out of the audit: ${site.lost}`;
  return site.last_drop ? `${site.last_drop.when}: ${site.last_drop.reason}` : "";
}

function duration(seconds) {
  if (seconds <= 1) return "a second";
  if (seconds < 90) return `${Math.ceil(seconds)} seconds`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} minutes`;
  return `${(seconds / 3600).toFixed(1)} hours`;
}

function row(cells) {
  const line = document.createElement("tr");
  for (const [text, kind] of cells) {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (kind) cell.className = kind;
    line.append(cell);
  }
  return line;
}

function curve(points) {
  const first = points[0][0], last = points[points.length - 1][0];
  const x = (round) => 48 + 532 * (round - first) / Math.max(1, last - first), y = (share) => 150 - 140 * share;
  const shape = (name, values, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };
  const [round, share] = points[points.length - 1];
  part("curve").replaceChildren(
    ...[0, 0.5, 1].flatMap((each) => [
      shape("line", { x1: 48, x2: 580, y1: y(each), y2: y(each) }),
      shape("text", { x: 42, y: y(each) + 4, "text-anchor": "end" }, `${100 * each} %`),
    ]),
    shape("text", { x: 48, y: 170 }, `round ${first}`),
    shape("text", { x: 580, y: 170, "text-anchor": "end" }, `round ${last}`),
    shape("polyline", { points: points.map(([each, value]) => `${x(each)},${y(value)}`).join(" ") }),
    shape("circle", { cx: x(round), cy: y(share), r: 4 }),
  );
}

function show(state) {
  part("phase").textContent = heading(state);
  const there = state.sites.filter((site) => site.there).length;
  const facts = [`${there} of ${state.expected} sites are connected`];
  if (state.rounds && ["running", "training"].includes(state.phase) || state.rounds && !state.trainings) {
    facts.unshift(`${state.method}, round ${state.round} of ${state.rounds}`);
  }
  if (state.seconds_left !== null) facts.push(`about ${duration(state.seconds_left)} ${state.trainings ? "of training " : ""}left`);
  part("facts").textContent = facts.join("; ");
  part("progress").value = state.progress;
  part("accuracy").hidden = !state.accuracy.length;
  if (state.accuracy.length) {
    const [round, share] = state.accuracy[state.accuracy.length - 1];
    part("last").textContent = `${(100 * share).toFixed(1)} %`;
    part("last-round").textContent = round;
    curve(state.accuracy);
  }
  part("sites").replaceChildren(...state.sites.map((site) => row([
    [site.name], [site.there ? "yes" : "no", site.there ? "" : "away"], [site.samples ?? "–"], [site.dropped],
    [reason(site), site.lost ? "away" : ""],
  ])));
  part("refusals").hidden = !state.refused.length;
  part("refused").replaceChildren(...state.refused.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
}

async function look() {
  try {
    const answer = await fetch(`/state?token=${encodeURIComponent(token)}`);
    if (!answer.ok) throw new Error(answer.statusText);
    show(await answer.json());
    part("lost").hidden = true;
  } catch {
    part("lost").hidden = false;
  }
  setTimeout(look, 2000);
}

look();
