"use strict";
// What the pages share: texts, the address, the search box.
const shared = (() => {
  // Every text of the run becomes a text node here. Characters that do not show become badges.
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new RegExp(data.hidden, "gu");
  function put(node, text) {
    let end = 0;
    for (const match of text.matchAll(hidden)) {
      node.append(text.slice(end, match.index));
      const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      node.append(make("span", "hidden-char", `U+${code}`));
      end = match.index + match[0].length;
    }
    node.append(end ? text.slice(end) : text);
    return node;
  }
  function make(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.append(text);
    return node;
  }
  const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const byId = (id) => document.getElementById(id);
  const wellFormed = (text) => text.replace(/\p{Cs}/gu, "�");
  function option(select, value, label) {
    const node = make("option");
    node.value = value;
    put(node, label);
    node.textContent = node.textContent;
    select.append(node);
  }
  // The state of a page is in its address, so that it can be sent to others.
  function writeAddress(keys, values) {
    const parts = keys.filter((key) => values[key]).map((key) => `${key}=${encodeURIComponent(wellFormed(values[key]))}`);
    history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname + location.search);
  }
  // "/" goes to the search box and Escape empties it. `changed` gets the text when the user pauses.
  function watchSearch(search, changed) {
    let typing;
    search.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => changed(search.value), 120);
    });
    document.addEventListener("keydown", (event) => {
      const where = event.target;
      const writes = where.matches?.("input[type=search], textarea, select");
      if (event.key === "/" && !writes && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        search.focus();
        search.select();
      } else if (event.key === "Escape" && where === search && search.value) {
        event.preventDefault();
        search.value = "";
        changed("");
      }
    });
  }
  return { data, put, make, counted, byId, option, wellFormed, writeAddress, watchSearch };
})();
