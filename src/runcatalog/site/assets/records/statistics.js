"use strict";
// Means and 95 % intervals over seeds, with the same numbers as `runcatalog.model.statistics`.

const statistics = {
  RESAMPLES: 2000,
  ROUNDING: 5e-5, // of a rate as scripts report it
  Z95: 1.959963984540054, // 97.5 % quantile of the standard normal distribution

  mean(values) {
    return values.reduce((sum, value) => sum + value, 0) / values.length;
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

  // 95 % percentile bootstrap interval of the mean (Efron 1979, Annals 7, 1-26).
  bootstrap(values) {
    const ordered = Float64Array.from(values).sort();
    const count = ordered.length;
    if (ordered[0] === ordered[count - 1]) return [ordered[0], ordered[0]];
    const random = statistics.mersenneTwister(0);
    const means = new Float64Array(statistics.RESAMPLES);
    for (let sample = 0; sample < means.length; sample++) {
      let sum = 0;
      for (let i = 0; i < count; i++) sum += ordered[Math.floor(random() * count)];
      means[sample] = sum / count;
    }
    means.sort();
    return [means[Math.trunc(0.025 * means.length)], means[Math.trunc(0.975 * means.length) - 1]];
  },

  // Interval of objectives over seeds, null without one; see `runcatalog.model.statistics.bounds`.
  bounds(objectives) {
    if (objectives.length === 1 && objectives[0].low !== undefined) return [objectives[0].low, objectives[0].high];
    const values = objectives.map((objective) => objective.value);
    if (!values.length || !values.every(Number.isFinite)) return null;
    let [low, high] = values.length > 1 ? statistics.bootstrap(values) : [Infinity, -Infinity];
    const count = statistics.trials(objectives);
    if (count) {
      const [least, most] = statistics.wilson(Math.min(statistics.mean(values) * count, count), count);
      [low, high] = [Math.min(low, least), Math.max(high, most)];
    }
    return low <= high ? [low, high] : null;
  },

  // Number of independent games that the mean of objectives is worth; see `runcatalog.model.statistics.trials`.
  trials(objectives) {
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
    return independent ? (games * independent) / Math.max(variance, independent) : games;
  },

  // Number of trials behind a counted rate, 0 for any other objective.
  counted({ value, kind, count }) {
    const usable = Number.isInteger(count) && count >= 1;
    return kind === "rate" && usable && value >= 0 && value <= 1 ? count : 0;
  },

  // Generator of numbers in [0, 1): numpy's RandomState([seed]).random_sample (Matsumoto and Nishimura 1998, MT19937).
  mersenneTwister(seed) {
    const state = new Uint32Array(624);
    state[0] = 19650218;
    for (let i = 1; i < 624; i++) {
      state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
    }
    let i = 1;
    const next = () => {
      if (++i < 624) return;
      state[0] = state[623];
      i = 1;
    };
    for (let k = 0; k < 624; k++) {
      state[i] = (state[i] ^ Math.imul(state[i - 1] ^ (state[i - 1] >>> 30), 1664525)) + seed;
      next();
    }
    for (let k = 0; k < 623; k++) {
      state[i] = (state[i] ^ Math.imul(state[i - 1] ^ (state[i - 1] >>> 30), 1566083941)) - i;
      next();
    }
    state[0] = 0x80000000;
    let used = 624;
    const word = () => {
      if (used === 624) {
        for (let k = 0; k < 624; k++) {
          const mixed = (state[k] & 0x80000000) | (state[(k + 1) % 624] & 0x7fffffff);
          state[k] = state[(k + 397) % 624] ^ (mixed >>> 1) ^ (mixed & 1 ? 0x9908b0df : 0);
        }
        used = 0;
      }
      let bits = state[used++];
      bits ^= bits >>> 11;
      bits ^= (bits << 7) & 0x9d2c5680;
      bits ^= (bits << 15) & 0xefc60000;
      return (bits ^ (bits >>> 18)) >>> 0;
    };
    return () => ((word() >>> 5) * 67108864 + (word() >>> 6)) / 9007199254740992;
  },
};
