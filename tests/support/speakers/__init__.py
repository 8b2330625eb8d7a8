"""One speaker for each wire that agents may speak."""

from .anthropic_messages import AnthropicBedrockSpeaker, AnthropicSpeaker
from .base import Called, Heard, Refused, Setup, Speaker
from .bedrock_converse import BedrockConverseSpeaker
from .google_contents import GoogleSpeaker
from .openai_chat import OpenAIChatSpeaker
from .openai_responses import OpenAIResponsesByIdSpeaker, OpenAIResponsesSpeaker

SPEAKERS: dict[str, type[Speaker]] = {
    "openai": OpenAIChatSpeaker,
    "responses": OpenAIResponsesSpeaker,
    "responses-by-id": OpenAIResponsesByIdSpeaker,
    "anthropic": AnthropicSpeaker,
    "converse": BedrockConverseSpeaker,
    "invoke": AnthropicBedrockSpeaker,
    "google": GoogleSpeaker,
}

__all__ = ["SPEAKERS", "Called", "Heard", "Refused", "Setup", "Speaker"]
