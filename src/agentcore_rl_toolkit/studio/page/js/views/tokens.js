// The tokens of a row: what was sampled and is trained on, what is masked, and how likely each was.

import { get, isReport } from "../api.js";
import { LINES } from "../charts.js";
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
  const by = { ratio: answer.ratios ? "ratio" : "", weights: "weights" }[query.colour] ?? "";
  const versions = [...new Set(answer.versions.map(([version]) => version))], hues = new Map(versions.map((version, n) => [version, `var(--${LINES[n % LINES.length]})`]));
  const colour = (i, at, logprob) => (by === "weights" ? (logprob === null || answer.mask[i] ? "" : "t-masked") : by === "ratio" ? ratioKind(answer.ratios[i], answer.mask[i], logprob) : kindOf(answer.mask[i], logprob));
  const spans = answer.ids.map((id, i) => {
    const at = start + i, text = answer.texts ? answer.texts[i] : String(id), logprob = answer.logprobs[i];
    return h("span.token", { class: colour(i, at, logprob), "data-at": i, style: by === "weights" && logprob !== null ? { background: `color-mix(in srgb, ${hues.get(versionOf(at)) ?? "transparent"} 32%, transparent)` } : null }, answer.texts ? shown(text) : text);
  });
  const point = (event) => {
    const token = event.target.closest(".token");
    if (!token) return;
    const i = Number(token.dataset.at), at = start + i, logprob = answer.logprobs[i], span = turnOf(at);
    const facts = [`token ${whole(at)}`, `id ${answer.ids[i]}`, answer.texts ? JSON.stringify(answer.texts[i]) : null, logprob === null ? "not sampled" : `logprob ${number(logprob, 4)}, probability ${number(Math.exp(logprob), 4)}`, logprob === null ? null : answer.mask[i] ? "trained on" : "masked", answer.ratios?.[i] === null || !answer.ratios ? null : `ratio to the trainer ${number(answer.ratios[i], 4)}`, span ? `turn ${span.turn}` : null, versionOf(at) === undefined ? null : `weights ${versionOf(at)}`];
    replace(detail, facts.filter(Boolean).join(" · "));
  };
  const total = answer.tokens, next = start + answer.ids.length;
  return replace(body,
    h("div.controls", null, data.rows.length > 1 && !isReport ? choice("Row", "row", data.rows.map((one) => [one.row, `${one.row}: ${whole(one.tokens)} tokens`]), row, (value) => setQuery({ row: value, start: null })) : null,
      choice("Colour", "colour", [["", "how likely"], ...(answer.ratios ? [["ratio", "ratio to the trainer"]] : []), ["weights", "weights"]], by, (value) => setQuery({ colour: value })),
      h("span.keys", null, { "": [["t-3", "likely"], ["t-0", "unlikely"]], ratio: [["t-3", "ratio near 1"], ["t-0", "far from 1"]], weights: [] }[by].map(([kind, title]) => [h("span.token", { class: kind }, title), " "]),
        by === "weights" ? versions.map((version) => [h("span.token", { style: { background: `color-mix(in srgb, ${hues.get(version)} 32%, transparent)` } }, `weights ${version}`), " "]) : null,
        h("span.token.t-masked", null, "masked"), " ", h("span.token", null, "not sampled")),
      h("span.grow"), total > answer.ids.length && !isReport ? [h("button", { type: "button", disabled: start === 0, onclick: () => setQuery({ start: Math.max(0, start - 4000) || null }) }, "←"), h("span", null, ` ${whole(start)} – ${whole(next)} of ${whole(total)} `), h("button", { type: "button", disabled: next >= total, onclick: () => setQuery({ start: next }) }, "→")] : null),
    answer.texts ? null : h("p.quiet", null, "These are ids. agentcore-rl ui --tokenizer MODEL shows their text."), detail,
    h("div.tokens", { class: answer.texts ? "" : "ids", onmouseover: point, onclick: point }, spans));
}

function kindOf(mask, logprob) {
  if (logprob === null) return "";
  if (!mask) return "t-masked";
  return `t-${logprob > -0.1 ? 3 : logprob > -1 ? 2 : logprob > -3 ? 1 : 0}`;
}

/** How far the trainer's probability of a token is from the sampler's. */
function ratioKind(ratio, mask, logprob) {
  if (logprob === null) return "";
  if (!mask) return "t-masked";
  if (typeof ratio !== "number") return "";
  const off = Math.abs(Math.log(ratio));
  return `t-${off < 0.05 ? 3 : off < 0.2 ? 2 : off < 0.7 ? 1 : 0}`;
}

/** A token's text; a line's end is shown and applied. */
const shown = (text) => (text === "" ? "⋯" : text.includes("\n") ? text.replaceAll("\n", "↵\n") : text);
