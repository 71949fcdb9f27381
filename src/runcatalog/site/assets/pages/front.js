"use strict";
// The first page: counts, headline results, studies, the newest runs, failures, machines.

const frontPage = {
  NEWEST: 10,
  FAILURES: 8,

  show(main) {
    const all = [...runs.ids.keys()];
    const single = all.filter((row) => !runs.isBatch(row) && runs.isCurrent(row));
    const failed = listPages.failed();
    elements.add(
      main,
      elements.make("h1", {}, runs.facts.title),
      frontPage.cards(single, failed),
      frontPage.results(),
      frontPage.studies(),
      frontPage.newest(),
      frontPage.failures(failed),
      frontPage.machines(single),
    );
  },

  cards(single, failed) {
    const newest = Math.max(...single.map((row) => runs.fact(row, "started") ?? 0));
    const never = Object.values(runs.facts.operations).filter((operation) => operation.never).length;
    const card = (address, value, what) =>
      elements.make(
        "li",
        {},
        elements.link(address, [elements.make("strong", {}, value), elements.make("span", {}, what)]),
      );
    return elements.make(
      "ul",
      { class: "cards" },
      card("#/runs", formats.number(single.length), "runs"),
      card("#/failures", String(failed.length), "failed or killed"),
      card("#/never", String(never), "declared, never run"),
      newest > 0 ? card("#/runs", formats.time(newest), "newest run (UTC)") : null,
    );
  },

  // Return the findings of the studies, and the table of their headline results.
  results() {
    const { headlines, findings } = runs.facts;
    const found = Object.entries(findings).map(([study, text]) =>
      elements.make(
        "li",
        {},
        elements.make("strong", {}, elements.link(runsPage.address(`study=${study}`), study)),
        `: ${formats.unbroken(text)}`,
      ),
    );
    const rows = headlines.map((line) => [
      line.study,
      line.question,
      formats.unbroken(line.measured),
      formats.unbroken(line.reported),
      elements.make("span", { class: "date" }, line.seeds),
      line.same,
      frontPage.links(line.runs),
    ]);
    const table = rows.length
      ? elements.table(
          "Headline results",
          [
            { title: "study" },
            { title: "question", kind: "full" },
            { title: "measured, 95 %" },
            { title: "reported", named: true },
            { title: "seeds", named: true },
            { title: "same setting?", kind: "full", named: true },
            { title: "runs" },
          ],
          rows,
        )
      : null;
    if (!found.length && !table) return null;
    return elements.make(
      "section",
      {},
      elements.make("h2", {}, "Results: measured here, reported by the source"),
      found.length ? elements.make("ul", { class: "findings" }, found) : null,
      table,
    );
  },

  links(ids) {
    const rows = ids.map((id) => runs.find(id)).filter((row) => row !== undefined);
    if (!rows.length) return "";
    const batches = new Set(rows.map((row) => runs.fact(row, "batch")));
    const [batch] = batches;
    if (batches.size === 1 && batch !== undefined) return listPages.linkTo(batch);
    if (rows.length === 1) return listPages.linkTo(ids[0]);
    return elements.link(comparePage.address(rows), `${rows.length} runs`);
  },

  studies() {
    const rows = runs.facts.studies.map((study) => {
      const members = [...runs.ids.keys()].filter(
        (row) => runs.fact(row, "study") === study && runs.isCurrent(row),
      );
      const single = members.filter((row) => !runs.isBatch(row));
      const failed = single.filter((row) => ["FAILED", "KILLED"].includes(runs.status(row)));
      const newest = Math.max(0, ...members.map((row) => runs.fact(row, "started") ?? 0));
      const operations = new Set(members.map((row) => runs.fact(row, "operation")));
      const search = (text) => runsPage.address(text);
      return [
        elements.link(search(`study=${study}`), study),
        formats.number(single.length),
        failed.length
          ? elements.link(
              search(`study=${study} and (status=FAILED or status=KILLED)`),
              String(failed.length),
            )
          : "0",
        String(operations.size),
        newest ? formats.time(newest) : "",
      ];
    });
    return elements.section(
      "Studies",
      [
        { title: "study" },
        { title: "runs", right: true },
        { title: "failed", right: true },
        { title: "operations", right: true, kind: "wide" },
        { title: "newest (UTC)" },
      ],
      rows,
    );
  },

  newest() {
    const rows = [...runs.ids.keys()].filter(
      (row) => runs.fact(row, "started") !== undefined && !runs.isTrial(row) && runs.isCurrent(row),
    );
    rows.sort((a, b) => runs.fact(b, "started") - runs.fact(a, "started"));
    return elements.section(
      "Newest runs and batches",
      listPages.COLUMNS,
      rows.slice(0, frontPage.NEWEST).map(listPages.cells),
    );
  },

  failures(failed) {
    const more =
      failed.length > frontPage.FAILURES
        ? elements.link("#/failures", `All ${failed.length} failures`)
        : null;
    const section = elements.section(
      "Failures",
      listPages.COLUMNS,
      failed.slice(0, frontPage.FAILURES).map(listPages.cells),
    );
    if (more) section?.append(elements.make("p", {}, more));
    return section;
  },

  machines(single) {
    const counts = new Map();
    for (const row of single) {
      const machine = [runs.fact(row, "machine"), runs.fact(row, "host_cpu"), runs.fact(row, "gpu")]
        .filter(Boolean)
        .join(" · ");
      if (machine) counts.set(machine, (counts.get(machine) ?? 0) + 1);
    }
    const rows = [...counts]
      .sort((a, b) => b[1] - a[1])
      .map(([machine, count]) => [machine, formats.number(count)]);
    return elements.section(
      "Machines",
      [{ title: "machine, processor" }, { title: "runs", right: true }],
      rows,
    );
  },
};
