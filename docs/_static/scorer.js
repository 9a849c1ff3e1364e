// Order of search results: guides, tutorials and how-to pages stand before the pages of the reference.
// A result is [docname, title, anchor, description, score, filename, kind].
var Scorer = {
  score: (result) => {
    const [docname, , , , score] = result;
    return docname.startsWith("reference/") ? score * 0.1 : score + 10;
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
