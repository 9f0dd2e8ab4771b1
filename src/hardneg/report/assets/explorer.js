"use strict";
(() => {
  const element = document.getElementById("explorer-data");
  if (!element) return;
  const data = JSON.parse(element.textContent);
  const find = document.getElementById("explorer-find");
  const kind = document.getElementById("explorer-kind");
  const list = document.getElementById("explorer-list");
  const shown = document.getElementById("explorer-shown");
  const count = document.getElementById("explorer-count");
  const MOST = 200;
  // Marks that would turn the direction of what stands behind them are shown by their code.
  const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/gu;
  const code = (mark) => "\u27e8U+" + mark.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e9";
  const visible = (text) => String(text).replace(hidden, code);
  const make = (name, text, kindOf) => {
    const made = document.createElement(name);
    if (text !== undefined) {
      const inner = document.createElement("bdi");
      inner.textContent = visible(text);
      made.append(inner);
    }
    if (kindOf) made.className = kindOf;
    return made;
  };
  const rank = (value) => (value ? value.toLocaleString("en") : "–");
  const options = {};
  for (const query of data.queries) for (const tag of query.tags) options[tag] = 1;
  for (const split of Object.keys(data.states)) options["split: " + split] = 1;
  for (const name of Object.keys(options)) kind.append(new Option(name, name));

  const lowered = data.queries.map((query) => (query.id + "\n" + query.text).toLowerCase());
  const matching = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = kind.value;
    return data.queries.filter(
      (query, i) =>
        (wanted === "" || query.tags.includes(wanted) || "split: " + query.split === wanted) &&
        words.every((word) => lowered[i].includes(word)),
    );
  };

  let chosen = null;
  const passageRow = (table, names, place, cells, moves) => {
    const [id, title, text] = data.passages[place];
    const row = table.insertRow();
    row.append(make("td", names, "short"));
    const said = make("td", undefined, "text");
    said.append(make("strong", title && title !== id ? id + " · " + title : id), document.createElement("br"), make("span", text));
    row.append(said);
    for (const value of cells) row.append(make("td", value === null ? "–" : value, "number"));
    for (const value of moves) row.append(make("td", rank(value), "number"));
  };
  const show = (query) => {
    chosen = query;
    const states = data.states[query.split];
    shown.replaceChildren();
    const head = make("h4", query.id);
    head.tabIndex = -1;
    const asked = make("p", query.text, "asked");
    const about = make("p", query.split + " query; " + query.tags.join(", ") + "; rank of its best positive: " +
      states.map((name, i) => name + " " + rank(query.moves[i])).join(" → "), "about");
    const box = make("div", undefined, "scroll");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Passages of query " + visible(query.id));
    const table = document.createElement("table");
    table.createCaption().textContent = "Positives and negatives; the last columns are ranks in each state";
    const line = table.createTHead().insertRow();
    for (const name of ["", "passage", data.counted, "rank mined", "score", ...states]) {
      const cell = make("th", name);
      cell.scope = "col";
      line.append(cell);
    }
    const body = table.createTBody();
    for (const [place, moves] of query.positives) passageRow(body, "✓ positive", place, [null, null, null], moves);
    for (const [place, source, episode, mined, score, moves] of query.negatives)
      passageRow(body, "✗ " + source, place, [episode, mined, score], moves);
    box.append(table);
    shown.append(head, asked, about, box);
    for (const item of list.children) item.setAttribute("aria-selected", String(item.query === query));
  };
  const choose = (item) => {
    show(item.query);
    list.setAttribute("aria-activedescendant", item.id);
    // Only the list moves: the page stays where its reader is.
    const [top, bottom] = [item.offsetTop, item.offsetTop + item.offsetHeight];
    if (top < list.scrollTop) list.scrollTop = top;
    else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
  };
  const refresh = () => {
    const found = matching();
    list.replaceChildren();
    found.slice(0, MOST).forEach((query, i) => {
      const item = make("li", query.text);
      item.id = "explorer-" + i;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", "false");
      item.prepend(make("small", query.id + " · " + query.tags.join(", ")));
      item.query = query;
      item.addEventListener("click", () => choose(item));
      list.append(item);
    });
    count.textContent = found.length.toLocaleString("en") + " of " + data.queries.length.toLocaleString("en") + " queries" +
      (found.length > MOST ? "; the first " + MOST + " are listed" : "");
    list.removeAttribute("aria-activedescendant");
    if (list.firstChild) choose(list.firstChild);
    else shown.replaceChildren(make("p", "No query has these words."));
  };
  list.addEventListener("keydown", (event) => {
    const items = [...list.children];
    const at = items.findIndex((item) => item.query === chosen);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1, PageDown: at + 10, PageUp: at - 10 }[event.key];
    if (to === undefined || !items.length) return;
    event.preventDefault();
    choose(items[Math.max(0, Math.min(items.length - 1, to))]);
  });
  find.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") {
      event.preventDefault();
      list.focus();
    }
  });
  find.addEventListener("input", refresh);
  kind.addEventListener("change", refresh);
  refresh();
  list.scrollTop = 0;
  document.documentElement.classList.add("explorer-ready");
})();
