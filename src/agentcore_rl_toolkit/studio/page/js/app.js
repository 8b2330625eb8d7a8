// The frame: the bar at the top, the view that the URL names, the keyboard, dark and light.

import { canOpen, isReport } from "./api.js";
import { h, plain, replace } from "./dom.js";
import { showHelp, useKeys } from "./keys.js";
import { link, parse, runLink } from "./router.js";
import { showGroup, showStep } from "./views/steps.js";
import { showLive } from "./views/live.js";
import { showOverview } from "./views/overview.js";
import { showRollout } from "./views/rollout.js";
import { showRollouts } from "./views/rollouts.js";
import { showRow, showRows } from "./views/rows.js";
import { showRuns } from "./views/runs.js";
import { showComparison } from "./views/compare.js";

const top = document.getElementById("top"), main = document.getElementById("view");
let ending = [], shown = 0;

const TABS = [["", "Overview"], ["step", "Steps"], ["rollouts", "Rollouts"], ["rows", "Rows"]];

function pick(parts) {
  if (parts[0] === "live") return showLive;
  if (parts[0] !== "run" || parts.length < 2) return showRuns;
  const [, , view, , , , group] = parts;
  if (view === "step") return group !== undefined ? showGroup : showStep;
  return { rollouts: showRollouts, rollout: showRollout, rows: showRows, row: showRow, compare: showComparison }[view] ?? showOverview;
}

async function show() {
  const number = ++shown;
  for (const end of ending.splice(0)) end();
  const { parts, query } = parse();
  drawTop(parts);
  const page = { parts, query, run: parts[0] === "run" ? parts[1] : null, keys: {}, onEnd: (end) => (number === shown ? ending.push(end) : end()) };
  useKeys(page.keys);
  const view = h("div.view");
  main.removeAttribute("data-ready");
  document.title = [parts[1], parts.slice(2).join(" ")].filter(Boolean).map(plain).join(" · ") || "AgentCore RL";
  const slow = setTimeout(() => { top.classList.add("busy"); main.replaceChildren(view); }, 150);
  try {
    await pick(parts)(view, page);
    if (number !== shown) return;
  } catch (problem) {
    if (number !== shown) return;
    replace(view, h("div.problem", { role: "alert" }, h("strong", null, problem.message), problem.hint ? h("p", null, problem.hint) : null));
    if (problem.hint === undefined) console.error(problem);
  } finally {
    clearTimeout(slow);
    if (number === shown) top.classList.remove("busy");
  }
  if (!view.isConnected) main.replaceChildren(view);
  main.dataset.ready = location.hash;
}

function drawTop(parts) {
  const run = parts[0] === "run" ? parts[1] : null, view = parts[2] ?? "";
  const current = { group: "step", rollout: "rollouts", row: "rows", compare: "rows" }[view] ?? view;
  replace(top,
    h("a.brand", { href: "#/", "aria-label": "All runs" }, h("img", { src: document.querySelector("link[rel=icon]").href, alt: "", width: "22", height: "22" }), h("span", null, "AgentCore RL")),
    run === null ? null : h("a.crumb", { href: runLink(run), title: run }, run),
    run === null ? null : h("nav.tabs", { "aria-label": "Views of the run" },
      TABS.map(([name, title]) => h("a", { href: name ? runLink(run, name) : runLink(run), "aria-current": current === name ? "page" : null }, title))),
    h("span.grow"),
    isReport ? h("span.badge", null, "report") : h("a.pill", { href: link(["live"]), "aria-current": parts[0] === "live" ? "page" : null }, "Live"),
    h("button.pill", { type: "button", onclick: switchTheme, title: "Dark or light (t)", "aria-label": "Dark or light" }, "◐"),
    h("button.pill", { type: "button", onclick: showHelp, title: "Keyboard (?)", "aria-label": "Keyboard" }, "?"));
}

export function switchTheme() {
  const dark = isDark();
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", dark ? "light" : "dark"); } catch { /* a report opened from a file may have no storage */ }
  dispatchEvent(new Event("themechange"));
}

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark")) === "dark";

try { const theme = localStorage.getItem("theme"); if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme; } catch { /* as above */ }
/** In a report, a link to what it doesn't have is text. */
function dropLinks() {
  for (const one of main.querySelectorAll("a[href^='#/run/']")) if (!canOpen(one.getAttribute("href"))) one.removeAttribute("href");
}

if (isReport) new MutationObserver(dropLinks).observe(main, { childList: true, subtree: true });
addEventListener("hashchange", show);
addEventListener("switchtheme", switchTheme);
matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => dispatchEvent(new Event("themechange")));
show();
