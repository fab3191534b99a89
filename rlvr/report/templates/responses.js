"use strict";
// Texts of models are only ever set as text, never as markup.
const SHOWN = {
  correct: (flags) => flags & 1, wrong: (flags) => !(flags & 1), truncated: (flags) => flags & 2,
  unanswered: (flags) => flags & 4, disputed: (flags) => flags & 8,
  raised: (flags) => flags & 4, lowered: (flags) => flags & 8, // of rollouts, which have no second grader
};
const RANKED = { tokens: (row) => row[3], reward: (row) => row[6], advantage: (row) => row[7] };
const APART = 0.5; // difference between shares of correct responses at which methods disagree
const byId = (name) => document.getElementById(name);
const waiting = {}; // name of a file -> what to call with its content
const files = {}; // name of a file -> promise of its content
let study, index, opened = null, responseKind = null; // index: the part of the study that is shown, a step's or all

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

const flagsOf = (run, problem) => Array.from(run.flags[problem], (digit) => parseInt(digit, 16));
const isKnown = (value) => value !== null;
const chosen = (name, otherwise) => byId(name)?.value ?? otherwise;
const isChosen = (run) => ["all", run.run].includes(chosen("run", "all"));
const hasProblem = (run, problem) => isChosen(run) && run.flags[problem].length > 0;

function share(column, problem, kind) {
  const flags = column.runs.filter(isChosen).flatMap((run) => flagsOf(run, problem));
  return flags.length ? flags.filter(SHOWN[kind]).length / flags.length : null;
}

function describeRows(kind) {
  const trained = index.columns.filter((column) => column.runs.some((run) => run.seed !== null));
  const compared = trained.length > 1 ? trained : index.columns;
  return index.problems.map(([id, text], problem) => {
    const shares = index.columns.map((column) => share(column, problem, kind));
    const correct = compared.map((column) => share(column, problem, "correct")).filter(isKnown);
    const known = shares.filter(isKnown), mean = known.reduce((sum, each) => sum + each, 0) / known.length;
    return { id, text, problem, shares, mean, spread: Math.max(...correct) - Math.min(...correct) };
  }).filter((row) => row.shares.some(isKnown));
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
  const places = [...index.columns.keys()].filter((place) => index.columns[place].runs.some(isChosen));
  const head = element("tr", [element("th", "Problem", { scope: "col" }), ...places.map((place) =>
    element("th", index.columns[place].title, { scope: "col", id: `column-${index.columns[place].name}` }))]);
  const body = rows.map((row) => element("tr", [
    element("th", row.id, { scope: "row", title: row.text }),
    ...places.map((place) => {
      if (row.shares[place] === null) return element("td", []);
      const percent = Math.round(100 * row.shares[place]), column = index.columns[place];
      const button = element("button", String(percent), {
        type: "button", tabindex: "-1", style: `--share: ${percent}`, "data-problem": row.problem, "data-column": place,
        "aria-label": `${column.title} on ${row.id}: ${percent} % ${kind}`,
      });
      return element("td", button);
    }),
  ]));
  byId("heat").replaceChildren(element("table", [element("thead", head), element("tbody", body)]));
  byId("heat").querySelector("button")?.setAttribute("tabindex", "0");
  const runs = index.columns.flatMap((column) => column.runs).filter(isChosen);
  const responses = runs.reduce((sum, run) => sum + run.flags.join("").length, 0).toLocaleString("en");
  byId("summary").textContent = `${rows.length} of ${all} problems, ${places.length} columns, ${responses} responses`;
  markOpened();
}

function markOpened() {
  for (const button of document.querySelectorAll("#heat button[aria-pressed]")) button.removeAttribute("aria-pressed");
  if (opened) buttonOf(opened.problem, opened.column)?.setAttribute("aria-pressed", "true");
}

const buttonOf = (problem, column) =>
  document.querySelector(`#heat button[data-problem="${problem}"][data-column="${column}"]`);

async function open(problem, column, seed, kind = responseKind) {
  const runs = index.columns[column].runs;
  if (!runs[seed] || !hasProblem(runs[seed], problem)) seed = runs.findIndex((run) => hasProblem(run, problem));
  if (seed < 0) return close();
  opened = { problem, column, seed };
  responseKind = kind;
  markOpened();
  remember();
  const run = index.columns[column].runs[seed], place = opened, cell = byId("cell");
  cell.hidden = false;
  cell.setAttribute("aria-busy", "true");
  try {
    const content = await load(`${run.texts}-${Math.floor(problem / run.chunk)}`);
    if (opened === place) drawCell(content[problem % run.chunk], run);
  } catch (error) {
    cell.replaceChildren(element("p", `${error.message}: this page needs the folder beside it.`, { class: "bad" }));
  }
  cell.removeAttribute("aria-busy");
}

function close() {
  opened = null;
  byId("cell").hidden = true;
  markOpened();
}

const colour = () => study.colours.find((each) => each.key === chosen("colour")) ?? study.colours[0];
const textOf = (row) => row[0] ?? row[4].join("");

function drawCell(responses, run) {
  const { problem, column, seed } = opened, [id, text, answer] = index.problems[problem], own = index.columns[column];
  const flags = flagsOf(run, problem), words = byId("search").value.toLowerCase();
  const isFound = (response) => textOf(response).toLowerCase().includes(words);
  const searched = words && responses.some(isFound), rank = RANKED[chosen("sort")];
  const shown = responses.map((response, sample) => ({ response, sample, flag: flags[sample] }))
    .filter(({ response, flag }) => (!responseKind || SHOWN[responseKind](flag)) && (!searched || isFound(response)));
  if (rank) shown.sort((a, b) => rank(b.response) - rank(a.response));
  const seeds = own.runs.flatMap((each, place) => {
    if (!hasProblem(each, problem)) return [];
    const found = flagsOf(each, problem), correct = found.filter(SHOWN.correct).length;
    const name = each.seed === null ? "base model" : `seed ${each.seed}`;
    const button = element("button", `${name}: ${correct}/${found.length}`, { type: "button", "aria-pressed": String(place === seed) });
    button.onclick = () => open(problem, column, place);
    return [button];
  });
  const kinds = [[null, "all"], ...Array.from(byId("kind").options, (each) => [each.value, each.text])].map(([kind, name]) => {
    const count = kind ? flags.filter(SHOWN[kind]).length : flags.length;
    const button = element("button", `${name} ${count}`, { type: "button", "aria-pressed": String(kind === responseKind) });
    button.onclick = () => open(problem, column, seed, kind);
    return button;
  });
  byId("cell").replaceChildren(
    element("h2", `${own.title} on ${id}${index.step === null ? "" : `, step ${index.step}`}`),
    element("pre", text ?? "(This benchmark's terms forbid showing its problems.)"),
    element("p", ["Answer: ", element("code", String(answer)), element("span", ` · ${run.run}`, { class: "quiet" })]),
    element("p", seeds, { class: "choices", "aria-label": "Seeds" }),
    element("p", kinds, { class: "choices", "aria-label": "Responses" }),
    ...(shown.some(({ response }) => response[5]) ? drawLegend() : []),
    ...shown.map(drawResponse),
    ...(shown.length ? [] : [element("p", "No response of this kind.", { class: "quiet" })]),
  );
}

function drawLegend() {
  const values = (index.legends[colour().key] ?? []).map(([strength, words]) => element("span", words, { class: `token-${strength}` }));
  return [element("p", `The colour is the ${colour().title}: ${colour().meaning}.`, { class: "quiet" }),
    ...(values.length ? [element("p", values, { class: "choices values", "aria-label": "Colours" })] : [])];
}

function drawResponse({ response, sample, flag }) {
  const [, answer, remark, tokens, texts, levels, reward, advantage] = response;
  const found = answer === null ? ["no answer found"] : ["answer ", element("code", answer)];
  const facts = reward === undefined ? [...found, `, ${remark}`, flag & 8 ? ", a second grader disagrees" : ""]
    : [`reward ${reward}, advantage ${advantage.toFixed(3).replace(/^-(0\.0*)$/, "$1")}, ${remark}`];
  const verdict = element("span", flag & 1 ? "correct" : "wrong", { class: flag & 1 ? "good" : "bad" });
  const own = levels?.[colour().key]; // a letter a token, "e" for no colour
  const shown = own ? texts.map((token, place) =>
    element("span", token, { class: `token-${own.charCodeAt(place) - "e".charCodeAt(0)}` })) : textOf(response);
  return element("article", [
    element("p", [element("b", `Sample ${sample} `), verdict, ": ", ...facts, `, ${tokens} tokens`, flag & 2 ? ", cut off" : ""]),
    element("pre", shown, { title: own ? colour().meaning : null })], { tabindex: "-1" });
}

function remember() {
  const own = index.columns[opened.column], state = new URLSearchParams(
    { problem: index.problems[opened.problem][0], run: own.runs[opened.seed].run, ...(responseKind && { show: responseKind }),
      ...(index.step !== null && { step: index.step }) });
  history.replaceState(null, "", `#${state}`);
  const run = new URLSearchParams({ run: own.runs[opened.seed].run });
  for (const link of document.querySelectorAll("a.benchmark")) link.hash = `#${run}`;
}

function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  const wanted = state.get("run") ?? "", named = state.get("column") ?? "";
  const step = study.steps.findIndex((each) => String(each.step) === state.get("step"));
  if (step >= 0 && study.steps[step] !== index) showStep(step);
  const column = index.columns.findIndex((each) => each.name === named || each.runs.some((run) => run.run === wanted));
  if (column < 0) return;
  const seed = Math.max(0, index.columns[column].runs.findIndex((run) => run.run === wanted));
  const ids = index.problems.map(([id]) => id), flags = index.columns[column].runs[seed]?.flags ?? [];
  const first = flags.findIndex((each) => each.length > 0);
  const problem = Math.max(0, ids.includes(state.get("problem")) ? ids.indexOf(state.get("problem")) : first);
  open(problem, column, seed, state.get("show") in SHOWN ? state.get("show") : null);
}

function move(button, dx, dy) {
  const cells = Array.from(byId("heat").querySelectorAll("tbody tr"), (row) =>
    Array.from(row.querySelectorAll("td"), (cell) => cell.querySelector("button")));
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

// Show another step, and there the problem that was open if it is among the step's.
function showStep(number) {
  const id = opened && index.problems[opened.problem][0];
  index = study.steps[number];
  if (byId("step")) byId("step").value = number;
  drawTable();
  const problem = index.problems.findIndex(([each]) => each === id);
  if (problem >= 0 && index.columns[opened.column]) open(problem, opened.column, opened.seed);
  else close();
}

function fill(name, options) {
  byId(name)?.append(...options.map(([value, text]) => element("option", text, { value })));
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
  await open(Number(button.dataset.problem), Number(button.dataset.column), -1, kind === "correct" ? null : kind);
  byId("cell").focus({ preventScroll: true }); // or the middle of a long cell is shown, below its problem
  byId("cell").scrollIntoView({ block: "nearest" });
});
for (const name of ["kind", "rows", "order"]) byId(name).addEventListener("change", drawTable);
function redraw() {
  drawTable();
  if (opened) open(opened.problem, opened.column, opened.seed);
}
byId("search").addEventListener("input", redraw);
for (const name of ["run", "sort", "colour"]) byId(name)?.addEventListener("change", redraw);
byId("step")?.addEventListener("change", (event) => showStep(Number(event.target.value)));
document.querySelector("form.controls").addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", restore);
unpacked(byId("index").textContent).then((content) => {
  study = content;
  fill("step", study.steps.map((each, number) => [number, each.step]));
  fill("run", study.runs ?? []);
  fill("colour", study.colours.map((each) => [each.key, each.title]));
  if (study.steps.length) {
    const colours = study.colours.map((each) => each.key);
    if (byId("colour") && colours.includes("entropy")) byId("colour").value = "entropy"; // a weight may be uniform
    showStep(study.steps.length - 1); // of the first step every method has the same rollouts
    restore();
    if (!opened && index.step !== null) open(0, index.columns.findIndex((each) => each.runs.some((run) => run.flags[0])), -1);
  }
  document.body.dataset.ready = "true";
});
