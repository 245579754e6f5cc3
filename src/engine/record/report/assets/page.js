// The script of a report: it draws the curves, and joins all time axes. It asks nobody for anything.
"use strict";
const report = (() => {
  const root = document.documentElement;
  const said = JSON.parse(document.getElementById("data").textContent);
  for (const chart of Object.values(said.charts)) resolved(chart, said.arrays);
  const phone = matchMedia("(max-width: 40rem)");
  const plots = new Map(); // by the id of their figure
  let span = null; // [from, to] in seconds, where somebody looks closer
  let axis = "step", scale = "linear";

  function unpacked(array) {
    if (Array.isArray(array)) return array;
    if (array.r) return Array.from({length: array.r[2]}, (_, n) => array.r[0] + n * array.r[1]);
    let sum = 0;
    return array.d.map((each) => (sum += each));
  }

  function resolved(chart, packed) { // its numbers are in packed arrays, several of which may be the same
    const array = (at) => (packed[at].is ??= unpacked(packed[at]));
    for (const curve of chart.curves) for (const name of ["x", "t", "y"]) if (curve[name] !== undefined) curve[name] = array(curve[name]);
    for (const name of Object.keys(chart.band || {})) chart.band[name] = array(chart.band[name]);
    return chart;
  }

  const make = (tag, kind, text) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // --- colours --------------------------------------------------------------------------------------------------------

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const COLOURS = 8;
  const DASHES = [[], [7, 3], [2, 3]];

  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null; // by the reader, else by the system
  function themed(name) {
    root.dataset.theme = name;
    button.textContent = name === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Show in ${name === "dark" ? "light" : "dark"} colours`);
    for (const id of [...plots.keys()]) drawn(id);
  }
  const usual = () => chosen || (dark.matches ? "dark" : "light");
  button.hidden = false;
  button.addEventListener("click", () => { chosen = root.dataset.theme === "dark" ? "light" : "dark"; themed(chosen); });
  dark.addEventListener("change", () => themed(usual()));
  addEventListener("beforeprint", () => themed("light"));
  addEventListener("afterprint", () => themed(usual()));

  // --- numbers --------------------------------------------------------------------------------------------------------

  function shown(value, unit) {
    if (value === null || value === undefined) return "";
    if (unit.startsWith("bytes")) {
      const names = ["B", "KiB", "MiB", "GiB", "TiB"];
      let place = 0;
      while (Math.abs(value) >= 1024 && place < 4) { value /= 1024; place++; }
      return `${+value.toPrecision(3)} ${names[place]}${unit.slice(5)}`;
    }
    const size = Math.abs(value);
    const text = size !== 0 && (size < 1e-4 || size >= 1e7) ? (+value.toPrecision(3)).toExponential() : String(+value.toPrecision(4));
    return unit ? `${text} ${unit}` : text;
  }

  function clock(s, exact) {
    if (s < 60) return `${+s.toFixed(exact ? 2 : 3)} s`;
    const two = (n) => String(Math.floor(n)).padStart(2, "0");
    return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(s / 60 % 60)}:${two(s % 60)}`;
  }
  const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];

  // --- curves ---------------------------------------------------------------------------------------------------------

  function table(chart, byTime) { // [xs, ys] of each curve
    return chart.curves.map((curve) => {
      const ys = curve.y;
      if (curve.x !== undefined && !byTime) return [curve.x, ys];
      const order = curve.t.map((t, place) => [t / 1000, ys[place]]).sort((a, b) => a[0] - b[0]);
      return [order.map((each) => each[0]), order.map((each) => each[1])];
    });
  }

  function lines(chart) { // what uPlot is told of each curve
    let number = -1;
    const numbers = new Map();
    return chart.curves.map((curve) => {
      if (!numbers.has(curve.label)) numbers.set(curve.label, ++number);
      const place = numbers.get(curve.label);
      const stroke = colour(`--c${place % COLOURS}`);
      return {
        label: curve.label, stroke, width: curve.faint ? 1 : 1.5, alpha: curve.faint ? 0.45 : 1, spanGaps: false, place,
        dash: DASHES[Math.floor(place / COLOURS) % 3], faint: curve.faint || 0, points: {show: () => Boolean(curve.dots) || curve.y.length === 1, size: 4},
        paths: curve.dots ? () => null : undefined,
      };
    });
  }

  function drawn(id) {
    const chart = said.charts[id], figure = document.getElementById(id), place = figure.querySelector(".plot");
    const byTime = !chart.step || (chart.kind === "m" && axis === "time" && !chart.band);
    const hiddenBefore = plots.get(id)?.off || new Set();
    plots.get(id)?.plot.destroy();
    place.replaceChildren();
    const series = lines(chart), pairs = table(chart, byTime);
    let bands = [];
    if (chart.band) {
      const b = chart.band;
      const names = [["high", "all"], ["low", ""], ["ninetieth", "80 %"], ["tenth", ""], ["middle", "middle"]];
      const ink = colour("--c0");
      names.reverse().forEach(([name, label]) => {
        pairs.unshift([b.xs, b[name]]);
        series.unshift({label, stroke: name === "middle" ? ink : "transparent", width: name === "middle" ? 2 : 0, points: {show: false}, band: name, spanGaps: true});
      });
      bands = [{series: [1, 2], fill: mixed(ink, 0.13)}, {series: [3, 4], fill: mixed(ink, 0.25)}];
      series.forEach((each) => { if (!each.band) { each.stroke = colour(`--c${(each.place + 1) % COLOURS}`); each.width = 1.25; } });
    }
    const data = joined(pairs);
    const soft = colour("--soft"), rule = colour("--faint");
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const log = chart.kind === "m" && scale === "log" && data.slice(1).some((ys) => ys.some((y) => y > 0));
    if (log) positive(data);
    const options = {
      width: Math.max(160, place.clientWidth), height: place.clientHeight, legend: {show: false}, padding: [8, byTime ? 26 : 16, 0, 0],
      cursor: {drag: {x: true, y: false}, focus: {prox: 24}, points: {size: 6}, ...(byTime ? {sync: {key: "time", setSeries: false}} : {})},
      focus: {alpha: 0.25},
      scales: {
        x: {time: false, ...(byTime ? {range: (u, low, high) => (u.zoomed ? [low, high] : span || [0, said.seconds])} : {})},
        y: log ? {distr: 3} : chart.unit === "%" ? {range: [0, 100]} : chart.kind === "s" ? {range: (u, low, high) => [0, (high || 1) * 1.1]} : {},
      },
      axes: [
        {stroke: soft, font, grid: {stroke: rule, width: 1}, ticks: {show: false}, size: 26, space: phone.matches ? 56 : 70, gap: 4,
          ...(byTime ? {incrs: STEPS, values: (u, at) => at.map((each) => clock(each))} : {values: (u, at) => at.map((each) => (Number.isInteger(each) ? each.toLocaleString("en") : ""))})},
        {stroke: soft, font, grid: {stroke: rule, width: 1}, ticks: {show: false}, gap: 6, space: 30,
          size: (u, values) => Math.max(34, 12 + 6.3 * Math.max(0, ...(values || []).map((each) => (each || "").length))),
          ...(chart.unit.startsWith("bytes") ? {incrs: Array.from({length: 45}, (_, n) => [2 ** n, 2.5 * 2 ** n, 5 * 2 ** n]).flat().sort((a, b) => a - b)} : {}),
          values: (u, at) => at.map((each) => (log && each !== null && Math.log10(each) % 1 ? "" : shown(each, chart.unit === "%" ? "%" : chart.unit)))},
      ],
      series: [{}, ...series], bands,
      hooks: {
        setCursor: [(u) => { values(id); if (byTime) hair(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null); }],
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          const range = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          u.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
          if (byTime) zoom(range);
        }],
        ready: [(u) => { if (byTime) u.over.addEventListener("dblclick", () => zoom(null)); }],
      },
    };
    if (byTime) options.cursor.drag.setScale = false;
    const plot = new uPlot(options, data, place);
    plots.set(id, {plot, byTime, log, off: hiddenBefore, chart});
    legend(id, series);
    for (const label of hiddenBefore) toggled(id, label, false);
  }

  const joined = (pairs) => uPlot.join(pairs, pairs.map(() => [0, 1])); // null: a gap; undefined: only others have a point there

  function positive(data) { // of a logarithm: what is not, is a gap
    for (const ys of data.slice(1)) ys.forEach((y, n) => { if (y !== undefined && y !== null && y <= 0) ys[n] = null; });
  }

  function grown(id) { // its curves have further points
    const held = plots.get(id);
    if (!held) return;
    const {plot, byTime, log, chart} = held, x = plot.scales.x, xs = plot.data[0];
    const data = joined(table(chart, byTime));
    if (log) positive(data);
    plot.setData(data, byTime || !xs.length || (x.min <= xs[0] && x.max >= xs.at(-1)));
  }

  function longer() { // the run has gone on
    for (const {plot, byTime} of plots.values()) if (byTime && !span) plot.setScale("x", {min: 0, max: said.seconds});
  }

  function mixed(hex, part) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},${part})`;
  }

  function legend(id, series) {
    const place = document.getElementById(id).querySelector(".legend");
    place.replaceChildren();
    const seen = new Set();
    const kinds = new Set(series.filter((each) => each.label && !each.band).map((each) => /^(rank|node) \d+$/.exec(each.label)?.[1]));
    const kind = series.some((each) => each.band) || kinds.size > 1 || kinds.has(undefined) || seriesCount(series) < 2 ? "" : [...kinds][0];
    if (kind) place.append(make("span", "of", kind)); // once for all
    series.forEach((each) => {
      if (!each.label || seen.has(each.label)) return;
      seen.add(each.label);
      const entry = make("button");
      entry.type = "button";
      entry.setAttribute("aria-pressed", "true");
      entry.dataset.label = each.label;
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("width", 16); svg.setAttribute("height", 8); svg.setAttribute("aria-hidden", "true");
      const stroke = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const wide = each.band && each.band !== "middle";
      stroke.setAttribute("d", "M0 4h16");
      stroke.setAttribute("stroke", wide ? mixed(colour("--c0"), each.band === "high" ? 0.2 : 0.4) : each.stroke);
      stroke.setAttribute("stroke-width", wide ? 8 : 2);
      if (each.dash?.length) stroke.setAttribute("stroke-dasharray", each.dash.join(" "));
      svg.append(stroke);
      const name = make("span");
      if (kind) name.append(make("span", "hidden", `${kind} `), each.label.slice(kind.length + 1));
      else name.textContent = each.label;
      entry.append(svg, name, make("b"));
      if (!wide) entry.addEventListener("click", () => toggled(id, each.label, entry.getAttribute("aria-pressed") === "false"));
      place.append(entry);
    });
  }

  const seriesCount = (series) => new Set(series.map((each) => each.label)).size;

  function toggled(id, label, on) {
    const {plot, off} = plots.get(id);
    off[on ? "delete" : "add"](label);
    plot.series.forEach((each, number) => { if (number && each.label === label) plot.setSeries(number, {show: on}); });
    for (const entry of document.getElementById(id).querySelectorAll(".legend button")) {
      if (entry.dataset.label === label) entry.setAttribute("aria-pressed", on);
    }
  }

  function values(id) { // at the cursor, beside the names
    const held = plots.get(id);
    if (!held) return;
    const {plot, chart} = held, at = plot.cursor.idx, found = new Map();
    if (at !== null && at !== undefined && plot.cursor.left >= 0) {
      plot.series.forEach((each, number) => {
        if (!number || each.faint) return;
        let place = at;
        const ys = plot.data[number];
        for (let far = 0; far < 400 && (ys[place] === undefined || ys[place] === null); far++) { // ranks log at other times
          if (ys[at - far] !== undefined && ys[at - far] !== null) { place = at - far; break; }
          if (ys[at + far] !== undefined && ys[at + far] !== null) { place = at + far; break; }
        }
        found.set(each.label, shown(ys[place], chart.unit));
      });
    }
    for (const entry of document.getElementById(id).querySelectorAll(".legend button")) {
      entry.querySelector("b").textContent = found.get(entry.dataset.label) || "";
    }
  }

  // --- the timeline, and its zoom ---------------------------------------------------------------------------------------

  let gantt = null;
  const reset = make("p", "zoomed");
  reset.append(make("button", "", "Show the whole time"));
  reset.firstChild.type = "button";
  reset.firstChild.addEventListener("click", () => zoom(null));

  function zoom(range) {
    const whole = said.seconds;
    if (range && range[1] - range[0] < whole / 5000) return;
    span = range && [Math.max(0, range[0]), Math.min(whole, range[1])];
    for (const {plot, byTime} of plots.values()) if (byTime) plot.setScale("x", {min: (span || [0, whole])[0], max: (span || [0, whole])[1]});
    placed();
  }

  function placed() { // every bar and mark where it is in the span that is shown
    if (!gantt) return;
    const [from, to] = span || [0, said.seconds], part = (at) => 100 * (at - from) / (to - from);
    for (const each of gantt.querySelectorAll("[data-a]")) {
      const a = +each.dataset.a, b = each.dataset.b === undefined ? null : +each.dataset.b;
      const left = part(a);
      each.setAttribute("x", `${left}%`);
      if (b !== null) each.setAttribute("width", `${Math.max(0, part(b) - left)}%`);
    }
    for (const each of gantt.querySelectorAll("svg.work")) {
      const box = each.getAttribute("viewBox").split(" ");
      each.setAttribute("viewBox", `${from} 0 ${to - from} ${box[3]}`);
    }
    const ticks = gantt.querySelector(".ticks");
    ticks.replaceChildren();
    const step = STEPS.find((each) => (to - from) / each <= Math.max(3, ticks.clientWidth / 90)) || 604800;
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const label = document.createElementNS("http://www.w3.org/2000/svg", "text");
      const left = part(at);
      label.setAttribute("x", `${left}%`);
      label.setAttribute("y", 15);
      label.setAttribute("text-anchor", left < 2 ? "start" : left > 96 ? "end" : "middle");
      label.textContent = clock(at);
      ticks.append(label);
    }
    for (const label of gantt.querySelectorAll(".bar text")) {
      label.setAttribute("visibility", label.getComputedTextLength() + 10 < label.parentNode.getBoundingClientRect().width ? "visible" : "hidden");
    }
    reset.hidden = !span;
  }

  let line = null;
  function hair(at) {
    if (!gantt) return;
    const [from, to] = span || [0, said.seconds];
    if (at === null || at < from || at > to) { if (line) line.hidden = true; return; }
    if (!line) { line = make("div", "hair"); line.append(make("b")); gantt.append(line); }
    const track = gantt.querySelector(".track"), box = track.getBoundingClientRect();
    line.hidden = false;
    line.style.left = `${track.offsetLeft || box.left - gantt.getBoundingClientRect().left}px`;
    line.style.left = `${box.left - gantt.getBoundingClientRect().left + (at - from) / (to - from) * box.width}px`;
    line.firstChild.textContent = clock(at, true);
  }

  let begun = null, pick = null;
  const timeAt = (event) => {
    const box = gantt.querySelector(".track").getBoundingClientRect(), [from, to] = span || [0, said.seconds];
    return from + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (to - from);
  };
  addEventListener("pointerup", (event) => {
    if (begun !== null && pick) zoom([begun, timeAt(event)].sort((a, b) => a - b));
    begun = null;
    pick?.remove();
    pick = null;
  });

  function timeline() { // the one that is in the page now
    gantt = document.querySelector(".gantt");
    line = null;
    if (!gantt) return;
    gantt.before(reset);
    gantt.addEventListener("pointerdown", (event) => { if (event.button === 0 && event.pointerType === "mouse" && event.target.closest(".track")) begun = timeAt(event); });
    gantt.addEventListener("pointermove", (event) => {
      if (!event.target.closest(".track") && begun === null) { hair(null); return; }
      const now = timeAt(event);
      hair(now);
      if (begun === null) return;
      if (!pick) { pick = make("div", "pick"); gantt.append(pick); }
      const box = gantt.querySelector(".track").getBoundingClientRect(), left = box.left - gantt.getBoundingClientRect().left;
      const [from, to] = span || [0, said.seconds], x = (each) => left + (each - from) / (to - from) * box.width;
      pick.style.left = `${Math.min(x(begun), x(now))}px`;
      pick.style.width = `${Math.abs(x(now) - x(begun))}px`;
    });
    gantt.addEventListener("pointerleave", () => hair(null));
    gantt.addEventListener("dblclick", () => zoom(null));
    placed();
  }

  // --- controls --------------------------------------------------------------------------------------------------------

  document.addEventListener("click", (event) => {
    const pressed = event.target.closest(".switch button");
    if (!pressed) return;
    if (pressed.dataset.axis) axis = pressed.dataset.axis;
    if (pressed.dataset.scale) scale = pressed.dataset.scale;
    controls();
    for (const [id, {chart}] of [...plots]) if (chart.kind === "m") drawn(id);
  });
  function controls() {
    for (const each of document.querySelectorAll(".switch button")) each.setAttribute("aria-pressed", [axis, scale].includes(each.dataset.axis || each.dataset.scale));
    const wanted = (document.querySelector(".filter")?.value || "").trim().toLowerCase();
    for (const figure of document.querySelectorAll("#metrics .chart")) figure.hidden = !figure.dataset.name.includes(wanted);
  }

  const kept = new Map(); // while something is searched: the lines of each log, and whether it was open
  let waiting = 0;
  document.addEventListener("input", (event) => {
    if (event.target.matches(".filter")) controls();
    if (event.target.id === "search") { clearTimeout(waiting); waiting = setTimeout(searched, 120); }
  }, true);
  function searched() {
    const wanted = (document.getElementById("search")?.value || "").trim().toLowerCase();
    if (!wanted && !kept.size) return;
    let found = 0, hits = 0;
    const folds = [...document.querySelectorAll(".log-fold")];
    for (const fold of folds) {
      const pre = fold.querySelector("pre");
      if (!kept.has(pre)) kept.set(pre, {nodes: [...pre.childNodes].map((node) => node.cloneNode(true)), open: fold.open});
      const log = kept.get(pre);
      pre.replaceChildren(...log.nodes.map((node) => node.cloneNode(true)));
      fold.hidden = false;
      if (!wanted) { fold.open = log.open; continue; }
      const count = marked(pre, wanted);
      hits += count;
      found += count > 0;
      fold.hidden = !count;
      fold.open = count > 0 && found <= 8;
    }
    if (!wanted) kept.clear();
    document.getElementById("found").textContent = wanted ? `${hits.toLocaleString("en")} ${hits === 1 ? "line" : "lines"} in ${found} of ${folds.length} logs` : "";
  }

  function marked(pre, wanted) { // leave the lines that have the words, and mark these; return how many lines
    let count = 0;
    for (const part of linesOf(pre)) {
      const text = part.filter((node) => node.nodeName !== "TIME").map((node) => node.textContent).join("");
      if (!text.toLowerCase().includes(wanted)) { for (const node of part) node.remove(); continue; }
      count++;
      for (const node of part) if (node.nodeName !== "TIME") markedIn(node, wanted);
    }
    return count;
  }

  function linesOf(pre) { // each line begins with its time
    const found = [];
    for (const node of pre.childNodes) {
      if (node.nodeName === "TIME" || !found.length) found.push([]);
      found.at(-1).push(node);
    }
    return found;
  }

  function markedIn(node, wanted) {
    const text = node.textContent, at = text.toLowerCase().indexOf(wanted);
    if (at < 0) return;
    const made = make("mark", "", text.slice(at, at + wanted.length));
    const parts = [document.createTextNode(text.slice(0, at)), made, document.createTextNode(text.slice(at + wanted.length))];
    if (node.nodeType === Node.TEXT_NODE) node.replaceWith(...parts);
    else node.replaceChildren(...parts);
  }

  // --- at the beginning, and when the window changes ---------------------------------------------------------------------

  const seen = new IntersectionObserver((entries) => { // a chart is drawn when it comes near
    for (const {target, isIntersecting} of entries) if (isIntersecting && !plots.has(target.id)) { seen.unobserve(target); drawn(target.id); }
  }, {rootMargin: "600px"});
  addEventListener("beforeprint", () => { for (const id of Object.keys(said.charts)) if (!plots.has(id)) drawn(id); });
  themed(usual());
  for (const id of Object.keys(said.charts)) seen.observe(document.getElementById(id));
  timeline();
  let width = innerWidth, later = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(later);
    later = setTimeout(() => { placed(); for (const id of [...plots.keys()]) drawn(id); }, 150);
  });

  const links = [...document.querySelectorAll(".links a")];
  const near = new IntersectionObserver(() => {
    const here = links.filter((each) => each.hash && document.querySelector(each.hash).getBoundingClientRect().top < innerHeight / 3).at(-1);
    for (const each of links) each.classList.toggle("here", each === here);
  }, {threshold: [0, 0.1, 0.5, 1], rootMargin: "-48px 0px -50% 0px"});
  for (const each of links) if (each.hash) near.observe(document.querySelector(each.hash));
  return {said, plots, seen, kept, make, unpacked, resolved, drawn, grown, longer, zoom, timeline, controls, searched};
})();
