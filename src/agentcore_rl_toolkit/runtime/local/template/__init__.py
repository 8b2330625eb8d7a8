"""Processes below the runtime: the template that is forked, the init of each session, and the agent's app in it.

Code here runs in forked children. It imports no HTTP library, so that a template starts fast.
"""
