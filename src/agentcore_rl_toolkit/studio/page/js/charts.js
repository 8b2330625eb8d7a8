// Charts by uPlot, in the page's colours: lines with intervals, points with whiskers, stacked areas, sparklines.

import { h, plain, replace } from "./dom.js";
import { number } from "./format.js";

const uPlot = globalThis.uPlot;
const live = new Set();

/** The value of one of the page's colours. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
export const LINES = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-6", "line-7", "line-8"];

function faded(value, alpha) {
  return value.startsWith("#") && value.length === 7 ? value + Math.round(alpha * 255).toString(16).padStart(2, "0") : value;
}

/** All x values of some lines, and each line's values at them. */
function align(lines) {
  const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, at) => [x, at]));
  const columns = [];
  for (const line of lines)
    for (const values of [line.y, ...(line.low ? [line.low, line.high] : [])]) {
      const column = new Array(xs.length).fill(null);
      line.x.forEach((x, at) => { column[place.get(x)] = values[at] ?? null; });
      columns.push(column);
    }
  return [xs, ...columns];
}

function whiskers(plot, line, at) {
  const { ctx } = plot, [, low, high] = [0, plot.data[at + 1], plot.data[at + 2]];
  ctx.save();
  ctx.strokeStyle = colour(line.colour);
  ctx.lineWidth = 1.5 * devicePixelRatio;
  plot.data[0].forEach((x, i) => {
    if (low[i] === null || high[i] === null) return;
    const px = plot.valToPos(x, "x", true), a = plot.valToPos(low[i], "y", true), b = plot.valToPos(high[i], "y", true);
    const wide = 4 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(px, a); ctx.lineTo(px, b);
    ctx.moveTo(px - wide, a); ctx.lineTo(px + wide, a);
    ctx.moveTo(px - wide, b); ctx.lineTo(px + wide, b);
    ctx.stroke();
  });
  ctx.restore();
}

/** A line at the x that is looked at. */
function markAt(plot, x) {
  const { ctx, bbox } = plot, px = Math.round(plot.valToPos(x, "x", true));
  if (px < bbox.left - 1 || px > bbox.left + bbox.width + 1) return;
  ctx.save();
  ctx.strokeStyle = colour("ink");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(px, bbox.top); ctx.lineTo(px, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

function options(spec, lines, size, onCursor) {
  const series = [{}], bands = [], drawn = [];
  for (const line of lines) {
    const at = series.length, hue = colour(line.colour), few = line.x.length <= 40;
    series.push({ label: plain(line.label), stroke: hue, width: line.faint ? 1 : 2, spanGaps: true, dash: line.dash,
      points: { show: Boolean(line.points) || line.x.length <= 2, size: few ? 7 : 4, fill: hue, width: 0 },
      fill: line.area ? faded(hue, 0.14) : undefined });
    if (!line.low) continue;
    series.push({ stroke: "transparent", width: 0, points: { show: false }, spanGaps: true }, { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true });
    if (line.whiskers) drawn.push((plot) => whiskers(plot, line, at));
    else bands.push({ series: [at + 2, at + 1], fill: faded(hue, 0.15) });
  }
  if (spec.stacked) lines.slice(1).forEach((line, at) => bands.push({ series: [at + 2, at + 1], fill: faded(colour(line.colour), 0.55) }));
  if (spec.stacked) series[1].fill = faded(colour(lines[0].colour), 0.55);
  if (spec.mark !== undefined) drawn.push((plot) => markAt(plot, spec.mark));
  const axis = { stroke: colour("muted"), font: `11px ${colour("sans")}`, ticks: { show: false }, grid: { stroke: colour("grid"), width: 1 } };
  return {
    ...size, series, bands, legend: { show: false }, padding: [10, 12, 0, 0],
    cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false }, sync: spec.sync ? { key: spec.sync } : undefined },
    scales: { x: { time: false, range: ({ data: [xs] }, low, high) => (xs.length === 1 ? [xs[0] - 0.5, xs[0] + 0.5] : [low, high]) }, y: { range: (_, low, high) => limits(spec, low, high) } },
    axes: [{ ...axis, size: 26, gap: 4, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000] }, { ...axis, size: 46, values: (_, ticks) => ticks.map((value) => (spec.unit === "%" ? `${number(value * 100, 1)}%` : number(value, digitsOf(ticks)))) }],
    hooks: { draw: drawn, setCursor: [(plot) => onCursor(plot.cursor.idx)] },
  };
}

/** As many digits as tell the ticks of an axis apart. */
const digitsOf = (ticks) => Math.max(2, Math.min(8, Math.ceil(-Math.log10(Math.abs(ticks[1] - ticks[0]) || 1))));

function limits(spec, low, high) {
  if (low === null || high === null) return [0, 1];
  if (spec.ceiling !== undefined) {
    const bottom = Math.min(low, spec.ceiling - 0.05);
    return [bottom - (spec.ceiling - bottom) * 0.06, spec.ceiling + (spec.ceiling - bottom) * 0.06];
  }
  if (spec.unit === "%" && high < 0.1) high = 0.1;
  if (spec.least !== undefined && high < spec.least) high = spec.least;
  const bottom = spec.floor !== undefined ? Math.min(spec.floor, low) : low, top = high;
  const room = (top - bottom || Math.abs(top) || 1) * 0.06;
  return [bottom === 0 ? 0 : bottom - room, top + room];
}

/**
 * A card with a chart. `spec`: title, unit, floor, ceiling, the least that the axis reaches, an x to mark, stacked, sync, about. `lines`: label, colour, x, y, and low
 * and high for an interval. `onPick(x)` is called with the x that was clicked.
 */
export function chartCard(spec, lines, onPick = null) {
  const legend = h("div.legend"), place = h("div.plot"), about = spec.about ? h("span.about", { title: spec.about, tabindex: "0" }, "i") : null;
  const card = h("section.card.chart", { class: spec.big ? "big" : "", "data-chart": spec.name ?? spec.title }, h("header", null, h("h3", null, spec.title), about, legend), place);
  const state = { spec, lines: usable(lines), place, plot: null, wide: 0 };
  const tall = () => spec.height ?? (spec.big && state.wide > 640 ? 432 : 190);
  const say = (index) => replace(legend, legendOf(state, index));
  function build() {
    state.plot?.destroy();
    state.plot = null;
    place.replaceChildren();
    if (!state.lines.length) { place.append(h("p.quiet", null, "no data yet")); return; }
    if (!state.wide) return;
    state.data = align(stacked(spec, state.lines));
    state.plot = new uPlot(options(spec, state.lines, { width: state.wide, height: tall() }, say), state.data, place);
    if (onPick) place.querySelector(".u-over").addEventListener("click", () => { const at = state.plot.cursor.idx; if (at !== null && at !== undefined) onPick(state.data[0][at]); });
    say(null);
  }
  new ResizeObserver(([entry]) => {
    const wide = Math.floor(entry.contentRect.width);
    if (wide === state.wide || !wide) return;
    state.wide = wide;
    state.plot ? state.plot.setSize({ width: wide, height: tall() }) : build();
  }).observe(place);
  card.rebuild = build;
  card.hidden = !state.lines.length && !spec.big;
  card.update = (lines) => {
    card.hidden = !usable(lines).length && !spec.big;
    const same = state.plot && looks(usable(lines)) === looks(state.lines);
    state.lines = usable(lines);
    if (!same) return build();
    const { min, max } = state.plot.scales.x, xs = state.data[0], zoomed = min > xs[0] || max < xs.at(-1);
    state.data = align(stacked(spec, state.lines));
    state.plot.setData(state.data, !zoomed);
    if (zoomed) state.plot.setScale("x", { min, max });
    say(null);
    return null;
  };
  live.add(card);
  say(null);
  return card;
}

const usable = (lines) => lines.filter((line) => line.y.some((value) => value !== null && value !== undefined));

/** Which lines a chart has, and how each is drawn: with others, it is built anew. */
const looks = (lines) => JSON.stringify(lines.map((line) => [line.label, line.colour, line.faint, line.points, line.dash, Boolean(line.low)]));

/** Lines for a stacked chart: each on top of those before. */
function stacked(spec, lines) {
  if (!spec.stacked) return lines;
  const below = new Map();
  return lines.map((line) => ({ ...line, y: line.y.map((value, at) => { const sum = (below.get(line.x[at]) ?? 0) + (value ?? 0); below.set(line.x[at], sum); return sum; }) }));
}

function legendOf(state, index) {
  const x = index === null || index === undefined || !state.data ? null : state.data[0][index];
  const shown = (line) => {
    const at = x === null ? line.y.length - 1 : line.x.indexOf(x);
    const value = at < 0 ? null : line.y[at];
    if (value === null || value === undefined) return "–";
    return state.spec.unit === "%" ? `${number(value * 100, 1)} %` : number(value, 3) + (state.spec.unit ? ` ${state.spec.unit}` : "");
  };
  const at = x === null ? null : h("span.at", null, `step ${x}`);
  return [at, ...state.lines.filter((line) => !line.unnamed).slice(0, 8).map((line) => h("span.key", null, h("i", { style: { background: `var(--${line.colour})` } }), h("span.name", null, line.label), h("b", null, shown(line))))];
}

/** A small line without axes. */
export function sparkline(points, hue = "line-1") {
  const known = points.filter(([x, y]) => typeof x === "number" && typeof y === "number");
  const place = h("span.spark", { role: "img", "aria-label": known.length ? `from ${number(known[0][1])} to ${number(known.at(-1)[1])}` : "no data" });
  if (known.length < 2) return place;
  const hidden = { show: false };
  new uPlot({ width: 110, height: 26, legend: hidden, cursor: { show: false }, axes: [hidden, hidden], padding: [3, 3, 3, 3], scales: { x: { time: false } },
    series: [{}, { stroke: colour(hue), width: 1.5, points: hidden, fill: faded(colour(hue), 0.12) }] }, [known.map((one) => one[0]), known.map((one) => one[1])], place);
  return place;
}

addEventListener("themechange", () => requestAnimationFrame(() => { for (const card of live) card.isConnected ? card.rebuild() : live.delete(card); }));
