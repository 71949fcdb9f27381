"use strict";
// Means and 95 % intervals over seeds, with the same numbers as `runcatalog.model.statistics`.

const statistics = {
  ROUNDING: 5e-5, // of a rate as scripts report it
  Z95: 1.959963984540054, // 97.5 % quantile of the standard normal distribution

  mean(values) {
    return statistics.sum(values) / values.length;
  },

  // The sum without the roundings in between, as Python's fsum: a mean of 55.5 % is 56 % on the pages.
  // Partial sums are kept that have no digits in common (Shewchuk 1997, Discrete and Computational Geometry 18, 305-363).
  sum(values) {
    const partials = [];
    for (const value of values) {
      let [total, kept] = [value, 0];
      for (const partial of partials) {
        const [large, small] = Math.abs(total) < Math.abs(partial) ? [partial, total] : [total, partial];
        total = large + small;
        const rest = small - (total - large);
        if (rest) partials[kept++] = rest;
      }
      partials.length = kept;
      partials.push(total);
    }
    return partials.reduce((sum, partial) => sum + partial, 0);
  },

  // Score interval of a rate (Wilson 1927, JASA 22, 209-212).
  wilson(successes, count) {
    const z2 = statistics.Z95 ** 2;
    const rate = successes / count;
    const centre = (rate + z2 / (2 * count)) / (1 + z2 / count);
    const spread = Math.sqrt((rate * (1 - rate)) / count + z2 / (4 * count ** 2));
    const half = (statistics.Z95 / (1 + z2 / count)) * spread;
    const low = successes === 0 ? 0 : Math.max(0, centre - half);
    return [low, successes === count ? 1 : Math.min(1, centre + half)];
  },

  // Student's 95 % interval of the mean (Student 1908, Biometrika 6, 1-25).
  interval(values) {
    const [centre, count] = [statistics.mean(values), values.length];
    if (Math.min(...values) === Math.max(...values)) return [centre, centre];
    const squares = statistics.sum(values.map((value) => (value - centre) ** 2));
    const half = statistics.t95(count - 1) * Math.sqrt(squares / (count - 1) / count);
    return [centre - half, centre + half];
  },

  // 97.5 % quantile of Student's t distribution; see `runcatalog.model.statistics.t_quantile`.
  t95(freedom) {
    freedom = Math.min(freedom, 10000);
    const integral = (angle) => {
      const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
      let total = freedom % 2 ? angle : sine;
      for (let power = 3 - (freedom % 2); power < freedom; power += 2) {
        total = (cosine ** (power - 1) * sine + (power - 1) * total) / power;
      }
      return total;
    };
    let [low, high] = [0, Math.PI / 2];
    const whole = integral(high);
    for (let step = 0; step < 60; step++) {
      const middle = (low + high) / 2;
      if (integral(middle) < 0.95 * whole) low = middle;
      else high = middle;
    }
    return Math.sqrt(freedom) * Math.tan(low);
  },

  // Interval of objectives over seeds, null without one; see `runcatalog.model.statistics.bounds`.
  bounds(objectives) {
    if (objectives.length === 1 && objectives[0].low !== undefined) return [objectives[0].low, objectives[0].high];
    const values = objectives.map((objective) => objective.value);
    if (!values.length || !values.every(Number.isFinite)) return null;
    let [low, high] = values.length > 1 ? statistics.interval(values) : [Infinity, -Infinity];
    if (objectives.every(({ kind, value }) => kind === "rate" && value >= 0 && value <= 1)) {
      [low, high] = [Math.max(low, 0), Math.min(high, 1)];
    }
    const count = statistics.independentGames(objectives);
    if (count) {
      const [least, most] = statistics.wilson(Math.min(statistics.mean(values) * count, count), count);
      [low, high] = [Math.min(low, least), Math.max(high, most)];
    }
    return low <= high ? [low, high] : null;
  },

  // Number of independent games that the mean of objectives is worth; see `runcatalog.model.statistics.independent_games`.
  independentGames(objectives) {
    const sides = objectives.map(({ outcomes }) => outcomes?.split(" "));
    const sets = new Set(sides.map((side) => side?.slice(0, 3).join(" ")));
    if (sides.every(Boolean) && sets.size === 1) {
      const values = objectives.map(({ value }) => value);
      const games = statistics.effective(sides.map(statistics.levelRates), Number(sides[0][2]), values);
      if (games) return games;
    }
    const counts = objectives.map(statistics.counted);
    return counts.every((count) => count > 0) ? counts.reduce((sum, count) => sum + count, 0) : 0;
  },

  // Rate on every level, from the outcomes as `runcatalog.site.index` writes them.
  levelRates([, levels, games, text]) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const rates = new Float64Array(Number(levels));
    for (let game = 0; game < levels * games; game++) {
      rates[Math.floor(game / games)] += ((bytes[game >> 3] >> (7 - (game & 7))) & 1) / games;
    }
    return rates;
  },

  effective(rates, gamesOfLevel, values) {
    const [seeds, levels] = [rates.length, rates[0].length];
    const games = seeds * levels * gamesOfLevel;
    const ofSeeds = rates.map(statistics.mean);
    const ofLevels = rates[0].map((_, level) => statistics.mean(rates.map((each) => each[level])));
    const rate = statistics.mean(ofSeeds);
    if (values.some((value, i) => Math.abs(value - ofSeeds[i]) > statistics.ROUNDING)) return 0;
    const squares = (numbers, centre) => numbers.reduce((sum, each) => sum + (each - centre) ** 2, 0);
    let variance = squares(ofLevels, rate) / levels ** 2;
    if (seeds > 1) {
      const rest = rates.map((each, i) => each.map((at, level) => at - ofSeeds[i] - ofLevels[level] + rate));
      const interaction = rest.reduce((sum, each) => sum + squares(each, 0), 0) / (seeds * levels);
      variance += squares(ofSeeds, rate) / (seeds - 1) / seeds - interaction / (seeds - 1) / levels;
    }
    const independent = (rate * (1 - rate)) / games;
    return independent ? (games * independent) / Math.max(variance, independent) : levels;
  },

  // Number of games behind a counted rate, 0 for any other objective.
  counted({ value, kind, count }) {
    const usable = Number.isInteger(count) && count >= 1;
    return kind === "rate" && usable && value >= 0 && value <= 1 ? count : 0;
  },
};
