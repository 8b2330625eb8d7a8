"""The processes below the runtime: a template, forked for each session; the session's init; the agent's app in it.

In: a template's spec as JSON, then messages over a `Channel`. Out: sessions that serve the app on a socket, and a
message when one ends. Runs in forked children, so it imports no HTTP library but the session's own server. The agent's
code runs in sessions only.

Imports `agent`, `runtime.hosting`, `runtime.local.sandbox`.
"""
