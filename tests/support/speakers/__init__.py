"""One speaker for each wire that agents may speak."""

from .anthropic_messages import AnthropicSpeaker
from .base import Called, Heard, Refused, Setup, Speaker
from .openai_chat import OpenAIChatSpeaker

SPEAKERS: dict[str, type[Speaker]] = {"openai": OpenAIChatSpeaker, "anthropic": AnthropicSpeaker}

__all__ = ["SPEAKERS", "Called", "Heard", "Refused", "Setup", "Speaker"]
