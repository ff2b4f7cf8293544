"use strict";
// Draw the figures near the viewport first, then the others one by one. Redraw all when the colour scheme changes, because their
// colours are CSS variables.
const plots = [...document.querySelectorAll(".plot")].map((place) => ({
  place,
  spec: JSON.parse(place.querySelector("script").textContent),
  drawn: false,
}));

function colours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const faded = (colour) => colour + "2e";
  const resolve = (text) =>
    text
      .replace(/fade\(var\((--[\w-]+)\)\)/g, (_, name) => faded(value(name)))
      .replace(/var\((--[\w-]+)\)/g, (_, name) => value(name));
  const walk = (part) => {
    if (typeof part === "string") return part.includes("var(") ? resolve(part) : part;
    if (Array.isArray(part)) return part.map(walk);
    if (part && typeof part === "object") return Object.fromEntries(Object.entries(part).map(([k, v]) => [k, walk(v)]));
    return part;
  };
  return walk;
}

function draw(plot, walk) {
  const { data, layout } = walk(plot.spec);
  Plotly.react(plot.place, data, layout, { responsive: true, displayModeBar: false });
  plot.drawn = true;
}

function drawOnce(plot) {
  if (!plot.drawn) draw(plot, colours());
}

const near = new IntersectionObserver(
  (entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      near.unobserve(entry.target);
      drawOnce(plots.find((plot) => plot.place === entry.target));
    }
  },
  { rootMargin: "600px" },
);
plots.forEach((plot) => near.observe(plot.place));

function rest() {
  const next = plots.find((plot) => !plot.drawn);
  if (!next) return;
  drawOnce(next);
  setTimeout(rest, 30);
}
addEventListener("load", () => setTimeout(rest, 200));

function again(every) {
  const walk = colours();
  plots.filter((plot) => every || plot.drawn).forEach((plot) => draw(plot, walk));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => again(false));
addEventListener("beforeprint", () => again(true));
