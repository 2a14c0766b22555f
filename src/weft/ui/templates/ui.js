"use strict";
const $ = (id) => document.getElementById(id), form = $("form"), tab = document.body.dataset.tab;
const root = document.documentElement, prefersDark = matchMedia("(prefers-color-scheme: dark)");
root.classList.add("scripted");
let chosen = null;
try { chosen = localStorage.getItem("weft-theme"); } catch (_) { /* nothing is kept */ }
function paint() { root.dataset.theme = chosen || (prefersDark.matches ? "dark" : "light"); redraw(false); }
$("theme").addEventListener("click", () => {
  chosen = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("weft-theme", chosen); } catch (_) { /* it holds for this visit */ }
  paint();
});
prefersDark.addEventListener("change", paint);

// -- the state: what the form holds is the query of the address
function query() {
  const found = new URLSearchParams();
  for (const [key, value] of new FormData(form)) if (typeof value === "string" && value.trim()) found.append(key, value.trim());
  return found.toString();
}
function keep(state) { history.replaceState(null, "", `/${tab}?${state}`); }

// -- questions: JSON lines, each shown as it arrives; a question that is put again ends the one before
async function ask(path, show, signal, body) {
  const found = await fetch(path, { signal, ...(body ? { method: "POST", body: JSON.stringify(body) } : {}) });
  if (!found.ok) throw new Error(await found.text());
  const reader = found.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) await show(JSON.parse(line));
  }
}
const vega = new Promise((ready) => { if (window.vegaEmbed) ready(); else $("vega").addEventListener("load", ready); });
async function swap(parts, html) { // draw the new figures out of sight, so that the old ones stay until they are there
  parts.querySelectorAll(".coming").forEach((one) => one.remove());
  const coming = document.createElement("div");
  coming.className = "coming";
  coming.innerHTML = html;
  const open = new Set([...parts.querySelectorAll("details[open] > summary")].map((one) => one.textContent.replace(/\d+/g, "")));
  coming.querySelectorAll("details > summary").forEach((one) => { if (open.has(one.textContent.replace(/\d+/g, ""))) one.parentElement.open = true; });
  parts.append(coming);
  dress(coming);
  await vega;
  await drawIn(coming);
  if (!coming.isConnected) return;
  parts.querySelectorAll(":scope > :not(.coming)").forEach((one) => one.remove());
  drawn.forEach((_, box) => { if (!box.isConnected) drawn.delete(box); });
  coming.className = "";
}
function forget(parts) {
  parts.replaceChildren();
  drawn.forEach((_, box) => { if (!box.isConnected) drawn.delete(box); });
}

// -- the answer to the state: one question at a time; of the states in between only the latest is asked
const LONG_MS = 1500;
let asking = null, pending = false;
async function refresh() {
  const state = query();
  keep(state);
  $("unpin").hidden = !form.elements.pin.value;
  if (asking) {
    pending = true;
    if (performance.now() - asking.begin > LONG_MS) asking.abort.abort();
    return;
  }
  const abort = new AbortController();
  asking = { abort, begin: performance.now() };
  document.body.dataset.state = "asking";
  const late = setTimeout(() => { $("busy").hidden = $("cancel").hidden = false; $("lead").classList.add("stale"); $("answer").classList.add("stale"); }, 400);
  try {
    const shown = async (told) => {
      if (told.kind === "command") $("command").textContent = told.text;
      if (told.kind === "progress") $("progress").textContent = told.text;
      if (told.kind === "error") fail(told.text);
      if (told.kind === "lead") {
        $("error").textContent = "";
        $("lead").innerHTML = told.html;
        $("lead").classList.remove("stale");
        say($("lead").querySelector(".lead").textContent);
        root.dataset.answeredMs = Math.round(performance.now() - asking.begin);
      }
      if (told.kind === "answer" && !pending) { await swap($("answer").querySelector(".parts"), told.html); $("answer").classList.remove("stale"); }
      if (told.kind === "launch") {
        $("launch").hidden = false;
        $("launch").querySelector("summary").textContent = `Launch: ${told.title}`;
        $("launchtext").textContent = told.text;
      }
    };
    $("launch").hidden = true;
    await ask(`/answer/${tab}?${state}`, shown, abort.signal);
    if (!pending) await further(state, abort.signal);
  } catch (problem) {
    if (problem.name !== "AbortError") fail(`no answer: ${problem.message}; is weft ui still running?`);
    else if (!pending) $("progress").textContent = "cancelled";
  }
  clearTimeout(late);
  $("busy").hidden = $("cancel").hidden = true;
  if ($("progress").textContent !== "cancelled") $("progress").textContent = "";
  $("lead").classList.remove("stale");
  $("answer").classList.remove("stale");
  asking = null;
  if (pending) { pending = false; refresh(); } else document.body.dataset.state = "done";
}
function say(text) { // at the end of a small screen, whose form hides the answer
  $("short").textContent = text;
  $("short").hidden = false;
}
function fail(text) {
  $("error").textContent = text;
  say(text);
  $("lead").replaceChildren();
  $("launch").hidden = true;
  forget($("answer").querySelector(".parts"));
  document.querySelectorAll(".suggestion").forEach((one) => { one.hidden = true; });
}
async function further(state, signal) { // what follows every change
  if ($("error").textContent) return;
  if (form.elements.pin.value) await compare(state, signal); else $("contrast").hidden = true;
  for (const box of document.querySelectorAll(".suggestion")) {
    if (pending) return;
    const known = new Set([...$("lead").querySelectorAll("p, li")].map((one) => one.textContent));
    await ask(`/answer/${tab}/${box.dataset.at}?${state}`, (told) => {
      if (told.kind !== "lead") return;
      const lead = box.querySelector(".lead-of");
      lead.innerHTML = told.html;
      lead.querySelectorAll("h2, p, li").forEach((one) => { if (one.tagName === "H2" || known.has(one.textContent)) one.remove(); });
      box.hidden = !lead.textContent.trim();
    }, signal);
  }
}
function into(box) { // shows what is told in a section with a command, conclusions and parts
  return async (told) => {
    if (told.kind === "command") box.querySelector(".command").textContent = told.text;
    if (told.kind === "error") box.querySelector(".error").textContent = told.text;
    if (told.kind === "progress" && box.querySelector(".progress")) box.querySelector(".progress").textContent = told.text;
    if (told.kind === "lead") box.querySelector(".lead-of").innerHTML = told.html;
    if (told.kind === "answer") await swap(box.querySelector(".parts"), told.html);
    if (told.kind === "open") box.querySelector(".lead-of").append(Object.assign(document.createElement("a"), { href: `/${tab}?${told.query}`, textContent: "Open this plan in the form" }));
  };
}
function clear(box) {
  box.querySelectorAll(".command, .error").forEach((one) => { one.textContent = ""; });
  box.querySelector(".lead-of").replaceChildren();
  forget(box.querySelector(".parts"));
}
async function compare(state, signal) {
  const box = $("contrast");
  let failed = false;
  box.hidden = false;
  box.querySelector(".error").textContent = "";
  await ask(`/contrast/${tab}?${state}`, async (told) => { failed = failed || told.kind === "error"; await into(box)(told); }, signal);
  if (failed) { box.querySelector(".lead-of").replaceChildren(); forget(box.querySelector(".parts")); }
}
document.querySelectorAll(".ask").forEach((box) => {
  const [go, stop] = [box.querySelector(".go"), box.querySelector(".stop")];
  let abort = null;
  go.addEventListener("click", async () => {
    abort = new AbortController();
    go.disabled = true;
    stop.hidden = false;
    clear(box);
    const progress = box.querySelector(".progress");
    progress.textContent = "asking …";
    try {
      await ask(`/answer/${tab}/${box.dataset.at}?${query()}`, into(box), abort.signal);
      progress.textContent = "";
    } catch (problem) {
      progress.textContent = problem.name === "AbortError" ? "cancelled" : `no answer: ${problem.message}`;
    }
    go.disabled = false;
    stop.hidden = true;
  });
  stop.addEventListener("click", () => abort?.abort());
});
$("cancel").addEventListener("click", () => asking?.abort.abort());
$("go")?.addEventListener("click", () => refresh());

// -- the form: sliders and numbers follow each other; a change is asked at once, typing after a pause
const live = document.body.dataset.live === "yes";
async function show() { // of a state that only a button asks: its command
  keep(query());
  $("lead").classList.add("stale");
  $("answer").classList.add("stale");
  const told = await (await fetch(`/command/${tab}?${query()}`)).json();
  $("command").textContent = told.kind === "command" ? told.text : "";
  $("error").textContent = told.kind === "error" ? told.text : "";
}
const changed = () => { if (live) refresh(); else show(); };
const place = (slider) => { // where a slider stands for what its number says
  const field = form.elements[slider.dataset.of], value = parseFloat(field.value || field.placeholder);
  const at = "doubling" in slider.dataset ? Math.log2(value) : value;
  slider.value = Number.isFinite(at) ? at : slider.min;
};
document.querySelectorAll("input[type=range]").forEach((slider) => {
  place(slider);
  form.elements[slider.dataset.of].addEventListener("input", () => place(slider));
  slider.addEventListener("input", () => {
    const at = Number(slider.value), value = "doubling" in slider.dataset ? 2 ** at : at;
    form.elements[slider.dataset.of].value = "whole" in slider.dataset ? Math.round(value) : Number(value.toPrecision(3));
    changed();
  });
});
let listed = "";
form.addEventListener("focusin", async (event) => { // the values that --set may change, with those of the machine
  const machine = `${form.elements.system?.value}|${form.elements.gpu?.value}`, list = $("l-set");
  if (event.target.name !== "set" || machine === listed) return;
  listed = machine;
  try {
    await ask(`/values/${tab}?${query()}`, (told) => {
      if (told.kind === "values") list.replaceChildren(...told.values.map((value) => Object.assign(document.createElement("option"), { value })));
    });
  } catch (_) { listed = ""; }
});
let typing = 0;
form.addEventListener("input", (event) => {
  if (event.target.type === "range" || event.target.type === "file") return;
  clearTimeout(typing);
  typing = setTimeout(changed, event.target.tagName === "SELECT" ? 0 : 350);
});
form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(typing); if (live) refresh(); else $("go").click(); });
form.addEventListener("click", (event) => {
  const key = event.target.dataset?.add;
  if (!key) return;
  const last = [...form.querySelectorAll(`input[name="${CSS.escape(key)}"]`)].pop(), more = last.cloneNode();
  more.removeAttribute("id");
  more.value = "";
  more.setAttribute("aria-label", `another ${key}`);
  last.after(more);
  more.focus();
});
document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
  const text = $(button.dataset.copy).textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch (_) { getSelection().selectAllChildren($(button.dataset.copy)); button.textContent = "Press Ctrl-C"; }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}));

// -- pin: the present state, which the address then holds, too
$("pin").addEventListener("click", () => {
  const now = new URLSearchParams(query());
  now.delete("pin");
  form.elements.pin.value = now.toString();
  keep(query());
  $("unpin").hidden = false;
  changed();
});
$("unpin").addEventListener("click", () => { form.elements.pin.value = ""; $("contrast").hidden = true; clear($("contrast")); keep(query()); $("unpin").hidden = true; });

// -- files: their text fills the form by way of the address
async function take(file) {
  if (!file) return;
  $("dropped").textContent = `reading ${file.name} …`;
  try {
    const text = await file.text();
    await ask(`/fill/${tab}?${query()}`, (told) => {
      if (told.kind === "error") $("dropped").textContent = told.text;
      if (told.kind === "fill") {
        sessionStorage.setItem("weft-filled", told.text);
        location.assign(`/${tab}?${told.query}`);
      }
    }, undefined, { name: file.name, text });
  } catch (problem) { $("dropped").textContent = `cannot be read: ${problem.message}`; }
}
$("drop").addEventListener("change", (event) => take(event.target.files[0]));
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    root.classList.toggle("dragged", kind === "dragover");
    if (kind === "drop") take(event.dataTransfer.files[0]);
  });
}
try { $("dropped").textContent = sessionStorage.getItem("weft-filled") || ""; sessionStorage.removeItem("weft-filled"); } catch (_) { /* nothing is kept */ }
paint();
if (!location.search) keep(query());
if (!$("error").textContent) changed();
