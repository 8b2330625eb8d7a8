"""An engine in one process, sampled from by gateways in others: `EngineService` serves it, `ChannelEngine` samples.

The process that has the engine opens the connection to each gateway process, with the admin key, so it needs no port.
`channel_wire.py` has the messages; the gateway owns the connection.

Imports no other station.
"""
