// All runs: a table, and the curves of those that are chosen, over each other.

import { follow, get } from "../api.js";
import { chartCard, LINES, sparkline } from "../charts.js";
import { CHARTS } from "../curves.js";
import { h, replace, textOf } from "../dom.js";
import { ago, number, percent, whole } from "../format.js";
import { noteQuery, runLink, setQuery } from "../router.js";
import { badge, table } from "./parts.js";

const MOST = 8;

export async function showRuns(view, page) {
  const chosen = page.query.show === undefined ? null : page.query.show.split(",").filter(Boolean).map(decodeURIComponent);
  const curves = h("div.charts"), list = h("div"), broken = h("div"), filter = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs", value: page.query.q ?? "" });
  let cards = null, runs = [];
  const picked = () => (chosen ?? runs.slice(0, 4).map((one) => one.run)).filter((name) => runs.some((one) => one.run === name)).slice(0, MOST);
  const toggle = (name) => { const now = picked(); setQuery({ show: (now.includes(name) ? now.filter((one) => one !== name) : [...now, name]).map(encodeURIComponent).join(",") }, true); };

  async function drawCurves() {
    const names = picked();
    const data = await Promise.all(names.map((run) => get("run", { run }).catch(() => null)));
    const lines = CHARTS.map((chart) => names.flatMap((name, at) => (data[at] ? overlay(chart, data[at], name, LINES[at], names.length) : [])));
    if (cards) cards.forEach((card, at) => card.update(lines[at]));
    else {
      cards = CHARTS.map((chart, at) => chartCard({ ...chart, stacked: false, sync: "runs", name: chart.title, title: chart.stacked ? "Seconds of a rollout" : chart.first && names.length > 1 ? "Held-out reward, and training reward (thin)" : chart.title }, lines[at]));
      replace(curves, cards);
    }
  }

  function drawList() {
    const wanted = filter.value.toLowerCase(), now = picked();
    const kept = runs.filter((one) => JSON.stringify([one.run, one.info]).toLowerCase().includes(wanted));
    const columns = [
      ["", (one) => h("label.dot", { title: "show its curves" }, h("input", { type: "checkbox", checked: now.includes(one.run), onchange: () => toggle(one.run), "aria-label": `curves of ${one.run}` }), h("i", { style: { "--hue": now.includes(one.run) ? `var(--${LINES[now.indexOf(one.run)]})` : "transparent" } }))],
      ["run", (one) => h("a.name", { href: runLink(one.run) }, one.run)],
      ["state", (one) => badge(one.state)],
      ["model", (one) => h("span.clip", null, textOf(one.info.model) || "–")],
      ["agent", (one) => h("span.clip", null, textOf(one.info.agent).split("/").slice(-2).join("/") || "–")],
      ["steps", (one) => `${whole(one.steps_done)}${one.info.steps ? ` / ${whole(one.info.steps)}` : ""}`, "num"],
      ["reward", (one) => sparkline(one.rewards, now.includes(one.run) ? LINES[now.indexOf(one.run)] : "muted")],
      ["held-out", (one) => (typeof one.summary.before === "number" || typeof one.summary.after === "number" ? `${number(one.summary.before, 2)} → ${number(one.summary.after, 2)}` : "–"), "num"],
      ["fidelity", (one) => percent(one.latest.fidelity), "num"],
      ["changed", (one) => ago(one.changed), "num"],
    ];
    replace(list, kept.length ? table(columns, kept.slice(0, 300), { class: "runs", rowLink: (one) => runLink(one.run) }) : h("p.quiet", null, runs.length ? "No run matches." : "There is no run here yet. This page finds new ones by itself."));
  }

  filter.addEventListener("input", () => { noteQuery({ q: filter.value }); drawList(); });
  replace(view, h("div.head", null, h("h1", null, "Runs"), h("span.grow"), filter), list, broken, curves);
  const following = follow(() => get("runs"), (answer) => {
    replace(broken, answer.runs.filter((one) => one.problem).map((one) => h("p.quiet", null, `${one.run} is left out: ${one.problem}`)));
    runs = answer.runs.filter((one) => !one.problem).sort(inOrder);
    drawList();
    drawCurves();
  });
  const clock = setInterval(drawList, 30_000);
  page.onEnd(() => { following.end(); clearInterval(clock); });
  await following.first;
}

/** Runs that run first, by name, so that none moves or changes its colour as it writes; then the latest. */
function inOrder(a, b) {
  const [first, second] = [a, b].map((one) => one.state === "running");
  return second - first || (first ? a.run.localeCompare(b.run) : b.changed - a.changed);
}

/** A run's first line of a chart, or on the first chart both, in one colour. */
function overlay(chart, data, name, hue, many) {
  const lines = chart.lines(data), chosen = chart.first && many > 1 && lines[1]?.x.length ? [{ ...lines[0], faint: true, low: undefined, unnamed: true }, lines[1]] : chart.stacked ? [total(lines)] : lines.slice(0, chart.first ? 2 : 1);
  return chosen.map((line, at) => ({ ...line, colour: chart.first && many === 1 ? LINES[at] : hue, label: chosen.length > 1 && many === 1 ? line.label : name, dash: undefined }));
}

const total = (lines) => ({ ...lines[0], y: lines[0].y.map((_, at) => lines.reduce((sum, line) => sum + (line.y[at] ?? 0), 0)) });
