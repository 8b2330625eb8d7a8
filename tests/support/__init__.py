"""Real local parts for tests: servers on loopback, an app in its own process, a scripted model."""
