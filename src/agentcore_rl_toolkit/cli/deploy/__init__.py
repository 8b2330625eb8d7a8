"""Verbs from an agent's folder to AWS and to production: init, doctor, build, deploy, destroy, plan, export, serve.

In: flags, and the agent's folder or a model. Out: what the station `deploy` or the gateway made, and the next command.

Imports `cli.gateway`, `cli.terminal`, `deploy`, `engine`, `gateway`.
"""
