"""docs/price-book.md: where the prices come from, what was decided, and where the two sources disagree."""

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from tools.price_book.book import Findings, Model
from tools.price_book.comparison import Comparison, Difference
from tools.price_book.entries import Provider
from tools.price_book.sources import Source, checksum

CHECKSUM: Final = "Checksum of all lines above: "
_EXAMPLES: Final = 3
_WIDTH: Final = 120
# What a field that the book has no place for is about: the first of these words that is in its name.
_NOT_CARRIED: Final = (
    ("priority", "the priority tier"),
    ("flex", "the flex tier"),
    ("ultrafast", "the ultrafast tier"),
    ("decisions", "decisions"),
    ("12hr", "cache writes for longer than an hour"),
    ("audio", "audio"),
    ("video", "video"),
    ("image", "images"),
    ("reasoning", "reasoning"),
    ("character", "characters"),
    ("search_context", "searches"),
    ("query", "queries"),
)


@dataclass(frozen=True)
class Making:
    """All that the report tells of. `files`: what was made, by path, with checksums."""

    sources: tuple[Source, ...]
    day: date
    files: Mapping[str, str]
    models: Mapping[str, Model]
    findings: Findings
    comparison: Comparison


def report(making: Making) -> str:
    """Its last line vouches for the others: nobody has edited them."""
    parts = [
        _head(making),
        _contents(making.models, making.comparison),
        _left_out(making.findings),
        _clashes(making.findings),
        _resold(making.findings),
        _odd(making),
        _compared(making.comparison, making.day),
    ]
    text = "\n\n".join(parts) + "\n\n"
    return f"{text}{CHECKSUM}`{checksum(text.encode())}`\n"


def is_untouched(document: str) -> bool:
    text, found, rest = document.rpartition(CHECKSUM)
    return bool(found) and rest == f"`{checksum(text.encode())}`\n"


def _head(making: Making) -> str:
    sources = [
        (
            source.name,
            source.version,
            f"`{source.wheel}`",
            f"`{source.wheel_sha256}`",
            f"`{source.table}`",
            source.licence,
        )
        for source in making.sources
    ]
    tables = [(f"`{source.table}`", f"`{source.table_sha256}`") for source in making.sources]
    files = [(f"`{path}`", f"`{sha256}`") for path, sha256 in making.files.items()]
    return "\n\n".join(
        [
            "# Price book",
            _paragraph(
                "Written by `make price-book`, like the prices that ship with the product; not to be edited. "
                "`make price-book CHECK=--check` says whether it is as it would be made. The prices are those of "
                "litellm's table; genai-prices is only compared with it. The product needs neither."
            ),
            _table(("source", "version", "wheel", "its SHA-256", "table in it", "licence"), sources),
            _table(("table", "SHA-256"), tables),
            _table(("made", "SHA-256"), files),
            _paragraph(
                "Their licences are in the NOTICE beside the prices. The MIT licence of litellm excepts what is in "
                "a folder `enterprise/`; its price table is not."
            ),
            _paragraph(
                "Prices are whole micro-dollars per million tokens in the file, dollars per million tokens here. "
                "A region's prices stand alone: what is missing there is not taken from the model."
            ),
        ]
    )


def _contents(models: Mapping[str, Model], comparison: Comparison) -> str:
    rows: list[tuple[str, int, int, int, int, int]] = []
    for provider in Provider:
        own = [model for model in models.values() if model.provider is provider]
        rows.append(
            (
                provider,
                len(own),
                sum(len(model.regions) for model in own),
                sum(bool(model.rates.batch) for model in own),
                sum(model.rates.long_from_tokens is not None for model in own),
                comparison.known[provider],
            )
        )
    models_in_all, regions, batch, long, known = (
        sum(column) for column in zip(*(row[1:] for row in rows), strict=True)
    )
    rows.append(("all", models_in_all, regions, batch, long, known))
    head = (
        "provider",
        "models",
        "prices of a region",
        "with batch",
        "with a long-context tier",
        "known to genai-prices",
    )
    return "## What is in it\n\n" + _table(head, rows)


def _left_out(findings: Findings) -> str:
    rows = [
        (reason, len(keys), _some(f"`{key}`" for key in sorted(keys)))
        for reason, keys in sorted(findings.left_out.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    rows.append(("another provider", findings.foreign, ""))
    return "## What is left out\n\n" + _table(("reason", "entries", "for example"), rows)


def _clashes(findings: Findings) -> str:
    rows = [
        (
            f"`{clash.model_id}`" + (f" in {clash.region}" if clash.region else ""),
            _words(clash.price),
            _usd(clash.taken),
            ", ".join(f"`{key}` {_usd(price)}" for key, price in clash.named.items()),
        )
        for clash in findings.clashes
    ]
    return "\n\n".join(
        [
            "## One id, several entries of one provider",
            _paragraph("The id does not say which of them a call goes to: the dearest price of each kind is taken."),
            _table(("id", "price", "taken", "entries"), rows),
        ]
    )


def _resold(findings: Findings) -> str:
    rows = [
        (f"`{resold.model_id}`", resold.kept, f"`{resold.key}`", "differs" if resold.differs else "same")
        for resold in findings.resold
    ]
    return "\n\n".join(
        [
            "## One id, several providers",
            _paragraph(f"The first of {', '.join(Provider)} has it. What the other asks can be stored as a price."),
            _table(("id", "taken from", "not taken", "its prices"), rows),
        ]
    )


def _odd(making: Making) -> str:
    findings = making.findings
    about: Counter[str] = Counter()
    for name, entries in sorted(findings.not_carried.items()):
        about[next((words for part, words in _NOT_CARRIED if part in name), "other")] += entries
    unlike = [
        model_id
        for model_id, model in making.models.items()
        if model.rates.long_from_tokens is not None and set(model.rates.batch) - set(model.rates.long_batch)
    ]
    points = [
        f"Rounded up to whole micro-dollars: {_pairs(findings.rounded)}.",
        f"Prices of zero that are taken as unknown: {_pairs(findings.zeros)}.",
        "Long batch calls of these go by the usual batch price, because no long one is named: "
        + (", ".join(f"`{model_id}`" for model_id in unlike) or "none")
        + ".",
    ]
    return "\n\n".join(
        [
            "## What to know",
            "\n".join(map(_point, points)),
            "Prices of the entries in the book that it has no place for:",
            _table(("for", "prices"), about.most_common()),
        ]
    )


def _compared(comparison: Comparison, day: date) -> str:
    low = [difference for difference in comparison.differing if (difference.theirs or 0) > (difference.ours or 0)]
    rows = [
        (
            f"`{found.model_id}`",
            _words(found.price),
            _amount(found.price, found.ours),
            _amount(found.price, found.theirs),
        )
        for found in comparison.differing
    ]
    absent = [
        (f"`{model_id}`", ", ".join(f"{_words(found.price)} {_amount(found.price, found.theirs)}" for found in its_own))
        for model_id, its_own in _by_model(comparison.absent).items()
    ]
    return "\n\n".join(
        [
            "## Compared with genai-prices",
            _paragraph(
                f"Its prices as of {day}, by the model that it takes an id for; it has none by region. "
                f"{comparison.equal} prices are the same, {len(comparison.differing)} differ, {len(comparison.absent)} "
                f"are only there and {comparison.only_ours} only here."
            ),
            _paragraph(
                f"Of those that differ {len(low)} are higher there, of {len(_by_model(low))} models: for these the "
                "book may count too little, until a price is stored."
            ),
            _table(("id", "price", "here", "there"), rows),
            _paragraph(
                "Only there. Tokens without a price make a call unpriced; but long calls go by the usual price where "
                "there is no long one."
            ),
            _table(("id", "prices"), absent),
        ]
    )


def _by_model(differences: Iterable[Difference]) -> dict[str, list[Difference]]:
    by_model: dict[str, list[Difference]] = defaultdict(list)
    for difference in differences:
        by_model[difference.model_id].append(difference)
    return by_model


def _amount(price: str, value: int | None) -> str:
    return str(value) if price == "long_from_tokens" else _usd(value or 0)


def _usd(micros: int) -> str:
    return f"{(Decimal(micros) / 1_000_000).normalize():f}"


def _words(price: str) -> str:
    return price.removeprefix("standard ").replace("_standard", "").replace("_", " ")


def _pairs(found: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"`{key}` ({name})" for key, name in found) or "none"


def _some(items: Iterable[str]) -> str:
    listed = list(items)
    return ", ".join(listed[:_EXAMPLES]) + (", ..." if len(listed) > _EXAMPLES else "")


def _table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    listed = list(rows)
    if not listed:
        return "None."
    # Only what is a number in every row.
    numbers = [all(isinstance(row[place], int) for row in listed) for place in range(len(head))]
    rule = "|".join("---:" if is_number else "---" for is_number in numbers)
    return "\n".join([_line(head), f"|{rule}|", *map(_line, listed)])


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _point(text: str) -> str:
    return textwrap.fill(f"- {text}", _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _paragraph(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
