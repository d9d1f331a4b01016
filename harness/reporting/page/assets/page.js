"use strict";
(() => {
  const { data, put, make, counted, byId, option, wellFormed, colour, axis, plot } = shared;
  const PAGE = 50;
  const red = new Set(data.red);
  const passed = data.outcomes.indexOf("passed");
  const NONE = "no device";

  function took(seconds) {
    if (!seconds) return "0 s";
    if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds >= 0.0095 ? 0 : 1)} ms`;
    if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds);
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  }

  const cases = data.cases.map(([file, rest, suite, outcome, time, message, attempts], index) => {
    const name = data.files[file] + rest;
    const devices = new Set();
    for (const attempt of attempts) for (const device of data.sets[attempt[5]]) devices.add(device);
    if (!devices.size) devices.add(NONE);
    return { index, name, suite, outcome, time, message, attempts, devices, text: `${name}\n${message}`.toLowerCase() };
  });
  const byName = new Map(cases.map((each) => [each.name, each]));
  const badge = (outcome) => make("span", `badge o-${data.outcomes[outcome]}`, data.outcomes[outcome]);

  // ---- the state of the table: in the address, so that it can be sent to others ----
  const KEYS = ["outcome", "suite", "device", "q", "sort", "page", "case"];
  let state = {};
  function readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    state = { outcome: new Set((given.get("outcome") || "").split(",").filter((each) => data.outcomes.includes(each))) };
    for (const key of ["suite", "device", "q", "sort", "case"]) state[key] = given.get(key) || "";
    state.page = Math.max(0, (parseInt(given.get("page"), 10) || 1) - 1);
  }
  function writeAddress() {
    shared.writeAddress(KEYS, { ...state, outcome: [...state.outcome].join(","), page: state.page ? String(state.page + 1) : "" });
  }

  // ---- filters ----
  const form = byId("filters"), search = byId("q"), suites = byId("suite"), devices = byId("device");
  const boxes = new Map();
  function makeFilters() {
    const perSuite = new Map(), perDevice = new Map(), perOutcome = new Map();
    const add = (map, key) => map.set(key, (map.get(key) || 0) + 1);
    for (const each of cases) {
      add(perSuite, data.suites[each.suite]);
      add(perOutcome, each.outcome);
      for (const device of each.devices) add(perDevice, device);
    }
    option(suites, "", "All suites");
    for (const name of [...perSuite.keys()].sort()) option(suites, name, `${name} (${perSuite.get(name)})`);
    option(devices, "", "All devices");
    for (const name of perDevice.keys()) {
      const known = data.names[name] ? `${data.names[name]} ` : "";
      option(devices, name, `${known}${name} (${perDevice.get(name)})`);
    }
    for (const outcome of [...perOutcome.keys()].sort((a, b) => b - a)) {
      const word = data.outcomes[outcome];
      const label = make("label", `chip o-${word}`);
      const box = make("input");
      box.type = "checkbox";
      box.value = word;
      boxes.set(word, box);
      label.append(box, `${word} ${perOutcome.get(outcome)}`);
      byId("outcomes").append(label);
    }
  }
  function showFilters() {
    search.value = state.q;
    for (const [word, box] of boxes) box.checked = state.outcome.has(word);
    for (const select of [suites, devices]) {
      select.value = state[select.id];
      if (select.selectedIndex < 0) select.selectedIndex = 0;
    }
  }
  // Words, and texts in double quotes, all of which must occur.
  const wordsOf = (text) => [...text.toLowerCase().matchAll(/"([^"]*)"?|(\S+)/g)].map((m) => m[1] ?? m[2]).filter(Boolean);
  function found() {
    const quoted = /^"(.*)"$/s.exec(state.q);
    const words = quoted ? [quoted[1].toLowerCase()] : wordsOf(state.q);
    const suite = data.suites.indexOf(state.suite);
    const hits = cases.filter((each) =>
      (!state.outcome.size || state.outcome.has(data.outcomes[each.outcome])) &&
      (!state.suite || each.suite === suite) &&
      (!state.device || each.devices.has(state.device)) &&
      words.every((word) => each.text.includes(word)));
    const orders = {
      name: (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0),
      time: (a, b) => b.time - a.time,
      outcome: (a, b) => b.outcome - a.outcome,
      "": (a, b) => red.has(b.outcome) - red.has(a.outcome),
    };
    return hits.sort(orders[state.sort] || orders[""]);
  }

  // ---- the table ----
  const rows = byId("rows");
  let hits = [];
  function show() {
    hits = found();
    const pages = Math.max(1, Math.ceil(hits.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const first = state.page * PAGE;
    const part = hits.slice(first, first + PAGE);
    rows.replaceChildren(...part.flatMap((each) => {
      const row = rowOf(each);
      return state.case === each.name ? [row, panelOf(each)] : [row];
    }));
    if (!part.length) {
      const cell = make("td", "", "No case matches. Clear a filter.");
      cell.colSpan = 4;
      rows.append(make("tr", "panel", cell));
    }
    const many = hits.length === cases.length ? counted(cases.length, "case") : `${hits.length.toLocaleString("en")} of ${counted(cases.length, "case")}`;
    if (byId("hits").textContent !== many) byId("hits").textContent = many;
    byId("where").textContent = hits.length ? `Rows ${first + 1} to ${first + part.length} of ${hits.length}` : "";
    byId("previous").disabled = state.page === 0;
    byId("next").disabled = state.page >= pages - 1;
    byId("clear").disabled = !(state.outcome.size || state.suite || state.device || state.q || state.sort || state.case);
    for (const button of document.querySelectorAll("[data-sort]")) {
      const own = state.sort === button.dataset.sort;
      const order = button.dataset.sort === "name" ? "ascending" : "descending";
      if (own) button.parentElement.setAttribute("aria-sort", order);
      else button.parentElement.removeAttribute("aria-sort");
    }
  }
  function rowOf(each) {
    const row = make("tr");
    const open = state.case === each.name;
    const outcome = make("td", "", badge(each.outcome));
    const button = put(make("button", "open-case name"), each.name);
    button.type = "button";
    button.dataset.open = each.index;
    button.setAttribute("aria-expanded", String(open));
    if (open) button.setAttribute("aria-controls", "panel");
    const name = make("th", "c-case", button);
    name.scope = "row";
    if (each.message) name.append(put(make("span", "said"), each.message.length > 200 ? `${each.message.slice(0, 200)}…` : each.message));
    const shown = [...each.devices];
    const device = put(make("td", "on name"), shown.slice(0, 3).join(", ") + (shown.length > 3 ? ", …" : ""));
    row.append(outcome, name, device, make("td", "", each.attempts.length ? took(each.time) : "–"));
    return row;
  }
  function panelOf(each) {
    const cell = make("td");
    cell.colSpan = 4;
    cell.id = "panel";
    const article = byId(`red-${each.index}`);
    if (article) {
      const copy = article.cloneNode(true);
      for (const child of [...copy.children].slice(1)) cell.append(child);
    } else {
      fillPanel(cell, each);
    }
    return make("tr", "panel", cell);
  }
  function fillPanel(cell, each) {
    if (each.message) cell.append(put(make("p", "message"), each.message));
    for (const line of data.second[each.index] || []) cell.append(put(make("p"), `Second device: ${line}`));
    const command = data.reproduce[each.index];
    if (command) {
      const line = make("div", "reproduce", put(make("code"), command));
      const button = make("button", "copy", "Copy");
      button.type = "button";
      button.dataset.case = each.index;
      button.append(make("span", "sr", " the command"));
      line.append(button);
      cell.append(line);
    }
    each.attempts.forEach((attempt, place) => cell.append(attemptOf(attempt, (data.more[each.index] || [])[place] || {}, each)));
    if (!each.attempts.length) cell.append(make("p", "quiet", "It has no attempt in the journal."));
  }
  function attemptOf(attempt, more, each) {
    const [outcome, start, duration, worker, executor, set, seed, number, flags] = attempt;
    const node = make("div", "attempt");
    const how = make("p", "how", make("strong", "", `Attempt ${number}`));
    how.append(`, ${flags & 1 ? "alone" : "after other cases"}: `, badge(outcome), " ");
    how.append(put(make("span", "quiet"), `after ${took(duration)} on ${data.sets[set].join(" ")} · begun at ${took(start)} · seed ${seed} · worker ${data.workers[worker] || "none"} · executor ${data.executors[executor] || "none"}`));
    node.append(how);
    if (more.message && more.message !== each.message) node.append(put(make("p", "message"), more.message));
    if (more.facts) {
      const list = make("ul", "plain quiet");
      for (const fact of more.facts) list.append(put(make("li"), fact));
      node.append(list);
    }
    for (const [title, body, cut] of more.texts || []) {
      const details = make("details", "", make("summary", "", title));
      if (cut) details.append(make("p", "cut", `${cut} characters are cut here. The journal has all of them.`));
      const pre = put(make("pre"), body);
      pre.tabIndex = 0;
      details.append(pre);
      node.append(details);
    }
    return node;
  }

  // ---- what the user does ----
  function change(more, focus) {
    state = { ...state, page: 0, ...more };
    writeAddress();
    show();
    if (focus) focus();
  }
  function openCase(name) {
    change({ case: state.case === name ? "" : name, page: state.page }, () => {
      const index = byName.get(name)?.index;
      rows.querySelector(`[data-open="${index}"]`)?.focus();
    });
  }
  function follow() {
    readAddress();
    const wanted = byName.get(state.case);
    if (wanted) {
      let place = found().indexOf(wanted);
      if (place < 0) {
        Object.assign(state, { outcome: new Set(), suite: "", device: "", q: "" });
        place = found().indexOf(wanted);
      }
      state.page = Math.floor(place / PAGE);
    }
    showFilters();
    show();
    if (wanted) {
      const button = rows.querySelector(`[data-open="${wanted.index}"]`);
      button.scrollIntoView({ block: "center" });
      button.focus({ preventScroll: true });
    }
  }
  async function copyText(button, text) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // A page opened from a file or over plain HTTP may have no clipboard: the old way still works there.
      const area = make("textarea", "sr");
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    const before = [...button.childNodes];
    button.replaceChildren(done ? "Copied" : "Not copied");
    setTimeout(() => button.replaceChildren(...before), 1500);
  }
  shared.watchSearch(search, (q) => change({ q }));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => {
    if (event.target === search) return;
    const outcome = new Set([...boxes].filter(([, box]) => box.checked).map(([word]) => word));
    change({ outcome, suite: suites.value, device: devices.value });
  });
  byId("clear").addEventListener("click", () => {
    change({ outcome: new Set(), suite: "", device: "", q: "", sort: "", case: "" }, () => search.focus());
    showFilters();
  });
  const turn = (by) => change({ page: state.page + by }, () => byId("cases").scrollIntoView());
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  document.addEventListener("click", (event) => {
    const node = event.target;
    const copy = node.closest("button.copy");
    if (copy) {
      copyText(copy, data.reproduce[copy.dataset.case]);
      return;
    }
    const sort = node.closest("[data-sort]");
    if (sort) return change({ sort: state.sort === sort.dataset.sort ? "" : sort.dataset.sort });
    const open = node.closest("[data-open]");
    if (open) return openCase(cases[open.dataset.open].name);
    const zoom = node.closest("[data-zoom]");
    if (zoom) return zoomBy(zoom.dataset.zoom);
    const link = node.closest('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    const target = link.getAttribute("href");
    if (target.includes("=")) {
      history.pushState(null, "", target);
      follow();
      if (!state.case) {
        byId("cases").scrollIntoView();
        byId("cases").focus({ preventScroll: true });
      }
    } else {
      // The address keeps the filters.
      const section = byId(target.slice(1));
      section.scrollIntoView();
      section.focus({ preventScroll: true });
    }
  });
  addEventListener("hashchange", follow);
  addEventListener("popstate", follow);

  // ---- the timeline: a lane for each worker on each device ----
  const SVG = "http://www.w3.org/2000/svg";
  const HINT = "Point at a bar to see its case. Click it to open the case in the table.";
  const LANE = 22, HEAD = 24, LABELS = 26;
  const lanes = new Map();
  function laneOf(device, worker) {
    const key = `${device}\0${worker}`;
    if (!lanes.has(key)) lanes.set(key, { device, worker, bars: [], lives: [] });
    return lanes.get(key);
  }
  for (const each of cases)
    for (const attempt of each.attempts)
      for (const device of data.sets[attempt[5]]) laneOf(device, attempt[3]).bars.push([attempt[1], attempt[1] + attempt[2], attempt[0], each]);
  for (const life of data.lives)
    for (const device of data.sets[life[2]]) if (lanes.has(`${device}\0${life[1]}`)) laneOf(device, life[1]).lives.push(life);
  for (const lane of lanes.values()) lane.bars.sort((a, b) => a[0] - b[0]);
  const deviceOrder = Object.keys(data.names);
  const drawn = [...lanes.values()].sort((a, b) =>
    deviceOrder.indexOf(a.device) - deviceOrder.indexOf(b.device) || data.workers[a.worker].localeCompare(data.workers[b.worker], "en", { numeric: true }));
  const span = Math.max(data.span, 0.001);
  let view = [0, span];
  function draw(tag, attributes, parent) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    parent.append(node);
    return node;
  }
  const toneOf = (outcome) => (red.has(outcome) ? "l-bad" : outcome === passed ? "l-good" : "l-odd");
  const RANK = { "l-good": 0, "l-odd": 1, "l-bad": 2 };
  function drawLanes() {
    const host = byId("lanes-plot");
    const width = Math.max(200, host.clientWidth - 2);
    const groups = new Set(drawn.map((lane) => lane.device));
    const height = HEAD + groups.size * LABELS + drawn.length * LANE + 6;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", "What ran where. The table below has the use of each device.");
    const [from, to] = view;
    const left = 4, room = width - 8;
    const x = (at) => left + ((Math.min(Math.max(at, from), to) - from) / (to - from)) * room;
    const step = niceStep((to - from) / Math.max(2, Math.floor(width / 110)));
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      draw("line", { class: "l-line", x1: x(at), x2: x(at), y1: HEAD - 6, y2: height }, svg);
      const near = x(at) > width - 60;
      draw("text", { class: "tick", x: near ? x(at) - 3 : x(at) + 3, y: 14, "text-anchor": near ? "end" : "start" }, svg).textContent = at ? tickText(at, step) : "0";
    }
    let y = HEAD, device = null;
    for (const lane of drawn) {
      if (lane.device !== device) {
        device = lane.device;
        const label = draw("text", { x: left, y: y + 18 }, svg);
        const known = data.names[device] ? `${data.names[device]} · ` : "";
        put(label, `${known}${device}`);
        label.textContent = label.textContent;
        y += LABELS;
        for (const [of, at, state, text] of data.marks) {
          if (of !== device || at < from || at > to) continue;
          const mark = draw("path", { class: "l-bad", d: `M${x(at) - 6} ${y - 12} h12 l-6 10 z` }, svg);
          draw("title", {}, mark).textContent = `${state}: ${text}`;
        }
      }
      lane.y = y;
      for (const [, , , start, end, , , search] of lane.lives) {
        if (end < from || start > to) continue;
        draw("rect", { class: search ? "l-search" : "l-life", x: x(start), y: y + 8, width: Math.max(1, x(end) - x(start)), height: 4 }, svg);
      }
      drawBars(svg, lane, x, from, to, y);
      for (const [, , , start, , restart] of lane.lives) {
        if (restart && start >= from && start <= to) draw("rect", { class: "l-restart", x: x(start) - 1, y: y, width: 2, height: LANE - 2 }, svg);
      }
      y += LANE;
    }
    data.parts.slice(1).filter((at) => at >= from && at <= to).forEach((at) => {
      draw("line", { class: "l-part", x1: x(at), x2: x(at), y1: 0, y2: height }, svg);
      draw("text", { class: "tick", x: x(at) + 3, y: HEAD + 2 }, svg).textContent = "resumed";
    });
    const point = (event) => {
      const box = svg.getBoundingClientRect();
      const at = from + ((((event.clientX - box.left) / box.width) * width - left) / room) * (to - from);
      return [at, ((event.clientY - box.top) / box.height) * height, ((to - from) / room) * 3];
    };
    svg.addEventListener("pointermove", (event) => tell(...point(event)));
    svg.addEventListener("click", (event) => {
      const bar = barAt(...point(event));
      if (bar) {
        history.pushState(null, "", `#case=${encodeURIComponent(wellFormed(bar[3].name))}`);
        follow();
      }
    });
    host.replaceChildren(svg);
    byId("lanes-where").textContent = `${took(from)} to ${took(to)} of ${took(span)}`;
  }
  function drawBars(svg, lane, x, from, to, y) {
    // A column of one pixel has the tone of the worst attempt in it, so that no red case is too short to be seen.
    const tones = [];
    for (const [start, stop, outcome] of lane.bars) {
      if (stop < from || start > to) continue;
      const tone = toneOf(outcome), last = Math.max(Math.floor(x(start)) + 1, Math.round(x(stop)));
      for (let column = Math.floor(x(start)); column < last; column++) {
        if (tones[column] === undefined || RANK[tone] > RANK[tones[column]]) tones[column] = tone;
      }
    }
    for (let begin = 0, end; begin < tones.length; begin = end) {
      for (end = begin + 1; end < tones.length && tones[end] === tones[begin]; end++);
      if (tones[begin]) draw("rect", { class: tones[begin], x: begin, y: y + 2, width: end - begin, height: LANE - 6 }, svg);
    }
  }
  function niceStep(rough) {
    return [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400].find((each) => each >= rough) || 86400 * Math.ceil(rough / 86400);
  }
  function tickText(at, step) {
    if (step < 1) return `${at.toFixed(2)} s`;
    if (at < 60) return `${at} s`;
    if (step >= 3600) return `${Math.round(at / 3600)} h`;
    return at % 60 ? `${Math.floor(at / 60)}:${String(at % 60).padStart(2, "0")} min` : `${at / 60} min`;
  }
  function barAt(at, height, near) {
    const lane = drawn.find((each) => height >= each.y && height < each.y + LANE);
    if (!lane) return null;
    let best = null;
    for (const bar of lane.bars) {
      if (bar[0] > at + near) break;
      if (bar[1] < at - near) continue;
      if (!best || red.has(bar[2]) >= red.has(best[2])) best = bar;
    }
    return best;
  }
  function tell(at, height, near) {
    const told = byId("lanes-told");
    const bar = barAt(at, height, near);
    const text = bar ? `${took(bar[0])}, for ${took(bar[1] - bar[0])}: ${data.outcomes[bar[2]]} ${bar[3].name}` : HINT;
    if (told.dataset.text === text) return;
    told.dataset.text = text;
    told.replaceChildren();
    put(told, text);
  }
  function zoomBy(how) {
    const [from, to] = view, length = to - from, middle = (from + to) / 2;
    const half = { in: length / 4, out: length }[how];
    const shift = { left: -length / 2, right: length / 2 }[how];
    if (how === "all") view = [0, span];
    else if (half) view = [middle - half, middle + half];
    else view = [from + shift, to + shift];
    const size = Math.min(Math.max(view[1] - view[0], 0.02), span);
    const start = Math.min(Math.max(view[0], 0), span - size);
    view = [start, start + size];
    drawLanes();
  }

  // ---- plots ----
  function drawHistogram() {
    if (!data.bins.length) return;
    const host = document.querySelector("#histogram .plot");
    byId("histogram").hidden = false;
    const label = (low) => (low >= 1 ? `${low} s` : `${low * 1000} ms`);
    const names = data.bins.map(([low, high]) => (high < 0 ? `≥ ${label(low)}` : low === 0 ? `< ${label(high)}` : `${label(low)}+`));
    plot(host, () => ({
      height: 200,
      scales: { x: { time: false, range: [-0.6, names.length - 0.4] }, y: { range: (u, min, max) => [0, max * 1.08 || 1] } },
      axes: [
        { ...axis(), grid: { show: false }, splits: () => names.map((_, place) => place), values: (u, splits) => splits.map((place, n) => (host.clientWidth < 55 * names.length && n % 2 ? "" : names[place])) },
        { ...axis(), size: 60 },
      ],
      series: [{}, { stroke: colour("--focus"), fill: colour("--focus"), paths: uPlot.paths.bars({ size: [0.8, 80] }), points: { show: false } }],
    }), [names.map((_, place) => place), data.bins.map((bin) => bin[2])]);
  }
  function bytes(amount) {
    for (const [size, word] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
      if (Math.abs(amount) >= size) return `${+(amount / size).toFixed(2)} ${word}`;
    }
    return `${amount} B`;
  }
  function drawSeries(details) {
    const host = details.querySelector(".plot");
    if (!details.open || host.dataset.drawn) return;
    host.dataset.drawn = "yes";
    const each = data.plots[details.dataset.plot];
    const values = each.unit === "bytes" ? (u, splits) => splits.map(bytes) : (u, splits) => splits.map((value) => value.toLocaleString("en"));
    plot(host, () => ({
      height: 200,
      scales: { x: { time: false } },
      axes: [{ ...axis(), label: "repetition", labelSize: 20 }, { ...axis(), size: 84, values }],
      series: [{}, { label: each.label, stroke: colour("--focus"), width: 2, points: { show: each.x.length < 100, size: 5 } }],
    }), [each.x, each.y]);
  }

  // ---- the start ----
  for (const id of ["browser", "lanes"]) byId(id).hidden = false;
  for (const button of document.querySelectorAll("button.copy[hidden]")) button.hidden = false;
  makeFilters();
  readAddress();
  if (state.case) follow();
  else {
    showFilters();
    show();
    if (location.hash.includes("=")) byId("cases").scrollIntoView();
  }
  document.documentElement.dataset.ready = "yes";
  // What is below the fold waits until the rest is shown.
  requestAnimationFrame(() => setTimeout(() => {
    if (drawn.length) {
      drawLanes();
      tell(-1, -1, 0);
    } else byId("lanes").hidden = true;
    drawHistogram();
    for (const details of document.querySelectorAll("[data-plot]")) {
      drawSeries(details);
      details.addEventListener("toggle", () => drawSeries(details));
    }
    document.documentElement.dataset.drawn = "yes";
  }));
  shared.repaint(() => {
    if (drawn.length) drawLanes();
  });
})();
