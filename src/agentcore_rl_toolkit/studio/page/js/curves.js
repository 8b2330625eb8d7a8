// Which charts a run has: the lines of each, from the figures of its steps, its evaluations and its metrics.

const mean = (name) => (data) => [{ x: data.steps.map((one) => one.step), y: data.steps.map((one) => one.mean[name]) }];
const share = (name, of) => (data) => [{ x: data.steps.map((one) => one.step), y: data.steps.map((one) => (one[of] ? one[name] / one[of] : null)) }];

/** A line of a metric, at the step whose rollouts it is about. */
function metric(data, name) {
  const y = data.metrics[name];
  if (!y) return [];
  const steps = data.metrics.step ?? y.map((_, at) => at + 1);
  return [{ x: steps.map((one) => one - 1), y }];
}

function rewards(data) {
  const steps = data.steps, held = data.evaluations;
  const line = (of) => ({ x: of.map((one) => one.step), y: of.map((one) => one.reward), low: of.map((one) => one.interval?.[0] ?? null), high: of.map((one) => one.interval?.[1] ?? null) });
  return [{ label: "training", colour: "line-1", ...line(steps) }, { label: "held-out", colour: "line-2", points: true, whiskers: true, ...line(held) }];
}

const named = (lines, ...names) => lines.map((line, at) => ({ label: names[at] ?? "", colour: ["line-1", "line-2", "line-3", "line-4"][at], ...line }));

export const CHARTS = [
  { title: "Reward", about: "Mean over rows with its 95 % interval: training rollouts of each step, and held-out rows with the weights after so many updates.", floor: 0, lines: rewards, first: true, big: true },
  { title: "Failures", unit: "%", floor: 0, about: "Rollouts that did not complete.", lines: (data) => named(share("failed", "rollouts")(data), "failed") },
  { title: "Length", floor: 0, about: "Tokens that the policy sampled in a rollout, on average, and the longest rollout with its prompts.",
    lines: (data) => named([...mean("sampled")(data), { x: data.steps.map((one) => one.step), y: data.steps.map((one) => one.longest), faint: true, dash: [4, 4] }], "sampled tokens", "longest") },
  { title: "Turns and tools", floor: 0, about: "Model calls and tool calls of a rollout, on average.", lines: (data) => named([...mean("turns")(data), ...mean("tool_calls")(data)], "turns", "tool calls") },
  { title: "Fidelity", unit: "%", ceiling: 1, about: "Trained of the sampled tokens.", lines: (data) => named(metric(data, "fidelity").length ? metric(data, "fidelity") : [{ x: data.steps.map((one) => one.step), y: data.steps.map((one) => one.fidelity) }], "trained ÷ sampled") },
  { title: "Groups without variance", unit: "%", floor: 0, about: "Groups whose rewards are all equal teach nothing.", lines: (data) => {
    const [none] = metric(data, "groups/without_variance"), [kept] = metric(data, "groups/kept"), [dropped] = metric(data, "groups/dropped");
    return none ? named([{ x: none.x, y: none.y.map((one, at) => one / Math.max(1, (kept?.y[at] ?? 0) + (dropped?.y[at] ?? 0))) }], "without variance") : [];
  } },
  { title: "Entropy", floor: 0, about: "Of the policy at the sampled tokens, on average and in nats. Near 0, all rollouts of a row are alike, and none is better than the others.", lines: (data) => named(metric(data, "entropy"), "nats") },
  { title: "Sampler and trainer", floor: 0, least: 0.001, about: "How much they disagree about the sampled tokens: the KL divergence of their probabilities. A guard speaks above 0.01 where the sampler has the newest weights.", lines: (data) => named(metric(data, "sampler/kl"), "KL") },
  { title: "Broken replies", floor: 0, about: "Of a rollout, on average: turns that were cut at a token limit, tool calls that could not be parsed, and calls of tools that don't exist.",
    lines: (data) => named(["truncated", "parse_failures", "unknown_tools"].map((name) => ({ x: data.steps.map((one) => one.step), y: data.steps.map((one) => (one.rollouts ? one.sum[name] / one.rollouts : null)) })), "cut", "not parsed", "unknown tool") },
  { title: "Staleness", floor: 0, about: "Weight updates between sampling a token and training on it.", lines: (data) => [["mean", "on average"], ["max", "at most"]].flatMap(([name, label], at) => metric(data, `staleness/${name}`).map((line) => ({ ...line, label, colour: `line-${at + 1}` }))) },
  { title: "Tokens per second", floor: 0, about: "Sampled tokens of a step per second of its rollouts.", lines: (data) => named(metric(data, "tokens_per_second"), "sampled") },
  { title: "Where the time went", unit: "s", floor: 0, stacked: true, about: "Seconds of a rollout, on average: in model calls, in the agent and its tools, and waiting for a session or for new weights.",
    lines: (data) => [["model", "model", "line-1"], ["tool", "agent and tools", "line-3"], ["waiting", "waiting", "line-5"]].map(([name, label, colour]) => ({ label, colour, ...mean(name)(data)[0] })) },
];

const USED = new Set(["step", "entropy", "sampler/kl", "staleness/mean", "staleness/max", "fidelity", "tokens_per_second", "groups/without_variance", "groups/kept", "groups/dropped", "reward"]);

/** Charts of the other metrics, by the first part of their names. */
export function otherCharts(data) {
  const names = Object.keys(data.metrics).filter((name) => !USED.has(name));
  return names.map((name) => ({ title: name, lines: (of) => named(metric(of, name), name) }));
}
