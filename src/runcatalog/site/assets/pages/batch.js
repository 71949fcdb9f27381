"use strict";
// The page of a batch: its result, a matrix of two flags where it is a grid, its settings, their curves.

const batchPage = {
  async show(main, row, id) {
    const members = runs.trials.get(id) ?? [];
    const page = row === undefined ? {} : await runs.load(row);
    if (row !== undefined) {
      elements.add(
        main,
        runPage.title(row),
        runPage.facts(row),
        ...runPage.marks(row),
        elements.make("p", { class: "result" }, runs.columns.result.at(row)),
        runPage.again(row, page),
      );
    } else {
      elements.add(main, elements.make("h1", {}, `Batch ${id.slice(0, 8)}`));
    }
    if (!members.length) return;
    const groups = settings.of(members);
    elements.add(
      main,
      batchPage.matrix(groups, settings.varying(members)),
      comparePage.table(groups, members),
    );
    await batchPage.curves(main, groups);
    elements.add(main, comparePage.runsTable(groups, members), runPage.media(page));
  },

  // Add the curves of the best settings, as many as can be distinguished and have no more runs than are loaded.
  async curves(main, groups) {
    const finished = groups.filter(({ mean }) => mean !== null);
    const drawn = [];
    let count = 0;
    for (const setting of (finished.length ? finished : groups).slice(0, runsPage.MOST)) {
      count += setting.rows.length;
      if (count > comparePage.MOST_RUNS) break;
      drawn.push(setting);
    }
    if (drawn.length) await comparePage.curves(main, drawn);
    if (drawn.length < groups.length) {
      const note = drawn.length
        ? `Curves of the best ${drawn.length} of ${groups.length} settings.`
        : `No curves: the best setting has more than ${comparePage.MOST_RUNS} runs.`;
      elements.add(main, elements.make("p", { class: "note" }, note));
    }
  },

  // Return the matrix of a sweep over two flags: mean and interval per cell; null for other batches.
  matrix(groups, flags) {
    if (flags.length !== 2) return null;
    const distinct = (name) =>
      [...new Set(groups.map((setting) => setting.flags.get(name)))].sort(settings.byValue);
    const [down, across] = [...flags]
      .sort((a, b) => distinct(b).length - distinct(a).length)
      .map((name) => ({ name, texts: distinct(name) }));
    const cells = down.texts.length * across.texts.length;
    if (across.texts.length < 2 || across.texts.length > 12 || groups.length < cells / 2) return null;
    const points = groups.map(({ flags: point }) => JSON.stringify(flags.map((name) => point.get(name) ?? null)));
    if (new Set(points).size < groups.length) return null; // several settings in a cell
    const shown = (text) => (text === undefined ? "–" : formats.flag(text));
    const rows = down.texts.map((text) => [
      elements.make("strong", {}, shown(text)),
      ...across.texts.map((other) => {
        const setting = groups.find(
          ({ flags: point }) => point.get(down.name) === text && point.get(across.name) === other,
        );
        if (!setting) return "";
        const value = setting.mean === null ? "–" : formats.value(setting.mean, setting.kind);
        const interval = formats.interval(setting.bounds, setting.kind);
        return elements.make("span", {}, value, interval ? elements.make("small", {}, ` ${interval}`) : "");
      }),
    ]);
    const heads = [
      { title: `${down.name} ↓ ${across.name} →` },
      ...across.texts.map((text) => ({ title: shown(text), right: true })),
    ];
    return elements.section(`${down.name} × ${across.name}: mean and 95 % interval`, heads, rows);
  },
};
