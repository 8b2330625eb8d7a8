"""Why a prompt was rendered anew although its session had turns: each of them is counted under one of these."""

from __future__ import annotations

CHANGED = "changed_history"
FOREIGN = "foreign_reply"
NO_TURN_END = "no_turn_end"
REPLY_HIDDEN = "reply_hidden"
REWRITTEN = "template_rewrites_history"
THOUGHT_DROPPED = "template_drops_reasoning"
REFUSED = "renderer_refused"

MEANINGS = {
    CHANGED: "the client changed the conversation: compaction, a sub-agent, a branch",
    FOREIGN: "the conversation goes on with a reply that was not sampled here, or with nothing new",
    NO_TURN_END: "the chat template ends a reply with no token that the model samples",
    REPLY_HIDDEN: "the chat template doesn't show the reply",
    REWRITTEN: "the chat template writes earlier messages differently once others follow",
    THOUGHT_DROPPED: "the chat template drops earlier reasoning, and `--history template` does as it does",
    REFUSED: "the renderer can't go on from what was sampled, such as a thought without an end",
}
UNAVOIDABLE = frozenset({CHANGED, FOREIGN})
"""Reasons for which the conversation itself branches: no template or renderer could have gone on."""
