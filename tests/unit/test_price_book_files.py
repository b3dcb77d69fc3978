"""What `make price-book` writes: the comparison, the report, and the files as they are committed."""

import hashlib
import json
import sys
import zipfile
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local import ROOT
from sluice.core.pricing import TokenKind
from tools.price_book import __main__ as command
from tools.price_book import sources
from tools.price_book.__main__ import BOOK, NOTICE, REPORT, documents
from tools.price_book.book import build
from tools.price_book.comparison import Difference, GenaiPrices, Known, compared, rates_of
from tools.price_book.entries import Provider
from tools.price_book.rates import Rates
from tools.price_book.report import Making, is_untouched, report
from tools.price_book.sources import Source, SourceError, checksum

INPUT, OUTPUT = TokenKind.INPUT, TokenKind.OUTPUT
WRITE, WRITE_1H = TokenKind.CACHE_WRITE, TokenKind.CACHE_WRITE_1H
DAY = date(2026, 11, 18)
LICENCE = "MIT License\n\nPermission is hereby granted, free of charge, to any person obtaining a copy\n"


def entry(provider: str = "bedrock", **prices: str | int) -> dict[str, Any]:
    costs = {"input_cost_per_token": "1e-06", "output_cost_per_token": "2e-06", **prices}
    return {"litellm_provider": provider, "mode": "chat", **{name: Decimal(cost) for name, cost in costs.items()}}


class Fixed:
    """Knows one model."""

    def __init__(self, model_id: str, known: Rates) -> None:
        self.model_id = model_id
        self.known = Known("their name", known)

    def find(self, provider: Provider, model_id: str) -> Known | None:
        return self.known if provider is Provider.BEDROCK and model_id == self.model_id else None


def test_the_comparison_goes_price_by_price() -> None:
    models, _ = build({"m": entry(cache_read_input_token_cost="1e-07"), "other": entry()})
    theirs = Rates({INPUT: 1_000_000, OUTPUT: 3_000_000, WRITE: 7}, {}, 200_000, {INPUT: 9})
    found = compared(models, Fixed("m", theirs))
    assert found.known == {Provider.BEDROCK: 1, Provider.ANTHROPIC: 0, Provider.OPENAI: 0, Provider.GOOGLE: 0}
    assert (found.equal, found.only_ours) == (1, 1)
    assert found.differing == [Difference("m", "their name", "standard output", 2_000_000, 3_000_000)]
    assert found.absent == [
        Difference("m", "their name", "long_from_tokens", None, 200_000),
        Difference("m", "their name", "standard cache_write", None, 7),
        Difference("m", "their name", "long_standard input", None, 9),
    ]


def test_their_prices_are_read_by_kind_and_tier() -> None:
    def tiered(base: str, *tiers: tuple[int, str]) -> Any:
        return SimpleNamespace(
            base=Decimal(base), tiers=[SimpleNamespace(start=start, price=Decimal(price)) for start, price in tiers]
        )

    standard = SimpleNamespace(
        input_mtok=tiered("3", (200_000, "6")),
        output_mtok=tiered("15", (200_000, "22.5")),
        cache_write_mtok=Decimal("3.75"),
        cache_write_1h_mtok=Decimal("6"),
        input_audio_mtok=Decimal("9"),
    )
    batch = SimpleNamespace(
        input_mtok=Decimal("1.5"), cache_write_5m_mtok=Decimal("1.8"), cache_write_mtok=Decimal("9")
    )
    assert rates_of(standard, batch) == Rates(
        standard={INPUT: 3_000_000, OUTPUT: 15_000_000, WRITE: 3_750_000, WRITE_1H: 6_000_000},
        batch={INPUT: 1_500_000, WRITE: 1_800_000},
        long_from_tokens=200_000,
        long_standard={INPUT: 6_000_000, OUTPUT: 22_500_000},
    )
    assert rates_of(standard, None).batch == {}


def test_their_package_is_asked_for_a_day_and_for_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class TheirModel:
        id = "their name"
        price_variants = (SimpleNamespace(when={"service_tier": "flex"}), SimpleNamespace(when={"processing": "batch"}))

        def get_prices(self, at: Any, context: Any = None) -> Any:
            asked.append((at.isoformat(), context))
            return SimpleNamespace(input_mtok=Decimal(2 if context else 4))

    class TheirProvider:
        id = "aws"

        def find_model(self, model_id: str, *, all_providers: None) -> Any:
            return TheirModel() if model_id == "m" else None

    data = SimpleNamespace(providers=[TheirProvider()])
    monkeypatch.setitem(sys.modules, "genai_prices", SimpleNamespace(data=data))
    monkeypatch.setitem(sys.modules, "genai_prices.data", data)
    others = GenaiPrices(DAY)
    assert others.find(Provider.BEDROCK, "m") == Known("their name", Rates({INPUT: 4_000_000}, {INPUT: 2_000_000}))
    assert others.find(Provider.BEDROCK, "n") is None
    assert asked == [("2026-11-18T00:00:00+00:00", None), ("2026-11-18T00:00:00+00:00", {"processing": "batch"})]
    monkeypatch.setattr(TheirModel, "price_variants", None)
    assert others.find(Provider.BEDROCK, "m") == Known("their name", Rates({INPUT: 4_000_000}))


def making(**changes: Any) -> Making:
    models, findings = build(
        {
            "m": entry(
                input_cost_per_token="1.23e-06", cache_read_input_token_cost=0, input_cost_per_token_flex="1e-06"
            ),
            "bedrock_mantle/m": entry("bedrock_mantle", input_cost_per_token="1.5e-12"),
            "free": entry(input_cost_per_token=0, output_cost_per_token=0),
            "foreign": entry("azure"),
        }
    )
    theirs = Rates({INPUT: 9_000_000, OUTPUT: 1_000_000, WRITE: 7_000_000}, {}, 200_000)
    source = Source("litellm", "1.2.3", "a.whl", "aa", "a.json", "bb", "MIT", "notice")
    facts: dict[str, Any] = {
        "sources": (source,),
        "day": DAY,
        "files": {"book.json": "cc"},
        "models": models,
        "findings": findings,
        "comparison": compared(models, Fixed("m", theirs)),
    }
    return Making(**{**facts, **changes})


def test_the_report_tells_what_was_found() -> None:
    lines = report(making()).splitlines()
    for line in (
        "| litellm | 1.2.3 | `a.whl` | `aa` | `a.json` | MIT |",
        "| `book.json` | `cc` |",
        "| bedrock | 1 | 0 | 0 | 0 | 1 |",
        "| no price per token, or zero | 1 | `free` |",
        "| another provider | 1 |  |",
        "| `m` | input | 1.23 | `bedrock_mantle/m` 0.000002, `m` 1.23 |",
        "- Rounded up to whole micro-dollars: `bedrock_mantle/m` (input_cost_per_token).",
        "- Prices of zero that are taken as unknown: `m` (cache_read_input_token_cost).",
        "| the flex tier | 1 |",
        "| `m` | input | 1.23 | 9 |",
        "| `m` | output | 2 | 1 |",
        "| `m` | long from tokens 200000, cache write 7 |",
    ):
        assert line in lines
    text = " ".join(lines)
    assert "0 prices are the same, 2 differ, 2 are only there and 0 only here." in text
    assert "Of those that differ 1 are higher there, of 1 models" in text


def test_the_report_vouches_for_itself() -> None:
    text = report(making())
    assert text == report(making())
    assert is_untouched(text)
    assert not is_untouched(text.replace("| `m` | output | 2 | 1 |", "| `m` | output | 1 | 1 |"))
    assert not is_untouched(text + "and more\n")
    assert not is_untouched("")


def wheels(folder: Path, licence: str = LICENCE) -> Path:
    table = json.dumps({"m": {"litellm_provider": "bedrock", "mode": "chat", "input_cost_per_token": 1e-06,
                              "output_cost_per_token": 2e-06}})  # fmt: skip
    contents = {
        "litellm-1.2.3-cp310-abi3-x.whl": ("litellm/model_prices_and_context_window_backup.json", table),
        "genai_prices-0.9-py3-none-any.whl": ("genai_prices/data.py", "providers = []"),
    }
    for wheel, (path, text) in contents.items():
        distribution = "-".join(wheel.split("-")[:2])
        with zipfile.ZipFile(folder / wheel, "w") as archive:
            archive.writestr(zipfile.ZipInfo(path), text)
            archive.writestr(zipfile.ZipInfo(f"{distribution}.dist-info/licenses/LICENSE"), licence)
    return folder


def test_the_same_wheels_and_day_give_the_same_files(tmp_path: Path) -> None:
    made = documents(wheels(tmp_path), DAY, Fixed("m", Rates({INPUT: 1})))
    assert made.keys() == {BOOK, NOTICE, REPORT}
    assert made == documents(wheels(tmp_path), DAY, Fixed("m", Rates({INPUT: 1})))
    content = json.loads(made[BOOK])
    assert content["version"] == "1.2.3"
    assert content["sources"]["litellm"]["wheel_sha256"] == checksum(next(tmp_path.glob("litellm*")).read_bytes())
    assert content["sources"]["genai-prices"]["compared_as_of"] == "2026-11-18"
    assert made[NOTICE].count("Permission is hereby granted") == 2
    assert checksum(made[BOOK].encode()) in made[REPORT]


def test_wheels_that_are_missing_or_under_another_licence_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="should hold one wheel of litellm, not 0"):
        sources.opened(tmp_path, "litellm")
    wheels(tmp_path, licence="All rights reserved")
    with pytest.raises(SourceError, match="not the MIT licence any more"):
        sources.opened(tmp_path, "litellm")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command, writing into a folder of its own."""
    monkeypatch.setattr(command, "ROOT", tmp_path)
    for name in ("BOOK", "NOTICE", "REPORT"):
        monkeypatch.setattr(command, name, tmp_path / name)
    monkeypatch.setattr(command, "GenaiPrices", lambda day: Fixed("m", Rates({INPUT: 1})))
    return wheels(tmp_path)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["price_book", *map(str, arguments)])
    return command.main()


def test_a_check_writes_nothing_and_notices_every_change(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, elsewhere) == 1
    assert "DAY=yyyy-mm-dd is missing" in capsys.readouterr().err
    assert run(monkeypatch, elsewhere, "--day", "2026-11-18", "--check") == 1
    assert not (elsewhere / "BOOK").exists()
    assert run(monkeypatch, elsewhere, "--day", "2026-11-18") == 0
    assert "wrote: BOOK" in capsys.readouterr().out
    # The day is that of the book at hand.
    assert run(monkeypatch, elsewhere, "--check") == 0
    assert run(monkeypatch, elsewhere, "--check", "--day", "2026-11-19") == 1
    (elsewhere / "NOTICE").write_text("")
    assert run(monkeypatch, elsewhere, "--check") == 1
    assert capsys.readouterr().out.endswith("stale: NOTICE\n")


def test_wheels_that_can_not_be_used_are_told_of(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, elsewhere / "nowhere", "--day", "2026-11-18") == 1
    assert "should hold one wheel of litellm" in capsys.readouterr().err


def test_nobody_has_edited_what_is_committed() -> None:
    document = REPORT.read_text()
    assert is_untouched(document)
    for path in (BOOK, NOTICE):
        made = f"| `{path.relative_to(ROOT)}` | `{hashlib.sha256(path.read_bytes()).hexdigest()}` |"
        assert made in document.splitlines()


def test_the_committed_book_is_made_from_what_is_pinned() -> None:
    content = json.loads(BOOK.read_text())
    pinned = (ROOT / "tools" / "price_book" / "wheels.txt").read_text()
    assert content["version"] == content["sources"]["litellm"]["version"]
    for name, source in content["sources"].items():
        assert f"{name}=={source['version']} " in pinned
        assert f"--hash=sha256:{source['wheel_sha256']}" in pinned
        assert source["licence"] == "MIT"
        assert f"{name} {source['version']}\n" in NOTICE.read_text()


def test_the_committed_book_is_in_order() -> None:
    models = json.loads(BOOK.read_text())["models"]
    assert list(models) == sorted(models)
    assert {model["provider"] for model in models.values()} == set(Provider)
    assert all(
        list(model["standard"]) == [kind for kind in TokenKind if kind in model["standard"]]
        for model in models.values()
    )
