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
      listPages.id(row),
      runs.fact(row, "operation"),
      listPages.result(row),
      elements.make("span", { class: "date" }, seconds === undefined ? "" : formats.duration(seconds)),
    ];
  },

  // Return a link to a run, and one to the batch of a trial.
  id(row) {
    const batch = runs.fact(row, "batch");
    const run = listPages.linkTo(runs.ids[row]);
    return batch === undefined ? run : elements.make("span", {}, run, " of ", listPages.linkTo(batch));
  },

  // Return a result of at most three lines; the whole is on the run's page, and shown where the pointer rests.
  result(row) {
    const failed = ["FAILED", "KILLED"].includes(runs.status(row));
    const text = runs.columns.result.at(row);
    return elements.make("span", { class: failed ? "failed clamp" : "clamp", title: text }, text);
  },

  // Return the rows of current runs that failed, were killed or lost; the newest first.
  failed() {
    return [...runs.ids.keys()]
      .filter((row) => ["FAILED", "KILLED"].includes(runs.status(row)) && runs.isCurrent(row))
      .sort((a, b) => (runs.fact(b, "started") ?? 0) - (runs.fact(a, "started") ?? 0));
  },

  // Show a page: its title, a sentence for rows or for none, the table.
  show(main, title, [some, none], heads, rows) {
    elements.add(
      main,
      elements.make("h1", {}, title),
      elements.make("p", { class: "note" }, rows.length ? some : none),
    );
    if (rows.length) elements.add(main, elements.table(title, heads, rows));
  },

  failures(main) {
    const notes = ["Runs that failed, were killed or were lost, the newest first.", "No run has failed."];
    listPages.show(main, "Failures", notes, listPages.COLUMNS, listPages.failed().map(listPages.cells));
  },

  never(main) {
    const heads = [
      { title: "operation" },
      { title: "study" },
      { title: "what it does", kind: "full" },
      { title: "why not yet", kind: "full", named: true },
    ];
    const rows = Object.entries(runs.facts.operations)
      .filter(([, operation]) => operation.never)
      .map(([name, { study, description, why }]) => [name, study, description, why || "–"]);
    const notes = ["Operations that are declared and have no run.", "Every declared operation has a run."];
    listPages.show(main, "Never run", notes, heads, rows);
  },

  superseded(main) {
    const heads = [
      { title: "run" },
      { title: "operation" },
      { title: "result", kind: "full" },
      { title: "stands instead", named: true },
      { title: "why", kind: "full" },
    ];
    const rows = [...runs.ids.keys()]
      .filter(
        (row) => runs.fact(row, "superseded_by") !== undefined || runs.fact(row, "retracted") !== undefined,
      )
      .map((row) => [
        listPages.id(row),
        runs.fact(row, "operation"),
        listPages.result(row),
        listPages.successor(row),
        runs.fact(row, "retracted") ?? runs.fact(row, "superseded_why") ?? "",
      ]);
    const notes = [
      "Records are never deleted. These count in no table and no figure.",
      "No run is superseded or retracted.",
    ];
    listPages.show(main, "Superseded and retracted", notes, heads, rows);
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
