// Two rollouts of one row next to each other: what both said is grey, what differs is marked word by word.

import { get } from "../api.js";
import { h, replace, textOf } from "../dom.js";
import { counted, phaseName, seconds } from "../format.js";
import { runLink } from "../router.js";
import { badge, rewardChip, roleClass } from "./parts.js";

const MOST_WORDS = 1200;

export async function showComparison(view, page) {
  const { run, parts } = page, data = await get("compare", { run, before: parts[3], after: parts[4] });
  page.keys.up = runLink(run, "rollout", parts[3]);
  replace(view, h("div.head", null, h("h1", null, "Before and after"), h("span.quiet", null, data.before.input_id), data.row_fields.map(([name, value]) => h("span", null, h("small.quiet", null, name), " ", value))),
    h("div.compare", null, [data.before, data.after].map((one) => sideHead(run, one)),
      data.pairs.length ? data.pairs.map((pair) => sides(pair)) : h("p.quiet", null, "No text was kept of these rollouts.")));
}

function sideHead(run, one) {
  return h("header.side", null, h("div", null, h("strong", null, `step ${one.step}`), " ", h("small.quiet", null, phaseName(one.phase))),
    h("div", null, rewardChip(one.reward), " ", badge(one.status), h("small.quiet", null, ` ${counted(one.turns, "turn")} · ${counted(one.sampled, "token")} · ${seconds(one.seconds)} `), h("a", { href: runLink(run, "rollout", one.key) }, "open ", one.key)));
}

function sides(pair) {
  const left = said(pair.before), right = said(pair.after);
  if (pair.same) return [bubble(pair.before, left, "same"), bubble(pair.after, right, "same")];
  const [a, b] = pair.before && pair.after ? diffWords(left, right) : [null, null];
  return [bubble(pair.before, left, "gone", a), bubble(pair.after, right, "come", b)];
}

function said(message) {
  if (!message) return "";
  const calls = (message.tool_calls ?? []).map((call) => call.function ?? call).map((call) => `${textOf(call.name)}(${textOf(call.arguments)})`);
  return [textOf(message.reasoning), content(message.content), ...calls].filter(Boolean).join("\n");
}

const content = (value) => (Array.isArray(value) ? value.map((one) => textOf(one?.text ?? one)).join("\n") : textOf(value));

function bubble(message, text, kind, marked = null) {
  if (!message) return h("div.message.nothing", { "aria-label": "nothing" });
  return h("div.message", { class: `${roleClass(textOf(message.role))} ${kind}` }, h("span.who", null, textOf(message.role)),
    h("div.text", { dir: "auto" }, marked ? marked.map(([word, changed]) => (changed ? h("mark", null, word) : word)) : text.slice(0, 8000)));
}

/** The words of two texts, each with whether only its side has it; by the longest common subsequence. */
export function diffWords(left, right) {
  const a = left.match(/\s+|\w+|[^\s\w]/gu) ?? [], b = right.match(/\s+|\w+|[^\s\w]/gu) ?? [];
  if (a.length > MOST_WORDS || b.length > MOST_WORDS) return [null, null];
  const wide = b.length + 1, best = new Uint16Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--)
    best[i * wide + j] = a[i] === b[j] ? best[(i + 1) * wide + j + 1] + 1 : Math.max(best[(i + 1) * wide + j], best[i * wide + j + 1]);
  const one = [], other = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { one.push([a[i++], false]); other.push([b[j++], false]); }
    else if (j >= b.length || (i < a.length && best[(i + 1) * wide + j] >= best[i * wide + j + 1])) one.push([a[i++], true]);
    else other.push([b[j++], true]);
  }
  return [one, other];
}
