"use strict";
// Curves drawn by uPlot: a panel a metric, a line a run, or a line with its band a setting.

const charts = {
  // Okabe and Ito's colours, as in the project's figures; with the dashes, 24 lines differ.
  COLOURS: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C08600", "#3897D3"],
  DASHES: [[], [8, 4], [2, 3], [10, 3, 2, 3]],
  HEIGHT: 210, // pixels
  shown: [], // all plots on the page

  style(i) {
    const colours = charts.COLOURS.length;
    return {
      colour: charts.COLOURS[i % colours],
      dash: charts.DASHES[Math.floor(i / colours) % charts.DASHES.length],
    };
  },

  // Return a mark in a line's colour and dash, for legends and tables.
  mark(i) {
    const { colour, dash } = charts.style(i);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    const set = (element, attributes) =>
      Object.entries(attributes).forEach(([k, v]) => element.setAttribute(k, v));
    set(svg, { width: 26, height: 10, class: "mark", "aria-hidden": "true" });
    set(line, {
      x1: 1,
      x2: 25,
      y1: 5,
      y2: 5,
      stroke: colour,
      "stroke-width": 3,
      "stroke-dasharray": dash.join(" "),
    });
    svg.append(line);
    return svg;
  },

  // Remove the plots of the last page.
  clear() {
    charts.shown.forEach(({ plot }) => plot.destroy());
    charts.shown = [];
  },

  // Whether a metric is a rate: its run's objective says so, or its name and its values do. A learning rate is no share.
  isRate(metric, lines, objective) {
    const isShare = (value) => value === null || (value >= 0 && value <= 1);
    if (!lines.every(({ values }) => values.every(isShare))) return false;
    const ofObjective = objective && (metric === objective.name || metric.endsWith(`_${objective.name}`));
    if (ofObjective && objective.kind === "rate") return true;
    return /(^|[_/])(?<!learning_)(rate|success|accuracy|coverage|win)(_rate)?$/.test(metric);
  },

  // Return the figure of a metric.
  // lines: {label, style, steps, values, low, high}; low and high of a band, if there is one.
  figure(metric, lines, { axis = "step", objective = null, unit = "" } = {}) {
    const rate = charts.isRate(metric, lines, objective);
    const box = elements.make("div", {
      class: "plot",
      role: "img",
      "aria-label": charts.description(metric, lines, rate),
    });
    const title = [formats.words(metric), elements.unit(rate ? "%" : unit)];
    const figure = elements.make("figure", { class: "chart" }, elements.make("figcaption", {}, title), box);
    // Drawn when it comes into sight, since a run may have a hundred metrics.
    const observer = new IntersectionObserver(
      (entries) => {
        if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
        observer.disconnect();
        if (box.isConnected) charts.draw(box, lines, { axis, rate, unit });
      },
      { rootMargin: "200px" },
    );
    observer.observe(figure);
    return figure;
  },

  description(metric, lines, rate) {
    const kind = rate ? "rate" : "";
    const shown = lines.slice(0, 4).map(({ label, values }) => {
      const known = values.filter((value) => value !== null);
      if (!known.length) return `${label}: no value`;
      return `${label}: from ${formats.value(known[0], kind)} to ${formats.value(known.at(-1), kind)}`;
    });
    if (lines.length > 4) shown.push(`and ${lines.length - 4} more lines`);
    return `${formats.words(metric)}. ${shown.join("; ")}`;
  },

  draw(box, lines, { axis, rate, unit }) {
    const scale = rate ? 100 : 1;
    const scaled = (values) =>
      values.map((value) => (value === null || !Number.isFinite(value) ? null : value * scale));
    const tables = [];
    const series = [{}];
    const bands = [];
    for (const line of lines) {
      const { colour, dash } = charts.style(line.style);
      if (line.low) {
        const edge = { stroke: "transparent", width: 0, points: { show: false } };
        tables.push([line.steps, scaled(line.high), scaled(line.low)]);
        bands.push({ series: [series.length, series.length + 1], fill: `${colour}33` });
        series.push(edge, edge);
      }
      tables.push([line.steps, scaled(line.values)]);
      series.push({
        label: line.label,
        stroke: colour,
        width: 1.6,
        dash,
        spanGaps: true,
        points: { show: line.steps.length < 3 },
      });
    }
    const reading = elements.make("div", { class: "reading", "aria-hidden": "true" });
    box.replaceChildren();
    box.parentElement.append(reading);
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const plot = new uPlot(
      {
        width: box.clientWidth,
        height: charts.HEIGHT,
        series,
        bands,
        legend: { show: false },
        scales: { x: { time: false } },
        cursor: { y: false, sync: { key: "curves" }, drag: { x: true, y: false } },
        axes: [charts.axis(axis), charts.axis("", 52)],
        hooks: {
          setCursor: [
            (u) => {
              reading.textContent = charts.reading(u, axis, rate ? "%" : unit);
            },
          ],
        },
      },
      data,
      box,
    );
    charts.shown.push({ plot, box });
  },

  axis(label, size) {
    const style = getComputedStyle(document.body);
    const colour = (name) => style.getPropertyValue(name).trim();
    return {
      label: label || undefined,
      labelSize: label ? 16 : 0,
      labelFont: "11px system-ui, sans-serif",
      labelGap: 0,
      size: size ?? 26,
      font: "11px system-ui, sans-serif",
      stroke: () => colour("--quiet"),
      grid: { stroke: () => colour("--grid"), width: 1 },
      ticks: { stroke: () => colour("--grid"), width: 1, size: 4 },
      values: (_, splits) => splits.map((value) => (value === null ? "" : charts.tick(value))),
    };
  },

  // A tick's text: 250 k, 1.5 M, 0.05.
  tick(value) {
    const size = Math.abs(value);
    if (size >= 1e9 || (size > 0 && size < 1e-4)) return formats.minus(formats.short(value.toExponential(2)));
    if (size >= 1e6) return `${formats.number(value / 1e6, 4)} M`;
    if (size >= 1e4) return `${formats.number(value / 1e3, 4)} k`;
    return formats.minus(String(Number(value.toPrecision(6))));
  },

  // The values at the cursor, at most six lines.
  reading(plot, axis, unit) {
    const at = plot.cursor.idx;
    if (at === null || at === undefined) return "";
    const parts = [];
    plot.series.forEach((line, i) => {
      const value = plot.data[i][at];
      if (i === 0 || !line.label || value === null || value === undefined) return;
      parts.push(`${line.label}: ${formats.number(value)}${unit && ` ${unit}`}`);
    });
    const more = parts.length > 6 ? [`and ${parts.length - 6} more`] : [];
    return [`${axis} ${formats.number(plot.data[0][at], 7)}`, ...parts.slice(0, 6), ...more].join(" · ");
  },

  // Adapt the plots to the width of the page, or to its colours.
  resize() {
    charts.shown.forEach(({ plot, box }) => plot.setSize({ width: box.clientWidth, height: charts.HEIGHT }));
  },

  redraw() {
    charts.shown.forEach(({ plot }) => plot.redraw(false, true));
  },

  // Return metrics in the order in which they matter: the objective, validation, the others; clocks last.
  ordered(metrics, objective) {
    const weight = (metric) => {
      const name = objective?.name ?? "";
      if (metric === name) return 0;
      if (name && metric.endsWith(name)) return metric.startsWith("validation") ? 1 : 2;
      if (/^validation|^test/.test(metric)) return 3;
      if (/return|reward|success|rate|accuracy/.test(metric)) return 4;
      return /^time\//.test(metric) ? 9 : 5;
    };
    return [...metrics].sort((a, b) => weight(a) - weight(b) || names.byCodePoint(a, b));
  },
};
