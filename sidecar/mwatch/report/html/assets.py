# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How the report looks: light and dark by the reader's choice, on a wall screen and on a phone.

Places on the axis are numbers from 0 to 100 (`--a`, `--b`); zooming changes only `--z0` and
`--zk` at the root, and the `viewBox` of the charts.

What moves on the page: the numbers under the pointer, and zooming into a part of the axis.

Without it the page still shows everything. It reads one block of JSON, whose text is put on the
page only as text, never as HTML.
"""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#171a21;--dim:#667085;--line:#e3e6ec;
--accent:#2f6df6;--good:#12805c;--warn:#b45f06;--bad:#d02b3f;--tint:#f0f2f6;
--p-training:#35b37e;--p-first-step:#3fc1d6;--p-saving:#8e7bef;--p-async-finalize:#b9aef5;
--p-evaluating:#e5b53b;--p-loading:#4f8ff7;--p-starting:#9aa5b8;--p-stopping:#ef8a50;
--p-queued:#c9cfda;--gutter:58px;--z0:0;--zk:1}
@media(prefers-color-scheme:dark){:root{--bg:#0e1116;--card:#161b22;--ink:#e8ecf3;--dim:#93a0b4;
--line:#29313d;--accent:#6ea3ff;--good:#4cc38f;--warn:#f0a847;--bad:#ff6b78;--tint:#1d242e;
--p-training:#2f9e70;--p-starting:#6b778c;--p-queued:#465062}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--bg);color:var(--ink);overflow-wrap:anywhere;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums}
main{max-width:1180px;margin:0 auto;padding:28px 24px 56px}
h1{font-size:27px;line-height:1.2;margin:2px 0 10px;letter-spacing:-.02em}
h2{font-size:17px;margin:0 0 12px;letter-spacing:-.01em}
p{margin:0 0 6px}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
font-size:.86em}
a{color:var(--accent)}
.dim{color:var(--dim)}.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}
.brand svg{width:19px;height:19px;vertical-align:-4px;margin-right:5px;fill:none;
stroke:var(--accent);stroke-width:2;stroke-linecap:round;stroke-linejoin:round}
.brand{font-weight:650;font-size:13px;color:var(--accent);letter-spacing:.02em;margin:0}
.state{font-size:16px}
.pill{display:inline-block;padding:2px 11px;border-radius:99px;color:#fff;font-weight:600;
font-size:14px;margin-right:4px;background:var(--dim)}
.pill.good{background:#12805c}.pill.bad{background:#c4283b}.pill.warn{background:#a95b0a}
header details{color:var(--dim);font-size:14px}
header code{display:block;background:var(--tint);border-radius:8px;padding:8px 12px;margin-top:4px}
section,.panel{background:var(--card);border:1px solid var(--line);border-radius:14px;
padding:20px 22px;margin-top:18px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;
margin:18px 0 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:13px 16px}
.tile dt{color:var(--dim);font-size:13px}.tile dd{margin:0;font-size:13px;min-height:1.5em}
.tile dd:nth-of-type(1){font-size:25px;font-weight:620;line-height:1.25;letter-spacing:-.02em}
.bar-top{display:flex;flex-wrap:wrap;gap:6px 16px;align-items:center;margin-bottom:6px}
.bar-top h2{margin:0 auto 0 0}
.views{border:0;margin:0;padding:2px;display:flex;background:var(--tint);border-radius:9px}
.views label{font-size:13px;padding:3px 12px;border-radius:7px;cursor:pointer;color:var(--dim)}
.views input{position:absolute;opacity:0;pointer-events:none}
.views label:has(:checked){background:var(--card);color:var(--ink);
box-shadow:0 1px 2px rgb(0 0 0/.16)}
.views label:has(:focus-visible){outline:2px solid var(--accent)}
button{font:inherit;font-size:13px;border:1px solid var(--line);background:var(--card);
color:var(--ink);border-radius:8px;padding:3px 12px;cursor:pointer}
[hidden]{display:none!important}
body:has(#view-step:checked) .by-time,body:has(#view-time:checked) .by-step{display:none}
.stacked{position:relative}
.pins,.lane{position:relative;margin-left:var(--gutter);overflow:clip;
overflow-clip-margin:24px}
.pins{height:calc(var(--rows)*25px + 3px);overflow-clip-margin:12px}
.pin,.badge{display:inline-grid;place-items:center;min-width:21px;height:21px;padding:0 5px;
border-radius:11px;font-size:12px;font-weight:650;color:#fff;text-decoration:none;
background:#c4283b}
.pin.warn,.badge.warn{background:#a95b0a}
.pin{position:absolute;bottom:calc(var(--row)*25px + 3px);transform:translateX(-50%);
left:calc((var(--a) - var(--z0))*var(--zk)*1%)}
.pin:hover,.pin:focus-visible{outline:3px solid rgb(208 43 63/.3);z-index:2}
figure{margin:0 0 10px}
figcaption{font-size:13px;margin:0 0 3px var(--gutter)}
figcaption .now{color:var(--accent);font-weight:600;margin-left:6px}
figcaption .dim{margin-left:8px;font-size:12px}
.plot{position:relative;height:84px;margin-left:var(--gutter)}
.plot.tall{height:232px}.plot.band{height:26px}
.clip{position:absolute;inset:0;overflow:hidden;border-radius:4px}
.plot:not(.band) .clip{background:linear-gradient(var(--tint),transparent 130%)}
.plot svg{width:100%;height:100%;display:block;touch-action:pan-y}
.plot svg *{vector-effect:non-scaling-stroke}
.grid{stroke:var(--line);stroke-width:1;fill:none}
.line,.lost{fill:none;stroke:var(--accent);stroke-width:1.8;stroke-linejoin:round;
stroke-linecap:round}
.lost{opacity:.55;stroke-dasharray:1.5 4}
.range{fill:var(--accent);opacity:.2}
.eval{stroke:var(--p-evaluating);stroke-width:7;stroke-linecap:round;fill:none}
.key{font-size:12px;color:var(--dim);margin-left:10px}
.key::before{content:"";display:inline-block;width:7px;height:7px;border-radius:9px;
background:var(--p-evaluating);margin-right:5px}
.nan{stroke:var(--bad);stroke-width:2;fill:none}
.span{fill:var(--bad);opacity:.17}.span.warn{fill:var(--warn);opacity:.15}
.at{stroke:var(--bad);stroke-width:1.5;fill:none;opacity:.75}
.at.warn{stroke:var(--warn);stroke-dasharray:2 3}
.start{stroke:var(--dim);stroke-width:1;stroke-dasharray:3 4;fill:none;opacity:.8}
.strip{fill:#d02b3f}
.y{position:absolute;right:100%;margin-right:8px;transform:translateY(-50%);font-size:11.5px;
color:var(--dim);white-space:nowrap}
.lane.x{height:17px;font-size:11.5px;color:var(--dim)}
.tick{position:absolute;transform:translateX(-50%);white-space:nowrap;
left:calc((var(--a) - var(--z0))*var(--zk)*1%)}
.unit{margin-left:var(--gutter);text-align:center;font-size:11.5px;color:var(--dim)}
.lane.attempts{height:20px;margin-bottom:2px}
.attempt{position:absolute;left:calc((var(--a) - var(--z0))*var(--zk)*1%);
width:max(3px,calc((var(--b) - var(--a))*var(--zk)*1% - 2px));height:18px;overflow:hidden;
white-space:nowrap;font-size:11.5px;color:var(--dim);border-left:2px solid var(--dim);
border-bottom:2px solid var(--line);padding-left:5px}
.lane.marks{height:13px}
.marks i{position:absolute;left:calc((var(--a) - var(--z0))*var(--zk)*1%);margin:3px 0 0 -4px}
.marks i,.legend.small li::before{width:8px;height:8px;border-radius:1px;transform:rotate(45deg);
border:1.5px solid var(--good)}
.c-good,.legend li.c-good::before{background:var(--good)}
i.c-abandoned,.legend.small li.c-abandoned::before{border-color:var(--dim);background:none}
i.c-broken,.legend.small li.c-broken::before{border-color:var(--bad);background:var(--bad)}
i.c-unknown,.legend.small li.c-unknown::before{border-color:var(--line);background:var(--line)}
.legend .c-good{background:none}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12px;color:var(--dim);
margin:5px 0 12px var(--gutter);padding:0}
.legend li::before{content:"";display:inline-block;width:9px;height:9px;border-radius:2px;
margin-right:6px;background:var(--c)}
.legend .plain::before{display:none}.legend.small{margin-top:0}
.legend.small li::before{width:7px;height:7px;margin-right:7px}
SPENT
.numbers{margin-top:14px;font-size:13px;color:var(--dim)}
.numbers h3{font-size:13px;color:var(--ink);margin:12px 0 4px}
summary{cursor:pointer}
.scroll{overflow-x:auto;max-height:320px}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:550;color:var(--dim);font-size:12.5px;padding:0 12px 6px 0;
border-bottom:1px solid var(--line);white-space:nowrap}
td{padding:8px 12px 8px 0;border-bottom:1px solid var(--line);vertical-align:top}
tbody tr:last-child td{border-bottom:0}
tr.incident:target td{background:var(--tint)}
td[data-label=Started],td[data-label=Lasted],td[data-label=Lost]{white-space:nowrap}
.incident td[data-label=Since] .dim{display:block;font-size:12.5px}
.evidence{margin-top:14px}
.card{color:var(--ink);border:1px solid var(--line);border-left:4px solid var(--bad);
border-radius:9px;padding:9px 14px;margin-top:10px}
.card.warn{border-left-color:var(--warn)}.card:target{outline:2px solid var(--accent)}
.card summary{color:var(--ink)}.card .badge{margin-right:4px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:10px 0;font-size:14px}
dl dt{color:var(--dim)}dl dd{margin:0}.tiles{font-size:inherit}.tile{display:block}
.voice{margin:10px 0 4px;font-size:14px}
.voice code{background:var(--tint);border-radius:5px;padding:1px 6px}
pre{margin:0;background:var(--tint);border-radius:8px;padding:9px 12px;white-space:pre-wrap;
max-height:260px;overflow:auto}
pre span{display:block}pre i{font-style:normal;color:var(--dim)}
.reach{display:block;width:100%;min-width:130px;height:6px;margin-top:4px;border-radius:3px;
background:var(--tint)}
.reach .new{fill:var(--accent)}.reach .again{fill:var(--accent);opacity:.38}
.stack{display:block;width:100%;height:22px;border-radius:7px;margin:10px 0 14px}
.big{font-size:22px;color:var(--good);margin-left:6px}
.spent td i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px;
background:var(--c)}
.spent td{padding-top:5px;padding-bottom:5px}
.spent td:nth-child(n+3),.spent th:nth-child(n+3){text-align:right;white-space:nowrap}
.bar{width:40%}.bar svg{display:block;width:100%;height:9px;margin-top:6px}
.sights,.notes{padding-left:18px;margin:0 0 8px}
.sights{columns:3 220px}.sights .good::marker{content:"\\2713  "}
.sights .dim::marker{content:"\\2013  "}
.sights .warn::marker{content:"!  "}
#happened h2{display:inline;margin:0}#happened ol{list-style:none;padding:0;margin:12px 0 0}
#happened li{padding:2px 0;font-size:14px}#happened time{color:var(--dim);margin-right:10px}
.h-attempt{font-weight:600;margin-top:8px}.h-action{color:var(--bad)}.h-done{color:var(--good)}
.calm{color:var(--good)}
footer{margin-top:22px;color:var(--dim);font-size:13px}
#cursor{position:absolute;top:0;bottom:0;width:0;border-left:1px solid var(--ink);opacity:.55;
pointer-events:none}
#select{position:absolute;top:0;bottom:0;background:var(--accent);opacity:.14;pointer-events:none}
#tip{position:absolute;z-index:5;pointer-events:none;background:var(--card);
border:1px solid var(--line);border-radius:9px;box-shadow:0 6px 22px rgb(0 0 0/.2);
padding:8px 11px;font-size:12.5px;white-space:pre;line-height:1.45}
@media(max-width:760px){:root{--gutter:46px}
main{padding:18px 12px 40px}section,.panel{padding:15px 13px;border-radius:12px}h1{font-size:22px}
.tiles{grid-template-columns:1fr 1fr;gap:9px}.tile{padding:10px 12px}
.plot.tall{height:190px}.tick:nth-child(even){display:none}
.cards thead{display:none}.cards,.cards tbody,.cards tr,.cards td{display:block}
.cards tr{border:1px solid var(--line);border-radius:10px;padding:6px 12px;margin-bottom:10px}
.cards td{display:grid;grid-template-columns:112px 1fr;gap:8px;padding:4px 0;border:0}
.cards td::before{content:attr(data-label);color:var(--dim);font-size:13px}
dl:not(.tiles){grid-template-columns:1fr;gap:0}dl:not(.tiles) dd{margin-bottom:7px}
.bar,.spent th:nth-child(2){display:none}.spent td,.spent th{padding-right:8px}
.spent td:last-child,.spent th:last-child{padding-right:0}}
@media(prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
@media print{body{background:#fff}section,.panel,.tile{break-inside:avoid}
.views,button{display:none}}
"""
_COLOURS = {
    "training": "--p-training",
    "first_step": "--p-first-step",
    "saving": "--p-saving",
    "evaluating": "--p-evaluating",
    "loading": "--p-loading",
    "starting": "--p-starting",
    "queued": "--p-queued",
}
_OWN = {
    "hang_undetected": "#d02b3f",
    "detecting": "#e2596a",
    "waiting_to_act": "#ee8b96",
    "restarting": "#ef8a50",
    "recomputed": "#c77dbb",
    "bad_steps": "#8d5bb5",
    "slow": "#a1765a",
    "idle": "#b5bcc9",
}
_PHASES = (
    "training", "first-step", "saving", "async-finalize", "evaluating", "loading", "starting",
    "stopping", "queued", "scheduling",
)  # fmt: skip


def style() -> str:
    rules = [f".s-{name}{{--c:var({place})}}" for name, place in _COLOURS.items()]
    rules += [f".s-{name}{{--c:{colour}}}" for name, colour in _OWN.items()]
    rules += [f".p-{name}{{--c:var(--p-{name},var(--p-queued))}}" for name in _PHASES]
    rules.append("rect,path[class^=p-]{fill:var(--c,#888)}")
    return STYLE.replace("SPENT", "\n".join(rules))


SCRIPT = """
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement, stack = document.querySelector(".stacked");
if (!stack || !data.rows.length) return;
const make = (id) => {
  const one = document.createElement("div");
  one.id = id; one.hidden = true; stack.append(one); return one;
};
const cursor = make("cursor"), select = make("select"), tip = make("tip");
const reset = document.getElementById("reset");
const charts = [...stack.querySelectorAll(".plot svg")];
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
const number = (value) => value === null ? "\\u2013" :
  Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) :
  String(Number(value.toPrecision(4)));
const clock = (at) => {
  if (data.relative) return "+" + at.toFixed(1) + " s";
  const told = new Date((at + data.offset) * 1000);
  return isNaN(told) ? "" : told.toISOString().slice(0, 19).replace("T", " ");
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
    (row[4] > row[3] ? "\\u2013" + row[4].toLocaleString("en") : "") + "  ·  attempt " + row[2],
    clock(row[5])];
  data.names.forEach((name, i) => {
    if (row[6 + i] !== null) lines.push(name + "  " + number(row[6 + i]));
  });
  const after = 6 + data.names.length;
  if (row[after]) lines.push("skipped  " + row[after]);
  if (row[after + 1]) lines.push("not finite  " + row[after + 1]);
  if (phase) lines.push("phase here  " + phase[2]);
  tip.textContent = lines.join("\\n");
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
  const told = clock(data.time[0] + share * (data.time[1] - data.time[0]));
  return data.relative ? told : data.time[1] - data.time[0] > 86400 ? told.slice(5, 16) :
    told.slice(-8);
};
const apply = () => {
  const [low, high] = range(), isWhole = high - low >= 999.99;
  root.style.setProperty("--z0", low / 10);
  root.style.setProperty("--zk", 1000 / (high - low));
  for (const chart of charts) chart.setAttribute("viewBox", low + " 0 " + (high - low) + " 100");
  reset.hidden = isWhole;
  for (const lane of stack.querySelectorAll(".lane.x")) {
    for (const old of lane.querySelectorAll(".own")) old.remove();
    for (const tick of lane.querySelectorAll(".tick")) tick.hidden = !isWhole;
    if (isWhole) continue;
    for (let i = 0; i <= 4; i++) {
      const x = low + (i + .5) / 5 * (high - low), one = document.createElement("span");
      one.className = "own"; one.textContent = label(x);
      one.style.cssText = "position:absolute;transform:translateX(-50%)";
      one.style.left = (i + .5) * 20 + "%"; lane.append(one);
    }
  }
};
const inPlot = (event) => event.target.closest(".plot");
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
const unfold = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", unfold); unfold();
})();
"""
