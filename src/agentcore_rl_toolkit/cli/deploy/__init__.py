"""Verbs from a folder to a runtime on AWS: init, build, deploy, destroy, doctor."""
