// Questions to the server; in an exported report, the answers that came with it.

import { parse } from "./router.js";

/** How many groups of a step are asked for at once. */
export const STEP_LIMIT = 40;

const embedded = document.getElementById("report");
const report = embedded ? JSON.parse(embedded.textContent) : null;

/** Whether this is a report in one file. */
export const isReport = report !== null;

export class Problem extends Error {
  constructor(message, hint, status) {
    super(message);
    this.hint = hint;
    this.status = status;
  }
}

const asked = (params) => Object.keys(params).sort().filter((key) => params[key] !== null && params[key] !== undefined && params[key] !== "").map((key) => [key, String(params[key])]);

const keyOf = (name, params) => JSON.stringify([name, asked(params)]);

/** Whether a view can be opened: a report has only some. */
export function canOpen(hash) {
  const { parts: [first, run, view, one, two, , group], query } = parse(hash);
  if (!report || first !== "run") return true;
  const [name, params] = {
    rollout: query.tab === "tokens" ? ["tokens", { key: one, row: query.row ?? 0, start: query.start ?? 0 }] : ["rollout", { key: one }],
    row: ["row", { row: one }],
    compare: ["compare", { before: one, after: two }],
    step: group === undefined ? ["groups", { phase: one, step: two, limit: STEP_LIMIT }] : ["group", { phase: one, step: two, group }],
  }[view] ?? [];
  return !name || one === undefined || Object.hasOwn(report.answers, keyOf(name, { run, ...params }));
}

export async function get(name, params = {}) {
  if (report) {
    const key = keyOf(name, params);
    if (Object.hasOwn(report.answers, key)) return structuredClone(report.answers[key]);
    throw new Problem("This is not in the report.", "It holds the run's figures and some of its rollouts; agentcore-rl ui shows all.", 404);
  }
  return send("GET", name, params);
}

export const post = (name, params = {}) => send("POST", name, params);

async function send(method, name, params) {
  let response;
  try {
    response = await fetch(`api/${name}?${new URLSearchParams(asked(params))}`, { method, credentials: "same-origin" });
  } catch {
    throw new Problem("The server does not answer.", "Is agentcore-rl ui still running?", 0);
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(answer.problem ?? `The server answered ${response.status}.`, answer.hint ?? "", response.status);
  return answer;
}

/** Ask again and again while the page is looked at; `draw` gets each answer that differs from the one before. */
export function follow(ask, draw, every = 2000) {
  let last = "", timer = 0, ended = false;
  async function round() {
    if (ended) return;
    if (!document.hidden) {
      try {
        const answer = await ask();
        const text = JSON.stringify(answer);
        if (text !== last && !ended) {
          last = text;
          draw(answer);
        }
        document.documentElement.classList.remove("lost");
      } catch (problem) {
        if (!last) throw problem;
        document.documentElement.classList.add("lost");
      }
    }
    if (!isReport) timer = setTimeout(round, every);
  }
  return { first: round(), end: () => { ended = true; clearTimeout(timer); } };
}

/** A function that fetches the rest of a text of a rollout. */
export const rest = (run, key) => (isReport ? null : async (at, start) => (await get("text", { run, key, at: JSON.stringify(at), start })).text);
