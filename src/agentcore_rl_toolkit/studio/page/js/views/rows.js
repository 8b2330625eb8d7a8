// Data rows: which are always solved, never solved, learned or forgotten; and every rollout of one of them.

import { follow, get } from "../api.js";
import { h, longText, replace } from "../dom.js";
import { number, phaseName, rewardClass, rewardRange, whole } from "../format.js";
import { runLink, setQuery } from "../router.js";
import { choice, pager, promptText, rewardChip, rolloutColumns, table } from "./parts.js";

const LIMIT = 50;
const CHANGES = { learned: "not solved at first, solved now", forgotten: "solved at first, not now", always: "solved at every visit", sometimes: "solved in between only", never: "never solved" };

export function showRows(view, page) {
  const { run, query } = page, phases = query.phases ?? "train";
  const following = follow(() => get("rows", { run, phases, change: query.change, sort: query.sort, offset: query.offset, limit: LIMIT }), (data) => drawRows(view, page, data, phases), 5000);
  page.onEnd(following.end);
  return following.first;
}

function drawRows(view, page, data, phases) {
  const { run, query } = page;
  const range = rewardRange(data.rows.flatMap((row) => row.visits));
  const all = Object.values(data.counts).reduce((a, b) => a + b, 0);
  page.keys.up = runLink(run);
  replace(view, h("div.head", null, h("h1", null, "Rows"), h("span.quiet", null, `solved: a mean reward of ${number(data.solved_at, 2)} or more`)),
    h("div.controls", null, choice("Rows", "phases", [["train", "training"], ["held-out", "held-out"]], phases, (value) => setQuery({ phases: value, offset: null, change: null })),
      choice("Sort", "sort", [["reward", "worst first"], ["visits", "most visits"]], query.sort ?? "reward")),
    h("div.changes", { role: "group" }, [["", "all", all], ...Object.keys(CHANGES).map((name) => [name, name, data.counts[name]])].map(([value, title, count]) =>
      h("button.change", { type: "button", class: value, "aria-pressed": String((query.change ?? "") === value), title: CHANGES[value] ?? "", onclick: () => setQuery({ change: value, offset: null }) }, h("strong", null, whole(count)), title))),
    data.rows.length ? h("div.rows", null, data.rows.map((row) => rowLine(run, row, range))) : h("p.quiet", null, "No row."), pager(query, data.total, LIMIT));
}

/** At most so many of the visits, evenly spaced, from the first to the last. */
const thin = (visits, most) => (visits.length <= most ? visits : Array.from({ length: most }, (_, at) => visits[Math.round((at * (visits.length - 1)) / (most - 1))]));

function rowLine(run, row, range) {
  const first = row.visits[0], last = row.visits.at(-1);
  return h("article.row", null, h("a.prompt", { href: runLink(run, "row", row.row) }, promptText(row.prompt).slice(0, 240) || row.row),
    h("div.line", null, h("span.badge", { class: `c-${row.change}` }, row.change),
      h("span.strip", null, thin(row.visits, 60).map((visit) => h("a", { class: rewardClass(visit.reward, ...range), href: runLink(run, "rollout", visit.example), title: `step ${visit.step}: ${number(visit.reward)} over ${visit.rollouts} rollouts`, "aria-label": `step ${visit.step}: reward ${number(visit.reward)}` }))),
      row.visits.length > 1 ? h("a.compare", { href: runLink(run, "compare", first.example, last.example) }, `before and after · step ${first.step} → ${last.step}`) : h("small.quiet", null, `step ${first.step}`)));
}

export async function showRow(view, page) {
  const { run, parts } = page, data = await get("row", { run, row: parts[3] });
  const range = rewardRange(data.rollouts), marked = [];
  const go = h("a.button", null, "choose two to compare");
  const choose = (key, on) => {
    const at = marked.indexOf(key);
    if (on && at < 0) marked.push(key); else if (!on && at >= 0) marked.splice(at, 1);
    const two = marked.slice(-2);
    replace(go, two.length === 2 ? `compare ${two[0]} and ${two[1]}` : "choose two to compare");
    if (two.length === 2) go.setAttribute("href", runLink(run, "compare", ...two)); else go.removeAttribute("href");
  };
  const steps = [...new Map(data.rollouts.map((one) => [`${one.phase}/${one.step}`, one])).values()];
  page.keys.up = runLink(run, "rows");
  replace(view, h("div.head", null, h("h1", null, `Row ${parts[3]}`)), h("section.card.prompt-card", null, longText(promptText(data.prompt))),
    h("div.rows", null, steps.map((step) => { const mine = data.rollouts.filter((one) => one.step === step.step && one.phase === step.phase);
      return h("div.line", null, h("small.quiet.wide", null, `${phaseName(step.phase)} · step ${step.step}`), mine.map((one) => h("a", { href: runLink(run, "rollout", one.key) }, rewardChip(one.reward, range)))); })),
    h("div.controls", null, go),
    table([["", (one) => h("input", { type: "checkbox", "aria-label": `choose ${one.key}`, onchange: (event) => choose(one.key, event.target.checked) })], ...rolloutColumns(run, range)], data.rollouts.slice(0, 500), { class: "rollouts" }));
}
