"use strict";
// Numbers, rates, times and values of flags as text, as `runcatalog.numbers` and `text.markdown` write them.

const formats = {
  number(value, digits = 4) {
    if (typeof value === "bigint") return String(value);
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    if (Number.isInteger(value) && Math.abs(value) < 1e6) return formats.minus(String(value));
    const rounded = Math.abs(Number(value.toPrecision(digits)));
    if (rounded >= 10 ** digits && rounded < 1e6) return formats.minus(String(formats.whole(value)));
    const exponent = Number(rounded.toExponential().split("e")[1]);
    const text =
      exponent < -4 || exponent >= digits ? value.toExponential(digits - 1) : value.toPrecision(digits);
    return formats.minus(formats.short(text));
  },

  // The nearest whole number; of two equally near the even one.
  whole(value) {
    return value - Math.floor(value) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value);
  },

  // Without trailing zeros and without the exponent's plus sign.
  short(text) {
    const [mantissa, exponent] = text.split("e");
    const plain = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
    return exponent === undefined ? plain : `${plain}e${Number(exponent)}`;
  },

  // A minus sign instead of a hyphen; a number that is rounded to 0 has none.
  minus(text) {
    if (!text.startsWith("-")) return text;
    return /[^-0.]/.test(text) ? `−${text.slice(1)}` : text.slice(1);
  },

  // A rate as whole per cent; only a rate of exactly 1 gives 100, others up to 99.9.
  rate(value) {
    if (!Number.isFinite(value)) return formats.number(value);
    if (value > 1) return `${formats.whole(value * 100)} %`;
    const whole = Math.floor(100 * value + 0.5);
    if (whole >= 100 && value < 1) return `${Math.min(99.9, 100 * value).toFixed(1)} %`;
    return whole <= 0 && value > 0 ? "<1 %" : `${formats.minus(String(whole))} %`;
  },

  value(value, kind) {
    return kind === "rate" ? formats.rate(value) : formats.number(value);
  },

  // Narrow intervals of rates have more digits; see `runcatalog.record.output.outcome.interval_text`.
  interval(bounds, kind) {
    if (!bounds) return "";
    const whole = (each) => formats.number(Math.round(100 * each));
    const percent = bounds[1] - bounds[0] < formats.NARROW ? formats.share : whole;
    const isRate = kind === "rate" && bounds.every(Number.isFinite);
    const shown = bounds.map((each) => (isRate ? percent(each) : formats.number(each)));
    return `[${shown[0]}, ${shown[1]}]`;
  },

  NARROW: 0.02,

  // A rate in tenths of a per cent; with more digits, up to five, where it would seem to be 0 or 1.
  share(rate) {
    const value = 100 * rate;
    let digits = 1;
    while (digits < 5 && rate > 0 && rate < 1 && [0, 100].includes(Number(value.toFixed(digits)))) digits++;
    const even = value % 1 === 0.25 ? value - 0.01 : value; // of two equally near tenths the even one
    return formats.minus(formats.short(even.toFixed(digits)));
  },

  duration(seconds) {
    const whole = formats.whole(seconds);
    if (whole < 1) return "under 1 s";
    const parts = [
      [Math.floor(whole / 86400), "d"],
      [Math.floor(whole / 3600) % 24, "h"],
      [Math.floor(whole / 60) % 60, "min"],
      [whole % 60, "s"],
    ];
    while (!parts[0][0]) parts.shift();
    return parts
      .slice(0, 2)
      .filter(([count]) => count)
      .map(([count, unit]) => `${count} ${unit}`)
      .join(" ");
  },

  // Milliseconds since the epoch as "2026-11-24 03:39" (UTC).
  time(milliseconds) {
    return new Date(milliseconds).toISOString().slice(0, 16).replace("T", " ");
  },

  // "1 update", "360 updates", "0.4 M env steps"; a name is in the singular.
  count(number, name) {
    const words = formats.words(name);
    if (number === 1) return `1 ${words}`;
    const amount = number >= 1e5 ? `${formats.number(Number(number) / 1e6, 2)} M` : formats.number(number);
    const plural = /(ss|x|(?<!epo)ch|sh)$/.test(words) ? "es" : words.endsWith("s") ? "" : "s";
    return `${amount} ${words}${plural}`;
  },

  // A text whose numbers stay on one line with their unit and interval.
  unbroken(text) {
    return text.replace(/(\d) (?=[%\[])|(\[\S+) (?=\S+\])|% (?=\[)/g, (space) => space.replace(" ", "\u00a0"));
  },

  words(name) {
    return name.replaceAll("_", " ").trim();
  },

  // A flag's value, given as text: 5e-3, 0.33, 64 64.
  flag(text) {
    const value = columns.parseFlag(text);
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (value === null) return "none";
    if (value === "") return "''";
    if (typeof value !== "number" || !columns.isFloat(text)) return text;
    const isSmall = value !== 0 && Math.abs(value) < 0.1;
    const shown = [3, 4, 5].map((digits) =>
      formats.short(isSmall ? value.toExponential(digits - 1) : value.toPrecision(digits)),
    );
    return formats.minus(shown.find((each) => Number(each) === value) ?? shown[0]); // of sampled values three digits
  },
};
