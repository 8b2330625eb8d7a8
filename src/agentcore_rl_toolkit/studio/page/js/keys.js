// The keyboard. A view says what `next`, `previous` and `up` lead to; the rest is the same everywhere.

import { h } from "./dom.js";
import { parse, runLink } from "./router.js";

let keys = {};

/** The keys of the view that is shown: functions, or addresses to go to. */
export function useKeys(given) {
  keys = given;
}

const HELP = [
  ["j, →", "next rollout, group or step"], ["k, ←", "previous"], ["u", "up: from a rollout to its group, to its step, to the run"],
  ["/", "search"], ["1 … 4", "overview, steps, rollouts, rows"], ["e", "open or fold all tools and results"], ["t", "dark or light"], ["?", "this list"],
];

export function showHelp() {
  if (document.querySelector("dialog")) return;
  const dialog = h("dialog.help", { onclose: () => dialog.remove() },
    h("h2", null, "Keyboard"), h("dl", null, HELP.map(([key, what]) => [h("dt", null, key), h("dd", null, what)])),
    h("form", { method: "dialog" }, h("button", null, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) {
    if (event.key === "Escape" && event.target.closest("input")) event.target.blur();
    return;
  }
  const { parts } = parse(), run = parts[0] === "run" ? parts[1] : null;
  const tab = run !== null && { 1: runLink(run), 2: runLink(run, "step"), 3: runLink(run, "rollouts"), 4: runLink(run, "rows") }[event.key];
  const action = { j: keys.next, ArrowRight: keys.next, k: keys.previous, ArrowLeft: keys.previous, u: keys.up, e: keys.expand, t: () => dispatchEvent(new Event("switchtheme")), "?": showHelp, "/": search }[event.key] ?? tab;
  if (!action) return;
  event.preventDefault();
  typeof action === "function" ? action() : (location.hash = action);
}

function search() {
  const field = document.querySelector("input[type=search]");
  const { parts } = parse();
  if (field) field.focus();
  else if (parts[0] === "run") {
    location.hash = runLink(parts[1], "rollouts");
    setTimeout(() => document.querySelector("input[type=search]")?.focus(), 300);
  }
}

addEventListener("keydown", press);
