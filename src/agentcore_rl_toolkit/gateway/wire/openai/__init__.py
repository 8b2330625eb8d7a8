"""OpenAI's wires: chat completions, completions and Responses. Pure translations."""
