"""The wheels that the book is made from: what they are called, their checksums, and their licences word for word."""

import hashlib
import json
import zipfile
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

_TABLES: Final = {
    "litellm": "litellm/model_prices_and_context_window_backup.json",
    "genai-prices": "genai_prices/data.py",
}
_MIT: Final = "Permission is hereby granted, free of charge, to any person obtaining a copy"


class SourceError(Exception):
    """The wheels are not what they should be. The message is for a person."""


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    version: str
    wheel: str
    wheel_sha256: str
    table: str
    table_sha256: str
    licence: str
    notice: str

    def facts(self) -> dict[str, str]:
        return {
            "version": self.version,
            "wheel": self.wheel,
            "wheel_sha256": self.wheel_sha256,
            "table": self.table,
            "table_sha256": self.table_sha256,
            "licence": self.licence,
        }


def opened(folder: Path, name: str) -> tuple[Source, bytes]:
    """With the bytes of its table. Raises SourceError."""
    distribution = name.replace("-", "_")
    wheels = sorted(folder.glob(f"{distribution}-*.whl"))
    if len(wheels) != 1:
        raise SourceError(f"{folder} should hold one wheel of {name}, not {len(wheels)}")
    version = wheels[0].name.split("-")[1]
    with zipfile.ZipFile(wheels[0]) as wheel:
        table = wheel.read(_TABLES[name])
        notice = wheel.read(f"{distribution}-{version}.dist-info/licenses/LICENSE").decode()
    if _MIT not in notice:
        raise SourceError(f"the licence of {name} {version} is not the MIT licence any more: read it first")
    source = Source(
        name=name,
        version=version,
        wheel=wheels[0].name,
        wheel_sha256=checksum(wheels[0].read_bytes()),
        table=_TABLES[name],
        table_sha256=checksum(table),
        licence="MIT",
        notice=notice.strip(),
    )
    return source, table


def decoded(table: bytes) -> dict[str, dict[str, Any]]:
    """Fractions as Decimal, digit for digit."""
    entries: dict[str, dict[str, Any]] = json.loads(table, parse_float=Decimal)
    return entries


def notices(sources: tuple[Source, ...]) -> str:
    """What has to go wherever the prices go."""
    lines = [
        "The prices in book.json are made from the price table of litellm, and were compared with those of",
        "genai-prices. Both are under the MIT licence; these are their notices.",
    ]
    for source in sources:
        title = f"{source.name} {source.version}"
        lines += ["", title, "-" * len(title), "", source.notice]
    return "\n".join(lines) + "\n"


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
