"""The local runtime's port: AWS's wire, a small S3, and who may use them."""
