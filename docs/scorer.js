// How the search of the site ranks: headings that hold the words asked for first, then pages, then the reference.
const LATER = { "reference/": 0.1, "deviations": 0.25, "glossary": 0.5, "architecture": 0.25 };
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const later = Object.keys(LATER).find((start) => docname.startsWith(start));
    return score * (kind === "title" ? 10 : 1) * (later ? LATER[later] : 1);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
