"use strict";
// Texts of models are only ever set as text, never as markup.
const SHOWN = {
  correct: (flags) => flags & 1, wrong: (flags) => !(flags & 1), truncated: (flags) => flags & 2,
  unanswered: (flags) => flags & 4, disputed: (flags) => flags & 8,
};
const APART = 0.5; // difference between shares of correct responses at which methods disagree
const byId = (name) => document.getElementById(name);
const waiting = {}; // name of a file -> what to call with its content
const files = {}; // name of a file -> promise of its content
let index, opened = null, responseKind = null;

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function loaded(name, text) { waiting[name](unpacked(text)); }

function load(name) {
  files[name] ??= new Promise((resolve, reject) => {
    waiting[name] = resolve;
    const script = document.createElement("script");
    script.src = `texts/${encodeURIComponent(name)}.js`;
    script.onerror = () => { delete files[name]; reject(new Error(`${script.src} is missing`)); };
    document.head.append(script);
  });
  return files[name];
}

function element(tag, content, attributes = {}) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...[content].flat());
  return made;
}

const flagsOf = (run, problem) =>
  Array.from(run.flags.slice(problem * index.samples, (problem + 1) * index.samples), (digit) => parseInt(digit, 16));

function share(column, problem, kind) {
  const flags = column.runs.flatMap((run) => flagsOf(run, problem));
  return flags.filter(SHOWN[kind]).length / flags.length;
}

function describeRows(kind) {
  return index.problems.map(([id, text], problem) => {
    const shares = index.columns.map((column) => share(column, problem, kind));
    const correct = index.columns.map((column) => share(column, problem, "correct")).slice(index.columns.length > 2 ? 1 : 0);
    const mean = shares.reduce((sum, each) => sum + each, 0) / shares.length;
    return { id, text, problem, shares, mean, spread: Math.max(...correct) - Math.min(...correct) };
  });
}

function drawTable() {
  const kind = byId("kind").value, words = byId("search").value.toLowerCase();
  let rows = describeRows(kind);
  const all = rows.length;
  if (byId("rows").value === "some") rows = rows.filter((row) => row.mean > 0);
  if (byId("rows").value === "apart") rows = rows.filter((row) => row.spread >= APART);
  const found = rows.filter((row) => `${row.id} ${row.text ?? ""}`.toLowerCase().includes(words));
  if (words && found.length) rows = found; // otherwise the words are of responses
  if (byId("order").value !== "file") rows.sort((a, b) => b[byId("order").value] - a[byId("order").value]);
  const head = element("tr", [element("th", "Problem", { scope: "col" }), ...index.columns.map((column) =>
    element("th", column.title, { scope: "col", id: `column-${column.name}` }))]);
  const body = rows.map((row) => element("tr", [
    element("th", row.id, { scope: "row", title: row.text }),
    ...row.shares.map((value, place) => {
      const percent = Math.round(100 * value), column = index.columns[place];
      const button = element("button", String(percent), {
        type: "button", tabindex: "-1", style: `--share: ${percent}`, "data-problem": row.problem, "data-column": place,
        "aria-label": `${column.title} on ${row.id}: ${percent} % ${kind}`,
      });
      return element("td", button);
    }),
  ]));
  byId("heat").replaceChildren(element("table", [element("thead", head), element("tbody", body)]));
  byId("heat").querySelector("button")?.setAttribute("tabindex", "0");
  byId("summary").textContent = `${rows.length} of ${all} problems, ${index.columns.length} columns, ` +
    `${(all * index.samples * index.columns.reduce((sum, column) => sum + column.runs.length, 0)).toLocaleString("en")} responses`;
  markOpened();
}

function markOpened() {
  for (const button of document.querySelectorAll("#heat button[aria-pressed]")) button.removeAttribute("aria-pressed");
  if (opened) buttonOf(opened.problem, opened.column)?.setAttribute("aria-pressed", "true");
}

const buttonOf = (problem, column) =>
  document.querySelector(`#heat button[data-problem="${problem}"][data-column="${column}"]`);

async function open(problem, column, seed = 0, kind = responseKind) {
  opened = { problem, column, seed };
  responseKind = kind;
  markOpened();
  remember();
  const run = index.columns[column].runs[seed], place = opened, cell = byId("cell");
  cell.hidden = false;
  cell.setAttribute("aria-busy", "true");
  try {
    const content = await load(`${run.run}-${Math.floor(problem / run.chunk)}`);
    if (opened === place) drawCell(content[problem % run.chunk], run);
  } catch (error) {
    cell.replaceChildren(element("p", `${error.message}: this page needs the folder beside it.`, { class: "bad" }));
  }
  cell.removeAttribute("aria-busy");
}

function drawCell(responses, run) {
  const { problem, column, seed } = opened, [id, text, answer] = index.problems[problem], own = index.columns[column];
  const flags = flagsOf(run, problem), words = byId("search").value.toLowerCase();
  const isFound = (response) => response[0].toLowerCase().includes(words);
  const searched = words && responses.some(isFound);
  const chosen = responses.map((response, sample) => ({ response, sample, flag: flags[sample] }))
    .filter(({ response, flag }) => (!responseKind || SHOWN[responseKind](flag)) && (!searched || isFound(response)));
  const seeds = own.runs.map((each, place) => {
    const correct = flagsOf(each, problem).filter(SHOWN.correct).length;
    const name = each.seed === null ? "base model" : `seed ${each.seed}`;
    const button = element("button", `${name}: ${correct}/${index.samples}`, { type: "button", "aria-pressed": String(place === seed) });
    button.onclick = () => open(problem, column, place);
    return button;
  });
  const kinds = [null, ...Object.keys(SHOWN)].map((kind) => {
    const count = kind ? flags.filter(SHOWN[kind]).length : flags.length;
    const label = { null: "all", unanswered: "no answer", disputed: "graders disagree" }[kind] ?? kind;
    const button = element("button", `${label} ${count}`, { type: "button", "aria-pressed": String(kind === responseKind) });
    button.onclick = () => open(problem, column, seed, kind);
    return button;
  });
  byId("cell").replaceChildren(
    element("h2", `${own.title} on ${id}`),
    element("pre", text ?? "(This benchmark's terms forbid showing its problems.)"),
    element("p", ["Answer: ", element("code", String(answer)), element("span", ` · ${run.run}`, { class: "quiet" })]),
    element("p", seeds, { class: "choices", "aria-label": "Seeds" }),
    element("p", kinds, { class: "choices", "aria-label": "Responses" }),
    ...chosen.map((each) => drawResponse(...each.response, each)),
    ...(chosen.length ? [] : [element("p", "No response of this kind.", { class: "quiet" })]),
  );
}

function drawResponse(text, answer, reason, tokens, ...rest) {
  const { sample, flag } = rest.pop(), [texts, colours] = rest;
  const facts = [answer === null ? "no answer found" : "answer ", ...(answer === null ? [] : [element("code", answer)]),
    `, ${reason.replaceAll("_", " ")}, ${tokens} tokens`, flag & 2 ? ", cut off" : "", flag & 8 ? ", a second grader disagrees" : ""];
  const verdict = element("span", flag & 1 ? "correct" : "wrong", { class: flag & 1 ? "good" : "bad" });
  const shown = texts ? texts.map((token, place) => element("span", token, { class: `token-${colours[place]}` })) : text;
  return element("article", [element("p", [element("b", `Sample ${sample} `), verdict, ": ", ...facts]),
    element("pre", shown, texts ? { title: "blue: more likely after training, orange: less likely" } : {})], { tabindex: "-1" });
}

function remember() {
  const own = index.columns[opened.column], state = new URLSearchParams(
    { problem: index.problems[opened.problem][0], run: own.runs[opened.seed].run, ...(responseKind && { show: responseKind }) });
  history.replaceState(null, "", `#${state}`);
  const run = new URLSearchParams({ run: own.runs[opened.seed].run });
  for (const link of document.querySelectorAll("a.benchmark")) link.hash = `#${run}`;
}

function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  const wanted = state.get("run") ?? "", named = state.get("column") ?? "";
  const column = index.columns.findIndex((each) => each.name === named || each.runs.some((run) => run.run === wanted));
  if (column < 0) return;
  const seed = Math.max(0, index.columns[column].runs.findIndex((run) => run.run === wanted));
  const problem = Math.max(0, index.problems.findIndex(([id]) => id === state.get("problem")));
  open(problem, column, seed, state.get("show") in SHOWN ? state.get("show") : null);
}

function move(button, dx, dy) {
  const cells = [...byId("heat").querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("button")]);
  const y = cells.findIndex((row) => row.includes(button)), x = cells[y].indexOf(button);
  const next = cells[y + dy]?.[x + dx];
  if (!next) return;
  button.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function step(list, by) {
  const at = list.findIndex((each) => each.contains(document.activeElement));
  list[Math.min(Math.max(at + by, 0), list.length - 1)]?.focus();
}

function stepProblem(by) {
  const ids = [...byId("heat").querySelectorAll(`button[data-column="${opened.column}"]`)].map((each) => Number(each.dataset.problem));
  const next = ids[ids.indexOf(opened.problem) + by];
  if (next !== undefined) open(next, opened.column, opened.seed);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT)$/.test(event.target.tagName)) return;
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const key = event.key.toLowerCase();
  if (arrows && event.target.closest("#heat")) move(event.target, ...arrows);
  else if (key === "/") byId("search").focus();
  else if (opened && (key === "n" || key === "p")) stepProblem(key === "n" ? 1 : -1);
  else if (opened && (key === "j" || key === "k")) step([...byId("cell").querySelectorAll("article")], key === "j" ? 1 : -1);
  else if (opened && key === "escape") buttonOf(opened.problem, opened.column)?.focus();
  else return;
  event.preventDefault();
});

byId("heat").addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const kind = byId("kind").value;
  await open(Number(button.dataset.problem), Number(button.dataset.column), 0, kind === "correct" ? null : kind);
  byId("cell").focus();
  byId("cell").scrollIntoView({ block: "nearest" });
});
for (const name of ["kind", "rows", "order"]) byId(name).addEventListener("change", drawTable);
byId("search").addEventListener("input", () => {
  drawTable();
  if (opened) open(opened.problem, opened.column, opened.seed);
});
document.querySelector("form.controls").addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", restore);
unpacked(byId("index").textContent).then((content) => {
  index = content;
  drawTable();
  restore();
  document.body.dataset.ready = "true";
});
