"use strict";
// Sorts tables by a click on a heading, filters layers, and switches light and dark. The page is complete without it.
(() => {
  const value = (cell) => {
    const text = (cell.dataset.v ?? cell.textContent).trim().replace(/,/g, "");
    const number = parseFloat(text);
    return Number.isNaN(number) || !/^[-+]?[\d.]/.test(text) ? text.toLowerCase() : number;
  };
  const compare = (a, b) => {
    // Rows without a number stand last in both sort orders.
    if (typeof a !== typeof b) return typeof a === "number" ? -Infinity : Infinity;
    return typeof a === "number" ? a - b : a.localeCompare(b);
  };
  const sort = (heading) => {
    const table = heading.closest("table");
    const headings = [...heading.parentNode.children];
    const place = headings.indexOf(heading);
    const down = heading.getAttribute("aria-sort") === "ascending";
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.querySelectorAll("tr")].filter((row) => row.querySelector("td"));
    rows
      .map((row) => [value(row.children[place]), row])
      .sort(([a], [b]) => {
        const order = compare(a, b);
        return Number.isFinite(order) && down ? -order : order === 0 ? 0 : order > 0 ? 1 : -1;
      })
      .forEach(([, row]) => row.parentNode.append(row));
  };
  document.querySelectorAll("table.sortable th").forEach((heading) => {
    heading.tabIndex = 0;
    heading.addEventListener("click", () => sort(heading));
    heading.addEventListener("keydown", (event) => event.key === "Enter" && sort(heading));
  });

  const tools = document.getElementById("tools");
  const words = document.getElementById("words");
  const kind = document.getElementById("kind");
  const engine = document.getElementById("engine");
  const count = document.getElementById("count");
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...document.querySelectorAll("tr[data-kind]")];
    rows.forEach((row) => {
      const text = `${row.textContent} ${row.title}`.toLowerCase();
      row.hidden =
        !wanted.every((word) => text.includes(word)) ||
        (kind.value !== "" && row.dataset.kind !== kind.value) ||
        (engine.value !== "" && row.dataset.engine !== engine.value);
    });
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} layers`;
  };
  if (tools) {
    tools.hidden = false;
    [words, kind, engine].forEach((input) => input.addEventListener("input", filter));
    filter();
  }

  const theme = document.getElementById("theme");
  if (theme) {
    theme.hidden = false;
    theme.addEventListener("click", () => {
      const root = document.documentElement;
      const dark = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
      root.dataset.theme = dark === "dark" ? "light" : "dark";
    });
  }
})();
