"use strict";
// Charts above the tables that hold their values, and a filter above each list.
(() => {
  const { make, counted, byId, colour, axis, plot } = shared;
  const TONES = { bad: "--bar-bad", odd: "--bar-odd", good: "--bar-good", none: "--bar-life" };
  // Room for the numbers at the left and half a date at the right, the same in all charts of a figure; and for a date.
  const LEFT = 64, RIGHT = 36, NIGHT = 90;
  const textOf = (node) => node.textContent.trim();
  const numberOf = (cell) => (textOf(cell) ? Number(textOf(cell)) : null);
  const bars = (name, of) => ({ stroke: colour(name), fill: colour(name), width: 0, paths: uPlot.paths.bars({ size: [0.85, 24] }), points: { show: false }, ...of });

  function drawFigure(figure, number) {
    const heads = [...figure.querySelectorAll("thead th")];
    const rows = [...figure.querySelectorAll("tbody tr")];
    const nights = rows.map((row) => textOf(row.cells[0]));
    const places = rows.map((_, place) => place);
    const told = make("p", "told quiet");
    const hint = () => told.replaceChildren("Point at a night to see its values.");
    const tell = (place) => {
      if (place == null) return hint();
      const texts = heads.slice(1).map((head, n) => [textOf(rows[place].cells[n + 1]), textOf(head)]).filter(([text]) => text);
      told.replaceChildren(`${nights[place]}: ${texts.map(([text, head]) => `${head.toLowerCase()} ${text}`).join(", ")}`);
    };
    const common = (width, height, dates) => ({
      height,
      padding: [4, RIGHT, 0, 0],
      cursor: { drag: { x: false, y: false }, y: false, points: { show: false }, sync: { key: `figure ${number}` } },
      hooks: { setCursor: [(u) => tell(u.cursor.idx)] },
      xAxis: {
        ...axis(),
        show: dates,
        size: 32,
        grid: { show: false },
        splits: () => {
          const step = Math.max(1, Math.ceil(nights.length / Math.max(1, Math.floor((width - LEFT - RIGHT) / NIGHT))));
          return places.filter((place) => (nights.length - 1 - place) % step === 0);
        },
        values: (u, splits) => splits.map((place) => nights[place]),
      },
      xScale: { time: false, range: [-0.6, nights.length - 0.4] },
    });
    heads.forEach((head, column) => {
      const kind = head.dataset.draw;
      const cells = rows.map((row) => row.cells[column]);
      if (!kind || (kind === "line" && cells.filter((cell) => numberOf(cell) !== null).length < 2)) return;
      const host = make("div", "plot");
      host.setAttribute("role", "img");
      host.setAttribute("aria-label", `${figure.dataset.chart}: ${textOf(head)} by night. The table below has the values.`);
      const drawn = kind === "line" ? [make("p", "quiet label", textOf(head)), host] : [host];
      figure.querySelector("details").before(...drawn);
      const tones = kind === "strip" ? Object.keys(TONES) : [];
      const values = kind === "strip"
        ? tones.map((tone) => rows.map((row) => (row.dataset.tone === tone ? 1 : null)))
        : [cells.map(numberOf)];
      plot(host, () => {
        const { xAxis, xScale, ...options } = common(host.clientWidth, kind === "strip" ? 24 : 120, kind !== "strip");
        const top = kind === "strip" ? () => [0, 1] : (u, low, high) => [0, high * 1.08 || 1];
        const series = kind === "strip"
          ? tones.map((tone) => bars(TONES[tone], {}))
          : [kind === "bars" ? bars("--bar-bad", {}) : { stroke: colour("--link"), width: 2, spanGaps: true, points: { show: nights.length < 100, size: 5 } }];
        return {
          ...options,
          scales: { x: xScale, y: { range: top } },
          axes: [xAxis, { ...axis(), size: LEFT, space: 24, ...(kind === "strip" ? { values: (u, splits) => splits.map(() => ""), grid: { show: false }, ticks: { show: false } } : {}) }],
          series: [{}, ...series],
        };
      }, [places, ...values]);
    });
    figure.querySelector("details").before(told);
    hint();
  }

  document.querySelectorAll("figure[data-chart]").forEach(drawFigure);

  // The filter is made here, since it does nothing without a script. Its text is in the address.
  function addFilter(list) {
    const box = make("input"), label = make("label", "", "Filter "), said = make("span", "quiet");
    const rows = [...list.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
    Object.assign(box, { type: "search", maxLength: 300, value: new URLSearchParams(location.hash.slice(1)).get("filter") ?? "" });
    said.setAttribute("role", "status");
    label.append(box);
    const apply = (text) => {
      const words = text.toLowerCase().split(/\s+/).filter(Boolean);
      let hidden = 0;
      for (const [row, shown] of rows) hidden += row.hidden = !words.every((word) => shown.includes(word));
      said.textContent = hidden ? ` ${counted(hidden, "row")} left out.` : "";
      shared.writeAddress(["filter"], { filter: text });
    };
    shared.watchSearch(box, apply);
    byId("about").append(said);
    byId("about").before(label);
    apply(box.value);
  }
  if (byId("listed")) addFilter(byId("listed"));
  document.documentElement.dataset.drawn = "yes";
})();
