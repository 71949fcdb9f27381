"use strict";
// The page of a run: result, how to run it again, curves, flags, machine.

const runPage = {
  async show(main, id) {
    const row = runs.find(id);
    if (row === undefined && !runs.trials.has(id)) {
      elements.add(
        main,
        elements.make("h1", {}, "No such run"),
        elements.make("p", {}, `There is no run ${id}.`),
      );
      return;
    }
    if (row === undefined || runs.isBatch(row)) {
      await batchPage.show(main, row, row === undefined ? id : runs.ids[row]);
      return;
    }
    const page = await runs.load(row);
    elements.add(
      main,
      runPage.title(row),
      runPage.facts(row),
      ...runPage.marks(row),
      runPage.result(row),
      runPage.again(row, page),
    );
    const side = elements.make("div", { class: "side" }, runPage.flags(row), ...runPage.more(row, page));
    const curves = elements.make("div", { class: "middle" });
    elements.add(main, elements.make("div", { class: "split" }, curves, side));
    runPage.curves(curves, row, page);
    elements.add(curves, runPage.media(page));
  },

  title(row) {
    const label = runs.fact(row, "label");
    return elements.make(
      "h1",
      {},
      runs.fact(row, "operation"),
      label ? elements.make("span", { class: "label" }, ` ${label}`) : null,
      " ",
      elements.make("code", { class: "tag" }, runs.ids[row].slice(0, 8)),
    );
  },

  facts(row) {
    const seconds = runs.fact(row, "wall_seconds");
    const started = runs.fact(row, "started");
    const on = runs.fact(row, "host_cpu") ?? runs.fact(row, "machine");
    const batch = runs.fact(row, "batch");
    const parts = [
      runTable.stateElement(row),
      started === undefined ? null : `${formats.time(started)} UTC`,
      seconds === undefined ? null : `${formats.duration(seconds)}${on ? ` on ${on}` : ""}`,
      runs.fact(row, "seed") === undefined ? null : `seed ${runs.fact(row, "seed")}`,
      elements.link(runsPage.address(`study=${runs.fact(row, "study")}`), runs.fact(row, "study")),
      batch ? elements.make("span", {}, "trial of ", listPages.linkTo(batch)) : null,
    ].filter((part) => part !== null);
    return elements.make(
      "p",
      { class: "facts" },
      parts.flatMap((part, i) => (i ? [" · ", part] : [part])),
    );
  },

  marks(row) {
    const by = runs.fact(row, "superseded_by");
    const retracted = runs.fact(row, "retracted");
    const box = (...children) => elements.make("p", { class: "warning" }, ...children);
    return [
      by ? box("Superseded by ", listPages.linkTo(by), `: ${runs.fact(row, "superseded_why") ?? ""}`) : null,
      retracted ? box(`Retracted: ${retracted}`) : null,
    ];
  },

  result(row) {
    const objective = runs.objective(row);
    const sentence = elements.make("p", { class: "result" }, runs.columns.result.at(row));
    const reported = runs.facts.operations[runs.fact(row, "operation")];
    const source = reported?.reported
      ? elements.make(
          "p",
          { class: "note" },
          `Reported${reported.source ? ` (${reported.source})` : ""}: ${reported.reported}${reported.same_setting ? `. Same setting: ${reported.same_setting}` : ""}`,
        )
      : null;
    if (objective === null || runs.status(row) !== "FINISHED")
      return elements.make("section", { "aria-label": "Result" }, sentence, source);
    const bounds = statistics.bounds([objective]);
    const after =
      objective.at === undefined ? "" : `after ${formats.count(objective.at, objective.axis ?? "step")}`;
    const split = runs.fact(row, "split");
    const more = [
      bounds ? `95 % interval ${formats.interval(bounds, objective.kind)}` : "",
      after,
      objective.count ? `of ${objective.count}` : "",
      split ? `${split} set` : "",
    ]
      .filter(Boolean)
      .join(", ");
    return elements.make(
      "section",
      { "aria-label": "Result" },
      elements.make(
        "p",
        { class: "value" },
        elements.make("strong", {}, formats.value(objective.value, objective.kind)),
        elements.make("span", {}, [
          formats.words(objective.name),
          elements.unit(runs.unit([row], objective.name)),
          more ? elements.make("small", {}, more) : null,
        ]),
      ),
      sentence,
      source,
    );
  },

  again(row, page) {
    const commit = runs.fact(row, "commit");
    const code = page.command
      ? elements.make(
          "div",
          { class: "command" },
          elements.make("pre", { tabindex: "0" }, elements.make("code", {}, page.command)),
          elements.copyButton(page.command, "the command"),
        )
      : elements.make("p", { class: "note" }, `No command: ${page.no_command ?? "unknown"}.`);
    const at = commit
      ? elements.make(
          "p",
          { class: "note" },
          "at commit ",
          elements.make("code", {}, commit.slice(0, 12)),
          " ",
          elements.copyButton(commit, "the commit"),
          runs.fact(row, "dirty") ? " with uncommitted changes" : "",
        )
      : null;
    return elements.make("section", {}, elements.make("h2", {}, "Run it again"), code, at);
  },

  curves(box, row, page) {
    const objective = runs.objective(row);
    const axis = formats.words(objective?.axis ?? "step");
    const metrics = charts.ordered(page.curves.keys(), objective);
    const drawn = metrics.filter((name) => page.curves.get(name).steps.length > 1);
    const single = metrics.filter((name) => page.curves.get(name).steps.length === 1);
    if (drawn.length) {
      const figures = drawn.map((name) => {
        const { steps, values } = page.curves.get(name);
        return charts.figure(name, [{ label: formats.words(name), style: 0, steps, values }], {
          axis,
          objective,
          unit: runs.unit([row], name),
        });
      });
      elements.add(
        box,
        elements.make(
          "section",
          {},
          elements.make("h2", {}, "Curves"),
          elements.make("div", { class: "charts" }, figures),
        ),
      );
    }
    if (single.length) {
      const rows = single.map((name) => {
        const { steps, values } = page.curves.get(name);
        const rate = charts.isRate(name, [{ values }], objective);
        return [
          [formats.words(name), elements.unit(rate ? "" : runs.unit([row], name))],
          formats.value(values[0], rate ? "rate" : ""),
          formats.number(steps[0], 7),
        ];
      });
      elements.add(
        box,
        elements.section(
          "Single values",
          [{ title: "metric" }, { title: "value", right: true }, { title: axis, right: true }],
          rows,
        ),
      );
    }
  },

  // Flags in bold differ from the declared value, or from the most frequent one of the operation's runs.
  flags(row) {
    const operation = runs.fact(row, "operation");
    const declared = runs.facts.operations[operation]?.flags ?? {};
    const others = [...runs.ids.keys()].filter(
      (each) => runs.fact(each, "operation") === operation && runs.isCurrent(each),
    );
    const rows = [...runs.flagsOf(row)]
      .map(([name, text]) => {
        const usual = declared[name] ?? runPage.mostFrequent(others.map((each) => runs.flag(each, name)));
        // By value: a script reads the 1 of a Guild file as 1.0.
        const differs =
          name !== "seed" && usual !== undefined && columns.parseFlag(usual) !== columns.parseFlag(text);
        return { name, text, usual, differs };
      })
      .sort((a, b) => Number(b.differs) - Number(a.differs) || names.byCodePoint(a.name, b.name));
    if (!rows.length) return null;
    const bold = (differs, text) => (differs ? elements.make("strong", {}, text) : text);
    const some = rows.some(({ differs }) => differs);
    const shown = rows.map(({ name, text, usual, differs }) => [
      bold(differs, name),
      bold(differs, formats.flag(text)),
      ...(some ? [differs ? formats.flag(usual) : ""] : []),
    ]);
    const section = elements.section(
      "Flags",
      [{ title: "flag" }, { title: "value" }, ...(some ? [{ title: "usual" }] : [])],
      shown,
    );
    if (some) {
      section
        .querySelector("h2")
        .after(
          elements.make(
            "p",
            { class: "note" },
            `Bold: not the declared value, or not the most frequent one of the ${formats.count(others.length, "run")} of ${operation}.`,
          ),
        );
    }
    return section;
  },

  mostFrequent(texts) {
    const counts = new Map();
    for (const text of texts) {
      if (text !== undefined) counts.set(text, (counts.get(text) ?? 0) + 1);
    }
    return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0];
  },

  more(row, page) {
    const facts = [
      ["machine", runs.fact(row, "machine")],
      ["processor", runs.fact(row, "host_cpu")],
      ["GPU", runs.fact(row, "gpu")],
      ["environment steps", runs.fact(row, "env_steps")],
      ["imported from", runs.fact(row, "reported_by")],
    ]
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => [name, typeof value === "string" ? value : formats.number(value, 7)]);
    const texts = (object) =>
      Object.entries(object ?? {}).map(([name, value]) => [
        name,
        elements.make("span", { class: "long" }, String(value)),
      ]);
    const parents = (page.parents ?? []).map((id) => [listPages.linkTo(id)]);
    const again = (page.reproduced ?? []).map(({ when, cpu, bits, value }) => [
      String(when ?? ""),
      String(cpu ?? ""),
      String(bits ?? ""),
      String(value ?? ""),
    ]);
    const pair = [{ title: "what" }, { title: "value" }];
    return [
      elements.section("Machine", pair, facts),
      elements.section("Started from", [{ title: "run" }], parents),
      elements.section(
        "Reruns",
        [{ title: "when" }, { title: "processor" }, { title: "bits" }, { title: "value" }],
        again,
      ),
      elements.section("Further results", pair, texts(page.result)),
      elements.section("Versions", pair, texts(page.versions)),
      elements.section("Environment", pair, texts(page.environment)),
      elements.section("Checksums", pair, texts(page.digest)),
    ];
  },

  // Return the section with the run's videos, pictures and figures; null without any.
  media(page) {
    if (!page.media) return null;
    const shown = page.media.map((path) => {
      const name = path.split("/").at(-1);
      const isVideo = /\.(mp4|webm)$/i.test(name);
      return elements.make(
        "figure",
        { class: "media" },
        isVideo
          ? elements.make("video", { src: path, controls: true, preload: "metadata", "aria-label": name })
          : elements.make("img", { src: path, alt: formats.words(name), loading: "lazy" }),
        elements.make("figcaption", {}, name),
      );
    });
    return elements.make(
      "section",
      {},
      elements.make("h2", {}, "Video and figures"),
      elements.make("div", { class: "media-list" }, shown),
    );
  },
};
