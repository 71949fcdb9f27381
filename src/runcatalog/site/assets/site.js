"use strict";
// The site: which page the address names, the query field, colours, new runs.

const site = {
  PAGES: {
    "": (main) => frontPage.show(main),
    runs: (main, rest) => runsPage.show(main, rest),
    run: (main, rest) => runPage.show(main, rest),
    compare: (main, rest) => comparePage.show(main, rest),
    failures: (main) => listPages.failures(main),
    never: (main) => listPages.never(main),
    superseded: (main) => listPages.superseded(main),
  },
  shown: 0, // counts pages, so that one that is left does not go on
  seen: null, // version of the data on the page

  start() {
    const field = document.getElementById("query");
    let typing;
    document.getElementById("search").addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(typing); // a second search would take the focus from the table
      site.search(field.value);
    });
    field.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => {
        if (site.page().name === "runs") site.search(field.value);
      }, 150);
    });
    document.addEventListener("keydown", (event) => {
      const writing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
      if (event.key !== "/" || writing || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      field.focus();
    });
    document.getElementById("theme").addEventListener("click", site.changeTheme);
    site.applyTheme(site.storedTheme());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", charts.redraw);
    window.addEventListener("hashchange", site.show);
    window.addEventListener("resize", site.resize);
    site.show();
    if (runs.facts.watched) setInterval(site.look, 1000 * runs.facts.watched);
  },

  // Return the page that the address names: #/NAME/REST or #/NAME?REST.
  page() {
    const [, name = "", rest = ""] = /^#\/([a-z]*)[/?]?(.*)$/s.exec(location.hash) ?? [];
    return { name, rest: site.decoded(rest) };
  },

  decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  },

  query() {
    const { name, rest } = site.page();
    return name === "runs" ? rest : "";
  },

  async show() {
    const { name, rest } = site.page();
    const main = document.getElementById("main");
    charts.clear();
    runTable.clear();
    main.replaceChildren();
    delete main.dataset.ready;
    const field = document.getElementById("query");
    if (document.activeElement !== field) field.value = site.query();
    for (const link of document.querySelectorAll("nav a")) {
      if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const page = elements.make("div", { class: `page ${name || "front"}` });
    main.append(page);
    const number = ++site.shown;
    try {
      await (site.PAGES[name] ?? site.PAGES[""])(page, rest);
    } catch (error) {
      page.append(
        elements.make(
          "p",
          { class: "warning", role: "alert" },
          `This page cannot be shown: ${error.message}`,
        ),
      );
    }
    if (number !== site.shown) return;
    const title = page.querySelector("h1")?.textContent;
    document.title = name && title ? `${title} · ${runs.facts.title}` : runs.facts.title;
    main.dataset.ready = name || "front";
  },

  // Show the runs of a query; the address keeps it.
  async search(text) {
    const address = runsPage.address(text);
    if (site.page().name !== "runs") {
      location.hash = address;
      return;
    }
    history.replaceState(null, "", address);
    await runsPage.filter(text);
  },

  resize() {
    charts.resize();
    const box = document.getElementById("runs");
    if (runTable.table && box) runTable.table.setHeight(runTable.height(box));
  },

  // Called by data/version.js.
  version(version) {
    const before = site.seen;
    site.seen = version;
    if (before === null || before === version) return;
    const selected = [...runTable.selected].map((row) => runs.ids[row]);
    runs.script(`data/index.js?${version}`).then(() => {
      // A run that started earlier, or is gone, moves the others to other rows.
      const rows = selected.map((run) => runs.rowOf.get(run));
      runTable.selected = new Set(rows.filter((row) => row !== undefined));
      runTable.data.clear();
      runsPage.texts.clear();
      const at = window.scrollY;
      site.show().then(() => window.scrollTo(0, at));
    });
  },

  // Look whether the data have changed since.
  look() {
    runs.script(`data/version.js?${Date.now()}`).catch(() => {});
  },

  storedTheme() {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null; // some browsers keep nothing for a page from disk
    }
  },

  changeTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const shown = document.documentElement.dataset.theme || (dark ? "dark" : "light");
    const theme = shown === "dark" ? "light" : "dark";
    site.applyTheme(theme);
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // it lasts until the page is left
    }
  },

  applyTheme(theme) {
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
    charts.redraw();
  },
};
