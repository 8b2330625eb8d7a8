"""The sandbox of a session: namespaces, root file system, control groups, seccomp. Linux only.

In: an agent's folder, the wanted protections and limits. Out: a process that has them, or a reason per protection why
this machine can't provide it. Runs in freshly forked processes, so it imports no HTTP library; it knows neither
sessions nor requests.

Imports `runtime.hosting`.
"""
