"use strict";
// Runs side by side: settings with means over seeds, the flags that differ, curves in one panel a metric.

const comparePage = {
  MOST_RUNS: 400, // whose files one comparison loads

  address(rows) {
    return `#/compare/${rows.map((row) => runs.ids[row].slice(0, 12)).join(",")}`;
  },

  // Return the runs of a selection: a batch stands for its trials.
  members(rows) {
    const members = rows.flatMap((row) =>
      runs.isBatch(row) ? (runs.trials.get(runs.ids[row]) ?? []) : [row],
    );
    return [...new Set(members)];
  },

  // Return why runs are too many to compare, "" if they are not.
  tooMany(groups, members) {
    if (groups.length <= runsPage.MOST && members.length <= comparePage.MOST_RUNS) return "";
    return `These are ${members.length} runs of ${groups.length} settings; at most ${runsPage.MOST} settings and ${comparePage.MOST_RUNS} runs are compared.`;
  },

  async show(main, list) {
    const found = list
      .split(",")
      .filter(Boolean)
      .map((id) => runs.find(id));
    const members = comparePage.members(found.filter((row) => row !== undefined));
    const unknown = found.filter((row) => row === undefined).length;
    elements.add(
      main,
      elements.make("h1", {}, members.length === 1 ? "1 run" : `${members.length} runs compared`),
    );
    if (unknown)
      elements.add(
        main,
        elements.make(
          "p",
          { class: "warning" },
          `${unknown} of the runs in the address are not in this site.`,
        ),
      );
    const groups = settings.of(members);
    const tooMany = comparePage.tooMany(groups, members);
    if (tooMany) {
      elements.add(main, elements.make("p", { class: "warning" }, tooMany));
      return;
    }
    if (!members.length) return;
    elements.add(main, comparePage.table(groups, members));
    await comparePage.curves(main, groups);
    elements.add(main, comparePage.runsTable(groups, members));
  },

  // Return the table of settings.
  table(groups, members) {
    const operations = new Set(members.map((row) => runs.fact(row, "operation")));
    const objectives = new Set(groups.flatMap((setting) => setting.objectives.map(({ name }) => name)));
    const [name] = objectives.size === 1 ? objectives : [];
    const ofOther = ({ objectives: [first] }) => (name ? "" : ` ${formats.words(first.name)}`);
    const failures = groups.some(({ failed }) => failed > 0);
    const rows = groups.map((setting, i) => [
      charts.mark(i),
      settings.title(setting, operations.size > 1),
      setting.mean === null ? "–" : formats.value(setting.mean, setting.kind) + ofOther(setting),
      formats.interval(setting.bounds, setting.kind),
      String(setting.counted.length),
      ...(failures
        ? [elements.make("span", { class: setting.failed ? "failed" : null }, String(setting.failed))]
        : []),
    ]);
    const heads = [
      { title: elements.make("span", { class: "unseen" }, "line") },
      { title: "setting" },
      {
        title: name
          ? [`mean ${formats.words(name)}`, elements.unit(runs.unit(members, name))]
          : "mean",
        right: true,
      },
      { title: "95 % interval", right: true },
      { title: "runs", right: true },
      ...(failures ? [{ title: "failed", right: true }] : []),
    ];
    const section = elements.section("Settings, seeds together", heads, rows);
    const repeated = groups.reduce((sum, { rows, counted }) => sum + rows.length - counted.length, 0);
    section.append(
      elements.make(
        "p",
        { class: "note" },
        "Runs that differ in their seed alone are one setting. ",
        repeated ? `${formats.count(repeated, "older run")} of the same seed left out. ` : "",
        "Intervals are of the mean over runs; of a single counted rate, and of runs that all agree, Wilson's, which does not show that another seed may fail.",
      ),
    );
    return section;
  },

  runsTable(groups, members) {
    const varying = settings.varying(members);
    const heads = [
      { title: elements.make("span", { class: "unseen" }, "line") },
      { title: "run" },
      { title: "operation" },
      ...varying.map((title) => ({ title })),
      { title: "seed", right: true },
      { title: "value", right: true },
      { title: "95 % interval", right: true },
      { title: "after", right: true },
      { title: "took", right: true },
    ];
    const rows = groups.flatMap((setting, i) =>
      setting.rows.map((row) => {
        const objective = runs.objective(row);
        const seconds = runs.fact(row, "wall_seconds");
        return [
          charts.mark(i),
          elements.link(runs.address(row), runs.ids[row].slice(0, 8), { class: "id" }),
          runs.fact(row, "operation"),
          ...varying.map((name) =>
            runs.flag(row, name) === undefined ? "–" : formats.flag(runs.flag(row, name)),
          ),
          runs.fact(row, "seed") === undefined ? "" : String(runs.fact(row, "seed")),
          runs.status(row) === "FINISHED" ? runTable.objective(row) : runTable.stateElement(row),
          objective === null ? "" : formats.interval(statistics.bounds([objective]), objective.kind),
          objective?.at === undefined ? "" : formats.number(objective.at, 7),
          seconds === undefined ? "" : elements.make("span", { class: "date" }, formats.duration(seconds)),
        ];
      }),
    );
    return elements.section("Runs and the flags that differ", heads, rows);
  },

  // Add the curves, with a choice between means over seeds and every run.
  async curves(main, groups) {
    const section = elements.make("section", {}, elements.make("h2", {}, "Curves"));
    elements.add(main, section);
    const pages = new Map(
      await Promise.all(groups.flatMap(({ rows }) => rows).map(async (row) => [row, await runs.load(row)])),
    );
    if (!main.isConnected) return; // the reader has left
    const seeds = groups.some(({ rows }) => rows.length > 1);
    const choices = seeds ? ["mean over seeds, band from lowest to highest", "every run"] : ["every run"];
    const box = elements.make("div", { class: "charts" });
    const draw = (mean) => {
      charts.clear();
      box.replaceChildren(...comparePage.figures(groups, pages, mean));
    };
    if (seeds) {
      const radios = choices.map((label, i) =>
        elements.make(
          "label",
          {},
          elements.make("input", {
            type: "radio",
            name: "lines",
            checked: i === 0,
            change: () => draw(i === 0),
          }),
          ` ${label}`,
        ),
      );
      section.append(elements.make("div", { class: "bar", role: "group", "aria-label": "Lines" }, radios));
    }
    section.append(comparePage.legend(groups), box);
    draw(seeds);
  },

  legend(groups) {
    const several = new Set(groups.map(({ operation }) => operation)).size > 1;
    return elements.make(
      "ul",
      { class: "legend" },
      groups.map((setting, i) =>
        elements.make("li", {}, charts.mark(i), " ", settings.title(setting, several)),
      ),
    );
  },

  figures(groups, pages, mean) {
    const objective = groups.flatMap(({ objectives }) => objectives)[0] ?? null;
    const having = (metric, { rows, counted }) =>
      (mean ? counted : rows).filter((row) => pages.get(row).curves.get(metric)?.steps.length > 1);
    const metrics = new Set([...pages.values()].flatMap(({ curves }) => [...curves.keys()]));
    const several = new Set(groups.map(({ operation }) => operation)).size > 1;
    return charts
      .ordered(metrics, objective)
      .map((metric) => {
        const lines = groups.flatMap((setting, i) => {
          const rows = having(metric, setting);
          if (!rows.length) return [];
          const curves = rows.map((row) => pages.get(row).curves.get(metric));
          const label = settings.title(setting, several);
          if (!mean)
            return rows.map((row, n) => ({
              label: `${label} seed ${runs.fact(row, "seed") ?? "–"}`,
              style: i,
              ...curves[n],
            }));
          const band = settings.band(
            curves,
            rows.map((row) => runs.status(row) === "FINISHED"),
          );
          if (rows.length === 1) return [{ label, style: i, ...curves[0] }];
          return [{ label, style: i, steps: band.steps, values: band.mean, low: band.low, high: band.high }];
        });
        return lines.length
          ? charts.figure(metric, lines, {
              axis: formats.words(objective?.axis ?? "step"),
              objective,
              unit: runs.unit(
                groups.flatMap(({ rows }) => rows),
                metric,
              ),
            })
          : null;
      })
      .filter((figure) => figure !== null);
  },
};
