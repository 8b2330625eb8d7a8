"""Small parts that several stations share: guards of ports, a private event loop, AWS's event frames, `.env` files.

They don't know rollouts.

Imports no other station.
"""
