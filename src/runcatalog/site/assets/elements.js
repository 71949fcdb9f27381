"use strict";
// Elements of the page. Text only ever becomes a text node, so that no text of a record is read as HTML.

const elements = {
  // Return an element; an attribute that is a function is a listener, `null` children are left out.
  make(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") made.addEventListener(name, value);
      else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    elements.add(made, ...children);
    return made;
  },

  // Append children to an element; `null`, `undefined` and "" are left out.
  add(parent, ...children) {
    parent.append(
      ...children.flat().filter((child) => child !== null && child !== undefined && child !== ""),
    );
  },

  link(address, text, attributes = {}) {
    return elements.make("a", { href: address, ...attributes }, text);
  },

  // Return a table. Columns: {title, right, kind, named}; rows: lists of texts or elements.
  // A kind is for narrow screens: a table with a "full" column is a list there, which gives this column a line;
  // a "wide" column is left out, and the cells of a named one have its title before them.
  table(caption, columns, rows) {
    const heads = columns.map(({ title, right, kind }) =>
      elements.make("th", { scope: "col", class: elements.classes(right && "right", kind) }, title),
    );
    const lines = rows.map((cells) =>
      elements.make(
        "tr",
        {},
        cells.map((cell, i) =>
          elements.make(
            "td",
            {
              class: elements.classes(columns[i].right && "right", columns[i].kind),
              "data-title": columns[i].named ? columns[i].title : null,
            },
            cell,
          ),
        ),
      ),
    );
    const list = columns.some(({ kind }) => kind === "full");
    return elements.make(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      elements.make(
        "table",
        { class: list ? "list" : null },
        elements.make("caption", { class: "unseen" }, caption),
        elements.make("thead", {}, elements.make("tr", {}, heads)),
        elements.make("tbody", {}, lines),
      ),
    );
  },

  // Return " [s]" behind a metric's name, null without a unit.
  unit(unit) {
    return unit ? elements.make("span", { class: "unit" }, ` [${unit}]`) : null;
  },

  classes(...names) {
    return names.filter(Boolean).join(" ") || null;
  },

  // Return a section with a table, null without rows.
  section(title, columns, rows) {
    if (!rows.length) return null;
    return elements.make("section", {}, elements.make("h2", {}, title), elements.table(title, columns, rows));
  },

  // Return a button that copies a text and says so.
  copyButton(text, what) {
    const button = elements.make(
      "button",
      { type: "button", class: "copy", "aria-label": `Copy ${what}` },
      "copy",
    );
    button.addEventListener("click", async () => {
      button.textContent = (await elements.copy(text)) ? "copied" : "not allowed";
      setTimeout(() => {
        button.textContent = "copy";
      }, 1500);
    });
    return button;
  },

  async copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // A page from disk may have no clipboard; the older way needs a selected field.
      const field = elements.make("textarea", { class: "unseen", "aria-hidden": "true" });
      field.value = text;
      document.body.append(field);
      field.select();
      const copied = document.execCommand("copy");
      field.remove();
      return copied;
    }
  },
};
