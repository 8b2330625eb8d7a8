"""Verbs that run or read rollouts: rollout, eval, train, rescore, results."""
