"""Model ids of Bedrock, `provider.model`, and the names that AWS lists their prices under.

A geography in front says where a call may be served: `us.anthropic.claude-x` is the inference profile of the model
`anthropic.claude-x` within the United States. Prices are known of models; a profile that has one of its own stands
under its whole id.

The price list knows no ids. It says `Claude 3.5 Sonnet v2`, which most ids say as well, with other punctuation, a date
and a version. Where they do not, ALIASES has them. A name that could be two models is none.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

GLOBAL: Final = "global"
GEOGRAPHIES: Final = frozenset({"apac", "au", "ca", "eu", GLOBAL, "in", "jp", "us", "us-gov"})

ALIASES: Final[Mapping[str, str]] = {
    "claude-3-haiku": "anthropic.claude-3-haiku-20240307-v1:0",
    "claude-3-sonnet": "anthropic.claude-3-sonnet-20240229-v1:0",
    "claude-3-7-sonnet": "anthropic.claude-3-7-sonnet-20250219-v1:0",
    "command-r": "cohere.command-r-v1:0",
    "command-r-plus": "cohere.command-r-plus-v1:0",
    "deepseek-v3-1": "deepseek.v3-v1:0",
    "gemma-3-4b": "google.gemma-3-4b-it",
    "gemma-3-12b": "google.gemma-3-12b-it",
    "gemma-3-27b": "google.gemma-3-27b-it",
    "llama-3-8b": "meta.llama3-8b-instruct-v1:0",
    "llama-3-70b": "meta.llama3-70b-instruct-v1:0",
    "llama-3-1-8b": "meta.llama3-1-8b-instruct-v1:0",
    "llama-3-1-70b": "meta.llama3-1-70b-instruct-v1:0",
    "llama-3-1-405b": "meta.llama3-1-405b-instruct-v1:0",
    "llama-3-2-1b": "meta.llama3-2-1b-instruct-v1:0",
    "llama-3-2-3b": "meta.llama3-2-3b-instruct-v1:0",
    "llama-3-2-11b": "meta.llama3-2-11b-instruct-v1:0",
    "llama-3-2-90b": "meta.llama3-2-90b-instruct-v1:0",
    "llama-3-3-70b": "meta.llama3-3-70b-instruct-v1:0",
    "llama-4-maverick-17b": "meta.llama4-maverick-17b-instruct-v1:0",
    "llama-4-scout-17b": "meta.llama4-scout-17b-instruct-v1:0",
    "magistral-small-1-2": "mistral.magistral-small-2509",
    "ministral-3b-3-0": "mistral.ministral-3-3b-instruct",
    "ministral-8b-3-0": "mistral.ministral-3-8b-instruct",
    "ministral-14b-3-0": "mistral.ministral-3-14b-instruct",
    "mistral-7b": "mistral.mistral-7b-instruct-v0:2",
    "mistral-large": "mistral.mistral-large-2402-v1:0",
    "mistral-large-3": "mistral.mistral-large-3-675b-instruct",
    "mistral-small": "mistral.mistral-small-2402-v1:0",
    "mixtral-8x7b": "mistral.mixtral-8x7b-instruct-v0:1",
    "nova-2-0-lite": "amazon.nova-2-lite-v1:0",
    "pixtral-large-25-02": "mistral.pixtral-large-2502-v1:0",
}
"""Ids by the slugs of names that say them otherwise."""

_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")
_DATE: Final = re.compile(r"-20[0-9]{6}(?=-|$)")
# The first version goes without saying.
_FIRST_VERSION: Final = re.compile(r"-(?:v1(?::[0-9]+)?|1:[0-9]+)$")
_LATER_VERSION: Final = re.compile(r"(-v[0-9]+):[0-9]+$")


def without_geography(model_id: str) -> str:
    """The id of the model itself. What has no geography stays as it is."""
    geography, _, model = model_id.partition(".")
    return model if geography in GEOGRAPHIES else model_id


def served_anywhere(model_id: str) -> str:
    """The id of the profile of a model that has no geography."""
    return f"{GLOBAL}.{model_id}"


def slug(name: str) -> str:
    """Of a name, or of an id without its date and version: its letters and digits."""
    return _SEPARATORS.sub("-", name.lower().replace("+", " plus")).strip("-")


def ids_by_slug(model_ids: Iterable[str]) -> Mapping[str, str]:
    """The models that a name can be, by its slug with and without the provider.

    Of several spellings of one id, that with the number of a build is what Bedrock's own API takes.
    """
    candidates: dict[str, set[str]] = defaultdict(set)
    for model_id in model_ids:
        provider, dot, model = model_id.partition(".")
        if not dot or provider in GEOGRAPHIES or "@" in model:
            continue
        model = slug(_LATER_VERSION.sub(r"\1", _FIRST_VERSION.sub("", _DATE.sub("", model))))
        if model.isalpha():
            # `claude` is the first Claude by its id, and by its name any.
            continue
        candidates[model].add(model_id)
        candidates[f"{provider}-{model}"].add(model_id)
    found: dict[str, str] = {}
    for name, ids in candidates.items():
        built = {one for one in ids if ":" in one} or ids
        if len(built) == 1:
            (found[name],) = built
    return {**found, **ALIASES}
