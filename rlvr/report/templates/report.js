"use strict";
// Tables sort by a click on a heading and filter by a word; without scripts they are as they were written.
const number = (text) => {
  const found = text.replace(/^[<≥≤]\s*/, "").match(/^[+-]?\d[\d.]*(?:\s*([kMG])\b)?/);
  return found ? parseFloat(found[0]) * ({ k: 1e3, M: 1e6, G: 1e9 }[found[1]] ?? 1) : null;
};

function compare(a, b) {
  const [x, y] = [number(a), number(b)];
  if (x !== null && y !== null) return x - y;
  return x === null && y === null ? a.localeCompare(b) : x === null ? 1 : -1; // what has no number stands last
}

function sortable(table) {
  const body = table.tBodies[0], written = [...body.rows];
  for (const [place, head] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const next = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort ?? "none"];
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      if (next !== "none") head.ariaSort = next;
      const text = (row) => row.cells[place].innerText.trim(), sign = next === "descending" ? -1 : 1;
      const isEmpty = (row) => /^[–—]?$/.test(text(row));
      const sorted = [...written].sort((a, b) => isEmpty(a) - isEmpty(b) || sign * compare(text(a), text(b)));
      body.append(...(next === "none" ? written : sorted));
    };
  }
  if (written.length < 8) return;
  const search = Object.assign(document.createElement("input"), { type: "search", placeholder: "Filter rows" });
  search.setAttribute("aria-label", `Filter ${table.parentElement.getAttribute("aria-label")}`);
  search.oninput = () => {
    for (const row of written) row.hidden = !row.innerText.toLowerCase().includes(search.value.toLowerCase());
  };
  table.parentElement.before(search);
}

document.querySelectorAll(".table > table").forEach(sortable);
