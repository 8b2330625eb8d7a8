"""Rewards that a model or a service gives: `LLMJudge`, `RelativeJudge` and `AgentCoreEvaluation`.

In: what an agent answered, which is hostile text. Out: numbers. A judge that fails raises `JudgeFault`, which becomes
`reward_error`: it never becomes a reward of 0.

Imports `agent`.
"""
