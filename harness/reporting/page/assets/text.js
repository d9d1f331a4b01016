"use strict";
// Every text of the run becomes a text node here. Characters that do not show become badges.
const inert = (() => {
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
  return { data, put, make, counted };
})();
