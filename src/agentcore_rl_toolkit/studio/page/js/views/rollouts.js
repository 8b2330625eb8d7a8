// A list of rollouts: filters, orders and a search in all that was said. Everything is in the URL.

import { follow, get, isReport } from "../api.js";
import { h, replace, textOf } from "../dom.js";
import { counted, phaseName, rewardRange, whole } from "../format.js";
import { runLink, setQuery } from "../router.js";
import { choice, pager, promptText, rolloutColumns, table } from "./parts.js";

const LIMIT = 50;
const NAMES = ["phase", "step", "group", "status", "failed", "trained", "tool", "least", "most", "shortest", "longest", "text", "sort", "offset"];

export async function showRollouts(view, page) {
  const { run } = page, query = isReport ? { failed: page.query.failed } : page.query, about = await get("run", { run }), list = h("div");
  const text = h("input", { type: "search", placeholder: "Search in what was said", value: query.text ?? "", "aria-label": "Search in what was said", onchange: () => setQuery({ text: text.value, offset: null }) });
  const small = (name, label, wide = "5em") => { const field = h("input", { type: "number", step: "any", value: query[name] ?? "", style: { width: wide }, onchange: () => setQuery({ [name]: field.value, offset: null }) }); return h("label.field", null, h("span", null, label), field); };
  const any = [["", "any"]];
  page.keys.up = runLink(run);
  replace(view, h("div.head", null, h("h1", null, "Rollouts")), isReport ? h("p.quiet", null, "A report has a selection, without filters.") :
    h("div.controls", null, text,
      choice("Phase", "phase", [...any, ...about.phases.map((one) => [one, phaseName(one)])], query.phase),
      choice("Status", "status", [...any, ...about.statuses.map((one) => [one, one.replaceAll("_", " ")])], query.status),
      choice("Trained on", "trained", [...any, ["true", "yes"], ["false", "no"]], query.trained),
      choice("Failed", "failed", [...any, ["true", "yes"], ["false", "no"]], query.failed),
      about.tools.length ? choice("Tool", "tool", [...any, ...about.tools.map((one) => [one, one])], query.tool) : null,
      small("step", "Step"), small("least", "Reward from"), small("most", "Reward to"), small("shortest", "Tokens from", "6em"), small("longest", "Tokens to", "6em"),
      choice("Sort", "sort", [["", "as written"], ["-at", "latest first"], ["-reward", "best first"], ["reward", "worst first"], ["-sampled", "longest first"], ["-seconds", "slowest first"], ["-unknown_tools", "unknown tools"], ["-parse_failures", "parse failures"], ["-truncated", "truncated"]], query.sort),
      NAMES.some((name) => query[name]) ? h("a.pill", { href: runLink(run, "rollouts") }, "clear") : null), list);
  const ask = { run, limit: LIMIT, ...Object.fromEntries(NAMES.map((name) => [name, query[name]])) };
  const draw = (answer) => {
    const range = rewardRange(answer.rollouts);
    replace(list, h("p.quiet", null, query.text ? `${whole(answer.rollouts.length)} found${answer.next === null ? "" : " so far"}${query.offset ? " on this page," : ""} in ${counted(answer.total, "rollout")}` : counted(answer.total, "rollout")),
      answer.rollouts.length ? table(columns(run, range, query.text), answer.rollouts, { class: "rollouts", rowLink: (one) => runLink(run, "rollout", one.key) }) : h("p.quiet", null, query.text && answer.next !== null ? "Nothing found so far." : "No rollout matches."),
      pager(query, answer.total, LIMIT, answer.next));
  };
  if (query.text) return search(ask, draw, page);
  const following = follow(() => get("rollouts", ask), draw, 3000);
  page.onEnd(following.end);
  return following.first;
}

/** The columns of any rollouts, and what each was asked, or where it says what was sought. */
const columns = (run, range, sought) => [...rolloutColumns(run, range), sought ? ["found", (one) => h("span.words.whole", null, marked(textOf(one.found), sought))]
  : ["prompt", (one) => h("span.words", { title: promptText(one.prompt) }, promptText(one.prompt).slice(0, 200))]];

function marked(text, sought) {
  const at = text.toLowerCase().indexOf(sought.toLowerCase()), end = at + sought.length;
  return at < 0 ? text : [text.slice(0, at), h("mark", null, text.slice(at, end)), text.slice(end)];
}

/** Ask for more until a page is full: a search reads rollouts for as long as the server answers a question. */
async function search(ask, draw, page) {
  const found = [];
  let ended = false, next = Number(ask.offset ?? 0);
  page.onEnd(() => { ended = true; });
  const round = async () => {
    const answer = await get("rollouts", { ...ask, offset: next, limit: LIMIT - found.length });
    found.push(...answer.rollouts);
    next = answer.next;
    if (!ended) draw({ ...answer, rollouts: found });
    if (!ended && next !== null && found.length < LIMIT) setTimeout(round, 0);
  };
  await round();
}
