// When things happened: the turns of a rollout, and the rollouts of a step. The weights that sampled have lanes of their
// own, because with asynchronous training they change under running rollouts.

import { LINES } from "./charts.js";
import { h, textOf } from "./dom.js";
import { counted, number, seconds, whole } from "./format.js";
import { runLink } from "./router.js";

const MOST = 400;
const hues = (versions) => new Map(versions.map((version, at) => [version, `var(--${LINES[at % LINES.length]})`]));

/** A piece of a track from one moment to another, of `span` seconds in all. */
function piece(kind, from, to, span, props) {
  return h(props.onclick ? "button" : "span", { type: props.onclick ? "button" : null, ...props, class: `slot ${kind}`, style: { left: `${(100 * from) / span}%`, width: `${Math.max(0.25, (100 * (to - from)) / span)}%`, ...(props.style ?? {}) } });
}

/** The parts of a turn by the weights that sampled them, as long as their tokens are many: [version, from, to, tokens]. */
function byVersion(versions, from, to) {
  const all = versions.reduce((sum, [, count]) => sum + count, 0);
  let at = from;
  return versions.map(([version, count]) => { const begin = at; at += ((to - from) * count) / Math.max(1, all); return [textOf(version), begin, at, count]; });
}

const versionsOf = (turns) => [...new Set(turns.flatMap(([, , , versions]) => versions.map(([version]) => textOf(version))))].sort((a, b) => Number(a) - Number(b) || a.localeCompare(b));

export function rolloutTimeline(data) {
  const turns = data.transcript.turns.filter((turn) => typeof turn === "object" && turn.started);
  if (!turns.length) return null;
  const began = turns[0].started, span = Math.max(1e-6, Math.max(...turns.map((turn) => turn.started + turn.seconds)) - began);
  const versions = versionsOf(turns.map((turn) => [0, 0, 0, turn.versions ?? []])), hue = hues(versions);
  const track = [], lanes = new Map(versions.map((version) => [version, []]));
  const places = new Map(turns.map((turn, at) => [turn.turn, at]));
  turns.slice(0, MOST).forEach((turn) => {
    const from = turn.started - began, before = turns[places.get(turn.before)];
    if (before) { const ended = before.started + before.seconds - began; if (from > ended) track.push(piece("agent", ended, from, span, { title: `agent and tools: ${seconds(from - ended)}` })); }
    if (turn.waited) track.push(piece("waiting", from, from + turn.waited, span, { title: `waited for new weights: ${seconds(turn.waited)}` }));
    const jump = () => document.getElementById(`turn-${turn.turn}`)?.scrollIntoView({ behavior: "smooth", block: "center" });
    track.push(piece(turn.masked ? "model masked" : "model", from + turn.waited, from + turn.seconds, span, { title: `turn ${turn.turn}: ${seconds(turn.seconds)}, ${turn.sampled_tokens} tokens`, onclick: jump }));
    for (const [version, start, end, tokens] of byVersion(turn.versions ?? [], from + turn.waited, from + turn.seconds))
      lanes.get(version).push(piece("", start, end, span, { title: `turn ${turn.turn}: ${counted(tokens, "token")} sampled by weights ${version}`, style: { background: hue.get(version) } }));
  });
  const several = versions.length > 1 ? versions.slice(0, 12).map((version) => h("div.lane", { "data-version": version }, h("small", null, `weights ${version}`), h("div.track.thin", null, lanes.get(version)))) : null;
  return h("div.timeline", { role: "group", "aria-label": `${turns.length} turns in ${seconds(span)}` },
    h("div.lane", null, several ? h("small", null, "turns") : null, h("div.track", null, track)), several,
    h("div.scale", null, h("span", null, "0"), h("span.keys", null, h("i.model"), "model ", h("i.agent"), "agent and tools ", h("i.waiting"), "waiting"), h("span", null, seconds(span))));
}

/** The rollouts of a step as lanes, below the weights they began with; a line where other weights took over. */
export function stepTimeline(run, { lanes, total }) {
  const known = lanes.filter((lane) => lane.turns.length || lane.seconds);
  if (!known.length) return h("p.quiet", null, "No rollout of this step has ended yet.");
  const startOf = (lane) => Math.min(lane.began, lane.turns[0]?.[0] ?? Infinity), endOf = (lane) => Math.max(lane.began + lane.seconds, ...lane.turns.map(([from, took]) => from + took));
  const began = Math.min(...known.map(startOf)), span = Math.max(1e-6, Math.max(...known.map(endOf)) - began);
  const versions = versionsOf(known.flatMap((lane) => lane.turns)), hue = hues(versions), first = new Map(), groups = new Map();
  for (const lane of known) {
    for (const [from, took, waited, parts] of lane.turns) for (const [version, start] of byVersion(parts, from + waited, from + took)) first.set(version, Math.min(first.get(version) ?? Infinity, start));
    const name = textOf(lane.turns.find((turn) => turn[3].length)?.[3][0][0] ?? "");
    groups.set(name, [...(groups.get(name) ?? []), lane]);
  }
  const marks = versions.slice(1).map((version) => h("i.takeover", { style: { left: `${(100 * (first.get(version) - began)) / span}%`, "--hue": hue.get(version) }, title: `weights ${version} from here on` }));
  const draw = (lane) => h("a.track.thin", { href: runLink(run, "rollout", lane.key), title: `rollout ${lane.key} · group ${lane.group ?? "–"} · reward ${number(lane.reward)} · ${lane.status.replaceAll("_", " ")} · ${seconds(lane.seconds)}` },
    piece("whole", startOf(lane) - began, endOf(lane) - began, span, {}),
    lane.turns.flatMap(([from, took, waited, parts]) => byVersion(parts, from + waited - began, from + took - began).map(([version, start, end]) => piece("", start, end, span, { style: { background: hue.get(version) } }))));
  const ordered = [...groups].sort(([a], [b]) => Number(a) - Number(b));
  return h("section.card.lanes", null,
    h("header", null, h("h3", null, "When each rollout ran"), h("span.keys", null, versions.map((version) => [h("i", { style: { background: hue.get(version) } }), `weights ${version} `]), h("i.whole"), "agent, tools and waiting")),
    ordered.map(([name, some]) => h("div.lane", { "data-version": name }, h("small", null, name ? [`began with weights ${name}`, h("br"), counted(some.length, "rollout")] : "no model call"),
      h("div.stack", null, some.sort((a, b) => startOf(a) - startOf(b)).map(draw), marks.map((mark) => mark.cloneNode(true))))),
    h("div.scale", null, h("span", null, "0"), h("span", null, total > lanes.length ? `the first ${whole(lanes.length)} of ${counted(total, "rollout")}` : "a bar is a rollout, its colour the weights that sampled"), h("span", null, seconds(span))));
}
