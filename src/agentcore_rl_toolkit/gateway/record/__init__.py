"""What the policy sampled: turns, the tree they form, the rows they fold into, and the log that keeps them.

In: sampled tokens. Out: turns and trajectories. It never renders and never samples.
"""
