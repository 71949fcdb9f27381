"use strict";
// Settings: runs that differ in their seed alone, as `runcatalog.site.index` groups them.

const settings = {
  // Return the names of the flags in which the settings of runs differ.
  varying(rows) {
    return [...runs.flags.keys()].filter(
      (name) => !runs.facts.not_of_setting.includes(name) && new Set(rows.map((row) => runs.flag(row, name))).size > 1,
    );
  },

  // Return the settings of runs: {flags, rows, counted, objectives, mean, bounds}, the best first, those without a value
  // last. `counted` are the rows without older repetitions.
  of(rows, flags = settings.varying(rows)) {
    const bySetting = new Map();
    for (const row of rows) {
      const number = runs.settings[row];
      if (!bySetting.has(number)) bySetting.set(number, []);
      bySetting.get(number).push(row);
    }
    const parts = [...bySetting.values()].flatMap(settings.byObjective);
    const found = parts.map((members) => settings.summary(members, flags));
    settings.distinguish(found);
    const sign = settings.isMinimized(rows) ? 1 : -1;
    const noValue = (setting) => Number(setting.mean === null);
    return found.sort(
      (a, b) => noValue(a) - noValue(b) || sign * (a.mean - b.mean) || settings.byFlags(a, b, flags),
    );
  },

  // Return runs by the name of their objective, which a script may have changed; those without a result are with the
  // newest that has one.
  byObjective(rows) {
    const named = rows.map((row) =>
      runs.status(row) === "FINISHED" ? runs.objective(row)?.name : undefined,
    );
    const newest = named.findLast((name) => name !== undefined);
    const parts = new Map();
    rows.forEach((row, i) => {
      const name = named[i] ?? newest;
      if (!parts.has(name)) parts.set(name, []);
      parts.get(name).push(row);
    });
    return [...parts.values()];
  },

  // Give settings with the same flags what else differs: the runs that they were made from, or their labels.
  distinguish(found) {
    const byTitle = new Map();
    for (const setting of found) {
      const title = settings.title(setting, true);
      byTitle.set(title, [...(byTitle.get(title) ?? []), setting]);
    }
    for (const same of byTitle.values()) {
      if (same.length < 2) continue;
      for (const setting of same) {
        const parents = [...new Set(setting.rows.map(runs.columns.parents.at).filter(Boolean))];
        const from = parents.slice(0, 2).map((ids) => ids.split(" ")[0]);
        const label = runs.fact(setting.rows[0], "label");
        setting.origin = from.length ? `from ${from.join(", ")}` : label ? `“${label}”` : "";
      }
    }
  },

  summary(rows, flags) {
    const hasValue = (row) => runs.status(row) === "FINISHED" && runs.objective(row) !== null;
    // Of runs with the same seed, flags and origin, which are no independent samples, the newest with a value counts.
    const first = (row) => runs.repetitions.get(row) ?? row;
    const newest = new Map(
      rows
        .filter(hasValue)
        .sort((a, b) => a - b)
        .map((row) => [first(row), row]),
    );
    const counted = rows.filter((row) => !hasValue(row) || newest.get(first(row)) === row);
    const objectives = counted.filter(hasValue).map(runs.objective);
    const values = objectives.map(({ value }) => value);
    const finite = values.length > 0 && values.every(Number.isFinite);
    return {
      rows,
      counted,
      objectives,
      flags: new Map(flags.map((name) => [name, runs.flag(rows[0], name)])),
      operation: runs.fact(rows[0], "operation"),
      failed: rows.filter((row) => ["FAILED", "KILLED"].includes(runs.status(row))).length,
      mean: finite ? statistics.mean(values) : null,
      bounds: finite ? statistics.bounds(objectives) : null,
      kind: objectives[0]?.kind,
      origin: "",
    };
  },

  isMinimized(rows) {
    return rows.map(runs.objective).find((objective) => objective !== null)?.goal === "min";
  },

  byFlags(a, b, flags) {
    for (const name of flags) {
      const order = settings.byValue(a.flags.get(name), b.flags.get(name));
      if (order) return order;
    }
    return 0;
  },

  // Order of two flags' texts: numbers by size, then text by its leading integer.
  byValue(a, b) {
    const key = (text) => {
      const value = text === undefined ? "" : columns.parseFlag(text);
      if (typeof value === "number") return [0, value, ""];
      const first = String(text ?? "").split(" ")[0];
      return [1, /^\d+$/.test(first) ? Number(first) : Infinity, String(text ?? "")];
    };
    const [first, second] = [key(a), key(b)];
    const i = first.findIndex((each, n) => each !== second[n]);
    return i < 0 ? 0 : names.byCodePoint(first[i], second[i]);
  },

  // Return "lr=5e-3, clip=0.3"; the operation where there is no flag.
  title({ flags, operation, origin }, withOperation = false) {
    const parts = [...flags].map(
      ([name, text]) => `${name}=${text === undefined ? "–" : formats.flag(text)}`,
    );
    const shown = parts.join(", ");
    const named = withOperation || !shown ? [operation, shown] : [shown];
    return [...named, origin].filter(Boolean).join(" ");
  },

  // Return the points of runs' curves over a common grid of steps: {steps, mean, low, high}.
  // A run that stopped early stays at its last value; a run that failed is not continued. Points that are not finite
  // are ignored.
  band(curves, finished) {
    const known = curves
      .map(({ steps, values }, i) => {
        const isFinite = (_, n) => Number.isFinite(values[n]);
        return { steps: steps.filter(isFinite), values: values.filter(isFinite), finished: finished[i] };
      })
      .filter(({ steps }) => steps.length);
    const begin = Math.max(...known.map(({ steps }) => steps[0]));
    const steps = [...new Set(known.flatMap((curve) => curve.steps))]
      .filter((step) => step >= begin)
      .sort((a, b) => a - b);
    const at = steps.map((step) =>
      known
        .map((curve) => settings.interpolated(curve, step, curve.finished))
        .filter((value) => value !== null),
    );
    const over = (reduce) => at.map((values) => (values.length ? reduce(values) : null));
    return {
      steps,
      mean: over(statistics.mean),
      low: over((values) => Math.min(...values)),
      high: over((values) => Math.max(...values)),
    };
  },

  interpolated({ steps, values }, step, finished) {
    if (step > steps.at(-1)) return finished ? values.at(-1) : null;
    if (step < steps[0]) return null;
    let low = 0,
      high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle;
      else high = middle;
    }
    if (steps[high] <= step) return values[high];
    const share = (step - steps[low]) / (steps[high] - steps[low]);
    return values[low] + share * (values[high] - values[low]);
  },
};
