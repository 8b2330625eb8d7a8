// What several views show: badges, rewards, tables, controls.

import { canOpen, isReport } from "../api.js";
import { h, longText, textOf } from "../dom.js";
import { number, percent, phaseName, rewardClass, seconds, signed, whole } from "../format.js";
import { runLink, setQuery } from "../router.js";

const GOOD = { completed: "good", truncated: "warn", timeout: "bad", agent_error: "bad", reward_error: "bad", session_lost: "warn", engine_error: "warn", cancelled: "quiet", running: "live", ended: "good", interrupted: "warn", stopped: "warn", unfinished: "warn" };
const ABOUT = { unfinished: "It was cut off, or this is a copy of a run that runs elsewhere: it has no summary, and no process on this machine writes to it.", stopped: "A guard ended it." };
export const badge = (text, kind = null) => h("span.badge", { class: kind ?? GOOD[text] ?? "", title: ABOUT[text] }, text.replaceAll("_", " "));

/** Which guards spoke. */
export const guardBadge = (names) => (names.length ? h("span.badge.warn", { title: names.join(", ").replaceAll("_", " ") }, names.length === 1 ? names[0].replaceAll("_", " ") : `${names.length} guards spoke`) : null);

export const rewardChip = (reward, range = [0, 1], props = {}) => h("span.reward", { ...props, class: rewardClass(reward, ...range) }, number(reward, 2));

/** The samples of a group as a row of links, one for each reward; `now` is the key of the one that is shown. */
export const sampleChips = (run, samples, range, now = null) => h("span.chips", null, samples.slice(0, 64).map((one) =>
  h("a.reward", { class: `${rewardClass(one.reward, ...range)} ${one.cause ? "failed" : ""} ${one.action === "train" ? "" : "masked"}`, href: runLink(run, "rollout", one.key), "aria-current": one.key === now ? "true" : null,
    title: `sample ${one.sample}: reward ${number(one.reward)}, ${one.advantage === null ? "" : `advantage ${signed(one.advantage)}, `}${one.status}${one.why ? `, not trained on: ${one.why}` : ""}` }, one.cause ? "×" : number(one.reward, 2))));

/** The class of a message by its role. Agents name roles as they like, so no other text becomes a class. */
export const roleClass = (role) => (["user", "assistant", "tool"].includes(role) ? `by-${role}` : "");

export const tile = (name, value, note = null, kind = "") => h("div.tile", { class: kind }, h("span.name", null, name), h("strong", null, value), note ? h("span.note", null, note) : null);

/** A table; a column is [title, function of a row, class]. */
export function table(columns, rows, props = {}) {
  const { rowLink, ...more } = props, leads = (row) => rowLink && canOpen(rowLink(row));
  return h("div.scroll", null, h("table", more,
    h("thead", null, h("tr", null, columns.map(([title, , kind, sort]) => h("th", { class: kind, scope: "col" }, sort ? sortButton(title, sort) : title)))),
    h("tbody", null, rows.map((row) => {
      const line = h("tr", leads(row) ? { class: "linked", onclick: (event) => { if (!event.target.closest("a, button, input")) location.hash = rowLink(row); } } : null,
        columns.map(([title, cell, kind]) => h("td", { class: kind, "data-name": title }, cell(row))));
      return line;
    }))));
}

/** The head of a column that sorts by it; again sorts the other way. */
function sortButton(title, sort) {
  if (isReport) return title;
  const now = new URLSearchParams(location.hash.split("?")[1] ?? "").get("sort") ?? "";
  const mark = now === sort ? " ▴" : now === `-${sort}` ? " ▾" : "";
  return h("button.sort", { type: "button", onclick: () => setQuery({ sort: now === `-${sort}` ? sort : `-${sort}`, offset: null }) }, title + mark);
}

export function choice(label, name, values, now, change = null) {
  if (isReport && !change) return null;
  const select = h("select", { name, onchange: () => (change ? change(select.value) : setQuery({ [name]: select.value, offset: null })) }, values.map(([value, title]) => h("option", { value, selected: String(value) === String(now ?? "") }, title)));
  return h("label.field", null, h("span", null, label), select);
}

/** Links to the pages before and after. */
export function pager(query, total, limit, next = undefined) {
  const offset = Number(query.offset ?? 0);
  const following = next === undefined ? (offset + limit < total ? offset + limit : null) : next;
  if (!offset && following === null) return null;
  if (isReport) return h("p.quiet", null, `${whole(Math.min(total, limit))} of ${whole(total)} are in this report.`);
  return h("nav.pager", { "aria-label": "Pages" },
    h("button", { type: "button", disabled: offset === 0, onclick: () => setQuery({ offset: Math.max(0, offset - limit) || null }) }, "← previous"),
    h("span", null, `${whole(Math.min(total, offset + 1))} – ${whole(following ?? total)} of ${whole(total)}`),
    h("button", { type: "button", disabled: following === null, onclick: () => setQuery({ offset: following }) }, "next →"));
}

export const stepper = (before, title, after, keys = {}) => {
  const [previous, next] = [before, after].map((hash) => (hash && canOpen(hash) ? hash : null));
  if (previous) keys.previous = previous;
  if (next) keys.next = next;
  return h("div.stepper", null,
    previous ? h("a", { href: previous, title: "previous (k)", "aria-label": "previous" }, "‹") : h("span.off", null, "‹"), h("h1", null, title),
    next ? h("a", { href: next, title: "next (j)", "aria-label": "next" }, "›") : h("span.off", null, "›"));
};

/** The columns of a table of rollouts. */
export const rolloutColumns = (run, range) => [
  ["rollout", (one) => h("a", { href: runLink(run, "rollout", one.key) }, one.key)],
  ["step", (one) => h("a", { href: runLink(run, "step", one.phase, one.step) }, one.phase === "train" ? one.step : `${phaseName(one.phase)} · ${one.step}`), "num", "step"],
  ["group", (one) => one.group ?? "–", "num", "group"],
  ["status", (one) => [badge(one.status), one.why && one.why !== one.status ? h("small.quiet", null, ` ${one.why}`) : null]],
  ["reward", (one) => rewardChip(one.reward, range), "num", "reward"],
  ["advantage", (one) => signed(one.advantage), "num", "advantage"],
  ["turns", (one) => whole(one.turns), "num", "turns"],
  ["tools", (one) => h("span.clip", null, one.tools.join(", "), one.unknown_tools ? h("span.badge.bad", null, `${one.unknown_tools} unknown`) : null)],
  ["tokens", (one) => whole(one.sampled), "num", "sampled"],
  ["time", (one) => seconds(one.seconds), "num", "seconds"],
];

/** A value as JSON, its texts as they are. */
export const jsonBlock = (value, more) => longText(typeof value === "string" || value?.$clipped !== undefined ? value : JSON.stringify(value, (_, one) => (one && typeof one === "object" && "$clipped" in one ? `${one.$clipped} … ${one.length} characters` : one), 2), more, "mono");

export const promptText = (prompt) => (Array.isArray(prompt) ? prompt.map((one) => textOf(one?.content ?? one)).join("\n") : textOf(prompt));

export { percent };
