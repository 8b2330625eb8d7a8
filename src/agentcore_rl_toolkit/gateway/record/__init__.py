"""What the policy sampled: turns, the tree they form, the rows they fold into, and the log that keeps them.

In: sampled tokens. Out: turns and trajectories. It neither renders nor samples.

Imports `engine`, `gateway.call`, `gateway.images`, `gateway.wire`.
"""
