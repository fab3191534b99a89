"use strict";
// Tables sort by a click on a heading and filter by a word; without scripts they are as they were written. The curves are
// drawn from the data in the page: one at a time, a line for every method, whose button hides it and says its value. Where
// every problem is a point, the cursor is a problem's place instead of a value of x.
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
  if (written.length < 16) return;
  const search = Object.assign(document.createElement("input"), { type: "search", placeholder: "Filter rows" });
  search.setAttribute("aria-label", `Filter ${table.parentElement.getAttribute("aria-label")}`);
  search.oninput = () => {
    for (const row of written) row.hidden = !row.innerText.toLowerCase().includes(search.value.toLowerCase());
  };
  table.parentElement.before(search);
}

document.querySelectorAll(".table > table").forEach(sortable);

// Of a table with a column for each method, two columns and the rows in which they differ.
function pairs(table) {
  const rows = [...table.rows], titles = [...rows[0].cells].map((cell) => cell.innerText.replace(/[↕↓↑]/g, "").trim());
  const options = ["all methods", ...titles.slice(1)];
  const chosen = [0, 1].map(() => made("select", { "aria-label": "Method" }, ...options.map((title) => made("option", {}, title))));
  const show = () => {
    const [a, b] = chosen.map((select) => select.selectedIndex), both = a && b;
    for (const row of rows) {
      [...row.cells].forEach((cell, place) => { cell.hidden = Boolean(both) && ![0, a, b].includes(place); });
      row.hidden = Boolean(both) && row !== rows[0] && row.cells[a].innerText === row.cells[b].innerText;
    }
  };
  for (const select of chosen) select.onchange = show;
  table.parentElement.before(made("p", { class: "controls" }, chosen[0], " beside ", chosen[1]));
}

const HEIGHT = 340, LEFT = 46, RIGHT = 14, TOP = 12, BOTTOM = 42; // of the drawing and its margins, pixels
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, notation: "compact" });

function made(tag, attributes, ...content) {
  const isDrawn = /^(svg|g|path|line|circle|text)$/.test(tag);
  const each = isDrawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) each.setAttribute(key, value);
  each.append(...content);
  return each;
}

function ticks(low, high) {
  const size = 10 ** Math.floor(Math.log10((high - low) / 4 || 1));
  const step = [1, 2, 5, 10].find((factor) => factor * size >= (high - low) / 5) * size;
  const first = Math.ceil(low / step), last = Math.floor(high / step);
  return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
}

function explore(figure) {
  const { methods, views } = JSON.parse(document.getElementById("charts").textContent);
  const drawing = figure.querySelector("svg"), choice = figure.querySelector("select");
  const legend = figure.querySelector(".legend"), hidden = new Set();
  let view = views[0], cursor = null, nearest = null; // a value of x; the place of a method
  const scales = {};
  for (const [place, each] of views.entries()) {
    let group = [...choice.children].find((other) => other.label === each.group);
    if (!group) choice.append((group = made("optgroup", { label: each.group })));
    group.append(made("option", { value: place }, each.name));
  }
  const buttons = methods.map((method, place) => {
    const line = made("path", { d: "M1 6H27", stroke: method.colour, "stroke-width": 2.5, "stroke-dasharray": method.dashes });
    const swatch = made("svg", { width: 28, height: 12, "aria-hidden": "true" }, line);
    const button = made("button", { type: "button" }, swatch, ` ${method.title} `, made("output", {}));
    button.onclick = () => { hidden.has(place) ? hidden.delete(place) : hidden.add(place); draw(); };
    button.onpointerenter = button.onfocus = () => { nearest = place; draw(); };
    return button;
  });
  legend.append(...buttons);

  const shown = () => methods.map((_, place) => place).filter((place) => view.lines[place] && !hidden.has(place));
  const valueAt = (line) => { // where the cursor is, in its x; -1 beside the line
    if (view.isOfProblems) return cursor;
    const found = line[0].reduce((best, x, at) => (Math.abs(x - cursor) < Math.abs(line[0][best] - cursor) ? at : best), 0);
    const reach = (line[0].at(-1) - line[0][0]) / line[0].length;
    return line[1][found] === null || Math.abs(line[0][found] - cursor) > reach ? -1 : found;
  };

  function draw() {
    const width = Math.max(280, drawing.parentElement.clientWidth - 16), places = shown();
    const drawn = places.length ? places.map((place) => view.lines[place]) : view.lines.filter(Boolean);
    const bent = (x) => (view.isLogarithmic ? Math.log(x) : x);
    const ends = (values) => [Math.min(...values), Math.max(...values)];
    const [first, last] = view.isOfProblems ? [0, 100] : ends(view.lines.filter(Boolean).flatMap((line) => line[0]).map(bent));
    const withBands = (place) => place === nearest || places.length < 3;
    let [low, high] = ends(drawn.flatMap((line) => line.slice(1).flat()).filter((value) => value !== null));
    if (view.fromZero) low = Math.min(low, 0);
    if (view.isOfProblems) [low, high] = [0, 100];
    if (high === low) high = low + 1;
    const right = (x) => LEFT + ((bent(x) - first) / (last - first || 1)) * (width - LEFT - RIGHT);
    const up = (y) => HEIGHT - BOTTOM - ((y - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    Object.assign(scales, { right, up, drawn });
    const path = (xs, ys) => xs.map((x, at) => (ys[at] === null ? "" : `L${right(x).toFixed(1)} ${up(ys[at]).toFixed(1)}`)).join("");
    const parts = [];
    for (const y of ticks(low, high)) {
      parts.push(made("line", { x1: LEFT, x2: width - RIGHT, y1: up(y), y2: up(y), class: "grid" }),
        made("text", { x: LEFT - 6, y: up(y) + 4, "text-anchor": "end" }, short.format(y)));
    }
    for (const x of view.isLogarithmic ? drawn[0][0] : ticks(first, last))
      parts.push(made("text", { x: right(x), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, short.format(x)));
    parts.push(made("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, view.x));
    if (view.isOfProblems) // above it a method solves a problem more often
      parts.push(made("line", { x1: right(0), y1: up(0), x2: right(100), y2: up(100), class: "cursor" }));
    for (const place of places) {
      const [xs, mean, lowest, highest] = view.lines[place], { colour, dashes } = methods[place];
      if (lowest && withBands(place)) {
        const band = path(xs, highest) + path([...xs].reverse(), [...lowest].reverse());
        parts.push(made("path", { d: `M${band.slice(1)}Z`, fill: colour, opacity: 0.18 }));
      }
      if (view.isOfProblems) { // a line of no length has round ends
        const points = xs.map((x, at) => `M${right(x).toFixed(1)} ${up(mean[at]).toFixed(1)}h0`).join("");
        parts.push(made("path", { d: points, stroke: colour, "stroke-width": place === nearest ? 9 : 7, "stroke-linecap": "round",
          opacity: 0.6, "data-method": methods[place].title }));
      } else parts.push(made("path", { d: `M${path(xs, mean).slice(1)}`, fill: "none", stroke: colour, "stroke-dasharray": dashes,
        "stroke-width": place === nearest ? 3 : 1.7, "data-method": methods[place].title }));
    }
    for (const [place, button] of buttons.entries()) {
      const line = view.lines[place], at = line && cursor !== null ? valueAt(line) : -1;
      const range = at >= 0 && line[2] ? ` [${short.format(line[2][at])}, ${short.format(line[3][at])}]` : "";
      button.lastChild.value = at >= 0 ? short.format(line[1][at]) + range : "";
      button.disabled = !line;
      button.ariaPressed = String(Boolean(line) && !hidden.has(place));
      button.classList.toggle("nearest", place === nearest && places.includes(place));
      if (at >= 0 && places.includes(place))
        parts.push(made("circle", { cx: right(line[0][at]), cy: up(line[1][at]), r: 3.5, fill: methods[place].colour }));
    }
    if (cursor !== null) {
      const x = view.isOfProblems ? drawn[0][0][cursor] : cursor;
      const label = view.isOfProblems ? `problem ${cursor + 1}, ${short.format(x)} %` : short.format(x);
      const at = right(x), anchor = at > width / 2 ? "end" : "start";
      parts.push(made("line", { x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor" }),
        made("text", { x: at + (anchor === "end" ? -5 : 5), y: TOP + 8, "text-anchor": anchor }, label));
    }
    drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const [xs, ys] = drawn[0] ?? [[], []], count = (sign) => xs.filter((x, at) => sign * (ys[at] - x) > 0).length;
    const counted = places.length === 1 ? `: ${count(1)} problems above the diagonal, ${count(-1)} below, of ${xs.length}` : "";
    const what = view.isOfProblems ? `a point for each problem${counted}` : `a line for each of ${places.length} methods`;
    drawing.setAttribute("aria-label", `${view.name}: ${what}. ${view.y} over ${view.x}`);
    drawing.replaceChildren(...parts);
    figure.querySelector(".axis").textContent = view.y + (view.isOfProblems ? counted : "");
  }

  function point(event) {
    const box = drawing.getBoundingClientRect(), x = event.clientX - box.x, y = event.clientY - box.y;
    const all = scales.drawn.flatMap((line) => line[0]);
    if (view.isOfProblems) {
      const away = (line, at) => Math.hypot(scales.right(line[0][at]) - x, scales.up(line[1][at]) - y);
      const points = shown().flatMap((place) => view.lines[place][0].map((_, at) => [away(view.lines[place], at), at, place]));
      [, cursor, nearest] = points.reduce((best, each) => (each[0] < best[0] ? each : best), [Infinity, null, null]);
      return draw();
    }
    cursor = all.reduce((best, each) => (Math.abs(scales.right(each) - x) < Math.abs(scales.right(best) - x) ? each : best));
    const distance = (place) => {
      const at = valueAt(view.lines[place]);
      return at < 0 ? Infinity : Math.abs(scales.up(view.lines[place][1][at]) - y);
    };
    nearest = shown().reduce((best, place) => (best === null || distance(place) < distance(best) ? place : best), null);
    draw();
  }

  function forget() { [cursor, nearest] = [null, null]; draw(); }
  drawing.onpointermove = drawing.onpointerdown = point;
  drawing.onpointerleave = (event) => { if (event.pointerType === "mouse") forget(); };
  drawing.onkeydown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], drawn = scales.drawn;
    const xs = view.isOfProblems ? drawn[0][0].map((_, at) => at) : [...new Set(drawn.flatMap((line) => line[0]))];
    if (event.key === "Escape") return forget();
    if (!by) return;
    xs.sort((a, b) => a - b);
    cursor = cursor === null ? xs[0] : xs[Math.min(Math.max(xs.indexOf(cursor) + by, 0), xs.length - 1)];
    draw();
    event.preventDefault();
  };
  choice.onchange = () => {
    if (view.isOfProblems) hidden.clear();
    view = views[choice.value];
    if (view.isOfProblems) methods.forEach((_, place) => hidden.add(place)); // points of all methods cover one another
    if (view.isOfProblems) hidden.delete(view.lines.findIndex(Boolean));
    forget();
  };
  const [all, none] = figure.querySelectorAll(".controls button");
  all.onclick = () => { hidden.clear(); draw(); };
  none.onclick = () => { methods.forEach((_, place) => hidden.add(place)); draw(); };
  figure.hidden = false;
  new ResizeObserver(draw).observe(drawing.parentElement);
  draw();
}

document.querySelectorAll("#curves").forEach(explore);
document.querySelectorAll(".pairs table").forEach(pairs);
