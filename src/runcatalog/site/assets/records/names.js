"use strict";
// Names and values in a query, as `runcatalog.query.fields`: the field, flag or metric of a name, tests of its value.

const names = {
  IDS: ["run", "batch", "commit", "dirty", "superseded_by"],
  TEXTS: [
    "operation",
    "label",
    "study",
    "reason",
    "machine",
    "gpu",
    "host_cpu",
    "reported_by",
    "retracted",
    "split",
  ],
  NUMBERS: ["seed", "wall_seconds", "env_steps"],
  STATUSES: ["RUNNING", "FINISHED", "FAILED", "KILLED"],
  SPLITS: ["training", "validation", "test"],
  NUMBER: /^(?:[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?)|nan)$/iu,
  DATE: /^(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d))?)?)?)?$/u,
  SPELLINGS: new Map([
    [true, ["yes", "true"]],
    [false, ["no", "false"]],
    [null, ["none", "null"]],
  ]),
  ORDER: { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b },

  get FIELDS() {
    return [...names.IDS, ...names.TEXTS, ...names.NUMBERS, "status", "started"];
  },

  // Return the rows of the runs that match a query; loads the metrics' values if it names a metric.
  async find(text) {
    const term = query.parse(text);
    const tests = new Map(
      query.comparisons(term).map((comparison) => {
        const name = names.resolve(comparison.name, text);
        return [comparison, { name, matches: names.predicate(comparison, name, text) }];
      }),
    );
    const named = [...new Map([...tests.values()].map(({ name }) => [name.title, name])).values()];
    if (named.some(({ kind }) => kind === "last" || kind === "best")) await runs.loadMetrics();
    const test = (row) => (comparison) => {
      const { name, matches } = tests.get(comparison);
      const value = names.value(row, name);
      return value !== undefined && matches(value);
    };
    const rows = [];
    for (let row = 0; row < runs.count; row++) {
      if (query.holds(term, test(row))) rows.push(row);
    }
    return { rows, names: named, hint: rows.length ? "" : names.hint(term, tests) };
  },

  // Resolve a name: to a field, else a flag, else a metric's last value.
  resolve(name, text) {
    const key = name.text;
    const isFlag = runs.flags.has(key);
    const isMetric = names.metrics().has(key);
    const resolved = (kind) => ({ title: name.title, kind, key });
    if (name.kind) {
      if (name.kind === "flag" ? isFlag : isMetric) return resolved(name.kind);
      return names.unknown(name, text);
    }
    if (names.FIELDS.includes(key)) return resolved("field");
    if (isFlag || isMetric) return resolved(isFlag ? "flag" : "last");
    return names.unknown(name, text);
  },

  metrics() {
    return new Set(runs.facts.metrics);
  },

  unknown(name, text) {
    const flags = [...runs.flags.keys()];
    const metrics = [...names.metrics()];
    const known = { flag: flags, last: metrics, best: metrics }[name.kind];
    const expected = { "": "flag, metric or field", flag: "flag" }[name.kind] ?? "metric";
    const candidates = known ?? [...names.FIELDS, ...flags, ...metrics];
    const hint = names
      .close(name.text, candidates)
      .slice(0, 1)
      .map((best) => `, did you mean ${best}?`)
      .join("");
    throw new QueryError(text, name.at, `no run has a ${expected} ${name.text}${hint}`);
  },

  // Return a run's value of a name, undefined if it has none. Texts of flags are kept, with their value.
  value(row, { kind, key }) {
    if (kind === "flag") return runs.flag(row, key);
    if (kind === "last" || kind === "best") return runs.metric(row, key, kind);
    if (key === "run") return runs.ids[row];
    const value = runs.fact(row, key);
    return typeof value === "number" && !Number.isFinite(value) ? undefined : value;
  },

  // Return the test of a comparison's value.
  predicate({ operator, value, at }, { kind, key }, text) {
    if (!operator) return () => true;
    const fail = (problem) => {
      throw new QueryError(text, at, problem);
    };
    if (kind === "flag") return names.flagTest(operator, value, fail);
    if (kind !== "field" || names.NUMBERS.includes(key))
      return names.numberTest(kind, key, operator, value, fail);
    if (key === "started") return names.dateTest(operator, value, fail);
    if (operator in names.ORDER) fail(`${operator} compares numbers and dates, ${key} is text (= != ~)`);
    if (operator === "~") return names.containsTest(value);
    if (key === "split" && !names.SPLITS.includes(value)) {
      fail(`split is the set of a result: one of ${names.SPLITS.join(", ")}; of a flag: flag:split`);
    }
    if (key === "status") {
      const status = names.status(value, fail);
      return names.equalOrNot(operator, (actual) => actual === status);
    }
    if (names.IDS.includes(key))
      return names.equalOrNot(operator, (actual) => actual.startsWith(value.toLowerCase()));
    return names.equalOrNot(operator, (actual) => actual === value);
  },

  flagTest(operator, value, fail) {
    const number = names.number(value);
    const parsed = new Map(); // of texts, since few differ
    const valueOf = (text) => {
      if (!parsed.has(text)) parsed.set(text, columns.parseFlag(text));
      return parsed.get(text);
    };
    if (operator in names.ORDER) {
      if (number === null) fail(`${operator} compares numbers, ${value || "the empty text"} is none`);
      const compare = names.ORDER[operator];
      return (text) => typeof valueOf(text) === "number" && compare(valueOf(text), number);
    }
    if (operator === "~") return names.containsTest(value);
    return names.equalOrNot(operator, (text) => {
      const actual = valueOf(text);
      if (names.SPELLINGS.has(actual)) return names.SPELLINGS.get(actual).includes(value.toLowerCase());
    
      return typeof actual === "number" ? number !== null && actual == number : actual === value;
    });
  },

  numberTest(kind, key, operator, value, fail) {
    if (operator === "~") {
      fail(`~ looks for text, ${key} is ${kind === "field" ? "a number" : "a metric"} (= != < <= > >=)`);
    }
    const number = names.number(value);
    if (number === null) fail(`a number is expected for ${key}, not ${value || "nothing"}`);
    if (operator in names.ORDER) return (actual) => names.ORDER[operator](actual, number);
    if (Number.isNaN(number)) return names.equalOrNot(operator, (actual) => Number.isNaN(actual));
    return names.equalOrNot(operator, (actual) => actual == number); // of a BigInt too
  },

  dateTest(operator, value, fail) {
    if (operator === "~") fail("~ looks for text, started is a date (UTC) (= != < <= > >=)");
    const interval = names.interval(value);
    if (interval === null) fail(`${value}: a date (UTC) is expected, as 2026-11, 2026-11-21 or '2026-11-21 10:30'`);
    const [begin, end] = interval;
    if (operator === "<" || operator === ">=") return (actual) => actual < begin === (operator === "<");
    if (operator === ">" || operator === "<=") return (actual) => actual >= end === (operator === ">");
    return names.equalOrNot(operator, (actual) => begin <= actual && actual < end);
  },

  // Return [begin, end) in milliseconds of a year, month, day, minute or second; null for anything else.
  interval(value) {
    const day = 86_400_000;
    const days = { today: 0, yesterday: 1 }[value.toLowerCase()];
    if (days !== undefined) {
      const begin = (Math.floor(Date.now() / day) - days) * day;
      return [begin, begin + day];
    }
    const match = names.DATE.exec(value);
    if (match === null) return null;
    const parts = match
      .slice(1)
      .filter((part) => part !== undefined)
      .map(Number);
    const begin = names.date(parts);
    if (begin === null) return null;
    if (parts.length > 2) return [begin, begin + { 3: day, 5: 60_000, 6: 1000 }[parts.length]];
    const end =
      parts.length === 1
        ? names.date([parts[0] + 1])
        : names.date(parts[1] === 12 ? [parts[0] + 1, 1] : [parts[0], parts[1] + 1]);
    return end === null ? null : [begin, end];
  },

  // Return the milliseconds of a date, null if there is none.
  date([year, month = 1, day = 1, hour = 0, minute = 0, second = 0]) {
    const date = new Date(0);
    date.setUTCFullYear(year, month - 1, day);
    date.setUTCHours(hour, minute, second);
    const same = date.getUTCMonth() === month - 1 && date.getUTCDate() === day && date.getUTCHours() === hour;
    return same && minute < 60 && second < 60 && year >= 1 && year <= 9999 ? date.getTime() : null;
  },

  status(value, fail) {
    const upper = value.toUpperCase();
    if (!names.STATUSES.includes(upper)) {
      const hint = names
        .close(value, names.STATUSES)
        .slice(0, 1)
        .map((best) => `, did you mean ${best}?`)
        .join("");
      fail(`no status ${value}${hint || `: one of ${names.STATUSES.join(", ")}`}`);
    }
    return upper;
  },

  containsTest(value) {
    const folded = (text) => text.toUpperCase().toLowerCase();
    const needle = folded(value);
    return (actual) => folded(actual).includes(needle);
  },

  equalOrNot(operator, equal) {
    return operator === "=" ? equal : (actual) => !equal(actual);
  },

  // Return the number of a text, null if it is none; integers beyond 53 bits are exact.
  number(text) {
    if (text.length > 40 || !names.NUMBER.test(text)) return null;
    if (/^[+-]*[0-9]+$/.test(text)) {
      const value = Number(text);
      return Number.isSafeInteger(value) ? value : BigInt(text.replace(/^\+/, ""));
    }
    return Number(
      text
        .toLowerCase()
        .replace(/^([+-]?)inf(inity)?$/, "$1Infinity")
        .replace("nan", "NaN"),
    );
  },

  // Return a suggestion for the first text value that no run has, "" if every value occurs.
  hint(term, tests) {
    for (const comparison of query.comparisons(term, false)) {
      const { name, matches } = tests.get(comparison);
      if (comparison.operator !== "=" || name.kind === "last" || name.kind === "best") continue;
      const actual = [];
      for (let row = 0; row < runs.count; row++) {
        const value = names.value(row, name);
        if (value !== undefined) actual.push(value);
      }
      if (actual.some(matches)) continue;
      const isText = (value) => typeof (name.kind === "flag" ? columns.parseFlag(value) : value) === "string";
      const texts = new Set(actual.filter(isText));
      texts.delete(comparison.value);
      const shown = names
        .close(comparison.value, [...texts])
        .slice(0, 1)
        .map((best) => `, did you mean ${best}?`);
      return `${name.title} is never ${comparison.value}${shown.join("")}`;
    }
    return "";
  },

  // Return up to three candidates close to a misspelt name, the closest first.
  close(name, candidates) {
    const normal = (text) => text.toLowerCase().replaceAll("_", "-");
    const byNormalForm = new Map();
    for (const candidate of [...candidates].sort(names.byCodePoint)) {
      if (!byNormalForm.has(normal(candidate))) byNormalForm.set(normal(candidate), candidate);
    }
    return [...byNormalForm.keys()]
      .map((form) => ({ form, ratio: names.similarity(form, normal(name)) }))
      .filter(({ ratio }) => ratio >= 0.6)
      .sort((a, b) => b.ratio - a.ratio || names.byCodePoint(b.form, a.form))
      .slice(0, 3)
      .map(({ form }) => byNormalForm.get(form));
  },

  byCodePoint(a, b) {
    return a < b ? -1 : Number(a > b);
  },

  // Similarity of two texts in [0, 1] (Ratcliff and Obershelp), as Python's difflib.
  similarity(a, b) {
    const matching = (aFrom, aTo, bFrom, bTo) => {
      let best = 0,
        bestA = aFrom,
        bestB = bFrom;
      let lengths = new Map();
      for (let i = aFrom; i < aTo; i++) {
        const next = new Map();
        for (let j = bFrom; j < bTo; j++) {
          if (a[i] !== b[j]) continue;
          const length = (lengths.get(j - 1) ?? 0) + 1;
          next.set(j, length);
          if (length > best) [best, bestA, bestB] = [length, i - length + 1, j - length + 1];
        }
        lengths = next;
      }
      if (!best) return 0;
      return best + matching(aFrom, bestA, bFrom, bestB) + matching(bestA + best, aTo, bestB + best, bTo);
    };
    return (2 * matching(0, a.length, 0, b.length)) / (a.length + b.length || 1);
  },
};
