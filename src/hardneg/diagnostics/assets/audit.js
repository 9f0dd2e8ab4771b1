"use strict";
(() => {
  const list = document.querySelector(".audit .pairs");
  if (!list) return;
  const pairs = [...list.children];
  const count = document.querySelector(".audit .count");
  const keys = new Map(
    [...pairs[0].querySelectorAll("button[data-label]")].map((one) => [one.querySelector("kbd").textContent, one.dataset.label])
  );
  // A page at the same place may be of another collection with the same ids, so the query's text is in the name.
  const nameOf = (pair) =>
    JSON.stringify([pair.querySelector(".query").textContent, pair.dataset.query, pair.dataset.passage]);
  const place = "hardneg-audit:" + location.pathname;

  function remembered() {
    try { return JSON.parse(localStorage.getItem(place) || "{}"); } catch { return {}; }
  }
  function remember() {
    const all = {};
    for (const pair of pairs) if (pair.dataset.label) all[nameOf(pair)] = pair.dataset.label;
    try { localStorage.setItem(place, JSON.stringify(all)); } catch { /* a page from a file may not store */ }
    count.textContent = Object.keys(all).length + " of " + pairs.length + " labelled";
  }
  function label(pair, value) {
    if (value) pair.dataset.label = value; else delete pair.dataset.label;
    for (const one of pair.querySelectorAll("button[data-label]"))
      one.setAttribute("aria-pressed", String(one.dataset.label === value));
  }
  function go(from, step) {
    const next = pairs[pairs.indexOf(from) + step];
    if (!next) return;
    from.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }
  function table() {
    const labelled = pairs.filter((pair) => pair.dataset.label)
      .map((pair) => [pair.dataset.query, pair.dataset.passage, pair.dataset.label]);
    const here = new Set(labelled.map(([query, passage]) => JSON.stringify([query, passage])));
    const before = (list.dataset.known || "").split("\n").filter((line) => line).map((line) => line.split("\t"))
      .filter(([query, passage]) => !here.has(JSON.stringify([query, passage])));
    const rows = [list.dataset.columns.split(" "), ...before, ...labelled];
    return rows.map((row) => row.join("\t")).join("\n") + "\n";
  }
  function save() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([table()], { type: "text/tab-separated-values" }));
    link.download = "judgements.tsv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  list.addEventListener("keydown", (event) => {
    const pair = event.target.closest(".pair");
    if (!pair || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const steps = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 };
    if (key in steps) go(pair, steps[key]);
    else if (keys.has(key)) { label(pair, keys.get(key)); remember(); go(pair, 1); }
    else if (key === "x") { label(pair, ""); remember(); }
    else return;
    event.preventDefault();
  });
  list.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-label]");
    if (!button) return;
    const pair = button.closest(".pair");
    label(pair, pair.dataset.label === button.dataset.label ? "" : button.dataset.label);
    remember();
  });
  document.querySelector(".audit .save").addEventListener("click", save);

  const before = remembered();
  for (const pair of pairs) if (before[nameOf(pair)]) label(pair, before[nameOf(pair)]);
  remember();
  window.hardnegAudit = { table };
})();
