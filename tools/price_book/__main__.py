"""`make price-book`: writes the book, the notices and the report from the wheels that were fetched."""

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from typing import Final

from local import ROOT
from tools.price_book import book, sources
from tools.price_book.comparison import GenaiPrices, Others, compared
from tools.price_book.report import Making, report

BOOK: Final = ROOT / "layers" / "core" / "python" / "sluice" / "prices" / "book.json"
NOTICE: Final = BOOK.parent / "NOTICE"
REPORT: Final = ROOT / "docs" / "price-book.md"


def documents(wheels: Path, day: date, others: Others) -> dict[Path, str]:
    """The files as they should be. The same wheels and the same day give the same files. Raises SourceError."""
    ours, table = sources.opened(wheels, "litellm")
    theirs, _ = sources.opened(wheels, "genai-prices")
    models, findings = book.build(sources.decoded(table))
    facts = {ours.name: ours.facts(), theirs.name: {**theirs.facts(), "compared_as_of": day.isoformat()}}
    made = {BOOK: book.text(ours.version, facts, models), NOTICE: sources.notices((ours, theirs))}
    checksums = {str(path.relative_to(ROOT)): sources.checksum(text.encode()) for path, text in made.items()}
    making = Making((ours, theirs), day, checksums, models, findings, compared(models, others))
    return {**made, REPORT: report(making)}


def last_day() -> date | None:
    """For which the book at hand was compared."""
    if not BOOK.is_file():
        return None
    return date.fromisoformat(json.loads(BOOK.read_text())["sources"]["genai-prices"]["compared_as_of"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="make price-book", description="The prices that ship with the product.")
    parser.add_argument("wheels", type=Path, help="the folder with the wheels")
    parser.add_argument("--day", type=date.fromisoformat, help="as of when to compare; else as last time")
    parser.add_argument("--check", action="store_true", help="writes nothing; says what would change")
    arguments = parser.parse_args()
    day: date | None = arguments.day or last_day()
    if day is None:
        print("error: DAY=yyyy-mm-dd is missing, and there is no book to take it from", file=sys.stderr)
        return 1
    try:
        made = documents(arguments.wheels, day, GenaiPrices(day))
    except sources.SourceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    stale = [path for path, text in made.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if not arguments.check:
            path.write_text(made[path])
        print(f"{'stale' if arguments.check else 'wrote'}: {path.relative_to(ROOT)}")
    if not stale:
        print("the price book is as its sources make it")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
