"""One speaker for each wire that agents may speak."""

from .base import Called, Heard, Refused, Setup, Speaker
from .openai_chat import OpenAIChatSpeaker

SPEAKERS: dict[str, type[Speaker]] = {"openai": OpenAIChatSpeaker}

__all__ = ["SPEAKERS", "Called", "Heard", "Refused", "Setup", "Speaker"]
