"use strict";
document.documentElement.classList.add("scripted");
// -- theme: what the system prefers, until the reader switches
const root = document.documentElement, prefersDark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try { chosen = localStorage.getItem("weft-theme"); } catch (_) { /* a page from a file may not keep anything */ }
function paint() { root.dataset.theme = chosen || (prefersDark.matches ? "dark" : "light"); redraw(false); }
document.getElementById("theme").addEventListener("click", () => {
  chosen = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("weft-theme", chosen); } catch (_) { /* it holds for this visit */ }
  paint();
});
prefersDark.addEventListener("change", paint);

addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));

dress(document);
paint();
drawIn(document);
