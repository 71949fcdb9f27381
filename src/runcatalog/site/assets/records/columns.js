"use strict";
// Columns of the index as `runcatalog.site.columns` writes them, unpacked when they are first read.

const columns = {
  MISSING: -1,

  // Return a column of texts: `at(row)` is a text, or undefined for a run without one.
  texts({ texts, pairs, codes }, count) {
    let unpacked = null;
    const all = () => {
      if (unpacked === null) {
        unpacked = codes ? Int32Array.from(codes) : new Int32Array(count);
        for (let i = 0, row = 0; pairs && i < pairs.length; row += pairs[i + 1], i += 2) {
          unpacked.fill(pairs[i], row, row + pairs[i + 1]);
        }
      }
      return unpacked;
    };
    return { texts, codes: all, at: (row) => texts[all()[row]] };
  },

  // Return a number that JSON had as text: NaN, infinities, integers of more than 53 bits.
  number(value) {
    if (typeof value !== "string") return value;
    return /^-?\d+$/.test(value) ? BigInt(value) : Number(value);
  },

  numbers(column) {
    return { at: (row) => (column[row] === null ? undefined : columns.number(column[row])) };
  },

  // Return the position of a row in (first, count) pairs, -1 if it is in none.
  position(pairs, row) {
    let before = 0;
    for (let i = 0; i < pairs.length && pairs[i] <= row; i += 2) {
      if (row < pairs[i] + pairs[i + 1]) return before + row - pairs[i];
      before += pairs[i + 1];
    }
    return -1;
  },

  // Return a flag's value from its text, as `runcatalog.model.values.parse_flag` does.
  parseFlag(text) {
    if (columns.WORDS.has(text)) return columns.WORDS.get(text);
    if (/^(?:0|-?[1-9][0-9]{0,14})$/.test(text)) return Number(text);
    if (!columns.isFloat(text)) return text;
    const value = Number(text);
    return Number.isFinite(value) ? value : text;
  },

  isFloat(text) {
    return text.length <= 40 && columns.FLOAT.test(text);
  },

  FLOAT: /^-?(?:(?:0|[1-9][0-9]*)\.(?:0|[0-9]*[1-9])|[1-9](?:\.(?:0|[0-9]*[1-9]))?[eE][+-]?[0-9]{1,3})$/,

  WORDS: new Map([
    ["True", true],
    ["False", false],
    ["true", true],
    ["false", false],
    ["None", null],
    ["null", null],
  ]),
};
