/* SPDX-FileCopyrightText: The mwatch authors
   SPDX-License-Identifier: Apache-2.0 */
/* Sorts and filters the table of jobs. The choice stays in the address (after #), so that a reload
   or a link keeps it; an update of the page is brought into the same order. */
"use strict";
(() => {
const chosen = new URLSearchParams(location.hash.slice(1));
let column = Number(chosen.get("sort") || 0), isDown = column < 0;
column = Math.abs(column); /* from 1; 0: as the server has them, the worst first */
const bar = document.createElement("div");
bar.id = "filter"; bar.setAttribute("data-own", "");
const field = document.createElement("input"), label = document.createElement("label");
field.type = "search"; field.value = chosen.get("filter") || ""; field.maxLength = 200;
field.placeholder = "name, state, pod, node";
label.textContent = "Show jobs with "; label.append(field);
const shown = document.createElement("span");
shown.className = "dim"; shown.setAttribute("role", "status");
const choice = document.createElement("select"); /* where the head of the table is not shown */
choice.setAttribute("aria-label", "Sort by");
bar.append(label, choice, shown);
const keep = () => {
  const kept = new URLSearchParams();
  if (column) kept.set("sort", String(isDown ? -column : column));
  if (field.value) kept.set("filter", field.value);
  history.replaceState(null, "", kept.size ? "#" + kept : location.pathname + location.search);
};
const key = (row) => {
  if (!column) return Number(row.dataset.place);
  const text = row.cells[column - 1].dataset.sort, number = Number(text);
  return text === "" ? null : isNaN(number) ? text : number;
};
const compared = (one, other) => {
  const [a, b] = [key(one), key(other)];
  if (a === null || b === null) return (a === null) - (b === null); /* unknown is last */
  const order = typeof a === "number" && typeof b === "number" ? a - b :
    String(a).localeCompare(String(b), "en", {numeric: true});
  return (isDown ? -order : order) || one.dataset.place - other.dataset.place;
};
const apply = () => {
  const section = document.getElementById("fleet"), table = section && section.querySelector("table");
  if (!table) return;
  if (bar.parentNode !== section) table.before(bar);
  const rows = [...table.tBodies[0].rows], wanted = field.value.trim().toLowerCase();
  let number = 0;
  for (const row of rows) {
    row.hidden = wanted !== "" && !row.innerText.toLowerCase().includes(wanted) &&
      !row.textContent.toLowerCase().includes(wanted);
    if (!row.hidden) number++;
  }
  const text = wanted ? number + " of " + rows.length : "";
  if (shown.textContent !== text) shown.textContent = text;
  const sorted = [...rows].sort(compared);
  sorted.forEach((row, i) => {
    const there = table.tBodies[0].rows[i];
    if (there !== row) table.tBodies[0].insertBefore(row, there);
  });
  const heads = [...table.tHead.rows[0].cells];
  if (choice.options.length !== heads.length + 1)
    choice.replaceChildren(...["the worst first", ...heads.map((one) => one.innerText ||
      one.textContent)].map((name, i) => new Option(name, i)));
  choice.value = String(column);
  heads.forEach((cell, i) => {
    if (i + 1 !== column) cell.removeAttribute("aria-sort");
    else cell.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  });
};
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.sort");
  if (!button) return;
  const place = button.parentNode.cellIndex + 1;
  if (place !== column) { column = place; isDown = false; }
  else if (!isDown) isDown = true;
  else { column = 0; isDown = false; }
  keep(); apply();
});
choice.addEventListener("change", () => {
  column = Number(choice.value); isDown = false; keep(); apply();
});
field.addEventListener("input", () => { keep(); apply(); });
document.addEventListener("updated", apply);
apply();
})();
