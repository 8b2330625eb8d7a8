"""AWS resources of one deployment: calls, policies, the record of what was created, and image builds on CodeBuild."""
