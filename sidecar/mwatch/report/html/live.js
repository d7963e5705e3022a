/* SPDX-FileCopyrightText: The mwatch authors
   SPDX-License-Identifier: Apache-2.0 */
/* Asks the server for the parts of the page that have changed and puts them in place. Nodes that
   stay the same are kept: an open fold, a selection and the pointer survive. */
"use strict";
(() => {
const state = document.getElementById("live"), page = state.dataset.page;
let after = state.dataset.after, timer = 0, isAsking = false, isOver = false;
const isOwn = (node) => node.nodeType === 1 && node.hasAttribute("data-own");
const isSame = (one, other) => one.nodeName === other.nodeName && one.id === other.id;
const patch = (old, made) => {
  if (old.isEqualNode(made)) return;
  if (old.nodeType !== 1) { old.data = made.data; return; }
  for (const {name} of [...old.attributes])
    if (name !== "open" && !made.hasAttribute(name)) old.removeAttribute(name);
  for (const {name, value} of made.attributes)
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  children(old, made);
};
const keyed = (old, made) => { /* Rows stay where the reader has sorted them. */
  const there = new Map([...old.children].map((one) => [one.id, one]));
  for (const child of [...made.children]) {
    const known = there.get(child.id);
    there.delete(child.id);
    if (known) patch(known, child); else old.append(child);
  }
  for (const one of there.values()) one.remove();
};
const children = (old, made) => {
  if (old.nodeType === 1 && old.hasAttribute("data-keyed")) { keyed(old, made); return; }
  const there = [...old.childNodes].filter((one) => !isOwn(one));
  [...made.childNodes].forEach((child, i) => {
    if (i >= there.length) old.append(child);
    else if (isSame(there[i], child)) patch(there[i], child);
    else there[i].replaceWith(child);
  });
  there.slice(made.childNodes.length).forEach((one) => one.remove());
};
const show = (parts) => {
  for (const [name, text] of Object.entries(parts)) {
    const made = document.createElement("template");
    made.innerHTML = text;
    if (name === "title") document.title = made.content.textContent + " · mwatch";
    else if (name === "data") document.getElementById("data").textContent = text;
    else children(document.getElementById("part-" + name), made.content);
  }
  document.dispatchEvent(new Event("updated"));
};
const report = (text) => { if (state.textContent !== text) state.textContent = text; };
const ask = async () => {
  clearTimeout(timer);
  if (document.hidden || isAsking || isOver) return;
  isAsking = true;
  let wait = 5;
  try {
    const from = state.dataset.address, more = from.includes("?") ? "&" : "?";
    const answer = await fetch(from + more + "page=" + page + "&after=" + after,
      {cache: "no-store", signal: AbortSignal.timeout(20000)});
    if (answer.ok) {
      const found = await answer.json();
      show(found.parts);
      after = found.after;
      wait = found.wait;
      isOver = found.over;
      report(isOver ? "The run has ended." : "");
    } else report((await answer.text()).trim() || "The server is busy.");
  } catch (error) {
    const since = state.dataset.since || new Date().toTimeString().slice(0, 8);
    state.dataset.since = since;
    report("mwatch has not answered since " + since +
      ": it has ended, or the connection is lost. This is the last known state.");
  }
  if (state.textContent.indexOf("mwatch has not") !== 0) delete state.dataset.since;
  isAsking = false;
  if (!isOver) timer = setTimeout(ask, wait * 1000);
};
const copied = async (button) => {
  const code = button.parentNode.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } catch (error) { getSelection().selectAllChildren(code); }
};
document.addEventListener("click", (event) => {
  if (event.target.classList.contains("copy")) copied(event.target);
});
document.addEventListener("visibilitychange", ask);
timer = setTimeout(ask, 1000);
})();
