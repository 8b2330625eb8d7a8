// All runs: a table, and the curves of those that are chosen, over each other.

import { follow, get } from "../api.js";
import { chartCard, LINES, sparkline } from "../charts.js";
import { CHARTS } from "../curves.js";
import { h, replace, textOf } from "../dom.js";
import { ago, number, percent, whole } from "../format.js";
import { noteQuery, runLink, setQuery } from "../router.js";
import { badge, guardBadge, table } from "./parts.js";

const MOST = 8;

export async function showRuns(view, page) {
  const chosen = page.query.show === undefined ? null : page.query.show.split(",").filter(Boolean).map(decodeURIComponent);
  const curves = h("div.charts"), list = h("div"), broken = h("div"), filter = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs", value: page.query.q ?? "" });
  let cards = null, runs = [], title = "";
  const picked = () => (chosen ?? runs.slice(0, 4).map((one) => one.run)).filter((name) => runs.some((one) => one.run === name)).slice(0, MOST);
  const toggle = (name) => { const now = picked(); setQuery({ show: (now.includes(name) ? now.filter((one) => one !== name) : [...now, name]).map(encodeURIComponent).join(",") }, true); };

  async function drawCurves() {
    const names = picked();
    const data = await Promise.all(names.map((run) => get("run", { run }).catch(() => null)));
    const rewards = names.length < 2 ? "Reward" : data.some((one) => one?.evaluations.length) ? "Held-out reward, and training reward (thin)" : "Training reward";
    const lines = CHARTS.map((chart) => names.flatMap((name, at) => (data[at] ? overlay(chart, data[at], name, LINES[at], names.length) : [])));
    if (cards && title === rewards) cards.forEach((card, at) => card.update(lines[at]));
    else {
      title = rewards;
      cards = CHARTS.map((chart, at) => chartCard({ ...chart, stacked: false, sync: "runs", name: chart.title, title: chart.stacked ? "Seconds of a rollout" : chart.first ? title : chart.title }, lines[at]));
      replace(curves, cards);
    }
  }

  function drawList() {
    const wanted = filter.value.toLowerCase(), now = picked();
    const kept = runs.filter((one) => JSON.stringify([one.run, one.info]).toLowerCase().includes(wanted));
    const columns = [
      ["", (one) => h("label.dot", { title: "show its curves" }, h("input", { type: "checkbox", checked: now.includes(one.run), onchange: () => toggle(one.run), "aria-label": `curves of ${one.run}` }), h("i", { style: { "--hue": now.includes(one.run) ? `var(--${LINES[now.indexOf(one.run)]})` : "transparent" } }))],
      ["run", (one) => h("a.name", { href: runLink(one.run) }, one.run)],
      ["state", (one) => [badge(one.state), " ", guardBadge(one.guards)]],
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

/** The lines of a run among `many`: the first of a chart in the run's colour, and of rewards also the held-out ones. */
function overlay(chart, data, name, hue, many) {
  const [first, second] = chart.stacked ? [total(chart.lines(data))] : chart.lines(data), own = { colour: hue, label: name, dash: undefined };
  if (!first) return [];
  if (!chart.first) return [{ ...first, ...own }];
  if (many === 1) return [first, second];
  return second.x.length ? [{ ...first, ...own, faint: true, low: undefined, unnamed: true }, { ...second, ...own }] : [{ ...first, ...own, label: `${name}, training` }];
}

const total = (lines) => ({ ...lines[0], y: lines[0].y.map((_, at) => lines.reduce((sum, line) => sum + (line.y[at] ?? 0), 0)) });
