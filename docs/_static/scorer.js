// Order of search results: guides, tutorials and how-to pages stand before pages about the project, and these before
// the pages of the reference. Of the guides, those come first whose titles share a stem with the query ("save" finds
// "Saving and loading"), and those that `EXPLAINS` names for a word that no title has.
// A result is [docname, title, anchor, description, score, filename, kind].
const ABOUT = new Set(["architecture", "benchmarks", "changelog", "citing", "contributing", "dashboard", "differences", "releasing"]);
const EXPLAINS = {
  convert: "command-line",
  crash: "saving",
  memmap: "saving",
  s3: "remote-datasets",
  safetensors: "saving",
  tensordict: "getting-started",
  to_module: "parameters",
};
var Scorer = {
  score: (result) => {
    const [docname, title, , , score] = result;
    if (docname.startsWith("reference/")) return score * 0.1;
    const asked = (new URLSearchParams(location.search).get("q") || "").toLowerCase().split(/\W+/);
    const words = title.toLowerCase().split(/\W+/);
    const alike = (one, other) => one.length > 2 && other.startsWith(one.slice(0, Math.max(3, one.length - 2)));
    const place = words.findIndex((word) => asked.some((one) => alike(one, word)));
    const explains = asked.some((one) => Object.hasOwn(EXPLAINS, one) && EXPLAINS[one] === docname);
    return score + (ABOUT.has(docname) ? 2 : 10) + (place < 0 ? 0 : place === 0 ? 15 : 10) + (explains ? 30 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
