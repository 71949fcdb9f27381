"use strict";
// All runs in a table, filtered by a query or by words.

const runsPage = {
  MOST: 20, // settings of a comparison
  texts: new Map(), // row → its text for words

  address(text) {
    return text ? `#/runs?${encodeURIComponent(text)}` : "#/runs";
  },

  async show(main, text) {
    const marked = elements.make("input", { type: "checkbox", id: "marked" });
    const note = elements.make("p", { class: "note", id: "note", role: "status" });
    const compare = elements.make("button", { type: "button", class: "compare", disabled: true }, "Compare");
    const clear = elements.make("button", { type: "button", disabled: true }, "Clear");
    const bar = elements.make(
      "div",
      { class: "bar" },
      note,
      elements.make("label", {}, marked, " superseded and retracted too"),
      compare,
      clear,
    );
    const box = elements.make("div", { id: "runs" });
    elements.add(main, elements.make("h1", {}, "All runs"), bar, box);
    const selection = () => runsPage.offer(compare, clear);
    runTable.onSelection = selection;
    compare.addEventListener("click", () => {
      location.hash = comparePage.address([...runTable.selected]);
    });
    clear.addEventListener("click", () => {
      runTable.selected.clear();
      runTable.table.redraw(true);
      selection();
    });
    marked.addEventListener("change", () => runsPage.filter(site.query()));
    selection();
    await runsPage.filter(text);
  },

  offer(compare, clear) {
    const rows = [...runTable.selected];
    const members = comparePage.members(rows);
    const tooMany = comparePage.tooMany(settings.of(members), members);
    compare.textContent = rows.length ? `Compare ${rows.length}` : "Compare";
    compare.disabled = !members.length || tooMany !== "";
    compare.title = tooMany;
    clear.disabled = !rows.length;
  },

  // Show the runs that match a query; a query that is wrong leaves the table as it is.
  async filter(text) {
    const note = document.getElementById("note");
    const field = document.getElementById("query");
    const box = document.getElementById("runs");
    let found;
    try {
      found = await runsPage.find(text);
    } catch (error) {
      if (!(error instanceof QueryError)) throw error;
      note.textContent = error.message;
      note.classList.add("wrong");
      field.setAttribute("aria-invalid", "true");
      return;
    }
    if (text !== site.query()) return; // another one was typed while the metrics were loaded
    note.classList.remove("wrong");
    field.removeAttribute("aria-invalid");
    const withMarked =
      document.getElementById("marked").checked ||
      found.names.some(({ key }) => ["superseded_by", "retracted", "run"].includes(key));
    const rows = withMarked ? found.rows : found.rows.filter(runs.isCurrent);
    const hidden = found.rows.length - rows.length;
    note.textContent =
      `${rows.length} of ${runs.count} runs and batches${hidden ? `; ${hidden} superseded or retracted are hidden` : ""}` +
      `${found.hint ? `: ${found.hint}` : ""}${found.words ? `: those with ${found.words.map((word) => `“${word}”`).join(" and ")}` : ""}`;
    const columnsOf = (each) => JSON.stringify(each.map(({ title }) => title));
    if (
      runTable.table &&
      box.classList.contains("tabulator") &&
      columnsOf(found.names) === runsPage.shownColumns
    ) {
      await runTable.table.setData(rows.map(runTable.dataOf));
    } else {
      runsPage.shownColumns = columnsOf(found.names);
      await runTable.show(box, rows, found.names);
    }
  },

  // Return the rows of a query, or of words: a text without an operator that is no query.
  async find(text) {
    if (!text.trim()) return { rows: [...runs.ids.keys()], names: [], hint: "" };
    try {
      return await names.find(text);
    } catch (error) {
      if (!(error instanceof QueryError) || /[=<>~!()"']/.test(text)) throw error;
      const words = text.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = [...runs.ids.keys()].filter((row) => {
        const shown = runsPage.words(row);
        return words.every((word) => shown.includes(word));
      });
      return { rows, names: [], hint: "", words };
    }
  },

  // Return the text of a run in which words are looked for, in lower case.
  words(row) {
    if (!runsPage.texts.has(row)) {
      const facts = ["operation", "label", "study", "reason"].map((name) => runs.fact(row, name) ?? "");
      const shown = [runs.ids[row], runTable.state(row), runs.columns.result.at(row), ...facts]
        .join(" ")
        .toLowerCase();
      runsPage.texts.set(row, shown);
    }
    return runsPage.texts.get(row);
  },
};
