"""Backends: each converts rollouts to one trainer's types and plugs into its hooks.

base.py      what a backend is, how it is found, and what it plans
launch.py    starting and ending trainers that have a program of their own
settings.py  what a run is told
checks.py    what can be told of a run before it starts
loop.py      the rollouts of a run, step by step, for trainers in this process
folder.py    what a run leaves behind, by step
report.py    what a run shows

One folder for each trainer.
"""
