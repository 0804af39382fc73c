"use strict";
// Spectra on the disc, exponents, what tasks add, health, settings; then everything is put together.

function spectra() {
  const every = lens.reports.flatMap((r, k) => r.spectrum.map(part => ({ ...part, title: named(r, `${part.layer}, ${part.name}`) })));
  if (!every.length) return;
  const where = panel("spectrum", "Spectra on the disc", "Eigenvalues of recurrent matrices, the decays of a linear recurrence, or (J) the Jacobian of a step in the middle. Inside the circle a mode dies, outside it grows; the angle is its rotation a step.");
  const grid = make("div", { class: "grid" });
  where.append(grid);
  for (const [k, part] of every.entries()) {
    const figure = make("div", { class: "figure" }, make("h3", {}, `${part.title}: radius ${shown(part.radius)}`));
    grid.append(figure);
    picture(figure, `spectrum-${k}`, width => Math.min(320, width), surface => {
      const reach = Math.max(1.05, ...part.real.map(Math.abs), ...part.imag.map(Math.abs)), size = Math.min(surface.width, surface.height);
      const cx = surface.width / 2, cy = size / 2, scale = (size / 2 - 12) / reach, points = [];
      surface.line([[cx - reach * scale, cy], [cx + reach * scale, cy]], css("--line"));
      surface.line([[cx, cy - reach * scale], [cx, cy + reach * scale]], css("--line"));
      surface.circle(cx, cy, scale, null, css("--soft"), 1.2);
      part.real.forEach((re, i) => { const x = cx + re * scale, y = cy - part.imag[i] * scale; points.push([x, y, i]); surface.circle(x, y, 2.6, colour(k)); });
      surface.text(cx + scale + 3, cy - 4, "1", css("--soft"));
      return { points };
    }, { hover: (x, y, f) => {
      const i = nearestPoint(x, y, f);
      if (i === null) return "";
      const constant = part.time_constants[i], period = part.periods[i];
      return `|λ| ${shown(Math.hypot(part.real[i], part.imag[i]))}, time constant ${constant === null ? "none, it does not die" : shown(constant) + " steps"}, period ${period === null ? "none" : shown(period) + " steps"}`;
    } });
  }
}

function exponents() {
  const there = lens.reports.flatMap((r, k) => r.lyapunov.map((part, i) => ({ label: named(r, part.layer), x: part.exponents.map((_, n) => n + 1), y: part.exponents, colour: i, dash: DASHES[k % DASHES.length] })));
  if (!there.length) return;
  const where = panel("lyapunov", "Lyapunov exponents and isometry", "How fast directions of the state grow or die on these data, nats a step; above zero is chaos. Then the singular values of a step, and of several steps in a row: a line at one keeps everything.");
  curves(where, "lyapunov", 240, there, { xlabel: "number", ylabel: "exponent", points: true });
  table(where, ["layer", "largest exponent", "forgets to 1 / e in, steps", "largest singular value of a step"], lens.reports.flatMap(r => r.lyapunov.map(part => {
    const top = part.exponents[0], isometry = r.isometry.find(other => other.layer === part.layer);
    return [named(r, part.layer), top, top !== null && top < 0 ? -1 / top : null, isometry ? isometry.largest[0] : null];
  })));
  const figures = lens.reports.flatMap(r => r.isometry.map(part => [r, part]));
  const grid = make("div", { class: "grid" });
  if (figures.length) where.append(make("h3", {}, "Singular values, largest first, of 1, 4 and 16 steps"), grid);
  for (const [r, part] of figures) {
    const figure = make("div", { class: "figure" }, make("h3", {}, named(r, part.layer)));
    grid.append(figure);
    const x = part.quantiles[0].map((_, i) => 100 * i / (part.quantiles[0].length - 1));
    curves(figure, `isometry-${part.layer}`, 220, part.tau.map((tau, i) => ({ label: `τ = ${tau}`, x, y: part.quantiles[i].map(v => v > 1e-8 ? v : null), colour: i })),
      { xlabel: "share of directions, %", ylabel: "singular value", ylog: true });
  }
}

function ownPanels() {
  for (const r of lens.reports) for (const [k, own] of r.panels.entries()) {
    const where = panel(`task-${lens.reports.indexOf(r)}-${k}`, named(r, own.title), own.about || "Of the first row: a ribbon for each, as dark as it is probable; at the top, what is chosen.");
    if (own.kind === "tree") { treePanel(where, own, lens.reports.indexOf(r)); continue; }
    if (own.kind === "image") { imagePanel(where, own, lens.reports.indexOf(r)); continue; }
    const column = t => own.columns ? `${t} “${own.columns[t].trim() || "end"}”` : `input ${t}`;
    const paths = [...new Set(own.path)];
    picture(where, own.title, () => 24 * own.rows.length + 54, surface => {
      const left = Math.min(110, surface.width / 3), width = surface.width - left - 4, columns = own.path.length;
      own.path.forEach((name, t) => surface.rect(left + t / columns * width, 0, width / columns + 0.5, 18, colour(Math.max(0, own.rows.indexOf(name) >= 0 ? own.rows.indexOf(name) : paths.indexOf(name)))));
      surface.text(left - 8, 13, "chosen", css("--ink"), "right");
      own.rows.forEach((name, i) => {
        const bytes = own.values[i].map(v => Math.round(255 * (v ?? 0))), back = neutral(), ink = [1, 3, 5].map(j => parseInt(colour(i).slice(j, j + 2), 16));
        surface.image(left, 26 + 24 * i, width, 20, raster(bytes, 1, bytes.length, b => mix([back, ink], b / 255)));
        surface.text(left - 8, 40 + 24 * i, short(name), css("--ink"), "right");
      });
      if (own.columns && width / columns >= 24)
        own.columns.forEach((name, t) => surface.text(left + (t + 0.5) / columns * width, 24 * own.rows.length + 42, short(name.trim() || "end", Math.floor(width / columns / 6)), css("--soft"), "center", 10));
      else {
        surface.text(left, 24 * own.rows.length + 42, "first input", css("--soft"));
        surface.text(left + width, 24 * own.rows.length + 42, `last (${columns})`, css("--soft"), "right");
      }
      cursor(surface, left, width * report().steps / columns, 26 + 24 * own.rows.length);
      return { left, width, columns };
    }, { buttons: where.head, click: (x, y, f) => { const t = Math.floor((x - f.left) / f.width * f.columns); if (t >= 0 && t < f.columns) select({ t }); },
      hover: (x, y, f) => {
        const t = Math.floor((x - f.left) / f.width * f.columns), row = Math.floor((y - 26) / 24);
        if (t < 0 || t >= f.columns) return "";
        return y < 22 ? `${column(t)}: ${own.path[t]}` : own.rows[row] ? `${column(t)}, ${own.rows[row]}: ${shown(own.values[row][t], 3)}` : "";
      } });
    if (own.table) table(where, own.table.header, own.table.rows);
  }
}

function health() {
  const where = panel("health", "Health", "Units that do not move (dead), units at the end of their range (saturated), and the first step whose state is not finite.");
  table(where, ["layer", "numbers in the state", "dead", "saturated", "first step not finite", "largest |s|"], lens.reports.flatMap(r => r.health.map(part =>
    [named(r, part.layer), part.units, part.dead.length, part.saturated.length, part.not_finite === null ? "none" : part.not_finite, part.largest])));
  const there = lens.reports.filter(r => r.training.length);
  if (!there.length) return;
  const last = there.map(r => [r.title, r.training.filter(line => "update_ratio" in line).pop()]).filter(([, line]) => line);
  if (last.length) table(where, ["run", "update-to-weight ratio", "at step"], last.map(([title, line]) => [title, line.update_ratio, line.step]));
  const keys = [...new Set(there.flatMap(r => r.training.flatMap(line => Object.keys(line))))].filter(key => key === "update_ratio" || key.startsWith("lens_"));
  if (there[0].training.length < 2) return;
  const grid = make("div", { class: "grid" });
  where.append(make("h3", {}, "While it trained"), grid);
  for (const key of keys) {
    const figure = make("div", { class: "figure" }, make("h3", {}, key.replace(/^lens_/, "").replaceAll("_", " ")));
    grid.append(figure);
    curves(figure, key, 170, there.map((r, k) => { const lines = r.training.filter(line => key in line); return { label: r.title, x: lines.map(l => l.step), y: lines.map(l => l[key]), colour: k }; }),
      { xlabel: "step", ylabel: "", points: true });
  }
}

function settings() {
  const where = panel("config", "Settings and command", "What was trained, and what made this page.");
  const names = [...new Set(lens.reports.flatMap(r => Object.keys(r.config)))];
  const value = v => typeof v === "string" ? v : JSON.stringify(v);
  if (names.length) {
    const details = make("details", {}, make("summary", {}, `${names.length} settings`));
    table(details, ["setting", ...lens.reports.map(r => r.title)], names.map(name => [name, ...lens.reports.map(r => value(r.config[name]) ?? "")]));
    where.append(details);
  }
  where.append(make("h3", {}, "Command"), make("pre", { class: "command" }, lens.reports[0].command || "elman.lens.inspect(model, x, y).save(path)"));
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  for (const redraw of [...lens.follow, ...lens.themed]) redraw();
}

// What is chosen at first: the unit that follows something best.
function best() {
  const found = report().units.map(part => [Math.abs(part.auc[0] - 0.5), part]).sort((a, b) => b[0] - a[0])[0];
  if (found) chooseUnit(found[1].layer, found[1].units[0]);
}

function json() {
  const content = lens.reports.map(({ shown, ...rest }) => rest);
  return JSON.stringify(content.length === 1 ? content[0] : content);
}

async function start() {
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  await unpacked();
  document.getElementById("loading").remove();
  document.body.append(tipNode);
  for (const part of [verdicts, reaches, flows, texts, contexts, gatesAndTimes, spectra, exponents, ownPanels, health, settings]) part();
  document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  document.getElementById("json").addEventListener("click", () => save("report.json", new Blob([json()], { type: "application/json" })));
  document.getElementById("print").addEventListener("click", () => print());
  addEventListener("hashchange", () => { if (location.hash !== lens.own) fromAddress(); });
  if (lens.reports.length > 1) {
    const choose = make("select", { "aria-label": "report", onchange: event => select({ report: +event.target.value, layer: 0, unit: 0 }) },
      ...lens.reports.map((r, i) => make("option", { value: i }, r.title)));
    document.querySelector("#text .bar").prepend("Report", choose);
    lens.follow.push(() => { choose.value = lens.at.report; });
  }
  const given = location.hash;
  best();
  if (given) location.replace(given);
  fromAddress();
  document.documentElement.dataset.ready = "yes";
}

start().catch(error => { document.getElementById("main").append(make("p", {}, `The report cannot be shown: ${error.message}`)); console.error(error); });
