"""The sandbox: namespaces, root file system, control groups and system calls of a session. Linux only."""
