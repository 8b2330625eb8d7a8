"""Google's generateContent.

In: JSON of this API. Out: canonical calls, and answers, streams and errors in its format. It does no I/O.

Imports `gateway.call`, `gateway.record`, `gateway.wire.openai`.
"""
