// One rollout: its conversation, its tokens, its turns in time, its result, what it printed, and how it became rows.

import { get, rest } from "../api.js";
import { h, isClipped, longText, replace, textOf } from "../dom.js";
import { counted, number, percent, phaseName, rewardRange, seconds, signed, when, whole } from "../format.js";
import { runLink, setQuery } from "../router.js";
import { badge, jsonBlock, rewardChip, roleClass, sampleChips, stepper } from "./parts.js";
import { rolloutTimeline } from "../timeline.js";
import { showTokens } from "./tokens.js";

const TABS = [["", "Conversation"], ["tokens", "Tokens"], ["result", "Result"], ["printed", "Output"], ["rows", "Rows"]];

export async function showRollout(view, page) {
  const { run, parts, query } = page, key = parts[3], data = await get("rollout", { run, key }), one = data.entry;
  const there = (name) => (name === null ? null : runLink(run, "rollout", name, query.tab ? { tab: query.tab } : {}));
  const body = h("div.tab", { role: "tabpanel" }), more = rest(run, one.key);
  page.keys.up = one.group === null ? runLink(run, "step", one.phase, one.step) : runLink(run, "step", one.phase, one.step, "group", one.group);
  page.keys.expand = () => { const folds = [...body.querySelectorAll("details")], open = !folds.every((fold) => fold.open); folds.forEach((fold) => { fold.open = open; }); };
  const range = rewardRange(data.group);
  replace(view, stepper(there(data.previous), h("span", null, "Rollout ", key), there(data.next), page.keys),
    h("p.brief", null, rewardChip(one.reward, range), " ", badge(one.status), " ", h("span.quiet", null, `${phaseName(one.phase)} · step ${one.step}${one.why ? ` · not trained on: ${one.why}` : ""}`)),
    h("div.rollout", null, h("div.main", null,
      rolloutTimeline(data),
      h("nav.tabs.inner", { role: "tablist" }, TABS.map(([name, title]) => h("button", { type: "button", role: "tab", "aria-selected": String((query.tab ?? "") === name), onclick: () => setQuery({ tab: name }) }, title, countOf(name, data)))), body),
      h("aside", null, facts(run, data))));
  const draw = { tokens: () => showTokens(body, page, data), result: () => drawResult(body, data, more), printed: () => drawPrinted(body, data, more), rows: () => drawRows(body, run, data) }[query.tab];
  await (draw ? draw() : drawConversation(body, data, more));
}

const countOf = (name, data) => { const count = { rows: data.rows.length }[name]; return count > 1 ? h("small", null, ` ${count}`) : null; };

// --- the conversation

/** The turns of a transcript as paths: a turn that doesn't continue the one before it begins another. */
function drawConversation(body, data, more) {
  const { transcript } = data;
  if (!transcript.turns.length) return replace(body, data.error ? h("div.text.error", null, longText(data.error, more)) : null, h("p.quiet", null, "No model call was recorded, or the run is from before texts were kept."));
  let last = null;
  const parts = [];
  for (const turn of transcript.turns) {
    if (typeof turn !== "object") { parts.push(h("p.quiet", null, textOf(turn))); continue; }
    if (last !== null && turn.before !== last) parts.push(h("p.branch", null, turn.before === null ? `Turn ${turn.turn} begins another conversation` : `Turn ${turn.turn} continues turn ${turn.before}`));
    for (const place of turn.messages) parts.push(message(transcript.messages[place], more));
    parts.push(reply(turn, more));
    last = turn.turn;
  }
  if (transcript.left_out) parts.push(h("p.quiet", null, `${whole(transcript.left_out)} characters were not kept.`));
  if (data.error) parts.push(h("div.message.problem-message", null, h("span.who", null, "error"), longText(data.error, more)));
  return replace(body, h("div.conversation", null, parts));
}

function message(given, more) {
  if (!given) return null;
  const role = textOf(given.role), calls = given.tool_calls ?? [];
  const tool = role === "tool", content = contentOf(given.content, more);
  const long = tool || role === "system" || role === "developer";
  const inside = [content, calls.map((call) => callBlock(call.function ?? call, more))];
  return h("div.message", { class: roleClass(role) }, long ? h("details", { open: !tool && textOf(given.content).length < 400 }, h("summary", null, h("span.who", null, role, given.name ? ` ${textOf(given.name)}` : ""), h("span.peek", null, peek(given.content))), inside) : [h("span.who", null, role), inside]);
}

function reply(turn, more) {
  const { content, reasoning, tool_calls: calls = [] } = turn.reply;
  const notes = [`turn ${turn.turn}`, seconds(turn.seconds), `${whole(turn.prompt_tokens)} + ${whole(turn.sampled_tokens)} tokens`, turn.finish !== "stop" ? turn.finish : null, turn.versions?.length ? `weights ${turn.versions.map((one) => textOf(one[0])).join(", ")}` : null].filter(Boolean).join(" · ");
  return h("div.message.by-assistant", { class: turn.masked ? "masked" : "", id: `turn-${turn.turn}` }, h("span.who", null, "assistant"), h("small.quiet.notes", null, notes),
    turn.masked ? badge(`masked: ${textOf(turn.masked)}`, "warn") : null, turn.parse_failures ? badge(`${turn.parse_failures} calls could not be parsed`, "bad") : null,
    turn.unbridged ? badge(`new row: ${textOf(turn.unbridged)}`, "warn") : null,
    textOf(reasoning) ? h("details.thinks", null, h("summary", null, h("span.who", null, "thinks"), h("span.peek", null, peek(reasoning))), longText(reasoning, more)) : null,
    textOf(content) ? contentOf(content, more) : null, calls.map((call) => callBlock(call, more, turn.tools)));
}

function callBlock(call, more, offered = null) {
  const name = textOf(call.name), unknown = offered && !offered.includes(name);
  return h("details.call", { open: textOf(call.arguments).length < 600 }, h("summary", null, h("span.who", null, "calls"), h("b", null, name), unknown ? badge("not offered", "bad") : null, h("span.peek", null, peek(call.arguments))), longText(pretty(call.arguments), more, "mono"));
}

const peek = (value) => (Array.isArray(value) ? value.map((one) => textOf(one?.text ?? one)).join(" ") : textOf(value)).slice(0, 160);

function pretty(given) {
  if (typeof given !== "string") return isClipped(given) ? given : JSON.stringify(given, null, 2);
  try { return given.length < 20_000 ? JSON.stringify(JSON.parse(given), null, 2) : given; } catch { return given; }
}

const contentOf = (content, more) => (Array.isArray(content) ? content.map((one) => longText(one && typeof one === "object" && !isClipped(one) ? (one.text ?? JSON.stringify(one)) : one, more)) : longText(content, more));

// --- the other tabs

function drawResult(body, data, more) {
  const rewards = Array.isArray(data.rewards) ? data.rewards : null;
  replace(body, rewards ? h("section.card", null, h("h3", null, "Rewards, one for each turn"), h("p", null, rewards.slice(0, 500).map((one) => [rewardChip(one), " "]))) : null,
    data.error ? h("section.card", null, h("h3", null, "Error"), longText(data.error, more, "error")) : null,
    data.result?.traceback ? h("section.card", null, h("h3", null, "Traceback"), longText(data.result.traceback, more, "mono")) : null,
    h("section.card", null, h("h3", null, "Result"), data.result === null ? h("p.quiet", null, "There is no stored result.") : jsonBlock(data.result, more)),
    h("section.card", null, h("h3", null, "Data row"), jsonBlock(data.payload, more)));
}

function drawPrinted(body, data, more) {
  replace(body, data.printed === null ? h("p.quiet", null, "The runtime doesn't say what this session printed.") : textOf(data.printed) ? h("section.card", null, longText(data.printed, more, "mono")) : h("p.quiet", null, "The session printed nothing."));
}

function drawRows(body, run, data) {
  const masked = Object.entries(data.fidelity.masked ?? {}), unbridged = Object.entries(data.fidelity.unbridged ?? {});
  replace(body, h("p", null, `${counted(data.fidelity.turns, "turn")} became ${counted(data.rows.length, "training row")}. ${whole(data.fidelity.trained)} of ${counted(data.fidelity.sampled, "sampled token")} ${isTrained(data.entry) ? "are trained on" : "could be trained on"}.`,
    masked.length ? ` Masked: ${masked.map(([why, count]) => `${count} ${why}`).join(", ")}.` : "", unbridged.length ? ` Rendered anew: ${unbridged.map(([why, count]) => `${count} ${why}`).join(", ")}.` : ""),
    h("p.keys", null, [["prompt", "prompt"], ["trained", "trained on"], ["untrained", "masked"], ["between", "from the agent"]].map(([kind, title]) => [h("i.part", { class: kind }), title, " "])),
    data.rows.map((row) => h("section.card", null, h("header", null, h("h3", null, `Row ${row.row}`), h("span.quiet", null, `${counted(row.tokens, "token")} · ${whole(row.trained)} trained · weight ${number(row.weight)}`), h("a", { href: runLink(run, "rollout", data.entry.key, { tab: "tokens", row: row.row }) }, "tokens")),
      h("div.fold", { role: "img", "aria-label": `row ${row.row}` }, h("span.part.prompt", { style: { "flex-grow": row.prompt_length }, title: `prompt: ${row.prompt_length} tokens` }), row.spans.flatMap((span, at) => {
        const before = at ? row.spans[at - 1].end : row.prompt_length;
        return [span.start > before ? h("span.part.between", { style: { "flex-grow": span.start - before }, title: `from the agent: ${span.start - before} tokens` }) : null,
          h("span.part", { class: span.trained ? "trained" : "untrained", style: { "flex-grow": span.end - span.start }, title: `turn ${span.turn}: ${span.end - span.start} sampled tokens, ${span.trained ? "trained on" : "masked"}` }, `${span.turn}`)];
      })))));
}

const isTrained = (one) => one.phase === "train" && one.action === "train" && !one.dropped;

/** Whether a rollout was trained on, or why not. */
function trainedOn(one) {
  if (one.phase !== "train") return `no: ${one.phase === "rollout" ? "not a training run" : "a held-out row"}`;
  return one.why ?? one.dropped ? ["no: ", one.why ?? one.dropped] : one.action === "train" ? "yes" : one.action;
}

function facts(run, data) {
  const one = data.entry, range = rewardRange(data.group);
  const components = Object.entries(data.result?.components ?? {}).filter(([, value]) => typeof value === "number").slice(0, 32);
  const tools = [...new Set(data.transcript.turns.flatMap((turn) => turn.tools ?? []).map(textOf))];
  const lines = [
    ["reward", rewardChip(one.reward, range)], ...components.map(([name, value]) => [`· ${name}`, number(value)]), ["advantage", signed(one.advantage)], ["status", badge(one.status)], ["trained on", trainedOn(one)],
    ["step", h("a", { href: runLink(run, "step", one.phase, one.step) }, `${phaseName(one.phase)} · ${one.step}`)], ["row", h("a", { href: runLink(run, "row", rowOf(one.input_id)) }, one.input_id)], ["sample", one.sample],
    ["turns", whole(one.turns)], ["tool calls", [whole(one.tool_calls), one.unknown_tools ? badge(`${one.unknown_tools} of unknown tools`, "bad") : null]], ["offered tools", tools.slice(0, 20).join(", ") || "none"], ["sampled tokens", whole(one.sampled)], [isTrained(one) ? "trained tokens" : "trainable tokens", `${whole(one.trained)} · ${percent(one.sampled ? one.trained / one.sampled : null)}`],
    ["time", seconds(one.seconds)], ["model", seconds(one.model)], ["agent and tools", seconds(one.tool)], ["waiting", seconds(one.waiting)], ["ended", when(one.at)], ["session", h("code", null, one.session_id ?? "–")],
  ];
  const group = one.group === null ? null : runLink(run, "step", one.phase, one.step, "group", one.group);
  return [data.row_fields.length ? h("section.card", null, h("h3", null, "Data row"), factList(data.row_fields)) : null, h("section.card", null, factList(lines)),
    data.group.length > 1 ? h("section.card", null, h("h3", null, h("a", { href: group }, "Its group")), sampleChips(run, data.group, range, one.key)) : null];
}

const factList = (lines) => h("dl.facts", null, lines.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));

const rowOf = (id) => /^\d{6}-[0-9a-f]{8}$/.test(id) ? id.slice(7) : id;
