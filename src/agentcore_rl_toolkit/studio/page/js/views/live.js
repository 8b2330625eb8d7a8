// What runs now: the sessions of a local runtime, with what they print, and the state of a gateway.

import { follow, get, post } from "../api.js";
import { h, replace, textOf } from "../dom.js";
import { number, seconds, whole } from "../format.js";
import { setQuery } from "../router.js";
import { badge, table, tile } from "./parts.js";

export async function showLive(view, page) {
  const runtime = h("div"), gateway = h("div"), log = h("div");
  const following = follow(() => get("live"), (data) => {
    drawRuntime(runtime, data.runtime);
    drawGateway(gateway, data.gateway);
  }, 1000);
  page.onEnd(following.end);
  replace(view, h("div.head", null, h("h1", null, "Live")), runtime, log, gateway);
  if (page.query.session) followLog(log, page.query.session, page);
  await following.first;
}

/** What would be here, and the command that shows it. */
const unnamed = (title, what, command) => h("section.card", null, h("h3", null, title), h("p.quiet", null, what, " To see them, start this page with:"), h("pre", null, h("code", null, command)));

function drawRuntime(place, state) {
  if (!state) return replace(place, unnamed("Runtime", "The sessions of a local runtime, with what they print, and a button that stops one.", "agentcore-rl ui runs --runtime-url http://127.0.0.1:8800"));
  if (state.problem) return replace(place, h("div.problem", null, state.problem));
  const counts = Object.entries(state.counts ?? {});
  return replace(place, h("h2", null, "Runtime ", h("small.quiet", null, state.url)), h("div.tiles.small", null, tile("sessions", `${whole(state.sessions.length)} of ${whole(state.max_sessions)}`), counts.map(([name, count]) => tile(name, whole(count)))),
    state.sessions.length ? table([
      ["session", (one) => h("a", { href: `#/live?session=${encodeURIComponent(textOf(one.session_id))}` }, textOf(one.session_id))],
      ["agent", (one) => textOf(one.agent)], ["state", (one) => badge(textOf(one.state), "")], ["age", (one) => seconds(one.seconds), "num"], ["idle", (one) => seconds(one.idle_seconds), "num"],
      ["MB", (one) => whole(one.memory_mb), "num"],
      ["", (one) => h("button", { type: "button", onclick: async (event) => { event.target.disabled = true; try { await post("live/stop", { session: textOf(one.session_id) }); } catch (problem) { event.target.replaceWith(problem.message); } } }, "stop")],
    ], state.sessions) : h("p.quiet", null, "No session runs."));
}

function drawGateway(place, state) {
  if (!state) return replace(place, unnamed("Gateway", "Its load, its weights, and the sessions that are open.", "agentcore-rl ui runs --gateway-url http://127.0.0.1:9000"));
  if (state.problem) return replace(place, h("div.problem", null, state.problem));
  const shown = Object.entries(state).filter(([name, value]) => name !== "url" && name !== "sessions" && (typeof value !== "object" || Array.isArray(value)));
  const sessions = Array.isArray(state.sessions) ? state.sessions : null;
  return replace(place, h("h2", null, "Gateway ", h("small.quiet", null, state.url)), h("div.tiles.small", null, shown.map(([name, value]) => tile(name.replaceAll("_", " "), typeof value === "number" ? number(value) : textOf(value)))),
    sessions ? table([["session", (one) => textOf(one.session_id)], ["row", (one) => textOf(one.input_id)], ["state", (one) => badge(one.closed ? "closed" : "open", "")], ["turns", (one) => whole(one.turns), "num"], ["in flight", (one) => whole(one.in_flight), "num"], ["age", (one) => seconds(Date.now() / 1000 - one.created_at), "num"]], sessions) : null);
}

/** What a session prints, as it does. */
function followLog(place, session, page) {
  const text = h("div.text.mono.log"), head = h("h3", null, `Output of ${session}`);
  let next = 0, ended = false;
  page.onEnd(() => { ended = true; });
  replace(place, h("section.card", null, h("header", null, head, h("button", { type: "button", onclick: () => setQuery({ session: null }) }, "close")), text));
  const round = async () => {
    if (ended) return;
    try {
      const piece = await get("live/log", { session, start: next });
      next = piece.next;
      if (piece.text) { text.append(h("span", null, piece.text)); while (text.childNodes.length > 200) text.firstChild.remove(); text.scrollTop = text.scrollHeight; }
    } catch (problem) { replace(head, problem.message); ended = true; }
    setTimeout(round, 700);
  };
  round();
}
