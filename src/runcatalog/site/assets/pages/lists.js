"use strict";
// Pages that are lists: failures, operations that were never run, superseded and retracted runs.

const listPages = {
  COLUMNS: [
    { title: "started (UTC)" },
    { title: "run" },
    { title: "operation" },
    { title: "result", kind: "full" },
    { title: "took", right: true, kind: "wide" },
  ],

  cells(row) {
    const started = runs.fact(row, "started");
    const seconds = runs.fact(row, "wall_seconds");
    return [
      elements.make("span", { class: "date" }, started === undefined ? "" : formats.time(started)),
      elements.link(runs.address(row), runs.ids[row].slice(0, 8), { class: "id" }),
      runs.fact(row, "operation"),
      listPages.result(row),
      elements.make("span", { class: "date" }, seconds === undefined ? "" : formats.duration(seconds)),
    ];
  },

  result(row) {
    const failed = ["FAILED", "KILLED"].includes(runs.status(row));
    return elements.make("span", { class: failed ? "failed clamp" : "clamp" }, runs.columns.result.at(row));
  },

  // Return the rows of current runs that failed, were killed or lost; the newest first.
  failed() {
    return [...runs.ids.keys()]
      .filter((row) => ["FAILED", "KILLED"].includes(runs.status(row)) && runs.isCurrent(row))
      .sort((a, b) => (runs.fact(b, "started") ?? 0) - (runs.fact(a, "started") ?? 0));
  },

  failures(main) {
    const rows = listPages.failed();
    elements.add(
      main,
      elements.make("h1", {}, "Failures"),
      elements.make(
        "p",
        { class: "note" },
        rows.length ? "Runs that failed, were killed or were lost, the newest first." : "No run has failed.",
      ),
    );
    if (rows.length)
      elements.add(main, elements.table("Failures", listPages.COLUMNS, rows.map(listPages.cells)));
  },

  never(main) {
    const never = Object.entries(runs.facts.operations).filter(([, operation]) => operation.never);
    elements.add(
      main,
      elements.make("h1", {}, "Never run"),
      elements.make(
        "p",
        { class: "note" },
        never.length
          ? "Operations that are declared and have no run."
          : "Every declared operation has a run.",
      ),
    );
    const heads = [
      { title: "operation" },
      { title: "study" },
      { title: "what it does", kind: "full" },
      { title: "why not yet", kind: "full" },
    ];
    const rows = never.map(([name, { study, description, why }]) => [name, study, description, why || "–"]);
    if (rows.length) elements.add(main, elements.table("Never run", heads, rows));
  },

  superseded(main) {
    const marked = [...runs.ids.keys()].filter(
      (row) => runs.fact(row, "superseded_by") !== undefined || runs.fact(row, "retracted") !== undefined,
    );
    elements.add(
      main,
      elements.make("h1", {}, "Superseded and retracted"),
      elements.make(
        "p",
        { class: "note" },
        marked.length
          ? "Records are never deleted. These count in no table and no figure."
          : "No run is superseded or retracted.",
      ),
    );
    const heads = [
      { title: "run" },
      { title: "operation" },
      { title: "result", kind: "full" },
      { title: "stands instead" },
      { title: "why", kind: "full" },
    ];
    const rows = marked.map((row) => [
      elements.link(runs.address(row), runs.ids[row].slice(0, 8), { class: "id" }),
      runs.fact(row, "operation"),
      listPages.result(row),
      listPages.successor(row),
      runs.fact(row, "retracted") ?? runs.fact(row, "superseded_why") ?? "",
    ]);
    if (rows.length) elements.add(main, elements.table("Superseded and retracted", heads, rows));
  },

  successor(row) {
    const by = runs.fact(row, "superseded_by");
    if (by === undefined) return "retracted";
    return listPages.linkTo(by);
  },

  // Return a link to a run or batch, or its digits where there is no page.
  linkTo(id) {
    const row = runs.find(id);
    if (row !== undefined) return elements.link(runs.address(row), id.slice(0, 8), { class: "id" });
    return runs.trials.has(id)
      ? elements.link(`#/run/${id}`, id.slice(0, 8), { class: "id" })
      : id.slice(0, 8);
  },
};
