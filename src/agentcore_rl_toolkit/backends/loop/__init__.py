"""A training loop in this process (TRL, Tinker): the rollouts of each step, the run's folder, and its report."""
