"""Bedrock's Converse and InvokeModel.

In: JSON of this API. Out: canonical calls, and answers, streams and errors in its format. It does no I/O.

Imports `engine`, `gateway.call`, `gateway.record`, `gateway.wire.anthropic`, `gateway.wire.openai`.
"""
