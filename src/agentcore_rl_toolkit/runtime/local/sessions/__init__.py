"""One session as the runtime sees it: its app, its output, its results, and the addresses it may reach."""
