// Charts drawn by uPlot: lines over time, bars of categories. Colours come from the style sheet; a series keeps its colour.

import { h, mark, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { MOST_SERIES } from "/page/js/shape.js";
import UPlot from "/page/vendor/uplot.js";

const FONT = "11px system-ui, sans-serif";
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

/** Returns a colour of the style sheet in the form that canvas takes. */
function colourOf(element, name) {
  const probe = element.appendChild(h("span", { hidden: true, class: "probe" }));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Assigns colours to names; a name keeps its colour while it is shown. */
class Colours {
  constructor() {
    this.slots = new Map();
  }

  of(names) {
    for (const name of this.slots.keys()) if (!names.includes(name)) this.slots.delete(name);
    const taken = new Set(this.slots.values());
    for (const name of names) {
      if (this.slots.has(name)) continue;
      let slot = 0;
      while (taken.has(slot)) slot++;
      taken.add(slot);
      this.slots.set(name, slot);
    }
    return names.map((name) => this.slots.get(name) % MOST_SERIES);
  }
}

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400];

/** A chart in an element, with a legend in another. */
export class Chart {
  constructor(element, legend) {
    this.element = element;
    this.legend = legend;
    this.colours = new Colours();
    this.hidden = new Set();
    this.plot = null;
    this.made = "";
    new ResizeObserver(() => this.fit()).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    document.addEventListener("headrace-theme", () => this.restyle());
  }

  /** Draws the data of `linesOf`. */
  lines(data) {
    this.show("line", data.names, [data.x, ...data.ys], null);
  }

  /** Draws the first series of the data of `barsOf`. */
  bars(data) {
    this.labels = data.labels;
    this.show("bars", data.names.slice(0, 1), [data.labels.map((_, index) => index), data.ys[0]], data.labels.length);
  }

  show(kind, names, data, places) {
    const made = JSON.stringify([kind, names, places]);
    this.last = [kind, names, data, places];
    if (made === this.made) {
      this.plot.setData(data);
    } else {
      this.plot?.destroy();
      this.made = made;
      this.makeLegend(kind, names); // first, because the chart gets the remaining space
      this.plot = new UPlot(kind === "line" ? this.lineOptions(names) : this.barOptions(names), data, this.element);
    }
    this.readValues();
    mark(this.element, "aria-label", `${kind === "line" ? "Lines over time" : "Bars"}: ${names.join(", ")}`);
  }

  clear() {
    this.plot?.destroy();
    this.plot = null;
    this.made = "";
    this.legend.replaceChildren();
  }

  restyle() {
    if (!this.plot) return;
    this.made = "";
    this.show(...this.last);
  }

  size() {
    return { width: Math.max(120, this.element.clientWidth), height: Math.max(80, this.element.clientHeight) };
  }

  fit() {
    if (this.plot && this.element.clientWidth) this.plot.setSize(this.size());
  }

  axes(x) {
    const stroke = colourOf(this.element, "--dim");
    const grid = { stroke: colourOf(this.element, "--grid"), width: 1 };
    const common = { stroke, font: FONT, grid, ticks: { show: false } };
    const room = (_, values) => Math.max(36, ...(values ?? []).map((text) => 7 * text.length + 14));
    const y = {
      ...common,
      size: room,
      values: (_, splits) => splits.map((at) => (at === null ? "" : compact.format(at))),
    };
    return [{ ...common, ...x, size: 26 }, y];
  }

  lineOptions(names) {
    const slots = this.colours.of(names);
    const few = (plot) => plot.data[0].length < 90;
    const series = names.map((name, index) => ({
      label: name,
      show: !this.hidden.has(name),
      stroke: colourOf(this.element, `--series-${slots[index]}`),
      width: 1.75,
      spanGaps: true,
      points: { show: few, size: 4 },
    }));
    return {
      ...this.size(),
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: {
        x: { range: (_, min, max) => (min === max ? [min - 1, max + 1] : [min, max]) },
      },
      axes: this.axes({ values: (_, splits) => splits.map(format.time), incrs: STEPS_S, space: 72 }),
      series: [{}, ...series],
      hooks: { setCursor: [() => this.readValues()] },
      padding: [10, 28, 0, 0],
    };
  }

  barOptions(names) {
    const stroke = colourOf(this.element, "--series-0");
    const label = (at) => (Number.isInteger(at) ? (this.labels[at] ?? "") : "");
    const zero = (_, min, max) =>
      UPlot.rangeNum(Math.min(0, min ?? 0), Math.max(0, max ?? 1), {
        min: { pad: min < 0 ? 0.1 : 0 },
        max: { pad: 0.1 },
      });
    return {
      ...this.size(),
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: false, y: false },
        points: { show: false },
      },
      scales: {
        x: { time: false, range: () => [-0.6, this.labels.length - 0.4] },
        y: { range: zero },
      },
      axes: this.axes({
        values: (_, splits) => splits.map(label),
        incrs: [1, 2, 5, 10, 20],
        space: 34,
        grid: { show: false },
      }),
      series: [
        {},
        {
          label: names[0],
          stroke,
          fill: stroke,
          paths: UPlot.paths.bars({ size: [0.7, 64] }),
          points: { show: false },
        },
      ],
      hooks: { setCursor: [() => this.readValues()] },
      padding: [10, 28, 0, 0],
    };
  }

  /** Creates a button for each series, which hides or shows it; it displays the value at the cursor, or the newest. */
  makeLegend(kind, names) {
    const slots = kind === "line" ? this.colours.of(names) : [0];
    this.values = names.map(() => h("span", { class: "legend-value" }));
    const entries = names.map((name, index) => {
      const swatch = h("span", { class: `swatch series-${slots[index]}` });
      const shown = !this.hidden.has(name);
      const button = h(
        "button",
        { type: "button", class: "legend-entry", "aria-pressed": String(shown), title: "Show or hide" },
        swatch,
        name,
        this.values[index],
      );
      button.addEventListener("click", () => this.toggle(name, index + 1, button));
      return button;
    });
    this.when = h("span", { class: "legend-when" });
    this.legend.replaceChildren(this.when, ...entries);
  }

  toggle(name, index, button) {
    const show = this.hidden.has(name);
    if (show) this.hidden.delete(name);
    else this.hidden.add(name);
    this.plot.setSeries(index, { show });
    mark(button, "aria-pressed", String(show));
  }

  readValues() {
    if (!this.plot || !this.values) return;
    const { idx } = this.plot.cursor;
    const [x, ...ys] = this.plot.data;
    const [kind] = this.last;
    const pointed = idx !== null && idx !== undefined && idx < x.length;
    const where = !pointed ? (kind === "line" ? "newest" : "") : kind === "line" ? format.time(x[idx]) : this.labels[idx];
    say(this.when, where);
    ys.forEach((y, index) => {
      const value = pointed ? y[idx] : kind === "line" ? y.findLast((one) => one !== null) : null;
      say(this.values[index], pointed || kind === "line" ? format.number(value) : "");
    });
  }
}
