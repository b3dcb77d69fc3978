"""What of the stream is archived, as which line, and under which name."""

import json
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.archiving import (
    ARCHIVED_TYPES,
    ARCHIVED_WHEN_EXPIRED,
    ARCHIVED_WHEN_WRITTEN,
    INSERT,
    REMOVE,
    Entry,
    Group,
    Span,
    UnknownName,
    archived_day,
    archived_line,
    archived_type,
    parts_of,
    stream_name,
)
from sluice.repository import audit, clients, idempotency, items, jobs, leases, namespaces, orgs, revocations, versions

ARN = "arn:aws:dynamodb:us-east-1:123456789012:table/t/stream/2026-11-18T00:00:00.000"
# Every kind that the table holds, but the archived ones.
KEPT_IN = (
    clients.CLIENT,
    idempotency.IDEMPOTENT_ANSWER,
    items.BUCKET,
    items.ENTITY,
    items.LIMITS,
    jobs.JOB,
    leases.LEASE,
    namespaces.NAMESPACE,
    orgs.APP,
    orgs.ORG,
    revocations.REVOKED,
    versions.SCHEMA_VERSION,
)
GROUP = Group("ns", "audit", date(2026, 11, 18))


@pytest.mark.parametrize("kind", ARCHIVED_WHEN_WRITTEN)
def test_events_are_archived_when_they_are_written(kind: str) -> None:
    assert archived_type(INSERT, kind, expired=False) == kind
    assert archived_type("MODIFY", kind, expired=False) is None
    # When they expire they have been in the archive for long.
    assert archived_type(REMOVE, kind, expired=True) is None


@pytest.mark.parametrize("kind", ARCHIVED_WHEN_EXPIRED)
def test_counters_are_archived_when_they_expire(kind: str) -> None:
    assert archived_type(REMOVE, kind, expired=True) == kind
    # Removed by a purge or with its entity: somebody wanted it gone.
    assert archived_type(REMOVE, kind, expired=False) is None
    assert archived_type(INSERT, kind, expired=False) is None
    assert archived_type("MODIFY", kind, expired=False) is None


@pytest.mark.parametrize("kind", [*KEPT_IN, "hold", "new_kind", "", "AUDIT", None, ["audit"][0] + " ", 1])
@pytest.mark.parametrize("event_name", [INSERT, "MODIFY", REMOVE])
@pytest.mark.parametrize("expired", [True, False])
def test_whatever_is_not_listed_stays_in_the_table(kind: object, event_name: str, expired: bool) -> None:
    assert archived_type(event_name, kind, expired=expired) is None


def test_the_listed_kinds_are_those_of_the_items() -> None:
    assert ARCHIVED_TYPES == (audit.AUDIT, "usage_event", "snapshot", "daily_total")
    assert not set(KEPT_IN) & set(ARCHIVED_TYPES)


def test_a_line_is_json_in_one_order_without_what_only_the_table_needs() -> None:
    item = {
        "SK": "s",
        "PK": "p",
        "ttl": 5,
        "GSI4PK": "x",
        "note": "zwei\nZeilen \u2028 \u00e4",
        "after": {"b": 1, "a": [None, True]},
    }
    line = archived_line(item, "audit", ("ttl", "GSI4PK"))
    assert line == (
        b'{"PK":"p","SK":"s","after":{"a":[null,true],"b":1},"note":"zwei\\nZeilen \\u2028 \\u00e4","type":"audit"}'
    )
    assert archived_line(dict(reversed(item.items())), "audit", ("GSI4PK", "ttl")) == line


@given(st.dictionaries(st.text(), st.text() | st.integers()))
def test_a_line_never_breaks_and_reads_back(item: dict[str, str | int]) -> None:
    line = archived_line(item, "audit", ())
    assert len(line.splitlines()) == 1
    # One of the control characters divides columns for Athena.
    assert all(byte >= 0x20 for byte in line)
    assert json.loads(line) == {**item, "type": "audit"}


@pytest.mark.parametrize(
    ("created_ms", "day"),
    [
        (0, date(1970, 1, 1)),
        (1_794_959_999_999, date(2026, 11, 17)),
        (1_794_960_000_000, date(2026, 11, 18)),
        (1_795_046_399_000, date(2026, 11, 18)),
    ],
)
def test_the_day_is_that_of_the_record_in_utc(created_ms: int, day: date) -> None:
    assert archived_day(created_ms) == day


def test_a_name_tells_stream_and_span() -> None:
    span = Span(stream_name(ARN), 4421584500000000017450439091, 4421584500000000017450439092)
    assert GROUP.folder == "type=audit/dt=2026-11-18/"
    assert span.name == (
        f"{span.stream}-0000000000004421584500000000017450439091-0000000000004421584500000000017450439092.jsonl.gz"
    )
    assert Span.read(span.name) == span


def test_a_table_that_was_made_anew_overwrites_nothing() -> None:
    assert stream_name(ARN) != stream_name(ARN.replace("2026-11-18", "2026-11-19"))


@given(st.integers(0, 10**40 - 1), st.integers(0, 10**40 - 1))
def test_the_order_of_names_is_the_order_of_numbers(one: int, other: int) -> None:
    assert (Span("s", one, one).name < Span("s", other, other).name) == (one < other)


@pytest.mark.parametrize("name", ["", "a-1-2", "a-1.jsonl.gz", "a-1-2-3.jsonl.gz", "a-x-2.jsonl.gz", "a-1-.jsonl.gz"])
def test_a_name_of_somebody_else_is_not_read(name: str) -> None:
    with pytest.raises(UnknownName):
        Span.read(name)


def entry(sequence: int, line: bytes = b"{}", group: Group = GROUP) -> Entry:
    return Entry(group, sequence, sequence - 100, line)


def test_nothing_makes_no_object() -> None:
    assert parts_of("s", []) == []


def test_an_object_per_namespace_type_and_day_in_the_order_of_their_first_records() -> None:
    groups = [
        GROUP,
        Group("other", "audit", GROUP.day),
        Group("ns", "snapshot", GROUP.day),
        Group("ns", "audit", date(2026, 1, 1)),
    ]
    entries = [entry(100 + number, str(number).encode(), groups[number % 4]) for number in range(10)]
    parts = parts_of("s", entries)
    assert [part.group for part in parts] == groups
    assert [part.position for part in parts] == [0, 1, 2, 3]
    assert [part.span for part in parts] == [
        Span("s", 100, 108),
        Span("s", 101, 109),
        Span("s", 102, 106),
        Span("s", 103, 107),
    ]
    assert [list(part.lines) for part in parts] == [[b"0", b"4", b"8"], [b"1", b"5", b"9"], [b"2", b"6"], [b"3", b"7"]]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([4, 5], [[4, 5]]),
        ([4, 6], [[4], [6]]),
        ([40], [[40]]),
        ([40, 2, 3, 40, 1], [[40], [2, 3], [40], [1]]),
        ([1, 1, 1, 1, 1, 1], [[1, 1, 1, 1, 1], [1]]),
    ],
)
def test_a_large_group_is_split(sizes: list[int], expected: list[list[int]]) -> None:
    """Each line counts with its end: eleven bytes are too much here."""
    entries = [entry(100 + number, b"x" * size) for number, size in enumerate(sizes)]
    parts = parts_of("s", entries, bytes_max=11)
    assert [[len(line) for line in part.lines] for part in parts] == expected
    starts = [100 + sum(len(lines) for lines in expected[:number]) for number in range(len(expected))]
    assert [(part.span.first, part.position) for part in parts] == [(start, start - 100) for start in starts]
    assert parts[-1].span.last == 99 + len(sizes)
