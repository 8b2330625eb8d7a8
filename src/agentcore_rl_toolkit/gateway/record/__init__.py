"""What the policy sampled: turns, the tree they form, the rows they fold into, and the log that keeps them.

In: sampled tokens. Out: turns and trajectories. It neither renders nor samples. It may import `engine.base`, `errors`,
the wire's sampling settings, and the pure modules of `call`.
"""
