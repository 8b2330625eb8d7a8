"""The reasons a turn records: why its tokens are not trained on, and why its prompt was rendered from scratch."""

from __future__ import annotations

# Why tokens are masked. The last one masks single tokens, the others whole turns.
ABORTED = "aborted"  # the client went away while they were sampled
ENGINE_ERROR = "engine_error"  # the engine failed before the turn was complete
UNDELIVERED = "undelivered"  # sampled completely, but the client never received them
TRUNCATED = "truncated"  # cut at the token limit, and the session masks such turns
SIDE_CALL = "side_call"  # the session excludes such calls from training
NO_LOGPROB = "no_logprob"  # the engine gave no usable logprob

# Why a prompt was rendered from scratch although its session had turns.
CHANGED = "changed_history"
FOREIGN = "foreign_reply"
NO_TURN_END = "no_turn_end"
REPLY_HIDDEN = "reply_hidden"
REWRITTEN = "template_rewrites_history"
THOUGHT_DROPPED = "template_drops_reasoning"
REFUSED = "renderer_refused"

MEANINGS = {
    CHANGED: "the client changed the conversation: compaction, a sub-agent, a branch",
    FOREIGN: "the last assistant message was not sampled here, or nothing follows it",
    NO_TURN_END: "the chat template ends a reply without a token that the model samples",
    REPLY_HIDDEN: "the chat template doesn't show the reply",
    REWRITTEN: "the chat template writes earlier messages differently once others follow",
    THOUGHT_DROPPED: "the chat template drops earlier reasoning, and `--history template` does the same",
    REFUSED: "the renderer can't continue what was sampled, such as a thought without an end",
}
UNAVOIDABLE = frozenset({CHANGED, FOREIGN})
"""Reasons for which the conversation itself branches: no template or renderer could have continued it."""
