"""The agent's parts: its task, its workspace, its tools, and what is known of Java projects."""
