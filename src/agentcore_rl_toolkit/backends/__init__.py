"""Backends: each converts rollouts to one trainer's types and plugs into its hooks. One folder for each trainer."""
