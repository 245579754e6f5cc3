// The script of a live page: it takes what is new from the server that the page came from, and asks it to act.
(() => {
  const live = report.said.live, link = document.getElementById("link"), told = document.getElementById("told");
  if (!live) return; // the run had ended
  const HIDDEN_MS = 5000, LOST_MS = 3000, GIVE_UP_MS = 5000; // a hidden page leaves its connection to others
  let source = null, at = live.from, ended = false, lost = 0, hidden = 0;
  const later = new Map(); // sections that wait until nobody marks a text in them

  function show(text, on) { link.textContent = text; link.className = on ? "note on" : "note"; }

  function open() {
    if (source || ended) return;
    source = new EventSource(`${live.path}/stream?from=${encodeURIComponent(at)}`);
    source.onopen = () => { clearTimeout(lost); lost = 0; show("live", true); };
    source.onmessage = (event) => { at = event.lastEventId; taken(JSON.parse(event.data)); };
    source.onerror = () => {
      if (!lost && !ended) lost = setTimeout(() => show("not connected", false), LOST_MS);
      if (source?.readyState === EventSource.CLOSED) { close(); setTimeout(open, GIVE_UP_MS); }
    };
  }
  function close() { source?.close(); source = null; }
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.hidden) hidden = setTimeout(() => { close(); show("not connected", false); }, HIDDEN_MS);
    else open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);

  // --- what is new ----------------------------------------------------------------------------------------------------

  function taken(news) {
    if (news.data) {
      for (const {plot} of report.plots.values()) plot.destroy();
      report.plots.clear();
      later.clear();
      report.said.charts = news.data.charts;
      for (const each of Object.values(report.said.charts)) report.resolved(each, news.data.arrays);
    }
    const before = report.said.seconds;
    report.said.seconds = news.seconds || news.data?.seconds || before;
    for (const [name, html] of [...later, ...Object.entries(news.sections || {})]) section(name, html, news.data);
    for (const [id, said] of Object.entries(news.charts || {})) chart(id, said);
    for (const [id, said] of Object.entries(news.tails || {})) tail(id, said);
    for (const said of news.logs || []) lines(said);
    if (report.said.seconds !== before) report.longer();
    if (news.end) { ended = true; close(); show("ended", false); document.getElementById("acts")?.remove(); }
    document.documentElement.dataset.taken = at;
  }

  function section(name, html, whole) {
    const old = document.getElementById(name), chosen = getSelection();
    if (!whole && !chosen.isCollapsed && old.contains(chosen.anchorNode)) { later.set(name, html); return; }
    later.delete(name);
    const made = document.createElement("template");
    made.innerHTML = html || `<section id="${name}" hidden></section>`;
    const fresh = made.content.firstElementChild;
    as(old, fresh);
    for (const figure of fresh.querySelectorAll(".chart")) gone(figure.id);
    const controls = old.querySelector(".controls"), others = fresh.querySelector(".controls");
    if (controls && others && controls.querySelectorAll("*").length === others.querySelectorAll("*").length) others.replaceWith(controls); // with what is written in them
    const scrolled = bottoms(old);
    old.replaceWith(fresh);
    scroll(fresh, scrolled);
    const item = document.querySelector(`.links a[href="#${name}"]`);
    if (item) item.hidden = !html;
    if (name === "timeline") report.timeline();
    if (name === "metrics") report.controls();
    if (name === "logs") { report.kept.clear(); report.searched(); }
    for (const figure of fresh.querySelectorAll(".chart")) if (report.said.charts[figure.id]) report.seen.observe(figure);
  }

  function gone(id) { report.plots.get(id)?.plot.destroy(); report.plots.delete(id); }

  const folds = (of) => {
    const count = new Map();
    return [...of.querySelectorAll("details")].map((each) => {
      const title = each.querySelector("summary").firstChild?.textContent || "", n = (count.get(title) || 0) + 1;
      count.set(title, n);
      return [`${title} ${n}`, each];
    });
  };
  function as(old, fresh) { // folds stay as the reader has them
    const open = new Map(folds(old).map(([key, each]) => [key, each.open]));
    for (const [key, each] of folds(fresh)) if (open.has(key)) each.open = open.get(key);
  }
  const atEnd = (pre) => pre.scrollHeight - pre.scrollTop - pre.clientHeight < 8;
  const folded = (each) => each.closest("details:not([open])") !== null; // what is folded is not laid out to be asked
  const bottoms = (of) => [...of.querySelectorAll("pre, .scroll")].map((each) => (folded(each) ? [0, false] : [each.scrollTop, each.scrollTop > 0 && atEnd(each)]));
  const scroll = (of, was) => [...of.querySelectorAll("pre, .scroll")].forEach((each, n) => { if (was[n]?.[0]) each.scrollTop = was[n][1] ? each.scrollHeight : was[n][0]; });

  function chart(id, said) {
    report.said.charts[id] = report.resolved(said.chart, said.arrays);
    const old = document.getElementById(id), drawn = report.plots.has(id);
    if (!old) return;
    const made = document.createElement("template");
    made.innerHTML = said.figure;
    const fresh = made.content.firstElementChild;
    as(old, fresh);
    fresh.hidden = old.hidden;
    report.seen.unobserve(old);
    old.replaceWith(fresh);
    if (drawn) report.drawn(id);
    else report.seen.observe(fresh);
  }

  function tail(id, said) {
    const chart = report.said.charts[id], figure = document.getElementById(id);
    if (!chart || !figure) return;
    for (const each of said.curves) {
      const curve = chart.curves[each.i];
      for (const name of ["t", "x", "y"]) if (each[name]) curve[name] = curve[name].concat(each[name]);
    }
    figure.querySelector(":scope > .note").textContent = said.note;
    report.grown(id);
  }

  function lines(said) {
    const pre = [...document.querySelectorAll("pre.log")].find((each) => each.dataset.log === said.log);
    if (!pre) return;
    const made = document.createElement("template"), end = !folded(pre) && atEnd(pre);
    made.innerHTML = said.html;
    const kept = report.kept.get(pre);
    if (kept) { kept.nodes.push(...made.content.childNodes); report.searched(); return; }
    pre.append(made.content);
    const note = pre.parentNode.querySelector("summary .note"), count = pre.querySelectorAll("time").length;
    if (note && / lines?$/.test(note.textContent)) note.textContent = `${count.toLocaleString("en")} ${count === 1 ? "line" : "lines"}`;
    if (end) pre.scrollTop = pre.scrollHeight;
  }

  // --- what the reader wants ------------------------------------------------------------------------------------------

  let sure = 0;
  document.getElementById("acts")?.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.act === "stop" && !button.classList.contains("sure")) {
      button.classList.add("sure");
      button.textContent = "Stop it?";
      sure = setTimeout(() => { button.classList.remove("sure"); button.textContent = "Stop the run"; }, 4000);
      return;
    }
    clearTimeout(sure);
    button.disabled = true;
    told.textContent = button.dataset.act === "stop" ? "stopping" : "asking";
    try {
      const answer = await fetch(`${live.path}/${button.dataset.act}`, {method: "POST"});
      told.textContent = answer.ok ? (await answer.json()).said : `refused (${answer.status})`;
    } catch {
      told.textContent = "outrider ui does not answer";
    }
    button.classList.remove("sure");
    if (button.dataset.act === "stop") button.textContent = "Stop the run";
    button.disabled = false;
  });

  if (!document.hidden) open();
})();
