"use strict";
// A tree, its root on the left and a line for each word: readable at any width, as tall as the sentence is long.

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
