// A step's groups, and one group's samples side by side.

import { follow, get, isReport, STEP_LIMIT } from "../api.js";
import { chartCard } from "../charts.js";
import { CHARTS } from "../curves.js";
import { h, longText, replace, textOf } from "../dom.js";
import { counted, number, percent, phaseName, rewardRange, seconds, signed, whole } from "../format.js";
import { go, runLink, setQuery } from "../router.js";
import { stepTimeline } from "../timeline.js";
import { badge, choice, pager, promptText, rewardChip, sampleChips, stepper, tile } from "./parts.js";

/** Every step and evaluation of a run, in order. */
function order(data) {
  return [...data.steps, ...data.evaluations].sort((a, b) => a.step - b.step || (a.phase === "train") - (b.phase === "train"));
}

export async function showStep(view, page) {
  const { run, query } = page, about = () => get("run", { run });
  let data = await about();
  if (!order(data).length) return waitForRollouts(view, page, about);
  const latest = data.steps.at(-1) ?? order(data).at(-1);
  const phase = page.parts[3] ?? latest.phase, step = Number(page.parts[4] ?? latest.step);
  const find = () => { const all = order(data), at = all.findIndex((one) => one.phase === phase && one.step === step); return [all[at - 1], all[at], all[at + 1]]; };
  const there = (target) => (target ? runLink(run, "step", target.phase, target.step) : null);
  const reward = chartCard({ ...CHARTS[0], height: 120, mark: step }, CHARTS[0].lines(data), (x) => go(runLink(run, "step", "train", x)));
  const inTime = query.view === "time" && !isReport, head = h("div"), list = h("div.groups"), tiles = h("div.tiles.small");
  const drawHead = () => { const [before, , after] = find(); replace(head, stepper(there(before), `${phase === "train" ? "Step" : `${phaseName(phase)} · step`} ${step}`, there(after), page.keys)); };
  page.keys.up = runLink(run);
  drawHead();
  replace(view, head, reward, tiles,
    h("div.controls", null,
      choice("Show", "phase", order(data).map((target) => [`${target.phase}/${target.step}`, `${phaseName(target.phase)} · step ${target.step}`]), `${phase}/${step}`, (value) => go(runLink(run, "step", ...value.split("/")))),
      inTime || isReport ? null : choice("Sort", "sort", [["", "as in the data"], ["reward", "worst first"], ["-reward", "best first"], ["spread", "most variance"], ["failed", "most failures"]], query.sort),
      isReport ? null : h("div.switch", { role: "group", "aria-label": "Shown as" }, [["", "groups"], ["time", "timeline"]].map(([value, title]) => h("button", { type: "button", "aria-pressed": String((query.view ?? "") === value), onclick: () => setQuery({ view: value }) }, title)),
        h("a.pill", { href: runLink(run, "rollouts", { phase, step }) }, "list"))), list);
  if (!find()[1]) return replace(list, h("p.quiet", null, "There is no such step."));
  if (inTime) {
    const drawn = follow(() => get("timeline", { run, phase, step }), (answer) => replace(list, stepTimeline(run, answer)), 3000);
    page.onEnd(drawn.end);
    await drawn.first;
  }
  const ask = { run, phase, step, offset: query.offset, limit: STEP_LIMIT, sort: isReport ? undefined : query.sort };
  let groups = 0;
  const grouping = follow(() => get("groups", ask), (answer) => {
    const range = rewardRange(answer.groups.flatMap((group) => group.samples));
    groups = answer.total;
    if (!inTime) replace(list, answer.groups.map((group) => groupRow(run, phase, step, group, range)), pager(query, answer.total, STEP_LIMIT));
  }, 3000);
  page.onEnd(grouping.end);
  await grouping.first;
  const following = follow(about, (now) => {
    data = now;
    drawHead();
    reward.update(CHARTS[0].lines(data));
    const one = find()[1];
    if (one) replace(tiles, tile("reward", number(one.reward), one.interval ? `95 %: ${number(one.interval[0], 2)} to ${number(one.interval[1], 2)}` : null), tile("groups", whole(groups), one.dropped ? `${counted(one.dropped, "rollout")} dropped` : null),
      tile("rollouts", whole(one.rollouts), phase === "train" ? `${whole(one.trained_on)} trained on` : null), tile("failed", whole(one.failed), null, one.failed ? "bad" : ""), tile("tokens a rollout", whole(one.mean.sampled), `longest row ${whole(one.longest)}`),
      tile("time a rollout", seconds(one.mean.seconds), `model ${percent(one.mean.model / Math.max(1e-9, one.mean.seconds), 0)}`));
  }, 3000);
  page.onEnd(following.end);
  return following.first;
}

/** Show the steps as soon as there is one. */
function waitForRollouts(view, page, about) {
  replace(view, h("p.quiet", null, "No rollout has been written yet."));
  const waiting = follow(about, (data) => { if (order(data).length) dispatchEvent(new HashChangeEvent("hashchange")); });
  page.onEnd(waiting.end);
  return waiting.first;
}

const groupLink = (run, phase, step, group) => runLink(run, "step", phase, step, "group", group.group ?? group.input_id);

function groupRow(run, phase, step, group, range) {
  return h("article.group", { class: group.dropped ? "dropped" : "" },
    h("a.prompt", { href: groupLink(run, phase, step, group) }, promptText(group.prompt).slice(0, 300) || group.input_id),
    h("div.line", null, h("small.quiet", null, group.group === null ? group.input_id : `group ${group.group}`), rewardMean(group, range), sampleChips(run, group.samples, range), group.dropped ? badge(group.dropped, "warn") : null));
}

const rewardMean = (group, range) => h("span.mean", null, h("small.quiet", null, "mean "), rewardChip(group.mean, range), group.spread ? h("small.quiet", null, ` ± ${number(group.spread, 2)}`) : null);

export function showGroup(view, page) {
  const { run, parts } = page, [, , , phase, step, , group] = parts;
  const following = follow(() => get("group", { run, phase, step, group }), (data) => drawGroup(view, page, data, phase, step), 3000);
  page.onEnd(following.end);
  return following.first;
}

function drawGroup(view, page, data, phase, step) {
  const { run } = page, there = (name) => (name === null ? null : runLink(run, "step", phase, step, "group", name));
  const sort = page.query.sort ?? "sample", range = rewardRange(data.samples);
  const samples = [...data.samples].sort((a, b) => (sort === "reward" ? (b.reward ?? -Infinity) - (a.reward ?? -Infinity) : sort === "length" ? b.sampled - a.sampled : a.sample - b.sample));
  page.keys.up = runLink(run, "step", phase, step);
  replace(view, stepper(there(data.previous), `Group ${data.group ?? data.input_id}`, there(data.next), page.keys),
    h("p.quiet", null, h("a", { href: page.keys.up }, `${phaseName(phase)} · step ${step}`), " · row ", h("a", { href: runLink(run, "row", data.row) }, data.row), data.dropped ? [" · ", badge(data.dropped, "warn")] : null),
    h("section.card.prompt-card", null, longText(promptText(data.prompt)), data.row_fields.map(([name, value]) => h("p.row-field", null, h("small.quiet", null, name), " ", value))),
    h("div.controls", null, h("span", null, rewardMean(data, range), " ", sampleChips(run, data.samples, range)), h("span.grow"), choice("Sort", "sort", [["sample", "in order"], ["reward", "best first"], ["length", "longest first"]], sort)),
    h("div.samples", null, samples.map((one) => sampleCard(run, one, range))));
}

const beginning = (text, most) => (text.length > most ? `${text.slice(0, most)} …` : text);

function sampleCard(run, one, range) {
  return h("article.card.sample", { class: one.cause ? "failed" : "" },
    h("header", null, rewardChip(one.reward, range, { title: "reward" }), one.advantage === null ? null : h("span.advantage", { class: one.advantage > 0 ? "up" : one.advantage < 0 ? "down" : "", title: "advantage" }, signed(one.advantage)), h("span.grow"), badge(one.status)),
    h("p.quiet.small", null, `${counted(one.turns, "turn")} · ${counted(one.sampled, "token")} · ${seconds(one.seconds)}${one.why ? ` · not trained on: ${one.why}` : ""}`),
    one.calls.length ? h("ul.calls", null, one.calls.map((call) => h("li", null, h("b", null, textOf(call.name)), "(", beginning(textOf(call.arguments), 160), ")"))) : null,
    one.error || one.problem ? h("div.text.error", null, beginning(textOf(one.error ?? one.problem), 1000)) : null,
    one.said ? longText(beginning(textOf(one.said), 1500)) : h("p.quiet", null, "it said nothing"),
    h("a.open", { href: runLink(run, "rollout", one.key) }, "open rollout ", one.key));
}
