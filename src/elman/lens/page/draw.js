"use strict";
// Colours, scales and two surfaces with the same words, a canvas and an SVG: what is drawn on one can be saved by the other.

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
const colour = i => css(COLOURS[i % COLOURS.length]);

const HEAT = [[24, 20, 62], [62, 31, 112], [120, 38, 122], [178, 51, 104], [226, 88, 72], [250, 150, 60], [252, 222, 128]];

function mix(stops, share) {
  const x = Math.max(0, Math.min(1, share)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(x));
  return stops[i].map((v, k) => Math.round(v + (stops[i + 1][k] - v) * (x - i)));
}

const heat = share => mix(HEAT, share);

function neutral() {
  const hex = css("--neutral");
  return [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
}

// -1 is blue, 0 the paper, 1 red.
function diverging(value, middle) {
  return value < 0 ? mix([middle, [66, 133, 205]], -value) : mix([middle, [216, 96, 61]], value);
}

const rgb = c => `rgb(${c[0]},${c[1]},${c[2]})`;

class CanvasSurface {
  constructor(canvas, width, height) {
    const scale = Math.max(1, window.devicePixelRatio || 1);
    canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
    canvas.style.width = width + "px"; canvas.style.height = height + "px";
    this.c = canvas.getContext("2d"); this.c.scale(scale, scale); this.width = width; this.height = height;
    this.c.clearRect(0, 0, width, height);
  }
  line(points, stroke, width = 1, dash = []) {
    const c = this.c; c.beginPath(); c.strokeStyle = stroke; c.lineWidth = width; c.setLineDash(dash);
    points.forEach(([x, y], i) => i ? c.lineTo(x, y) : c.moveTo(x, y)); c.stroke(); c.setLineDash([]);
  }
  circle(x, y, r, fill, stroke = null, width = 1) {
    const c = this.c; c.beginPath(); c.arc(x, y, r, 0, 2 * Math.PI);
    if (fill) { c.fillStyle = fill; c.fill(); }
    if (stroke) { c.strokeStyle = stroke; c.lineWidth = width; c.stroke(); }
  }
  rect(x, y, w, h, fill) { this.c.fillStyle = fill; this.c.fillRect(x, y, w, h); }
  text(x, y, text, fill, align = "left", size = 11) {
    const c = this.c; c.fillStyle = fill; c.font = `${size}px system-ui, sans-serif`; c.textAlign = align; c.fillText(text, x, y);
  }
  image(x, y, w, h, source) { this.c.imageSmoothingEnabled = false; this.c.drawImage(source, x, y, w, h); }
}

class SvgSurface {
  constructor(width, height) { this.width = width; this.height = height; this.parts = []; }
  line(points, stroke, width = 1, dash = []) {
    const d = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");
    this.parts.push(`<path d="${d}" fill="none" stroke="${stroke}" stroke-width="${width}" stroke-dasharray="${dash.join(" ") || "none"}"/>`);
  }
  circle(x, y, r, fill, stroke = null, width = 1) {
    this.parts.push(`<circle cx="${x.toFixed(2)}" cy="${y.toFixed(2)}" r="${r}" fill="${fill || "none"}" stroke="${stroke || "none"}" stroke-width="${width}"/>`);
  }
  rect(x, y, w, h, fill) { this.parts.push(`<rect x="${x}" y="${y}" width="${w}" height="${h}" fill="${fill}"/>`); }
  text(x, y, text, fill, align = "left", size = 11) {
    const anchor = { left: "start", right: "end", center: "middle" }[align];
    this.parts.push(`<text x="${x}" y="${y}" fill="${fill}" font-size="${size}" font-family="system-ui, sans-serif" text-anchor="${anchor}">${escaped(text)}</text>`);
  }
  image(x, y, w, h, source) {
    this.parts.push(`<image x="${x}" y="${y}" width="${w}" height="${h}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${source.toDataURL()}"/>`);
  }
  toString() {
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${this.width} ${this.height}" width="${this.width}" height="${this.height}">`
      + `<rect width="100%" height="100%" fill="${css("--card")}"/>${this.parts.join("")}</svg>`;
  }
}

const escaped = text => String(text).replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);

// An array of bytes as a picture, a row of it for each row: `paint(byte)` gives a colour.
function raster(bytes, rows, columns, paint) {
  const canvas = document.createElement("canvas"); canvas.width = Math.max(1, columns); canvas.height = Math.max(1, rows);
  const c = canvas.getContext("2d"), image = c.createImageData(canvas.width, canvas.height);
  const table = Array.from({ length: 256 }, (_, i) => paint(i));
  for (let i = 0; i < rows * columns; i++) {
    const v = table[bytes[i]];
    image.data[4 * i] = v[0]; image.data[4 * i + 1] = v[1]; image.data[4 * i + 2] = v[2]; image.data[4 * i + 3] = 255;
  }
  c.putImageData(image, 0, 0);
  return canvas;
}

const TICKS = (low, high, count) => {
  const step = Math.pow(10, Math.floor(Math.log10((high - low) / count))), found = [];
  const nice = [1, 2, 5, 10].map(k => k * step).find(s => (high - low) / s <= count) || 10 * step;
  for (let v = Math.ceil(low / nice) * nice; v <= high + 1e-12; v += nice) found.push(Math.abs(v) < 1e-12 ? 0 : v);
  return found;
};

// Numbers as people read them: four digits.
function shown(value, digits = 4) {
  if (value === null || value === undefined) return "none";
  if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3)) return value.toExponential(Math.max(0, digits - 2));
  return String(+value.toPrecision(digits));
}

// A frame with axes; `draw(surface, x, y)` gets the scales. Scatter plots and the like.
function plotted(surface, box, xs, ys, labels, draw) {
  const [left, top, right, bottom] = [46, 10, surface.width - 10, surface.height - 34];
  const x = v => left + (v - xs[0]) / (xs[1] - xs[0]) * (right - left), y = v => bottom - (v - ys[0]) / (ys[1] - ys[0]) * (bottom - top);
  const soft = css("--soft"), line = css("--line");
  for (const v of TICKS(xs[0], xs[1], Math.max(2, (right - left) / 70))) {
    surface.line([[x(v), top], [x(v), bottom]], line); surface.text(x(v), bottom + 14, shown(v, 3), soft, "center");
  }
  for (const v of TICKS(ys[0], ys[1], Math.max(2, (bottom - top) / 45))) {
    surface.line([[left, y(v)], [right, y(v)]], line); surface.text(left - 6, y(v) + 4, shown(v, 3), soft, "right");
  }
  surface.text((left + right) / 2, bottom + 29, labels[0], soft, "center");
  surface.text(left, top - 1, labels[1], soft, "left");
  draw(surface, x, y);
  return { x, y, left, top, right, bottom };
}
