"""One session as the runtime sees it: its app, its output, its results, and the addresses that it may reach.

In: requests for the session, and a template to fork it from. Out: the app's answers, and `RuntimeFault` when it fails.
Whatever the session sends is untrusted and bounded here.

Imports `runtime.hosting`, `runtime.local.sandbox`, `runtime.local.server`, `runtime.local.template`, `store`.
"""
