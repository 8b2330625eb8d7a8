// One run at a glance: what it is, how it goes, its curves, and why rollouts failed.

import { follow, get } from "../api.js";
import { chartCard } from "../charts.js";
import { CHARTS, otherCharts } from "../curves.js";
import { h, replace, textOf } from "../dom.js";
import { ago, counted, moment, number, percent, seconds, when, whole } from "../format.js";
import { go, runLink } from "../router.js";
import { badge, table, tile } from "./parts.js";

export async function showOverview(view, page) {
  const { run } = page, head = h("div"), findings = h("div"), tiles = h("div.tiles"), curves = h("div.charts"), failures = h("div"), more = h("div");
  let cards = null, latest = null;
  replace(view, head, findings, tiles, curves, failures, more);
  const following = follow(() => get("run", { run }), (data) => {
    latest = data;
    drawHead(head, run, data);
    replace(findings, data.findings.map((one) => finding(run, one)));
    replace(tiles, tilesOf(data));
    if (cards) cards.forEach((card, at) => card.update(CHARTS[at].lines(data)));
    else {
      cards = CHARTS.map((chart) => chartCard({ ...chart, sync: "run" }, chart.lines(data), (step) => go(runLink(run, "step", "train", step))));
      replace(curves, cards);
    }
    drawFailures(failures, run, data);
    drawMore(more, data);
  });
  const clock = setInterval(() => latest && drawHead(head, run, latest), 30_000);
  page.onEnd(() => { following.end(); clearInterval(clock); });
  page.keys.next = runLink(run, "step");
  page.keys.up = "#/";
  await following.first;
}

const FACTS = [["agent", "agent"], ["model", "model"], ["data", "data"], ["eval_data", "held-out data"], ["rows_per_step", "rows a step"], ["n", "rollouts a row"], ["async_steps", "steps ahead"], ["learning_rate", "learning rate"], ["temperature", "temperature"], ["lora_rank", "LoRA rank"], ["seed", "seed"]];

/** The end of a path; the whole of it is the title. */
const short = (text) => (text.length > 40 && text.includes("/") ? `…/${text.split("/").slice(-2).join("/")}` : text);

function drawHead(head, run, data) {
  const facts = FACTS.filter(([name]) => data.info[name] !== undefined && data.info[name] !== null && !(data.info[name] === 0 && name !== "seed"));
  replace(head,
    h("div.head", null, h("h1", null, run), badge(data.state), h("span.quiet", { title: when(data.changed) }, `changed ${ago(data.changed)}`)),
    h("p.facts", null, facts.map(([name, title]) => h("span", { title: textOf(data.info[name]) }, h("small", null, title), " ", short(textOf(data.info[name]))))));
}

const sentence = (text) => `${text.slice(0, 1).toUpperCase()}${text.slice(1)}.`;

/** What a guard found, with a rollout that shows it. */
function finding(run, one) {
  const stopped = one.action === "stop", step = Math.max(0, Number(one.step) - 1);
  return h("section.card.finding", { class: stopped ? "stopped" : "" }, h("strong", null, stopped ? "Stopped by a guard: " : "Guard: ", textOf(one.guard).replaceAll("_", " ")), h("p", null, sentence(textOf(one.problem))),
    h("p.quiet", null, "from ", h("a", { href: runLink(run, "step", "train", step) }, `step ${step}`), one.example ? [" · ", h("a", { href: runLink(run, "rollout", textOf(one.example)) }, "an example: rollout ", textOf(one.example))] : null));
}

function tilesOf(data) {
  const first = data.evaluations[0], last = data.evaluations.findLast((one) => one.rollouts >= first.rollouts), newest = data.steps.at(-1);  // not one that is half done
  const step = data.steps.findLast((one) => one.step < data.steps_done) ?? newest, all = [...data.steps, ...data.evaluations];
  const failed = all.reduce((sum, one) => sum + one.failed, 0), kept = data.steps.reduce((sum, one) => sum + one.sum.trained, 0), sampled = data.steps.reduce((sum, one) => sum + one.sum.sampled, 0);
  const began = Math.min(...all.map((one) => one.began ?? Infinity)), ended = Math.max(...all.map((one) => one.ended ?? 0));
  const interval = (one) => (one?.interval ? `95 %: ${number(one.interval[0], 2)} to ${number(one.interval[1], 2)}` : null);
  return [
    first && first !== last ? tile("held-out reward", `${number(first.reward, 2)} → ${number(last.reward, 2)}`, interval(last), last.reward > first.reward ? "good" : "") : last ? tile("held-out reward", number(last.reward, 2), interval(last)) : null,
    tile("training reward", number(step?.reward), step ? `step ${step.step}` : null),
    tile("steps", `${whole(data.steps_done)}${data.info.steps ? ` of ${whole(data.info.steps)}` : ""}`, progress(data, newest) ?? counted(data.rollouts, "rollout")),
    tile("failed", data.rollouts ? percent(failed / data.rollouts) : "–", counted(failed, "rollout"), failed ? "bad" : ""),
    tile("fidelity", percent(sampled ? kept / sampled : null), `${whole(kept)} trainable tokens`),
    typeof data.latest.tokens_per_second === "number" ? tile("tokens per second", whole(data.latest.tokens_per_second), "latest step") : null,
    tile(data.state === "running" ? "runs for" : "took", seconds(typeof data.summary.seconds === "number" ? data.summary.seconds : ended > began && began > 1e6 ? ended - began : NaN), began > 1e6 && isFinite(began) ? `since ${moment(began)}` : null),
  ];
}

/** How far the step has come that is sampled now. */
function progress(data, step) {
  const wanted = data.info.rows_per_step * data.info.n;
  return data.state === "running" && step && step.step >= data.steps_done && step.rollouts < wanted ? `step ${step.step}: ${whole(step.rollouts)} of ${counted(wanted, "rollout")}` : null;
}

function drawFailures(place, run, data) {
  if (!data.causes.length) return replace(place);
  const most = Math.max(...data.causes.map((one) => one.rollouts));
  return replace(place, h("section.card", null, h("header", null, h("h3", null, "Failures by cause"), h("a", { href: runLink(run, "rollouts", { failed: "true" }) }, "all failed rollouts")),
    table([
      ["rollouts", (one) => h("span.bar", { style: { "--share": one.rollouts / most } }, whole(one.rollouts)), "num"],
      ["cause", (one) => h("span.cause", null, textOf(one.cause))],
      ["", (one) => h("a", { href: runLink(run, "rollout", one.example) }, "an example")],
    ], data.causes.slice(0, 30), { class: "causes" })));
}

/** The other metrics, drawn when somebody opens them. */
function drawMore(place, data) {
  const charts = otherCharts(data), open = place.querySelector("details[open]");
  if (!charts.length) return;
  if (open && open.cards.length === charts.length) return open.cards.forEach((card, at) => card.update(charts[at].lines(data)));
  const box = h("div.charts"), details = h("details.card", { open: Boolean(open), ontoggle: () => { if (details.open && !details.cards.length) replace(box, details.cards = charts.map((chart) => chartCard({ ...chart, sync: "run", height: 130 }, chart.lines(data)))); } },
    h("summary", null, `All metrics (${charts.length})`), box);
  details.cards = [];
  replace(place, details);
}
