"use strict";
// Panels of trees and images. A tree: its root on the left and a line for each word: readable at any width, as tall as the sentence is long.

const LINE = 20;

function treePanel(where, own, which) {
  const lines = Math.max(1, own.words.filter(word => word).length), top = Math.max(1, ...own.height);
  const ordered = own.labels.length > 1 && own.labels.every(label => /^-?\d+$/.test(label));
  const logs = own.gradient.map(v => v > 0 ? Math.log10(v) : -30), high = Math.max(...logs), low = Math.max(Math.min(...logs), high - 3);
  let by = "label";
  const share = i => high > low ? Math.max(0, logs[i] - low) / (high - low) : 1;
  const ofLabel = label => {
    const i = own.labels.indexOf(label);
    if (i < 0) return neutral();
    return ordered ? diverging(2 * i / (own.labels.length - 1) - 1, neutral()) : [1, 3, 5].map(k => parseInt(colour(i).slice(k, k + 2), 16));
  };
  const fill = i => by === "label" ? ofLabel(own.said[i]) : heat(share(i));
  const modes = [["label", "Label"], ["gradient", "Gradient at the root"]].map(([kind, title]) => make("button", {
    type: "button", "data-tree": kind, "aria-pressed": kind === by, onclick: () => {
      by = kind;
      modes.forEach(button => button.setAttribute("aria-pressed", button.dataset.tree === by));
      redraw();
    } }, title));
  const key = make("div", { class: "legend" });
  where.append(make("div", { class: "bar" }, ...modes), key);
  lens.follow.push(() => key.replaceChildren(...own.labels.slice(0, 24).map(label => {
    const dot = make("span", { class: "key" });
    dot.style.background = rgb(ofLabel(label));
    return make("span", {}, dot, label);
  })));
  const step = i => lens.at.report === which ? own.way.indexOf(i) : -1;
  const redraw = picture(where, `tree-${which}`, lines * LINE + 8, surface => {
    const written = Math.max(...own.words.map(word => word.length)) * 6.5 + 12, right = surface.width - Math.min(surface.width * 0.4, Math.max(70, written));
    const radius = Math.max(3, Math.min(8, (right - 20) / (3 * top))), x = i => 12 + (1 - own.height[i] / top) * (right - 26), y = i => LINE * (own.place[i] + 0.5) + 4;
    const line = css("--line"), ink = css("--ink"), most = Math.floor((surface.width - right - 10) / 6.5), way = new Set(own.way);
    own.words.forEach((word, i) => { if (word) surface.line([[x(i), y(i)], [right - 4, y(i)]], line, 1, [1, 3]); });
    own.parents.forEach((parent, i) => {
      if (parent < 0) return;
      const both = way.has(i) && way.has(parent);
      surface.line([[x(i), y(i)], [x(parent), y(i)], [x(parent), y(parent)]], both ? css("--c0") : css("--soft"), both ? 3 : 1);
    });
    own.parents.forEach((_, i) => {
      const wrong = own.truth[i] && own.said[i] && own.truth[i] !== own.said[i];
      surface.circle(x(i), y(i), radius, rgb(fill(i)), wrong ? ink : css("--soft"), wrong ? 2.5 : 1);
      if (lens.at.t !== null && step(i) === lens.at.t) surface.circle(x(i), y(i), radius + 4, null, css("--mark"), 2.5);
      if (own.words[i]) surface.text(right, y(i) + 4, short(own.words[i], most), ink, "left", 12);
    });
    return { points: own.parents.map((_, i) => [x(i), y(i), i]) };
  }, {
    buttons: where.head,
    click: (px, py, f) => { const i = nearestPoint(px, py, f), t = i === null ? -1 : own.way.indexOf(i); if (t >= 0) select({ report: which, t }); },
    hover: (px, py, f) => {
      const i = nearestPoint(px, py, f);
      if (i === null) return "";
      const chance = own.chance[i] === null ? "" : ` (${(100 * own.chance[i]).toFixed(0)} %)`;
      return [own.words[i] && `“${own.words[i]}”`, own.said[i] && `says ${own.said[i]}${chance}`, own.truth[i] && `is ${own.truth[i]}`,
        `|dL/ds| ${shown(own.gradient[i], 3)} for the loss at the root`].filter(part => part).join(", ");
    },
  });
}

// An image, and what each of its pixels costs.
function imagePanel(where, own, which) {
  const rows = own.pixels.length, columns = own.pixels[0].length, most = Math.max(...own.nats.flat(), 1e-9);
  const pictures = [["image", "the image", v => heatless(v / own.white), own.pixels, own.white], ["nats", `nats a pixel, ${shown(most, 3)} at most`, v => heat(v / most), own.nats, most]];
  const grid = make("div", { class: "grid" });
  where.append(grid);
  for (const [name, title, paint, values, top] of pictures) {
    const figure = make("div", { class: "figure" }, make("h3", {}, title));
    grid.append(figure);
    picture(figure, `${name}-${which}`, width => Math.min(width, 320) * rows / columns + 4, surface => {
      const size = Math.min(surface.width, 320) / columns;
      surface.image(0, 0, size * columns, size * rows, raster(values.flat().map(v => Math.round(255 * v / top)), rows, columns, byte => paint(byte / 255 * top)));
      if (lens.at.t !== null && lens.at.report === which && lens.at.t < rows) {
        const y = size * lens.at.t, right = size * columns;
        surface.line([[0, y], [right, y], [right, y + size], [0, y + size], [0, y]], css("--mark"), 2);
      }
      return { size };
    }, {
      click: (x, y, f) => { const t = Math.floor(y / f.size); if (t >= 0 && t < rows) select({ report: which, t }); },
      hover: (x, y, f) => {
        const r = Math.floor(y / f.size), c = Math.floor(x / f.size);
        return r >= 0 && r < rows && c >= 0 && c < columns ? `row ${r}, column ${c}: level ${own.pixels[r][c]}, ${shown(own.nats[r][c], 3)} nats` : "";
      },
    });
  }
}

const heatless = share => mix([[20, 20, 22], [245, 245, 242]], share);
