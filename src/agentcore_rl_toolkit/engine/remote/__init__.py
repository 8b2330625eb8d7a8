"""Engines behind HTTP: vLLM, SGLang, and the HTTP client they share.

In: sample requests. Out: tokens, logprobs and expert routes, read from the servers' JSON. They need no tokenizer, never
guess a logprob that a server left out, and report every failure as an `EngineError`.

Imports no other station.
"""
