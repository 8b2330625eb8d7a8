"""Engines behind HTTP: vLLM and SGLang, and the HTTP client they share."""
