"""The local runtime's port: AWS's wire, a small S3, status pages, and who may use them.

In: HTTP requests. Out: calls of the runtime, and answers as AWS writes them. Checks the caller before it reads anything
else of a request, and bounds what it reads. Knows nothing of sandboxes.

Imports `runtime.local.supervisor`, `store`.
"""
