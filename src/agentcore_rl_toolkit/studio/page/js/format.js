// Numbers, times and colours as people read them.

export const whole = (value) => (typeof value !== "number" ? "–" : Math.round(value).toLocaleString("en-US"));

/** A number of things: "1 turn", "2 turns". */
export const counted = (value, thing) => `${whole(value)} ${value === 1 ? thing : `${thing}s`}`;

export function number(value, digits = 3) {
  if (value === null || value === undefined || typeof value !== "number") return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) return value.toExponential(1);
  if (Math.abs(value) >= 1000) return whole(value);
  return String(Number(value.toFixed(digits)));
}

export const signed = (value) => (typeof value !== "number" ? "–" : (value > 0 ? "+" : value < 0 ? "−" : "±") + number(Math.abs(value), 2));

export const percent = (value, digits = 1) => (typeof value !== "number" ? "–" : `${Number((value * 100).toFixed(digits))} %`);

export function seconds(value) {
  if (typeof value !== "number" || !isFinite(value)) return "–";
  if (value < 0.001) return "0 s";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${Number(value.toFixed(value < 10 ? 1 : 0))} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
}

export function ago(unix) {
  if (!unix) return "–";
  const passed = Date.now() / 1000 - unix;
  if (passed < 60) return "just now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86400) return `${Math.floor(passed / 3600)} h ago`;
  return new Date(unix * 1000).toISOString().slice(0, 10);
}

/** A day and a time, as short as can be. */
export const moment = (unix) => new Date(unix * 1000).toLocaleString(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });

export const when = (unix) => (unix ? new Date(unix * 1000).toLocaleString() : "–");

const PHASES = { train: "training", before: "held-out, before", at_step: "held-out", after: "held-out, after", eval: "evaluation", rollout: "rollouts" };
export const phaseName = (phase) => PHASES[phase] ?? phase;

/** The class of a reward: how good it is among the run's rewards, in seven steps. */
export function rewardClass(reward, low = 0, high = 1) {
  if (typeof reward !== "number") return "r-none";
  const share = high > low ? (reward - low) / (high - low) : 1;
  return `r-${Math.max(0, Math.min(6, Math.round(share * 6)))}`;
}

/** The lowest and the highest reward of some rollouts, at least 0 to 1. */
export function rewardRange(entries) {
  let low = 0, high = 1;
  for (const one of entries) if (typeof one.reward === "number") [low, high] = [Math.min(low, one.reward), Math.max(high, one.reward)];
  return [low, high];
}
