// Draws /stats. Everything that comes from outside is set as text, never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);
let key = sessionStorage.getItem("lamplighter-node-key") || "";

function element(name, attributes = {}, ...children) {
  const made = ["svg", "rect", "title"].includes(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return made;
}

const number = (value, digits = 0) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${number(value, unit ? 1 : 0)} ${units[unit]}`;
}

function tiles(stats) {
  const { speculation, tokens, requests } = stats;
  const ended = Object.values(requests.by_ending).reduce((sum, count) => sum + count, 0);
  const share = tokens.prompt ? tokens.restored / tokens.prompt : null;
  const shown = [
    [number(speculation.tau, 2), "tau: tokens per full cycle"],
    [number(tokens.per_second, 1), "tokens/s while writing"],
    [number(tokens.prefilled_per_second, 0), "prompt tokens/s"],
    [share === null ? "–" : `${number(100 * share, 1)} %`, "of prompt tokens restored"],
    [number(speculation.drafted ? speculation.accepted / speculation.drafted * 100 : null, 1) + " %", "of drafts accepted"],
    [number(speculation.cycles), `cycles, ${number(speculation.cut_by_budget + speculation.cut_by_stop)} of them cut`],
    [number(tokens.completion), "tokens written"],
    [number(ended), "requests"],
  ];
  at("tiles").replaceChildren(...shown.map(([value, name]) => element("div", { class: "tile" }, element("b", {}, value), element("span", {}, name))));
}

function positions({ offered_at, accepted_at }) {
  if (!offered_at.length) {
    at("positions").replaceChildren(element("p", { class: "note" }, "Nothing was drafted yet."));
    return;
  }
  const bars = offered_at.map((offered, place) => {
    const share = offered ? (accepted_at[place] || 0) / offered : 0;
    const bar = element("svg", { viewBox: "0 0 10 100", preserveAspectRatio: "none", role: "img", "aria-label": `position ${place + 1}: ${Math.round(100 * share)} %` },
      element("rect", { x: 0, width: 10, y: 100 - 100 * share, height: 100 * share, rx: 0.5 }));
    return element("div", { title: `${accepted_at[place] || 0} of ${offered} cycles` }, `${Math.round(100 * share)}%`, bar, place + 1);
  });
  at("positions").replaceChildren(element("div", { class: "bars" }, ...bars));
}

function timeline(past, up) {
  if (!past.length) {
    at("timeline").replaceChildren(element("p", { class: "note" }, "No request has ended yet."));
    return;
  }
  const shown = past.slice(-24).reverse();
  const first = Math.min(...shown.map((request) => request.arrived_s));
  const span = Math.max(0.001, Math.max(...shown.map((request) => request.ended_s)) - first);
  const head = element("tr", {}, ...["ended", "", "prompt", "restored", "written", "tokens/s", "tau", "ending"].map((name) => element("th", {}, name)));
  const rows = shown.map((request) => {
    const x = (seconds) => (1000 * (seconds - first)) / span;
    const part = (name, from, to) => element("rect", { class: name, x: x(from), width: Math.max(to > from ? 1.5 : 0, x(to) - x(from)), y: 1, height: 14 });
    const wrote = request.first_token_s === null ? request.ended_s : request.first_token_s;
    const picture = element("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img" },
      element("title", {}, `waited ${number(request.began_s - request.arrived_s, 2)} s, read ${number(wrote - request.began_s, 2)} s, wrote ${number(request.ended_s - wrote, 2)} s`),
      part("waited", request.arrived_s, request.began_s), part("read", request.began_s, wrote), part("wrote", wrote, request.ended_s));
    const cells = [`${number(up - request.ended_s, 0)} s ago`, picture, number(request.prompt_tokens), number(request.prefix.restored_tokens),
      number(request.completion_tokens), number(request.tokens_per_second, 1), number(request.tau, 2), request.ending];
    return element("tr", {}, ...cells.map((cell, place) => element("td", { class: place === 1 ? "wide" : place === 7 && request.ending === "failed" ? "failed" : "" }, cell)));
  });
  at("timeline").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function prefix({ by_why, budget_bytes, held_bytes, checkpoints, given_up }) {
  const listed = (counts) => Object.entries(counts).map(([name, count]) => `${name.replaceAll("_", " ")} ${number(count)}`).join(", ") || "none";
  const rows = [
    ["held", `${bytes(held_bytes)} of ${bytes(budget_bytes)} in ${number(checkpoints)} checkpoints`],
    ["requests by how well it served them", listed(by_why)],
    ["checkpoints given up", listed(given_up)],
  ];
  at("prefix").replaceChildren(element("table", {}, element("tbody", {}, ...rows.map(([name, value]) => element("tr", {}, element("td", {}, name), element("td", { class: "wide" }, value))))));
}

function status(health, model) {
  at("name").textContent = model ? `${model.name} · ${model.drafter} · ${model.weights} on ${model.device}` : "Inference node";
  const busy = `${health.running ? "busy" : "idle"}, ${number(health.waiting)} waiting`;
  const loading = health.status === "loading" ? ` ${Math.round(100 * health.progress)} %` : "";
  at("status").textContent = health.ready ? `ready, ${busy}` : `${health.status}${loading}${health.why ? `: ${health.why}` : ""}`;
  at("status").className = health.ready ? "ok" : health.status === "loading" ? "" : "bad";
}

async function refresh() {
  try {
    const answer = await fetch("/stats", { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
    at("ask").hidden = answer.status !== 401;
    at("figures").hidden = !answer.ok;
    if (answer.status === 401) {
      at("status").textContent = "locked";
    } else if (answer.ok) {
      const stats = await answer.json();
      status(stats.health, stats.model);
      tiles(stats);
      positions(stats.speculation);
      timeline(stats.last_requests, stats.up_s);
      prefix(stats.prefix);
    }
  } catch {
    at("status").textContent = "the node does not answer";
    at("status").className = "bad";
  }
  setTimeout(refresh, 2000);
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value;
  sessionStorage.setItem("lamplighter-node-key", key);
  refresh();
});
refresh();
