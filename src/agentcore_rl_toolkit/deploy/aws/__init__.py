"""AWS resources of one deployment: calls, policies, the record of what was created, and image builds on CodeBuild.

In: settings and credentials. Out: resources, each recorded as soon as it exists. It refuses to delete any other.

Imports no other station.
"""
