"""SageMaker's Job Runtime: its reports under a session's URL, and the whole of it at the gateway's own address."""
