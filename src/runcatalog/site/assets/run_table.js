"use strict";
// The sortable table of runs, by Tabulator: only the rows in sight are elements.

const runTable = {
  table: null,
  selected: new Set(), // rows
  onSelection: () => {},
  data: new Map(), // row → the values that the table sorts by

  // Return the values of a run that the table sorts by.
  dataOf(row) {
    if (!runTable.data.has(row)) {
      runTable.data.set(row, {
        row,
        run: runs.ids[row],
        started: runs.fact(row, "started") ?? null,
        operation: runs.fact(row, "operation"),
        label: runs.fact(row, "label") ?? "",
        state: runTable.state(row),
        value: runs.objective(row)?.value ?? null,
        result: runs.columns.result.at(row),
        seed: runs.fact(row, "seed") ?? null,
        took: runs.fact(row, "wall_seconds") ?? null,
      });
    }
    return runTable.data.get(row);
  },

  // Return a word for a run's state.
  state(row) {
    if (runs.fact(row, "retracted") !== undefined) return "retracted";
    if (!runs.isCurrent(row)) return "superseded";
    return runs.status(row).toLowerCase();
  },

  stateElement(row) {
    const state = runTable.state(row);
    const local = runs.local.has(row) ? elements.make("span", { class: "tag" }, "local") : null;
    return elements.make(
      "span",
      {},
      elements.make("span", { class: `state ${state}` }, state),
      local ? " " : null,
      local,
    );
  },

  // Show rows in an element. Names: those in the query, each shown as a column.
  async show(box, rows, queried) {
    runTable.clear();
    const shown = queried.filter(
      ({ kind, key }) =>
        kind !== "field" ||
        !["run", "operation", "label", "status", "study", "seed", "started"].includes(key),
    );
    runTable.table = new Tabulator(box, {
      data: rows.map(runTable.dataOf),
      columns: runTable.columns(shown),
      layout: "fitColumns",
      responsiveLayout: "hide",
      height: runTable.height(box),
      initialSort: [{ column: "started", dir: "desc" }],
      placeholder: "No run matches.",
      columnHeaderSortMulti: true,
      renderVerticalBuffer: 300,
      reactiveData: false,
      columnDefaults: { resizable: "header" },
    });
    await new Promise((resolve) => {
      runTable.table.on("tableBuilt", resolve);
    });
    // Its links and boxes are reached by keys; a grid must not have a focusable child between it and its rows.
    box.querySelector(".tabulator-tableholder").removeAttribute("tabindex");
    box.setAttribute("aria-label", "Runs");
  },

  clear() {
    runTable.table?.destroy();
    runTable.table = null;
  },

  height(box) {
    const top = box.getBoundingClientRect().top + window.scrollY;
    return Math.max(320, window.innerHeight - top - 16);
  },

  columns(queried) {
    const text = (read) => (cell) => document.createTextNode(read(cell.getData()));
    const more = queried.map((name, i) => ({
      field: `query${i}`,
      minWidth: Math.min(180, Math.max(80, 40 + 7 * `${name.title} ${runTable.unit(name)}`.length)),
      widthGrow: 1,
      responsive: 0,
      sorter: runTable.byValue(name),
      titleFormatter: () => elements.make("span", {}, name.title, elements.unit(runTable.unit(name))),
      formatter: (cell) => runTable.queried(names.value(cell.getData().row, name), name),
    }));
    return [
      {
        field: "select",
        width: 40,
        minWidth: 40,
        headerSort: false,
        responsive: 0,
        formatter: runTable.checkbox,
        titleFormatter: () => elements.make("span", { class: "unseen" }, "compare"),
      },
      {
        title: "started (UTC)",
        field: "started",
        width: 148,
        minWidth: 148,
        sorter: "number",
        sorterParams: { alignEmptyValues: "bottom" },
        responsive: 3,
        formatter: text((data) => (data.started === null ? "" : formats.time(data.started))),
      },
      {
        title: "run",
        field: "run",
        width: 92,
        minWidth: 92,
        responsive: 0,
        formatter: (cell) => elements.link(runs.address(cell.getData().row), cell.getData().run.slice(0, 8)),
      },
      {
        title: "operation",
        field: "operation",
        minWidth: 110,
        widthGrow: 2,
        responsive: 1,
        formatter: text((data) => data.operation),
      },
      {
        title: "label",
        field: "label",
        minWidth: 120,
        widthGrow: 2,
        responsive: 4,
        formatter: text((data) => data.label),
      },
      ...more,
      {
        title: "state",
        field: "state",
        width: 104,
        minWidth: 104,
        responsive: 2,
        formatter: (cell) => runTable.stateElement(cell.getData().row),
      },
      {
        title: "value",
        field: "value",
        width: 88,
        minWidth: 88,
        responsive: 1,
        hozAlign: "right",
        sorter: "number",
        sorterParams: { alignEmptyValues: "bottom" },
        formatter: text(({ row }) => runTable.objective(row)),
      },
      {
        title: "result",
        field: "result",
        minWidth: 240,
        widthGrow: 6,
        responsive: 2,
        formatter: (cell) => {
          const { result } = cell.getData();
          return elements.make("span", { title: result }, result);
        },
      },
      {
        title: "seed",
        field: "seed",
        width: 70,
        minWidth: 70,
        responsive: 5,
        hozAlign: "right",
        sorter: runTable.bySize("seed"),
        formatter: text((data) => (data.seed === null ? "" : String(data.seed))),
      },
      {
        title: "took",
        field: "took",
        width: 102,
        minWidth: 102,
        responsive: 6,
        hozAlign: "right",
        sorter: "number",
        sorterParams: { alignEmptyValues: "bottom" },
        formatter: text((data) => (data.took === null ? "" : formats.duration(data.took))),
      },
    ];
  },

  unit({ kind, key }) {
    return kind === "last" || kind === "best" ? runs.unit([...runs.ids.keys()], key) : "";
  },

  objective(row) {
    const objective = runs.objective(row);
    return objective === null ? "" : formats.value(objective.value, objective.kind);
  },

  // Return the cell of a queried name; that of a batch or a successor is a link.
  queried(value, name) {
    const isLink = name.kind === "field" && ["batch", "superseded_by"].includes(name.key);
    return isLink && value !== undefined
      ? listPages.linkTo(value)
      : document.createTextNode(runTable.cell(value, name));
  },

  cell(value, { kind, key }) {
    if (value === undefined) return "";
    if (kind === "flag") return formats.flag(value);
    if (kind === "field" && names.IDS.includes(key)) return value.slice(0, 8);
    return typeof value === "string" ? value : formats.number(value);
  },

  // Return a sorter of Tabulator by the value of a queried name: numbers by size, then text. Runs without a value are at
  // the bottom in both directions, as in the columns that Tabulator sorts itself.
  byValue(name) {
    return (a, b, rowA, rowB, column, direction) => {
      const [first, second] = [rowA, rowB].map((row) => names.value(row.getData().row, name));
      if ((first === undefined) !== (second === undefined))
        return (first === undefined) === (direction === "asc") ? 1 : -1;
      return first === undefined ? 0 : settings.byValue(String(first), String(second));
    };
  },

  bySize(field) {
    return (a, b, rowA, rowB) => {
      const [first, second] = [rowA.getData()[field] ?? -1, rowB.getData()[field] ?? -1];
      return first < second ? -1 : Number(first > second);
    };
  },

  checkbox(cell) {
    const { row, run } = cell.getData();
    const box = elements.make("input", { type: "checkbox", "aria-label": `Compare ${run.slice(0, 8)}` });
    box.checked = runTable.selected.has(row);
    box.addEventListener("change", () => {
      if (box.checked) runTable.selected.add(row);
      else runTable.selected.delete(row);
      runTable.onSelection();
    });
    return box;
  },
};
