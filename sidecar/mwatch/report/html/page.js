/* SPDX-FileCopyrightText: The mwatch authors
   SPDX-License-Identifier: Apache-2.0 */
/* The numbers under the pointer, and zooming. Without this script the page still shows everything.
   Text from the JSON block is put on the page as text, never as HTML. */
"use strict";
(() => { /* An incident for a chat: the text is in the page; nothing is sent anywhere. */
const byHand = (text) => {
  const area = document.createElement("textarea");
  area.value = text; document.body.append(area); area.select();
  const isDone = document.execCommand("copy");
  area.remove(); return isDone;
};
document.documentElement.classList.add("js");
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-markdown]");
  if (!button) return;
  const text = button.dataset.markdown;
  let isDone = false;
  try { await navigator.clipboard.writeText(text); isDone = true; } catch { isDone = byHand(text); }
  button.textContent = isDone ? "Copied" : "Cannot copy here";
});
})();
(() => { /* On paper everything is open; afterwards each part is as it was. */
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const one of closed) one.open = true;
});
addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
})();
(() => {
const root = document.documentElement, stack = document.querySelector(".stacked");
if (!stack) return;
const read = () => JSON.parse(document.getElementById("data").textContent);
let data = read();
const make = (id) => {
  const one = document.createElement("div");
  one.id = id; one.hidden = true; one.setAttribute("data-own", ""); stack.append(one); return one;
};
const cursor = make("cursor"), select = make("select"), tip = make("tip");
const reset = document.getElementById("reset");
const charts = () => stack.querySelectorAll(".plot svg");
const isStep = () => document.getElementById("view-step").checked;
let zoom = {time: [0, 1000], step: [0, 1000]}, from = null;
const range = () => zoom[isStep() ? "step" : "time"];
const plotBox = () => {
  const plots = [...stack.querySelectorAll(".plot")].filter((one) => one.offsetParent);
  return plots[0].getBoundingClientRect();
};
const place = (event) => {
  const box = plotBox(), [low, high] = range();
  const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  return low + share * (high - low);
};
const left = (x) => {
  const box = plotBox(), [low, high] = range();
  return box.left - stack.getBoundingClientRect().left + (x - low) / (high - low) * box.width;
};
const number = (value) => value === null ? "\u2013" :
  Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) :
  String(Number(value.toPrecision(4)));
const clock = (at) => {
  if (data.relative) return "+" + at.toFixed(1) + " s";
  const date = new Date((at + data.offset) * 1000);
  return isNaN(date) ? "" : date.toISOString().slice(0, 19).replace("T", " ");
};
const nearest = (x) => {
  const column = isStep() ? 1 : 0;
  let best = data.rows[0];
  for (const row of data.rows)
    if (Math.abs(row[column] - x) <= Math.abs(best[column] - x)) best = row;
  return best;
};
const phaseAt = (x) => {
  if (isStep()) return null;
  return data.phases.find((one) => one[0] <= x && x <= one[1]);
};
const show = (event) => {
  const x = place(event), row = nearest(x), phase = phaseAt(x);
  const lines = ["iteration " + row[3].toLocaleString("en") +
    (row[4] > row[3] ? "\u2013" + row[4].toLocaleString("en") : "") + "  ·  attempt " + row[2],
    clock(row[5])];
  data.names.forEach((name, i) => {
    if (row[6 + i] !== null) lines.push(name + "  " + number(row[6 + i]));
  });
  const after = 6 + data.names.length;
  if (row[after]) lines.push("skipped  " + row[after]);
  if (row[after + 1]) lines.push("not finite  " + row[after + 1]);
  if (phase) lines.push("phase here  " + phase[2]);
  tip.textContent = lines.join("\n");
  cursor.hidden = tip.hidden = false;
  const at = left(x), box = stack.getBoundingClientRect();
  cursor.style.left = at + "px";
  const wide = tip.offsetWidth, room = stack.clientWidth;
  tip.style.left = Math.max(0, at + 14 + wide > room ? at - wide - 14 : at + 14) + "px";
  tip.style.top = Math.max(0, event.clientY - box.top - 20) + "px";
  if (from !== null) {
    select.hidden = false;
    select.style.left = Math.min(at, left(from)) + "px";
    select.style.width = Math.abs(at - left(from)) + "px";
  }
};
const hide = () => { cursor.hidden = tip.hidden = select.hidden = true; from = null; };
const label = (x) => {
  const share = x / 1000;
  if (isStep()) return Math.round(data.step[0] + share * (data.step[1] - data.step[0]))
    .toLocaleString("en");
  const text = clock(data.time[0] + share * (data.time[1] - data.time[0]));
  return data.relative ? text : data.time[1] - data.time[0] > 86400 ? text.slice(5, 16) :
    text.slice(-8);
};
const apply = () => {
  const [low, high] = range(), isWhole = high - low >= 999.99;
  root.style.setProperty("--z0", low / 10);
  root.style.setProperty("--zk", 1000 / (high - low));
  for (const chart of charts()) chart.setAttribute("viewBox", low + " 0 " + (high - low) + " 100");
  reset.hidden = isWhole;
  for (const lane of stack.querySelectorAll(".lane.x")) {
    for (const old of lane.querySelectorAll(".own")) old.remove();
    for (const tick of lane.querySelectorAll(".tick")) tick.hidden = !isWhole;
    if (isWhole) continue;
    for (let i = 0; i <= 4; i++) {
      const x = low + (i + .5) / 5 * (high - low), one = document.createElement("span");
      one.className = "own"; one.setAttribute("data-own", ""); one.textContent = label(x);
      one.style.cssText = "position:absolute;transform:translateX(-50%)";
      one.style.left = (i + .5) * 20 + "%"; lane.append(one);
    }
  }
};
const inPlot = (event) => data.rows.length && event.target.closest(".plot");
stack.addEventListener("pointermove", (event) => {
  if (inPlot(event) || from !== null) show(event); else hide();
});
stack.addEventListener("pointerleave", hide);
stack.addEventListener("pointerdown", (event) => {
  if (!inPlot(event)) return;
  show(event);
  if (event.pointerType !== "mouse" || event.button !== 0) return;
  from = place(event); event.preventDefault();
});
stack.addEventListener("pointerup", (event) => {
  if (from === null) return;
  const to = place(event), low = Math.min(from, to), high = Math.max(from, to);
  const [least, most] = range();
  hide();
  if (high - low < (most - least) * .01 || high - low < .5) return;
  zoom[isStep() ? "step" : "time"] = [low, high]; apply();
});
const whole = () => { zoom[isStep() ? "step" : "time"] = [0, 1000]; apply(); };
stack.addEventListener("dblclick", whole);
reset.addEventListener("click", whole);
for (const choice of document.querySelectorAll(".views input"))
  choice.addEventListener("change", () => { hide(); apply(); });
document.addEventListener("updated", () => { data = read(); apply(); });
const unfold = () => {
  const name = location.hash.slice(1).replace("incident-", "evidence-");
  const target = name && document.getElementById(name);
  if (target && target.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", unfold); unfold();
})();
