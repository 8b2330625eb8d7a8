"""Anthropic's Messages. Pure translations."""
