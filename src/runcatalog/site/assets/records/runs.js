"use strict";
// All runs: their facts from the index, and the files of single runs, which are loaded when a page needs them.

const runs = {
  count: 0,
  ids: [],
  facts: null, // the index as it was written
  loaded: new Map(), // run → promise of its file's content
  waiting: new Map(), // run → function that takes the content
  rowOf: new Map(), // run → row
  trials: new Map(), // batch → rows
  local: new Set(), // rows
  metricValues: null,
  settings: [], // number of the setting by row
  repetitions: new Map(), // row → first row with the same seed, flags and origin; only rows with repetitions

  // Called by data/index.js.
  index(facts) {
    Object.assign(runs, {
      facts,
      ids: facts.runs,
      count: facts.runs.length,
      loaded: new Map(),
      metricValues: null,
    });
    // Else a name such as `constructor` would find what every object of JavaScript has.
    const byName = Object.values(facts.operations).flatMap(({ flags, units }) => [flags, units]);
    for (const each of [facts.operations, ...byName]) Object.setPrototypeOf(each, null);
    runs.columns = {};
    for (const [name, column] of Object.entries(facts.texts))
      runs.columns[name] = columns.texts(column, runs.count);
    for (const [name, column] of Object.entries(facts.numbers)) runs.columns[name] = columns.numbers(column);
    runs.columns.result = columns.texts(facts.result, runs.count);
    runs.columns.parents = columns.texts(facts.parents, runs.count);
    runs.settings = columns.texts(facts.settings, runs.count).codes();
    runs.repetitions = new Map(facts.repetitions.flatMap((rows) => rows.map((row) => [row, rows[0]])));
    runs.flags = new Map(
      Object.entries(facts.flags).map(([name, column]) => [name, columns.texts(column, runs.count)]),
    );
    runs.objectiveColumns = Object.fromEntries(
      Object.entries(facts.objective).map(([name, column]) => [
        name,
        Array.isArray(column) ? columns.numbers(column) : columns.texts(column, runs.count),
      ]),
    );
    runs.rowOf = new Map(runs.ids.map((run, row) => [run, row]));
    runs.local = new Set(facts.local);
    runs.batches = new Set(facts.batches);
    runs.trials = new Map();
    for (let row = 0; row < runs.count; row++) {
      const batch = runs.fact(row, "batch");
      if (batch === undefined) continue;
      if (!runs.trials.has(batch)) runs.trials.set(batch, []);
      // As on the catalog's pages, a marked trial counts only in a batch that is marked itself.
      if (!runs.isMarked(row) || runs.isMarked(runs.rowOf.get(batch))) runs.trials.get(batch).push(row);
    }
  },

  // Called by data/metrics.js.
  metrics(values) {
    runs.metricValues = new Map(Object.entries(values));
  },

  // Called by the file of a run.
  receive(run, content) {
    runs.waiting.get(run)?.(content);
  },

  fact(row, name) {
    return runs.columns[name].at(row);
  },

  flag(row, name) {
    return runs.flags.get(name)?.at(row);
  },

  // Return the flags of a run as texts, by name.
  flagsOf(row) {
    const found = new Map();
    for (const [name, column] of runs.flags) {
      const text = column.at(row);
      if (text !== undefined) found.set(name, text);
    }
    return found;
  },

  // Return "last" or "best" value of a metric, undefined if the run has none.
  metric(row, name, which) {
    const metric = runs.metricValues.get(name);
    const position = metric ? columns.position(metric.rows, row) : -1;
    return position < 0 ? undefined : columns.number(metric[which][position]);
  },

  // Return a run's objective, null without one.
  objective(row) {
    const name = runs.objectiveColumns.name.at(row);
    if (name === undefined) return null;
    const entries = Object.entries(runs.objectiveColumns).map(([key, column]) => [key, column.at(row)]);
    return Object.fromEntries(entries);
  },

  // Return the declared unit of a metric of some runs, "" without one.
  unit(rows, metric) {
    for (const row of rows) {
      const unit = runs.facts.operations[runs.fact(row, "operation")]?.units[metric];
      if (unit) return unit;
    }
    return "";
  },

  isBatch(row) {
    return runs.batches.has(row) || runs.trials.has(runs.ids[row]);
  },

  isTrial(row) {
    return runs.fact(row, "batch") !== undefined;
  },

  isMarked(row) {
    return runs.fact(row, "superseded_by") !== undefined || runs.fact(row, "retracted") !== undefined;
  },

  // Whether the run counts: it and its batch are neither superseded nor retracted.
  isCurrent(row) {
    const batch = runs.rowOf.get(runs.fact(row, "batch"));
    return !runs.isMarked(row) && (batch === undefined || !runs.isMarked(batch));
  },

  status(row) {
    return runs.fact(row, "status");
  },

  // Return the row of the run whose id begins with these digits, undefined without one.
  find(digits) {
    if (runs.rowOf.has(digits) || !digits) return runs.rowOf.get(digits);
    const row = runs.ids.findIndex((run) => run.startsWith(digits));
    return row < 0 ? undefined : row;
  },

  address(row) {
    return `#/run/${runs.ids[row]}`;
  },

  // Return what a run's page shows besides the index.
  load(row) {
    const run = runs.ids[row];
    if (!runs.loaded.has(run)) {
      const block = document.getElementById(`runs-${Math.floor(row / runs.BLOCK)}`);
      runs.loaded.set(
        run,
        (block ? runs.unpacked(block).then((pages) => pages[run]) : runs.requested(run)).then((page) => ({
          ...page,
          curves: runs.curves(page.curves),
        })),
      );
    }
    return runs.loaded.get(run);
  },

  requested(run) {
    return new Promise((resolve, reject) => {
      runs.waiting.set(run, resolve);
      runs.script(`data/runs/${run}.js`).catch(() => reject(new Error(`data/runs/${run}.js cannot be read`)));
    });
  },

  script(address) {
    return new Promise((resolve, reject) => {
      document.head.append(elements.make("script", { src: address, load: resolve, error: reject }));
    });
  },

  BLOCK: 40, // runs that the single file keeps together
  blocks: new Map(),

  unpacked(element) {
    if (!runs.blocks.has(element.id)) {
      const bytes = Uint8Array.from(atob(element.textContent), (character) => character.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      runs.blocks.set(element.id, new Response(stream).json());
    }
    return runs.blocks.get(element.id);
  },

  // Return the curves: {steps, values} by metric.
  curves({ steps, values }) {
    const shared = steps.map((differences) => {
      let step = 0;
      return differences.map((difference) => (step += Number(difference)));
    });
    return new Map(
      Object.entries(values).map(([name, [at, ...points]]) => [
        name,
        { steps: shared[at], values: points.map((point) => Number(columns.number(point))) },
      ]),
    );
  },

  // Return a promise that the metrics' values are there.
  async loadMetrics() {
    if (runs.metricValues === null) await runs.script("data/metrics.js");
  },
};
