"use strict";
// What the pages share: texts, the address, the search box, plots.
const shared = (() => {
  const byId = (id) => document.getElementById(id);
  // Every text of the run becomes a text node here. Characters that do not show become badges.
  const data = JSON.parse(byId("data")?.textContent ?? "{}");
  const hidden = new RegExp(data.hidden ?? "(?!)", "gu");
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
  // `changed` gets the text when the user pauses, and "" when Escape empties the box.
  function watchSearch(search, changed) {
    let typing;
    search.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => changed(search.value), 120);
    });
    watchKeys(search, () => changed(""));
  }
  // "/" goes to the search box and Escape empties it.
  function watchKeys(search, emptied) {
    document.addEventListener("keydown", (event) => {
      const where = event.target;
      const writes = where.matches?.("input:not([type=checkbox]), textarea, select");
      if (event.key === "/" && !writes && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        search.focus();
        search.select();
      } else if (event.key === "Escape" && where === search && search.value) {
        event.preventDefault();
        search.value = "";
        emptied();
      }
    });
  }
  // What depends on the width and the colours is painted again when they change.
  const paints = [];
  function repaint(paint) {
    paints.push(paint);
  }
  const paintAll = () => paints.forEach((paint) => paint());
  let resizing, wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === wide) return;
    wide = innerWidth;
    clearTimeout(resizing);
    resizing = setTimeout(paintAll, 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintAll);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = () => ({ stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } });
  function plot(host, makeOptions, values) {
    const paint = () => {
      const width = host.clientWidth;
      if (!width) return;
      host.replaceChildren();
      new uPlot({ width, legend: { show: false }, cursor: { drag: { x: false, y: false } }, ...makeOptions() }, values, host);
    };
    paint();
    repaint(paint);
  }
  return { data, put, make, counted, byId, option, wellFormed, writeAddress, watchSearch, watchKeys, repaint, colour, axis, plot };
})();
