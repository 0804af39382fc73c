"use strict";
// The page: reads the data that stand in it, makes the panels in their order, and lets them follow one selection.

const lens = { reports: [], arrays: null, at: { report: 0, layer: 0, unit: 0, t: null, colour: "unit" }, follow: [], themed: [] };
window.lens = lens;

const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null));
  return node;
};

const report = () => lens.reports[lens.at.report];
const layers = () => report().shown;
const layer = () => layers()[lens.at.layer];

async function unpacked() {
  const text = atob(document.getElementById("data").textContent.trim()), bytes = Uint8Array.from(text, c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const whole = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(whole.buffer).getUint32(0, true);
  lens.reports = JSON.parse(new TextDecoder().decode(whole.subarray(4, 4 + length)));
  lens.arrays = whole.subarray(4 + length);
}

const bytesOf = array => lens.arrays.subarray(array.at, array.at + array.shape[0] * array.shape[1]);
const valueOf = (array, byte) => array.low + byte / 255 * (array.high - array.low);

// ---- selection: one place, which every panel follows and the address keeps

function select(changes) {
  Object.assign(lens.at, changes);
  const at = lens.at;
  at.report = Math.max(0, Math.min(lens.reports.length - 1, at.report));
  at.layer = Math.max(0, Math.min(layers().length - 1, at.layer));
  if (layers().length) at.unit = Math.max(0, Math.min(layer().units.length - 1, at.unit));
  const parts = [`report=${at.report}`, `layer=${at.layer}`, `unit=${layers().length ? layer().units[at.unit] : 0}`];
  if (at.t !== null) parts.push(`t=${at.t}`);
  if (at.colour !== "unit") parts.push(`colour=${at.colour}`);
  lens.own = "#" + parts.join("&");
  if (location.hash !== lens.own) location.replace(lens.own);
  for (const redraw of lens.follow) redraw();
}

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)), changes = {};
  for (const name of ["report", "layer", "t"]) if (/^\d+$/.test(given.get(name) || "")) changes[name] = +given.get(name);
  if (["unit", "gradient", "integrated"].includes(given.get("colour"))) changes.colour = given.get("colour");
  Object.assign(lens.at, changes);
  lens.at.report = Math.min(lens.at.report, lens.reports.length - 1);
  if (/^\d+$/.test(given.get("unit") || "") && layers().length) {
    lens.at.layer = Math.min(lens.at.layer, layers().length - 1);
    const place = layer().units.indexOf(+given.get("unit"));
    if (place >= 0) changes.unit = place;
  }
  select(changes);
}

function chooseUnit(name, number) {
  const place = layers().findIndex(part => part.layer === name);
  if (place < 0) return;
  const unit = layers()[place].units.indexOf(number);
  if (unit >= 0) select({ layer: place, unit, colour: "unit" });
}

// ---- pieces that panels are made of

function panel(id, title, about) {
  const head = make("div", { class: "head" }, make("h2", {}, title));
  const section = make("section", { id, "aria-label": title }, head, make("p", { class: "about" }, about));
  document.getElementById("main").append(section);
  document.getElementById("contents").append(make("a", { href: "#" + id, onclick: event => {
    event.preventDefault(); section.scrollIntoView();
  } }, title));
  section.head = head;
  return section;
}

function save(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function buttons(where, name, canvas, vector) {
  where.append(
    make("button", { type: "button", onclick: () => canvas().toBlob(blob => save(name + ".png", blob)) }, "PNG"),
    make("button", { type: "button", onclick: () => save(name + ".svg", new Blob([vector()], { type: "image/svg+xml" })) }, "SVG"));
}

// A picture that draws itself anew when the page, the theme or the selection changes.
function picture(where, name, height, draw, events = {}) {
  const canvas = make("canvas", { class: events.click ? "click" : "", role: "img", "aria-label": name });
  const box = make("div", { class: "chart" }, canvas);
  where.append(box);
  let frame = null;
  const width = () => Math.max(200, box.clientWidth);
  const tall = () => typeof height === "function" ? height(width()) : height;
  const redraw = () => { frame = draw(new CanvasSurface(canvas, width(), tall())); };
  const place = event => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top, frame];
  };
  if (events.click) canvas.addEventListener("click", event => events.click(...place(event)));
  if (events.hover) {
    canvas.addEventListener("mousemove", event => tip(event, events.hover(...place(event))));
    canvas.addEventListener("mouseleave", () => tip(null, ""));
  }
  lens.follow.push(redraw);
  new ResizeObserver(() => { if (Math.abs(canvas.clientWidth - width()) > 1) redraw(); }).observe(box);
  buttons(events.buttons || where, name, () => canvas, () => {
    const surface = new SvgSurface(width(), tall()); draw(surface); return surface.toString();
  });
  return redraw;
}

// What stands nearest of `frame.points` [x, y, what]; null where nothing is near.
function nearestPoint(x, y, frame, most = 14) {
  const best = frame.points.map(p => [Math.hypot(p[0] - x, p[1] - y), p[2]]).sort((a, b) => a[0] - b[0])[0];
  return best && best[0] < most ? best[1] : null;
}

const tipNode = make("div", { class: "tip" });
function tip(event, text) {
  tipNode.style.display = text ? "block" : "none";
  if (!text) return;
  tipNode.textContent = text;
  tipNode.style.left = Math.min(innerWidth - tipNode.offsetWidth - 8, event.clientX + 12) + "px";
  tipNode.style.top = event.clientY + 16 + "px";
}

// Which ticks of a logarithmic axis are drawn: powers of ten, over many decades every so many of them, over less than three
// 2 and 5 between them.
function nicely(u, splits) {
  const decades = splits.length ? Math.log10(splits[splits.length - 1] / splits[0]) : 0, each = Math.ceil(decades / 8) || 1;
  const drawn = v => (decades < 3 ? [1, 2, 5] : [1]).some(k => { const p = Math.log10(v / k); return Math.abs(p - Math.round(p)) < 1e-6 && Math.round(p) % each === 0; });
  return splits.map(v => drawn(v) ? v : null);
}

// How the lines of each report are dashed, so that layers may keep their colours.
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];

// Curves by uPlot. Each series has its own x; zeros cannot stand on a logarithmic axis and are left out.
function curves(where, name, height, series, { xlabel, ylabel, xlog = false, ylog = false, points = false }) {
  const box = make("div", { class: "chart" });
  where.append(box);
  const allowed = v => v !== null && (!ylog || v > 0);
  const kept = series.map(s => ({ ...s, xy: s.x.map((x, i) => [x, s.y[i]]).filter(([x, y]) => allowed(y) && (!xlog || x > 0)) }));
  const xs = [...new Set(kept.flatMap(s => s.xy.map(p => p[0])))].sort((a, b) => a - b);
  if (!xs.length) { box.append(make("p", { class: "left" }, "There is nothing above zero to draw.")); return; }
  const data = [xs, ...kept.map(s => { const by = new Map(s.xy); return xs.map(x => by.has(x) ? by.get(x) : null); })];
  const axis = (label, log) => ({ stroke: () => css("--soft"), grid: { stroke: () => css("--line"), width: 1, ...(log ? { filter: nicely } : {}) },
    ticks: { stroke: () => css("--line"), width: 1, ...(log ? { filter: nicely } : {}) }, ...(log ? { filter: nicely } : {}), label, labelSize: 20, font: "11px system-ui", labelFont: "11px system-ui", size: log ? 54 : 44,
    values: (u, splits) => splits.map(v => v === null ? "" : shown(v, 3)) });
  const options = {
    width: Math.max(200, box.clientWidth), height, legend: { live: true },
    scales: { x: { time: false, distr: xlog ? 3 : 1, range: (u, low, high) => high > low ? [low, high] : [low / 2, high * 2 + 1] }, y: { distr: ylog ? 3 : 1 } },
    axes: [{ ...axis(xlabel, xlog), size: 34 }, axis(ylabel, ylog)],
    series: [{ label: xlabel }, ...kept.map((s, i) => ({ label: s.label, stroke: () => colour(s.colour ?? i), width: 2, dash: s.dash || [],
      spanGaps: true, points: { show: points }, value: (u, v) => v === null ? "–" : shown(v) }))],
  };
  const chart = new uPlot(options, data, box);
  new ResizeObserver(() => { const w = Math.max(200, box.clientWidth); if (Math.abs(w - chart.width) > 1) chart.setSize({ width: w, height }); }).observe(box);
  lens.themed.push(() => chart.redraw());
  const vector = () => {
    const fx = v => xlog ? Math.log10(v) : v, fy = v => ylog ? Math.log10(v) : v, all = kept.flatMap(s => s.xy);
    const range = (f, k) => { const v = all.map(p => f(p[k])), low = Math.min(...v), high = Math.max(...v); return high > low ? [low, high] : [low - 1, high + 1]; };
    const surface = new SvgSurface(Math.max(200, box.clientWidth), height);
    const note = log => log ? " (log10)" : "";
    plotted(surface, null, range(fx, 0), range(fy, 1), [xlabel + note(xlog), ylabel + note(ylog)], (s, x, y) => kept.forEach((c, i) =>
      s.line(c.xy.map(p => [x(fx(p[0])), y(fy(p[1]))]), colour(c.colour ?? i), 2, c.dash || [])));
    return surface.toString();
  };
  buttons(where.head || where, name, () => box.querySelector("canvas"), vector);
}

function table(where, header, rows) {
  const body = rows.map(row => make("tr", {}, ...row.map(cell => {
    const node = make("td", { class: typeof cell === "number" || cell === null ? "n" : "" });
    node.append(cell instanceof Node ? cell : typeof cell === "number" || cell === null ? shown(cell) : String(cell));
    return node;
  })));
  where.append(make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...header.map(h => make("th", {}, h)))), make("tbody", {}, ...body))));
}

function scaleBar(where, paint, low, high) {
  const canvas = make("canvas", {});
  where.append(make("div", { class: "legend" }, low, canvas, high));
  lens.follow.push(() => {
    const surface = new CanvasSurface(canvas, 140, 10);
    for (let i = 0; i < 140; i++) surface.rect(i, 0, 1, 10, rgb(paint(i / 139)));
  });
}

const named = (r, text) => lens.reports.length > 1 ? `${r.title}: ${text}` : text;
const short = (name, most = 42) => name.length > most ? name.slice(0, Math.max(1, most - 2)) + "…" : name;
