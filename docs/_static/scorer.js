// Order of search results: guides, tutorials and how-to pages stand before the pages of the reference, and of these
// the ones whose titles share a stem with the query: "save" finds "Saving and loading" before pages that mention saves.
// A result is [docname, title, anchor, description, score, filename, kind].
var Scorer = {
  score: (result) => {
    const [docname, title, , , score] = result;
    if (docname.startsWith("reference/")) return score * 0.1;
    const asked = (new URLSearchParams(location.search).get("q") || "").toLowerCase().split(/\W+/);
    const words = title.toLowerCase().split(/\W+/);
    const alike = (one, other) => one.length > 2 && other.startsWith(one.slice(0, Math.max(3, one.length - 2)));
    const place = words.findIndex((word) => asked.some((one) => alike(one, word)));
    return score + 10 + (place < 0 ? 0 : place === 0 ? 15 : 10);
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
