"""The page's server: finds runs below the folders that were named, and answers the page's questions about them.

In: folders of runs. Out: the page's files, JSON, and a report in one file. It refuses to write to a run, to read a file
outside of the folders, and to serve anybody but the user who started it or who has the key.

Imports `gateway`, `rollout`, `runtime`, `studio.guards`.
"""
