"""Which model, of whom, and where: what an entry of litellm's table is about, by its key."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Provider(StrEnum):
    """Who sells the model. The first one has it, where several sell the same id."""

    BEDROCK = "bedrock"
    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GOOGLE = "google"


class Mode(StrEnum):
    """What is paid by the token of text. Sound and pictures cost more by the token, and have no kind of their own."""

    CHAT = "chat"
    RESPONSES = "responses"
    COMPLETION = "completion"
    EMBEDDING = "embedding"


class LeftOut(Exception):
    """The entry gives no price that can be used. `reason` is for a person."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Subject:
    """`region`: the only one where it holds; None for the price of the model as such."""

    provider: Provider
    model_id: str
    region: str | None = None


_PROVIDERS: Final = {
    "bedrock": Provider.BEDROCK,
    "bedrock_converse": Provider.BEDROCK,
    "bedrock_mantle": Provider.BEDROCK,
    "anthropic": Provider.ANTHROPIC,
    "openai": Provider.OPENAI,
    "text-completion-openai": Provider.OPENAI,
    "gemini": Provider.GOOGLE,
    "vertex_ai": Provider.GOOGLE,
}
# As `vertex_ai-language-models`: a group of models of one provider.
_GOOGLE_GROUP: Final = "vertex_ai-"
_PREFIXES: Final = {
    Provider.BEDROCK: ("bedrock/", "bedrock_mantle/"),
    Provider.ANTHROPIC: ("anthropic/",),
    Provider.OPENAI: ("openai/",),
    Provider.GOOGLE: ("gemini/", "vertex_ai/"),
}
_AWS_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]+")
# The same models by another call.
_INVOKE: Final = "invoke"
# Anthropic's own service, on a bill of AWS: its ids are Anthropic's.
_ANTHROPIC_ON_AWS: Final = "claude_platform"


def provider_of(entry: Mapping[str, Any]) -> Provider | None:
    """None: not one of ours."""
    name = str(entry.get("litellm_provider"))
    return Provider.GOOGLE if name.startswith(_GOOGLE_GROUP) else _PROVIDERS.get(name)


def mode_of(entry: Mapping[str, Any]) -> Mode:
    """Raises LeftOut."""
    mode = entry.get("mode")
    if mode not in list(Mode):
        raise LeftOut(f"not paid by the token of text: {mode}")
    return Mode(mode)


def subject_of(key: str, provider: Provider) -> Subject:
    """Raises LeftOut."""
    rest = next((key.removeprefix(prefix) for prefix in _PREFIXES[provider] if key.startswith(prefix)), key)
    parts = rest.split("/")
    if provider is Provider.GOOGLE or len(parts) == 1:
        # What Google sells for others is named `publisher/model`.
        return Subject(provider, rest)
    if provider is Provider.BEDROCK and len(parts) == 2:
        where, model_id = parts
        if where == _INVOKE:
            return Subject(provider, model_id)
        if where == _ANTHROPIC_ON_AWS:
            return Subject(Provider.ANTHROPIC, model_id)
        if _AWS_REGION.fullmatch(where):
            return Subject(provider, model_id, where)
    if "-commitment" in key:
        raise LeftOut("paid by the hour, under a commitment")
    raise LeftOut("its key names no model")
