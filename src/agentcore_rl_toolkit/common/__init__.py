"""Small parts that several stations share: describing foreign objects, guarding ports, a private event loop.

Nothing here knows a noun of the path. Imports: `errors` only.
"""
