"""AWS as a deployment uses it: calls, resources, policies, builds, and the record of what was made."""
