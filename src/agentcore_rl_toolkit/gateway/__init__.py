"""The gateway: agents call it as if it were their model's API; it records what the policy sampled, exactly."""
