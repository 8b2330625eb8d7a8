// The tokens of a row: what was sampled and is trained on, what is masked, and how likely each was.

import { get, isReport } from "../api.js";
import { h, replace } from "../dom.js";
import { number, whole } from "../format.js";
import { setQuery } from "../router.js";
import { choice } from "./parts.js";

export async function showTokens(body, page, data) {
  const { run, query } = page, key = data.entry.key;
  if (!data.rows.length) return replace(body, h("p.quiet", null, "No row came of this rollout."));
  const row = Number(query.row ?? 0), start = Number(query.start ?? 0);
  const answer = await get("tokens", { run, key, row, start });
  const detail = h("p.detail.quiet", { "aria-live": "polite" }, "Point at a token.");
  const turnOf = (at) => answer.spans.find((span) => at >= span.start && at < span.end);
  const versionOf = (at) => answer.versions.find(([, from, to]) => at >= from && at < to)?.[0];
  const spans = answer.ids.map((id, i) => {
    const at = start + i, text = answer.texts ? answer.texts[i] : String(id), logprob = answer.logprobs[i];
    return h("span.token", { class: kindOf(answer.mask[i], logprob), "data-at": i }, answer.texts ? shown(text) : text);
  });
  const point = (event) => {
    const token = event.target.closest(".token");
    if (!token) return;
    const i = Number(token.dataset.at), at = start + i, logprob = answer.logprobs[i], span = turnOf(at);
    const facts = [`token ${whole(at)}`, `id ${answer.ids[i]}`, answer.texts ? JSON.stringify(answer.texts[i]) : null, logprob === null ? "not sampled" : `logprob ${number(logprob, 4)}, probability ${number(Math.exp(logprob), 4)}`, logprob === null ? null : answer.mask[i] ? "trained on" : "masked", span ? `turn ${span.turn}` : null, versionOf(at) === undefined ? null : `weights ${versionOf(at)}`];
    replace(detail, facts.filter(Boolean).join(" · "));
  };
  const total = answer.tokens, next = start + answer.ids.length;
  return replace(body,
    h("div.controls", null, data.rows.length > 1 && !isReport ? choice("Row", "row", data.rows.map((one) => [one.row, `${one.row}: ${whole(one.tokens)} tokens`]), row, (value) => setQuery({ row: value, start: null })) : null,
      h("span.keys", null, h("span.token.t-3", null, "likely"), " ", h("span.token.t-0", null, "unlikely, trained on"), " ", h("span.token.t-masked", null, "masked"), " ", h("span.token", null, "not sampled")),
      h("span.grow"), total > answer.ids.length && !isReport ? [h("button", { type: "button", disabled: start === 0, onclick: () => setQuery({ start: Math.max(0, start - 4000) || null }) }, "←"), h("span", null, ` ${whole(start)} – ${whole(next)} of ${whole(total)} `), h("button", { type: "button", disabled: next >= total, onclick: () => setQuery({ start: next }) }, "→")] : null),
    answer.texts ? null : h("p.quiet", null, "These are ids. agentcore-rl ui --tokenizer MODEL shows their text."), detail,
    h("div.tokens", { class: answer.texts ? "" : "ids", onmouseover: point, onclick: point }, spans));
}

function kindOf(mask, logprob) {
  if (logprob === null) return "";
  if (!mask) return "t-masked";
  return `t-${logprob > -0.1 ? 3 : logprob > -1 ? 2 : logprob > -3 ? 1 : 0}`;
}

/** A token's text; a line's end is shown and applied. */
const shown = (text) => (text === "" ? "⋯" : text.includes("\n") ? text.replaceAll("\n", "↵\n") : text);
