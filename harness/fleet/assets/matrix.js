"use strict";
(() => {
  const { data, put, make, counted, byId, option } = shared;
  const STEP = 100, OPEN_AT_MOST = 40;
  const red = new Set(data.red), none = new Set(data.none);
  const machines = data.machines.map(([host, device, driver, torch, runs], index) => ({ index, host, device, driver, torch, runs }));

  // ---- cells: each kind once ----
  const LETTER = { waived: "w", gated: "g", skipped: "s", deselected: "–", other_shard: "–", not_collected: "–", lost: "?", not_run: "?" };
  const cells = data.cells.map(({ outcomes, hole }) => {
    let bad = 0, flaky = 0, ran = 0;
    for (const [outcome, times] of Object.entries(outcomes)) {
      if (none.has(outcome)) continue;
      ran += times;
      if (red.has(outcome)) bad += times;
      else if (outcome === data.flaky) flaky += times;
    }
    const said = Object.entries(outcomes).map(([outcome, times]) => `${outcome} ${times}`).join(", ");
    if (hole !== null) {
      const [kind, reason] = data.holes[hole];
      const style = LETTER[kind] === "?" ? "c-lost" : LETTER[kind] === "–" ? "c-none" : "c-hole";
      return { tone: kind, style, sign: LETTER[kind], bad, flaky, text: reason ? `${kind.replace("_", " ")}: ${reason}` : kind.replace("_", " ") };
    }
    if (bad && bad === ran) return { tone: "red", style: "c-red", sign: "✕", bad, flaky, text: said };
    if (bad) return { tone: "part", style: "c-part", sign: bad < 100 ? String(bad) : "+", bad, flaky, text: said };
    if (flaky) return { tone: "flaky", style: "c-flaky", sign: "~", bad, flaky, text: said };
    return { tone: "good", style: "c-good", sign: "·", bad, flaky, text: said };
  });
  const patterns = data.patterns.map((row) => ({ cells: row, differs: new Set(row.map((cell) => cells[cell].tone)).size > 1 }));
  const cases = data.cases.map(([file, rest, suite, pattern, told], index) => {
    const name = data.files[file] + rest;
    const messages = told ? told.messages.map((each) => each[0]).join("\n") : "";
    return { index, name, file: data.files[file], rest, suite, pattern: patterns[pattern], told, text: `${name}\n${messages}`.toLowerCase() };
  });
  const byName = new Map(cases.map((each) => [each.name, each]));

  // ---- the state: in the address, so that it can be sent to others ----
  const KEYS = ["class", "group", "machine", "show", "q", "open", "case"];
  let state = {}, limits = new Map();
  function readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const list = (key) => new Set((given.get(key) || "").split(",").filter(Boolean));
    state = { class: new Set([...list("class")].filter((each) => each in data.kinds)) };
    state.open = new Set([...list("open")].map(Number).filter((each) => each in data.suites));
    for (const key of ["group", "machine", "show", "q", "case"]) state[key] = given.get(key) || "";
    if (!(state.group in data.groups)) state.group = "";
    if (!(state.machine in machines)) state.machine = "";
    if (!["red", "all"].includes(state.show)) state.show = "";
  }
  function writeAddress() {
    shared.writeAddress(KEYS, { ...state, class: [...state.class].join(","), open: [...state.open].join(",") });
  }

  // ---- filters ----
  const form = byId("filters"), search = byId("q"), grid = byId("grid");
  const selects = { machine: byId("machine"), group: byId("group"), show: byId("show") };
  const boxes = new Map();
  function makeFilters() {
    option(selects.machine, "", "any");
    for (const each of machines) option(selects.machine, String(each.index), `${each.host}: ${each.device}, ${each.driver}, torch ${each.torch}`);
    option(selects.group, "", "any");
    data.groups.forEach((label, index) => option(selects.group, String(index), label));
    const per = new Map();
    for (const each of cases) if (each.told) per.set(each.told.kind, (per.get(each.told.kind) || 0) + 1);
    for (const [kind, title] of Object.entries(data.kinds)) {
      if (!per.has(kind)) continue;
      const label = make("label", `chip k-${kind}`), box = make("input");
      box.type = "checkbox";
      box.value = kind;
      boxes.set(kind, box);
      label.append(box, `${title} ${per.get(kind)}`);
      byId("classes").append(label);
    }
    form.querySelector("fieldset").hidden = !per.size;
  }
  function showFilters() {
    search.value = state.q;
    for (const [kind, box] of boxes) box.checked = state.class.has(kind);
    for (const [key, select] of Object.entries(selects)) select.value = state[key];
  }
  const wordsOf = (text) => [...text.toLowerCase().matchAll(/"([^"]*)"?|(\S+)/g)].map((m) => m[1] ?? m[2]).filter(Boolean);
  function found() {
    const words = wordsOf(state.q);
    const machine = state.machine === "" ? -1 : Number(state.machine);
    return cases.filter((each) =>
      (state.show === "all" || each.told || (state.show === "" && each.pattern.differs)) &&
      (!state.class.size || (each.told && state.class.has(each.told.kind))) &&
      (state.group === "" || (each.told && each.told.group === Number(state.group))) &&
      (machine < 0 || cells[each.pattern.cells[machine]].bad + cells[each.pattern.cells[machine]].flaky > 0) &&
      words.every((word) => each.text.includes(word))).sort((a, b) => a.suite - b.suite || rank(a) - rank(b) || a.index - b.index);
  }
  // Within a suite, failures with the same cause are together, and come first.
  const rank = (each) => (each.told ? each.told.group : data.groups.length);

  // ---- the table ----
  const levels = [["device", "Device"], ["driver", "Driver"], ["torch", "torch"]];
  const starts = machines.map((each, index) => index > 0 && levels.some(([key]) => machines[index - 1][key] !== each[key]));
  const edge = (index) => (starts[index] ? "group-start" : "");
  const picked = (index) => (String(index) === state.machine ? " picked" : "");
  function headOf() {
    const head = make("thead");
    levels.forEach(([key, title], depth) => {
      const row = make("tr", "level");
      row.append(corner(title));
      for (let from = 0; from < machines.length;) {
        let to = from + 1;
        const same = (other) => levels.slice(0, depth + 1).every(([each]) => machines[from][each] === machines[other][each]);
        while (to < machines.length && same(to)) to += 1;
        const longest = Math.max(...machines[from][key].split(/[ -]/).map((word) => word.length));
        const narrow = (to - from) * 27 < Math.min(longest, 20) * 7.4;
        const cell = make("th", `${narrow ? "up" : "wide"} ${edge(from)}`, put(make("span"), machines[from][key]));
        cell.title = machines[from][key];
        cell.scope = "colgroup";
        cell.colSpan = to - from;
        row.append(cell);
        from = to;
      }
      head.append(row);
    });
    const row = make("tr", "level");
    row.append(corner("Host"));
    for (const each of machines) {
      const cell = make("th", `up ${edge(each.index)}${picked(each.index)}`, put(make("span"), each.host));
      cell.title = `${each.host}: ${each.device}, driver ${each.driver}, torch ${each.torch}, ${counted(each.runs, "run")}`;
      cell.scope = "col";
      row.append(cell);
    }
    head.append(row);
    return head;
  }
  function corner(title) {
    const cell = make("th", "corner", title);
    cell.scope = "row";
    return cell;
  }
  function cellOf(index, style, sign, text) {
    const node = make("td", `${style} ${edge(index)}${picked(index)}`.trim());
    const shown = make("span", "", sign);
    shown.setAttribute("aria-hidden", "true");
    node.append(shown, put(make("span", "sr"), text));
    node.title = `${machines[index].host}: ${text}`;
    return node;
  }
  function suiteRow(suite, listed, open) {
    const row = make("tr", "suite");
    const button = put(make("button", "row"), data.suites[suite]);
    button.type = "button";
    button.dataset.suite = suite;
    button.setAttribute("aria-expanded", String(open));
    const bad = listed.filter((each) => each.told).length;
    button.append(make("span", "count", ` ${counted(listed.length, "case")}${bad ? `, ${bad} red or flaky` : ""}`));
    const head = make("th", "", button);
    head.scope = "rowgroup";
    row.append(head);
    for (const { index } of machines) {
      let reds = 0, flaky = 0;
      for (const each of listed) {
        const cell = cells[each.pattern.cells[index]];
        if (cell.bad) reds += 1;
        else if (cell.flaky) flaky += 1;
      }
      const sign = reds ? (reds < 1000 ? String(reds) : "k") : flaky ? "~" : "";
      row.append(cellOf(index, reds ? "has" : flaky ? "some" : "", sign, reds || flaky ? `${counted(reds, "red case")}, ${flaky} flaky` : "none red"));
    }
    return row;
  }
  function caseRow(each) {
    const row = make("tr", "case");
    const open = state.case === each.name;
    const button = put(make("button", "row name"), each.rest || each.name);
    if (each.rest) button.append(put(make("span", "in"), each.file.replace(/::$/, "")));
    button.type = "button";
    button.dataset.open = each.index;
    button.setAttribute("aria-expanded", String(open));
    if (open) button.setAttribute("aria-controls", "panel");
    const head = make("th", "", button);
    head.scope = "row";
    if (each.told) button.append(make("span", `badge k-${each.told.kind}`, data.kinds[each.told.kind]), " ", sureOf(each.told.sure));
    row.append(head);
    each.pattern.cells.forEach((cell, index) => row.append(cellOf(index, cells[cell].style, cells[cell].sign, cells[cell].text)));
    return open ? [row, panelOf(each)] : [row];
  }
  const sureOf = (sure) => make("span", `sure s-${sure.replace(" ", "-")}`, sure);
  function panelOf(each) {
    const cell = make("td"), box = make("div", "told-all");
    cell.colSpan = machines.length + 1;
    cell.id = "panel";
    cell.append(box);
    if (each.told) {
      const { kind, sure, text, also, next, messages, reproduce } = each.told;
      box.append(make("p", "", make("span", `badge k-${kind}`, data.kinds[kind])));
      box.firstChild.append(" ", sureOf(sure));
      box.append(put(make("p"), text));
      if (also) box.append(put(make("p", "apart"), `Cannot be distinguished from: ${also}.`));
      box.append(put(make("p", "next"), `Next: ${next}`));
      for (const [message, runs] of messages) box.append(put(make("p", "message"), `${message} (${counted(runs, "run")})`));
      if (reproduce) box.append(put(make("code", "name"), reproduce));
    }
    const by = new Map();
    each.pattern.cells.forEach((cell, index) => by.set(cell, [...(by.get(cell) || []), machines[index].host]));
    const list = make("ul", "plain");
    for (const [cell, hosts] of [...by].sort((a, b) => cells[b[0]].bad - cells[a[0]].bad || a[1].length - b[1].length)) {
      const shown = hosts.length > 20 ? `${hosts.slice(0, 20).join(", ")} and ${hosts.length - 20} more` : hosts.join(", ");
      const item = put(make("li"), `${cells[cell].text || "nothing"} on ${hosts.length === machines.length && hosts.length > 1 ? "all machines" : shown}`);
      list.append(item);
    }
    box.append(list);
    return make("tr", "panel", cell);
  }
  const isFiltered = () => state.class.size || state.group || state.machine || state.q || state.show;
  let hits = [];
  function show() {
    hits = found();
    const perSuite = new Map();
    for (const each of hits) {
      if (!perSuite.has(each.suite)) perSuite.set(each.suite, []);
      perSuite.get(each.suite).push(each);
    }
    const table = make("table"), body = make("tbody");
    table.append(make("caption", "sr", "Cases by machines. A button in each row opens the suite or the case."), headOf(), body);
    for (const [suite, listed] of perSuite) {
      const open = isOpen(suite);
      body.append(suiteRow(suite, listed, open));
      if (!open) continue;
      const limit = limits.get(suite) || STEP;
      for (const each of listed.slice(0, limit)) body.append(...caseRow(each));
      if (listed.length > limit) {
        const button = make("button", "", `Show ${Math.min(STEP, listed.length - limit)} more of ${listed.length}`);
        button.type = "button";
        button.dataset.more = suite;
        const head = make("th", "", button);
        body.append(make("tr", "more", head));
      }
    }
    const { scrollLeft, scrollTop } = grid;
    grid.replaceChildren(hits.length ? table : make("p", "empty", "No case matches. Clear a filter, or show all cases."));
    stick(table);
    Object.assign(grid, { scrollLeft, scrollTop });
    const text = hits.length === cases.length ? counted(cases.length, "case") : `${hits.length.toLocaleString("en")} of ${counted(cases.length, "case")}`;
    if (byId("hits").textContent !== text) byId("hits").textContent = text;
    byId("clear").disabled = !isFiltered() && !state.open.size && !state.case;
    byId("unfold").textContent = [...perSuite.keys()].every(isOpen) ? "Fold all suites" : "Open all suites";
    byId("unfold").disabled = !hits.length;
  }
  // Few rows are shown at once; `open` then lists the suites that are folded.
  const isOpen = (suite) => state.open.has(suite) !== hits.length <= OPEN_AT_MOST;
  function stick(table) {
    let top = 0;
    for (const row of table.tHead?.rows || []) {
      for (const cell of row.cells) cell.style.setProperty("top", `${top}px`);
      top += row.offsetHeight;
    }
  }

  // ---- what the user does ----
  function change(more, focus) {
    state = { ...state, ...more };
    writeAddress();
    show();
    if (focus) focus();
  }
  function filter(more, focus) {
    limits = new Map();
    change({ open: new Set(), case: "", ...more }, focus);
  }
  function follow() {
    readAddress();
    limits = new Map();
    hits = found();
    const wanted = byName.get(state.case);
    if (wanted) {
      if (!hits.includes(wanted)) Object.assign(state, { class: new Set(), group: "", machine: "", q: "", show: "all" });
      hits = found();
      if (!isOpen(wanted.suite)) toggle(wanted.suite);
      const place = hits.filter((each) => each.suite === wanted.suite).indexOf(wanted);
      limits.set(wanted.suite, STEP * (Math.floor(place / STEP) + 1));
    }
    showFilters();
    show();
    if (wanted) grid.querySelector(`[data-open="${wanted.index}"]`).scrollIntoView({ block: "center" });
  }
  function toggle(suite) {
    state.open = new Set(state.open);
    if (!state.open.delete(suite)) state.open.add(suite);
  }
  shared.watchSearch(search, (q) => filter({ q }));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => {
    if (event.target === search) return;
    const kinds = new Set([...boxes].filter(([, box]) => box.checked).map(([kind]) => kind));
    filter({ class: kinds, machine: selects.machine.value, group: selects.group.value, show: selects.show.value });
  });
  byId("clear").addEventListener("click", () => {
    filter({ class: new Set(), machine: "", group: "", show: "", q: "" }, () => search.focus());
    showFilters();
  });
  byId("unfold").addEventListener("click", () => {
    const all = [...new Set(hits.map((each) => each.suite))];
    const fold = all.every(isOpen), few = hits.length <= OPEN_AT_MOST;
    change({ open: fold === few ? new Set(all) : new Set() });
  });
  document.addEventListener("click", (event) => {
    const suite = event.target.closest("[data-suite]");
    if (suite) {
      toggle(Number(suite.dataset.suite));
      return change({}, () => grid.querySelector(`[data-suite="${suite.dataset.suite}"]`)?.focus({ preventScroll: true }));
    }
    const open = event.target.closest("[data-open]");
    if (open) {
      const { name } = cases[open.dataset.open];
      return change({ case: state.case === name ? "" : name }, () => grid.querySelector(`[data-open="${open.dataset.open}"]`)?.focus({ preventScroll: true }));
    }
    const more = event.target.closest("[data-more]");
    if (more) {
      const key = Number(more.dataset.more), before = limits.get(key) || STEP;
      limits.set(key, before + STEP);
      const next = hits.filter((each) => each.suite === key)[before];
      show();
      return grid.querySelector(`[data-open="${next.index}"]`)?.focus({ preventScroll: true });
    }
    const link = event.target.closest('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    const target = link.getAttribute("href");
    const section = byId(target.includes("=") ? "cases" : target.slice(1));
    if (target.includes("=")) {
      history.pushState(null, "", target);
      follow();
    }
    section.scrollIntoView();
    section.focus({ preventScroll: true });
  });
  document.addEventListener("keydown", (event) => {
    const where = event.target;
    if (["ArrowDown", "ArrowUp"].includes(event.key) && where.matches?.(".row")) {
      const rows = [...grid.querySelectorAll(".row")];
      const next = rows[rows.indexOf(where) + (event.key === "ArrowDown" ? 1 : -1)];
      if (next) {
        event.preventDefault();
        next.focus();
      }
    }
  });
  addEventListener("hashchange", follow);
  addEventListener("popstate", follow);
  addEventListener("resize", () => stick(grid.querySelector("table") || make("table")));

  makeFilters();
  byId("browser").hidden = false;
  follow();
  document.documentElement.dataset.drawn = "";
})();
