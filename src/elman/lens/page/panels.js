"use strict";
// The panels, in the order of the page.

function verdicts() {
  const main = document.getElementById("main");
  const first = lens.reports[0];
  document.title = `${first.title} – Elman lens`;
  main.append(make("h1", {}, lens.reports.map(r => r.title).join(" against "), make("span", { class: `badge ${first.kind}`, id: "kind" }, first.kind)),
    make("p", { class: "meta" }, `${first.model}, seen on ${first.rows} rows of ${first.steps} steps; loss ${shown(first.loss)} nats`));
  if (first.about) main.append(make("p", { class: "meta" }, first.about));
  const where = panel("verdict", "Verdict", "What the numbers below say, and what lecture notes would do about it.");
  const box = make("div", { class: "verdicts" });
  for (const r of lens.reports) {
    const card = make("div", { class: "verdict" });
    if (lens.reports.length > 1) card.append(make("h3", {}, r.title, make("span", { class: `badge ${r.kind}` }, r.kind)));
    card.append(make("ol", {}, ...r.verdict.map(sentence => make("li", {}, sentence))));
    for (const [name, why] of Object.entries(r.missing)) card.append(make("p", { class: "left" }, `Left out: ${name}, since ${why}.`));
    box.append(card);
  }
  where.append(box);
}

function reaches() {
  const where = panel("reach", "Reach", "How strongly the loss at a step depends on the state τ steps before, relative to the step before it, for each layer. Horizontal: no loss of gradient. A straight fall is exponential forgetting.");
  const series = lens.reports.flatMap((r, k) => r.reach.map((part, i) => ({ label: named(r, part.layer), x: part.tau, y: part.relative, colour: i, dash: DASHES[k % DASHES.length] })));
  if (!series.length) { where.append(make("p", { class: "left" }, "There is no state, so nothing reaches back.")); return; }
  curves(where, "reach", 300, series, { xlabel: "τ, steps before", ylabel: "relative |dL/ds|", xlog: true, ylog: true });
  table(where, ["layer", "half-life", "horizon (1 %)", "slope, nats a step", "|dL/ds| just before"],
    lens.reports.flatMap(r => r.reach.map(part => [named(r, part.layer), part.half_life, part.horizon, part.slope, part.raw[0] ?? null])));
}

function contexts() {
  const there = lens.reports.filter(r => r.context);
  if (!there.length) return;
  const where = panel("context", "Context", "The loss with the last n inputs alone, minus the loss with all of them: how much of the past the model uses.");
  curves(where, "context", 240, there.map((r, k) => ({ label: named(r, "extra loss, nats"), x: r.context.n, y: r.context.excess, colour: k })),
    { xlabel: "n, inputs kept", ylabel: "extra loss", xlog: true, points: true });
  table(where, ["run", "loss with all", "effective context"], there.map(r => [r.title, r.context.loss, r.context.effective_context]));
}

function flows() {
  const where = panel("flow", "Flow", "The norm of the loss's gradient with respect to the state before each step, layer by layer; and below, number by number of the chosen layer. Click a row to choose a unit, which every panel follows.");
  const strips = () => lens.reports.flatMap(r => r.flow.map(part => ({ name: named(r, part.layer), ...part })));
  if (!strips().length) return;
  const figure = make("div", {});
  where.append(figure);
  picture(figure, "flow", () => 26 * strips().length + 26, surface => {
    const rows = strips(), left = Math.min(150, surface.width / 3), width = surface.width - left - 4;
    const logs = rows.flatMap(r => r.norm).filter(v => v > 0).map(Math.log10), high = Math.max(...logs, -30), low = Math.max(Math.min(...logs, high), high - 6);
    rows.forEach((row, i) => {
      const bytes = row.norm.map(v => v > 0 ? Math.round(255 * Math.max(0, Math.log10(v) - low) / (high - low || 1)) : 0);
      surface.text(left - 8, 26 * i + 15, short(row.name), css("--ink"), "right");
      surface.image(left, 26 * i, width, 22, raster(bytes, 1, bytes.length, b => heat(b / 255)));
    });
    surface.text(left, 26 * rows.length + 14, "first input", css("--soft"));
    surface.text(left + width, 26 * rows.length + 14, `last (${report().steps})`, css("--soft"), "right");
    cursor(surface, left, width, 26 * rows.length);
    return { left, width, rows };
  }, { buttons: where.head, hover: (x, y, f) => {
    const row = f.rows[Math.floor(y / 26)], i = row ? Math.floor((x - f.left) / f.width * row.norm.length) : -1;
    return row && i >= 0 && i < row.norm.length ? `${row.name}, before input ${row.steps[i]}: ${shown(row.norm[i])}` : "";
  } });
  scaleBar(figure, heat, "small", "large (logarithmic, six decades at most)");
  unitMap(where, "flow-units", "flow", byte => heat(byte / 255), (array, byte) => `|dL/ds| ${shown(Math.pow(10, valueOf(array, byte)), 3)}`);
}

function cursor(surface, left, width, height) {
  if (lens.at.t === null) return;
  const x = left + (lens.at.t + 0.5) / report().steps * width;
  surface.line([[x, 0], [x, height]], css("--mark"), 1);
}

// Units of the chosen layer over time: a row each.
function unitMap(where, name, key, paint, told) {
  if (!layers().length) return;
  const figure = make("div", {});
  where.append(figure);
  const rowHeight = () => Math.max(1, Math.min(10, Math.floor(320 / layer().units.length)));
  const heading = make("h3", {});
  figure.append(heading);
  const inside = (x, y, f) => {
    const row = Math.floor(y / f.size), column = Math.floor((x - f.left) / f.width * f.columns);
    return row >= 0 && row < layer().units.length && column >= 0 && column < f.columns ? [row, column] : null;
  };
  picture(figure, name, () => rowHeight() * layer().units.length + 4, surface => {
    const array = layer()[key], [rows, columns] = array.shape, size = rowHeight(), left = Math.min(40, surface.width / 6), width = surface.width - left - 4;
    heading.textContent = `${named(report(), layer().layer)}: ${key === "flow" ? "gradient of" : "values of"} ${rows} numbers ${layer().leaf}`;
    surface.image(left, 0, width, size * rows, raster(bytesOf(array), rows, columns, byte => paint(byte, array)));
    const y = size * (lens.at.unit + 0.5);
    surface.line([[left, y], [left + width, y]], "#ffffff", 3);
    surface.line([[left, y], [left + width, y]], "#000000", 1);
    surface.text(left - 5, Math.max(9, y + 4), String(layer().units[lens.at.unit]), css("--mark"), "right");
    cursor(surface, left, width, size * rows);
    return { left, width, columns, size };
  }, {
    click: (x, y, f) => { const at = inside(x, y, f); if (at) select({ unit: at[0], t: Math.round(at[1] / f.columns * report().steps), colour: "unit" }); },
    hover: (x, y, f) => {
      const at = inside(x, y, f);
      if (!at) return "";
      const array = layer()[key];
      return `unit ${layer().units[at[0]]}: ${told(array, bytesOf(array)[at[0] * f.columns + at[1]])}`;
    },
  });
}

function texts() {
  const where = panel("text", "Inputs", "The first row. Coloured by the chosen unit; or, when a step is chosen, by how much the loss at that step depends on each input (the last inputs only).");
  const choose = make("select", { id: "layer", "aria-label": "layer", onchange: event => select({ layer: +event.target.value, unit: 0 }) });
  const number = make("input", { id: "unit", type: "number", min: 0, "aria-label": "unit", onchange: event => {
    const place = layer().units.indexOf(+event.target.value);
    if (place >= 0) select({ unit: place, colour: "unit" });
  } });
  const modes = [["unit", "Unit"], ["gradient", "Influence"], ["integrated", "Integrated gradients"]].map(([kind, title]) =>
    make("button", { type: "button", "data-kind": kind, onclick: () => select({ colour: kind, t: lens.at.t ?? report().steps - 1 }) }, title));
  where.append(make("div", { class: "bar" }, "Layer", choose, "unit", number, ...modes));
  const chosen = make("div", { class: "chosen", id: "chosen" }), chips = make("div", { class: "chips" }), box = make("div", { class: "text", id: "strip" });
  where.append(chosen);
  if (isSignal()) signal(where);
  where.append(box, make("h3", {}, "Units that follow something (AUC; 0.5 is chance)"), chips);
  let spans = [], drawn = null, seen = null;
  lens.follow.push(() => {
    if (drawn !== lens.at.report) {
      drawn = lens.at.report;
      choose.replaceChildren(...layers().map((part, i) => make("option", { value: i }, part.layer)));
      spans = letters(box);
      chips.replaceChildren(...followers());
    }
    choose.value = lens.at.layer;
    if (layers().length) number.value = layer().units[lens.at.unit];
    modes.forEach(button => button.setAttribute("aria-pressed", button.dataset.kind === lens.at.colour));
    chosen.replaceChildren(...about());
    paintText(spans);
    const here = spans[lens.at.t];
    if (here && seen !== lens.at.t) box.scrollTop = here.offsetTop - box.offsetTop - box.clientHeight / 2;
    seen = lens.at.t;
  });
  if (layers().length) unitMap(where, "states", "values", (byte, array) => diverging(signed(array, byte), neutral()), (array, byte) => shown(valueOf(array, byte), 3));
}

// Inputs that are numbers are drawn as a curve too, on the colours of the chosen unit or of influence.
const isSignal = () => report().names.length > 1 && report().names.every(name => name.trim() !== "" && isFinite(+name.split(",")[0]));

function signal(where) {
  const figure = make("div", {});
  where.append(figure);
  picture(figure, "signal", 150, surface => {
    const values = report().names.map(name => +name.split(",")[0]), n = values.length, width = surface.width, low = Math.min(...values), high = Math.max(...values);
    const x = t => (t + 0.5) / n * width, y = v => 140 - (v - low) / (high - low || 1) * 130;
    coloured(n).forEach((shade, t) => surface.rect(t / n * width, 0, width / n + 0.5, 150, rgb(shade)));
    surface.line(values.map((v, t) => [x(t), y(v)]), css("--ink"), 1.3);
    if (lens.at.t !== null) surface.line([[x(lens.at.t), 0], [x(lens.at.t), 150]], css("--mark"), 1.5);
    return { n, width };
  }, { click: (x, y, f) => select({ t: Math.max(0, Math.min(f.n - 1, Math.floor(x / f.width * f.n))) }),
    hover: (x, y, f) => describeStep(Math.max(0, Math.min(f.n - 1, Math.floor(x / f.width * f.n)))) });
}

// The colour of each input, by the chosen unit or by influence on the loss at the chosen step.
function coloured(n) {
  const middle = neutral(), found = lens.at.colour === "unit" ? null : influenceOf(), row = found ? rowOf(found) : null;
  const most = row ? Math.max(...row.map(Math.abs), 1e-30) : 1, part = layer(), bytes = part ? bytesOf(part.values) : null;
  return Array.from({ length: n }, (_, t) => {
    const value = row ? (row[t - found.start] ?? 0) / most : part && !found ? signed(part.values, bytes[lens.at.unit * part.values.shape[1] + t]) : 0;
    return diverging(value, middle);
  });
}

const signed = (array, byte) => valueOf(array, byte) / (Math.max(Math.abs(array.low), Math.abs(array.high)) || 1);

function letters(box) {
  const names = report().names.length ? report().names : Array.from({ length: report().steps }, (_, i) => `${i} `);
  const spans = names.map((name, t) => make("span", { "data-t": t,
    onclick: () => select({ t }), onmousemove: event => tip(event, describeStep(t)), onmouseleave: () => tip(null, "") },
    name === "\n" ? "↵\n" : name === "" ? "·" : name));
  box.replaceChildren(...spans);
  return spans;
}

function describeStep(t) {
  const part = layer(), text = `input ${t}`;
  if (lens.at.colour === "unit" || !influenceOf()) {
    return part ? `${text}: unit ${part.units[lens.at.unit]} is ${shown(valueOf(part.values, bytesOf(part.values)[lens.at.unit * part.values.shape[1] + t]), 3)}` : text;
  }
  const found = influenceOf(), row = rowOf(found), value = row ? row[t - found.start] : undefined;
  return value === undefined ? text : `${text}: ${shown(value, 3)} on the loss at ${lens.at.t}`;
}

const influenceOf = () => report().influence.find(part => part.kind === lens.at.colour);
const rowOf = found => found.values[found.values.length === 1 ? 0 : (lens.at.t ?? -1) - found.start];

function paintText(spans) {
  const found = lens.at.colour === "unit" ? null : influenceOf(), row = found ? rowOf(found) : null, colours = coloured(spans.length);
  spans.forEach((span, t) => {
    span.style.background = rgb(colours[t]);
    span.className = (t === lens.at.t ? "here" : "") + (found && (t < found.start || !row) ? " outside" : "");
  });
}

function followers() {
  const best = report().units.flatMap(part => part.units.slice(0, 2).map((unit, i) => ({ ...part, unit, score: part.auc[i] })));
  return best.sort((a, b) => Math.abs(b.score - 0.5) - Math.abs(a.score - 0.5)).slice(0, 14).map(part =>
    make("button", { type: "button", "data-unit": part.unit, onclick: () => chooseUnit(part.layer, part.unit) },
      `${part.label}: ${part.layer} unit ${part.unit}, ${shown(part.score, 3)}`));
}

function about() {
  if (!layers().length) return ["This model has no units to choose."];
  const part = layer(), unit = part.units[lens.at.unit], facts = [];
  const steps = report().timescale.find(time => time.layer === part.layer);
  if (steps && steps.steps.length > unit) facts.push(`time scale ${steps.steps[unit] === null ? "beyond measure" : shown(steps.steps[unit], 3) + " steps"}`);
  for (const gate of report().gates.filter(g => g.layer === part.layer && g.mean.length > unit))
    facts.push(`gate ${gate.gate} ${shown(gate.mean[unit], 2)} on average`);
  for (const follower of report().units.filter(f => f.layer === part.layer && f.units.includes(unit)))
    facts.push(`follows “${follower.label}” (AUC ${shown(follower.auc[follower.units.indexOf(unit)], 3)})`);
  return [make("b", {}, `${part.layer}, ${part.leaf} ${unit}`), facts.length ? ": " + facts.join("; ") : ""];
}

function gatesAndTimes() {
  const found = () => report().gates.filter(gate => gate.layer === (layer() || {}).layer);
  const times = () => report().timescale.find(part => part.layer === (layer() || {}).layer);
  if (!lens.reports.some(r => r.gates.length || r.timescale.length)) return;
  const where = panel("gates", "Gates and time scales", "Each dot is a unit of the chosen layer. Right: shut (below 0.1) at that share of the steps; up: open (above 0.9). On the diagonal from top left to bottom right a gate is never in between.");
  const grid = make("div", { class: "grid" });
  where.append(grid);
  const numbers = Math.max(...lens.reports.map(r => Math.max(0, ...layers().map(part => r.gates.filter(g => g.layer === part.layer).length))));
  for (let k = 0; k < numbers; k++) {
    const heading = make("h3", {}), figure = make("div", { class: "figure" }, heading);
    grid.append(figure);
    picture(figure, `gate-${k}`, width => Math.min(300, width), surface => {
      const gate = found()[k];
      heading.textContent = gate ? `gate ${gate.gate}, ${(100 * gate.saturation).toFixed(0)} % shut or open` : "no gate here";
      if (!gate) return { points: [] };
      const points = [];
      plotted(surface, null, [0, 1], [0, 1], ["share of steps shut", "share open"], (s, x, y) => {
        gate.low.forEach((low, i) => { points.push([x(low), y(gate.high[i]), i]); s.circle(x(low), y(gate.high[i]), 3, colour(k)); });
        mark(s, points);
      });
      return { points };
    }, nearest(figure));
  }
  const figure = make("div", { class: "figure" }, make("h3", {}, "time scales of units, longest first"));
  grid.append(figure);
  picture(figure, "timescales", width => Math.min(300, width), surface => {
    const part = times();
    if (!part || !part.steps.length) return { points: [] };
    const order = part.steps.map((s, i) => [s === null ? 1e6 : Math.min(1e6, Math.max(1e-2, s)), i]).sort((a, b) => b[0] - a[0]), points = [];
    const logs = order.map(o => Math.log10(o[0])), low = Math.floor(Math.min(...logs)), high = Math.max(low + 1, Math.ceil(Math.max(...logs)));
    plotted(surface, null, [0, Math.max(1, order.length - 1)], [low, high], ["units", "log10 of steps"], (s, x, y) => {
      order.forEach(([v, i], place) => { points.push([x(place), y(Math.log10(v)), i]); s.circle(x(place), y(Math.log10(v)), 2.2, colour(5)); });
      mark(s, points);
    });
    return { points };
  }, nearest(figure));
}

function mark(surface, points) {
  const unit = layer().units[lens.at.unit], found = points.find(p => p[2] === unit);
  if (found) surface.circle(found[0], found[1], 6, null, css("--mark"), 2.5);
}

function nearest(where) {
  return {
    buttons: where,
    click: (x, y, f) => { const unit = nearestPoint(x, y, f); if (unit !== null) chooseUnit(layer().layer, unit); },
    hover: (x, y, f) => { const unit = nearestPoint(x, y, f); return unit === null ? "" : `unit ${unit}`; },
  };
}
