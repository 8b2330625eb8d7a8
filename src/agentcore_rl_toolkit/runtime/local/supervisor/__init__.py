"""The process that runs a local runtime's sessions, and the link of the program that started it.

In: `RuntimeSettings`, then requests over the link or over AWS's wire. Out: the app's answers. Ends with the program.

Imports `runtime.hosting`, `runtime.local.sandbox`, `runtime.local.server`, `runtime.local.sessions`,
`runtime.local.template`.
"""
