"use strict";
// -- files
function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name.replace(/[^\w.-]+/g, "-").slice(0, 80);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
const quoted = (value) => (/[",\n]/.test(value ?? "") ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
const csv = (keys, rows) => [keys, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
const objects = (keys, rows) => rows.map((row) => Object.fromEntries(keys.map((key, at) => [key, row[at]])));

// -- tables: click a head to sort, type to filter
const valueOf = (cell) => ("v" in cell.dataset ? (cell.dataset.v === "" ? null : isNaN(cell.dataset.v) ? cell.dataset.v : +cell.dataset.v) : cell.textContent);
function dressTables(root) {
  root.querySelectorAll(".table").forEach((box) => {
    const heads = [...box.querySelectorAll("th")], body = box.querySelector("tbody"), rows = () => [...body.rows];
    heads.forEach((head, at) => head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const by = (row) => valueOf(row.cells[at]);
      body.append(...rows().sort((a, b) => {
        const [x, y] = [by(a), by(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
        return up ? order : -order;
      }));
    }));
    box.querySelector("input").addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows().forEach((row) => { row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word)); });
    });
    box.querySelectorAll("[data-save]").forEach((button) => button.addEventListener("click", () => {
      const keys = heads.map((head) => head.dataset.key), found = rows().map((row) => [...row.cells].map(valueOf)), name = box.dataset.name;
      if (button.dataset.save === "csv") save(`${name}.csv`, "text/csv", csv(keys, found));
      else save(`${name}.json`, "application/json", JSON.stringify(objects(keys, found), null, 1));
    }));
  });
}

// -- what is wider than the window says that it scrolls
function dressWide(root) {
  root.querySelectorAll(".scrolls").forEach((box) => {
    const wide = box.querySelector(".wide");
    const say = () => box.classList.toggle("more", wide.scrollWidth - wide.clientWidth - wide.scrollLeft > 4);
    wide.addEventListener("scroll", say, { passive: true });
    new ResizeObserver(say).observe(wide);
  });
}

// -- figures
const drawn = new Map();
function fitted(figure, width) {
  const spec = structuredClone(figure.spec), small = width < 560, laned = JSON.stringify(figure.spec).includes('"field":"lane"');
  const devices = Object.values(figure.datasets).flat().reduce((most, row) => Math.max(most, String(row.device ?? "").length), 0);
  const side = laned ? Math.round(Math.min(170, width * 0.37)) : Math.max(62, devices * 6.4 + 22); // room for names, or for numbers alone
  spec.datasets = figure.datasets;
  const names = [...JSON.stringify(figure.spec).matchAll(/"domain":(\["[^\]]*\])/g)].flatMap((found) => JSON.parse(found[1]));
  const longest = Math.max(8, ...names.map((name) => name.length)) * 6.6 + 30;
  spec.config.axisX = { tickCount: Math.max(3, Math.round(width / 85)) };
  spec.config.axisY.labelLimit = Math.round(width * (small ? 0.42 : 0.33));
  const first = spec.layer?.[0], lane = first?.mark.type === "bar" && first.encoding.y.field, sets = Object.values(figure.datasets);
  const lanes = lane ? Math.max(...sets.flat().map((row) => String(row[lane] ?? "").length)) * 6.4 + 14 : 40;
  const plot = width - Math.min(lanes, spec.config.axisY.labelLimit + 14) - 20;
  // names longer than their room: of lanes on two lines, of a legend over the lanes' room, too
  if (lane && lanes > spec.config.axisY.labelLimit + 14) first.encoding.y.axis = { ...first.encoding.y.axis, labelExpr: "split(replace(datum.label, regexp('^(.{12,}?) '), '$1\\n'), '\\n')" };
  const legend = spec.vconcat ? width - side : lane && longest > plot ? width : plot;
  Object.assign(spec.config.legend, { labelLimit: Math.max(150, legend - 30), columns: Math.max(1, Math.floor(legend / longest)) });
  if (legend === width) spec.config.legend.layout = { top: { anchor: "end" } };
  if (spec.vconcat) {
    Object.assign(spec.config.axisY, { minExtent: side, maxExtent: side, labelLimit: side - 8 });
    const inner = Math.max(120, width - side - 34);
    (function set(views) { views.forEach((view) => { if (view.vconcat) set(view.vconcat); else view.width = inner; }); })(spec.vconcat);
  }
  if (spec.facet?.row) spec.spec.width = width - 90;
  else if (spec.facet) {
    const panels = new Set(sets.flat().map((row) => row[spec.facet.field])).size;
    spec.columns = Math.max(1, Math.min(panels, Math.floor(width / 300)));
    spec.spec.width = Math.min(560, Math.floor(width / spec.columns) - 95);
  }
  return spec;
}
async function draw(box) { // beside the picture that is there, which gives way once the new one is drawn
  const figure = drawn.get(box), plot = box.querySelector(".plot"), width = plot.clientWidth;
  if (!width) return;
  figure.width = width;
  const live = document.createElement("div"), before = figure.view;
  live.className = "live";
  plot.append(live);
  const rows = Object.values(figure.datasets).reduce((sum, set) => sum + set.length, 0);
  const renderer = rows > 2500 ? "canvas" : "svg";
  let spec = fitted(figure, width);
  if (renderer === "canvas") spec = JSON.parse(JSON.stringify(spec).replaceAll("currentColor", getComputedStyle(plot).color));
  figure.view = await vegaEmbed(live, spec, { actions: false, renderer });
  before?.finalize();
  plot.querySelectorAll(".live").forEach((one) => { if (one !== live) one.remove(); });
  plot.classList.add("drawn");
}
function redraw(onlyResized) {
  drawn.forEach((figure, box) => {
    const width = box.querySelector(".plot").clientWidth;
    if (width && (onlyResized ? width !== figure.width : figure.view)) draw(box);
  });
}
async function drawAll() {
  for (const [box, figure] of drawn) if (!figure.width) await draw(box);
}
function dressFigures(root) {
  root.querySelectorAll(".plot .live").forEach((one) => one.remove()); // of a page that a browser saved with its pictures
  root.querySelectorAll("[data-figure]").forEach((element) => {
    const box = root.querySelector(`#${element.dataset.figure}`), figure = JSON.parse(element.textContent);
    figure.datasets = Object.fromEntries(Object.entries(figure.data).map(([name, { keys, columns }]) => [
      name, (columns[0] || []).map((_, at) => Object.fromEntries(keys.map((key, column) => [key, columns[column][at]]))),
    ]));
    drawn.set(box, figure);
    const text = element.textContent, hints = [];
    if (text.includes('"name":"zoom"')) hints.push("drag to move in time, Shift + wheel to zoom, double-click to reset");
    if (text.includes('"name":"brush"')) hints.push("drag over the uppermost strip to zoom all panels, move or wheel over the window, double-click to see all");
    if (text.includes('"name":"picked"') && !text.includes('"legend":null')) hints.push("click a name in the legend to see it alone, double-click for all");
    box.querySelector(".hint").textContent = hints.join("; ");
    box.querySelectorAll("[data-save]").forEach((button) => button.addEventListener("click", async () => {
      const kind = button.dataset.save, sets = Object.entries(figure.data);
      if (kind === "svg") return save(`${figure.title}.svg`, "image/svg+xml", (await figure.view.view.toSVG()).replaceAll("currentColor", "#222"));
      if (kind === "json") return save(`${figure.title}.json`, "application/json", JSON.stringify(figure.datasets, null, 1));
      sets.forEach(([name, { keys, columns }]) => save(`${figure.title}${sets.length > 1 ? `-${name}` : ""}.csv`, "text/csv", csv(keys, (columns[0] || []).map((_, at) => columns.map((column) => column[at])))));
    }));
  });
}

// -- a table of waits leads to its moment in the figure before it
function dressMoments(root) {
  root.querySelectorAll("tr").forEach((row) => {
    const heads = [...row.closest("table").querySelectorAll("th")].map((head) => head.dataset.key);
    const [from, to] = [heads.indexOf("start_us"), heads.indexOf("end_us")];
    const brushed = [...drawn].filter(([, figure]) => JSON.stringify(figure.spec.vconcat || "").includes('"brush"'));
    if (from < 0 || to < 0 || !brushed.length || !row.cells.length || row.cells[0].tagName === "TH") return;
    row.dataset.at = "";
    row.tabIndex = 0;
    const go = () => {
      const [box, figure] = brushed[0], [a, b] = [from, to].map((at) => valueOf(row.cells[at])), room = Math.max((b - a) * 0.5, 1);
      const brush = (function find(part) {
        return part.params?.find((one) => one.name === "brush") || (part.vconcat || []).map(find).find(Boolean);
      })(figure.spec);
      brush.value = { x: [Math.max(0, a - room), b + room] };
      draw(box);
      box.scrollIntoView({ behavior: "smooth", block: "nearest" });
    };
    row.addEventListener("click", go);
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
  });
}

// Pictures become interactive one after the other, and anew when their width changes or they are unfolded.
let waiting = 0;
const resized = new ResizeObserver(() => { clearTimeout(waiting); waiting = setTimeout(() => redraw(true), 150); });
function dress(root) {
  dressTables(root);
  dressWide(root);
  dressFigures(root);
  dressMoments(root);
}
async function drawIn(root) {
  await drawAll();
  drawn.forEach((_, box) => { if (root.contains(box)) resized.observe(box.querySelector(".plot")); });
}
