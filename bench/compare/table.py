"""The comparison as a section of docs/benchmarks.md. Pure, except for the one function that writes the file."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.compare.figures import Busy, Contention, Measured, median_ratio

BEGIN: Final = "<!-- compare:begin -->"
END: Final = "<!-- compare:end -->"
_WIDTH: Final = 120
# Below this share of their demand the processes were not what decided.
_KEPT_UP: Final = 0.95

Row = tuple[str, str, str]


@dataclass(frozen=True)
class Setting:
    """What the figures were measured on and with."""

    engine: str
    python: str
    cores: int
    clients: int
    rate_per_s: int
    busy_burst: int
    busy_left: int
    busy_demand: float
    split_capacity: int
    slow_refill_s: int


def section(setting: Setting, ours: Measured, theirs: Measured) -> str:
    rows = [
        *_cost_rows(ours, theirs),
        *_cpu_rows(ours, theirs),
        *_throughput_rows(ours, theirs),
        *_exactness_rows(setting, ours, theirs),
        *_contention_rows(setting, ours, theirs),
        *_busy_rows(ours, theirs),
    ]
    head: Row = ("", "Sluice", f"zae-limiter {theirs.versions['zae-limiter']}")
    table = [_line(head), "|---|---:|---:|", *map(_line, rows)]
    notes = [_paragraph(note) for note in _notes(setting, ours, theirs)]
    return "\n\n".join([_paragraph(_introduction(setting, ours, theirs)), "\n".join(table), *notes])


def rewritten(document: str, text: str) -> str:
    """The document with the text between the markers."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN} followed by {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def rewrite(path: Path, text: str) -> None:
    path.write_text(rewritten(path.read_text(), text))


def _introduction(setting: Setting, ours: Measured, theirs: Measured) -> str:
    return (
        f"{setting.engine}, Python {setting.python}, {setting.cores} cores; "
        f"Sluice with boto3 {ours.versions['boto3']}, zae-limiter with boto3 {theirs.versions['boto3']}. "
        "Both in one run, taking turns, with the same limits and ids."
    )


def _cost_rows(ours: Measured, theirs: Measured) -> list[Row]:
    name = "{}: calls / write / read units"
    return [(name.format(operation), _cost(ours, operation), _cost(theirs, operation)) for operation in ours.costs]


def _cost(measured: Measured, operation: str) -> str:
    cost = measured.costs[operation]
    return f"{cost['calls']:g} / {cost['write_units']:g} / {cost['read_units']:g}"


def _cpu_rows(ours: Measured, theirs: Measured) -> list[Row]:
    return [
        (
            f"client CPU of a {operation}, in µs [1]",
            f"{median(taken):.0f}",
            _beside(theirs.cpu_us[operation], taken),
        )
        for operation, taken in ours.cpu_us.items()
    ]


def _throughput_rows(ours: Measured, theirs: Measured) -> list[Row]:
    return [
        (
            f"acquires a second, {clients} {'client' if clients == 1 else 'clients'} [1]",
            f"{median(done):.0f}",
            _beside(theirs.acquires_per_s[clients], done),
        )
        for clients, done in ours.acquires_per_s.items()
    ]


def _beside(values: Sequence[float], base: Sequence[float]) -> str:
    return f"{median(values):.0f} ({median_ratio(values, base):.2f} times)"


def _exactness_rows(setting: Setting, ours: Measured, theirs: Measured) -> list[Row]:
    def beyond(measured: Measured) -> str:
        return str(max(0, measured.admitted - setting.split_capacity))

    gain = f"gained by 1 an hour in {setting.slow_refill_s} s beside a busy limit, in millitokens"
    exact = round(setting.slow_refill_s * 1000 / 3600)
    return [
        (f"admitted beyond {setting.split_capacity} tokens over two splits [2]", beyond(ours), beyond(theirs)),
        (f"{gain} (exact: {exact}) [3]", str(ours.slow_milli), str(theirs.slow_milli)),
    ]


def _contention_rows(setting: Setting, ours: Measured, theirs: Measured) -> list[Row]:
    demands = " / ".join(f"{demand:g}" for demand in ours.contention)
    where = f"{setting.clients} processes on one bucket at {demands} times its rate"
    figures: Sequence[tuple[str, Callable[[Contention], str]]] = (
        ("writes per admitted request", lambda found: f"{found.writes / max(1, found.admitted):.2f}"),
        ("writes per request that made a call", lambda found: f"{found.writes / max(1, found.asked):.2f}"),
        ("answered `contended`", lambda found: str(found.contended)),
        ("refused although due [4]", lambda found: f"{100 * found.refused_although_due / max(1, found.due):.0f} %"),
    )
    return [
        (
            f"{where}: {name}",
            " / ".join(figure(found) for found in ours.contention.values()),
            " / ".join(figure(found) for found in theirs.contention.values()),
        )
        for name, figure in figures
    ]


def _busy_rows(ours: Measured, theirs: Measured) -> list[Row]:
    clients = " / ".join(str(clients) for clients in ours.busy)
    where = f"busy bucket, no refill job (zae-limiter: its aggregator's), from {clients} processes"

    def per_admitted(found: Busy) -> str:
        return f"{found.writes_per_admitted:.3f}"

    def refills(found: Busy) -> str:
        return f"{round(found.refills_per_1000, 1):g}"

    return [
        (
            f"{where}: {name}",
            " / ".join(figure(found) for found in ours.busy.values()),
            " / ".join(figure(found) for found in theirs.busy.values()),
        )
        for name, figure in (
            ("writes of the bucket per admitted request [5]", per_admitted),
            ("of these by a refill job, per 1000 admitted [5]", refills),
        )
    ]


def _busy_note(setting: Setting, theirs: Measured) -> str:
    def over(figures: Iterable[object]) -> str:
        return " and ".join(str(figure) for figure in figures)

    jobs = [busy.refill for busy in theirs.busy.values()]
    admitted = [busy.clients.admitted for busy in theirs.busy.values()]
    alone = over(f"{busy.writes_per_admitted:.3f}" for busy in theirs.busy_alone.values())
    errors = sum(job.errors for job in jobs)
    return f"""
        [5] {setting.rate_per_s} a second with a burst of {setting.busy_burst}, of which {setting.busy_left} are left
        at the start, asked for at {setting.busy_demand:g} times its rate by processes that have each used it since:
        one that last saw it full spends one write more, once.
        Sluice runs without any job. zae-limiter runs with its aggregator: its own handler, fed from the
        engine's stream with the filter, the batch of 100 and the window of 5 s of its template. It sent
        {over(job.sent for job in jobs)} refills for {over(admitted)} admitted requests, of which
        {over(job.applied for job in jobs)} were applied{f"; it told of {errors} errors" if errors else ""}. The
        {over(job.others for job in jobs)} writes of its usage records are not counted here. Without the aggregator
        its clients refill on their own: {alone} writes per admitted request.
        """


def _notes(setting: Setting, ours: Measured, theirs: Measured) -> list[str]:
    text = f"""
        Units with indexes, as the engine reports them; transactions, and keys of a batch that are not there, at the
        prices of AWS, which DynamoDB Local does not know. zae-limiter: its own table definition, its synchronous API,
        speculative writes and all caches on. Its aggregator, a function that also refills buckets from the stream,
        runs only where [5] says so.

        [1] Local times: only the ratio says something, and that of throughput includes the engine. CPU is that of the
        client's process, the median of rounds.

        [2] {setting.split_capacity} tokens that do not refill. Four tenths are taken, the bucket is split, two tenths
        are taken, it is split again, and then as much is taken as there is: {ours.admitted} and {theirs.admitted} in
        all. Each shard of Sluice rounds down to a millitoken, so that a last token may stay. zae-limiter is split by
        the method that its client calls when a bucket is hot. Its quotas, which a calendar sets back instead of a
        refill, are divided like ours.

        [3] On a clock that is moved by hand. The busy limit is 20 a minute and is asked for twice as fast.

        [4] {setting.rate_per_s} a second, asked for at random moments. Due is what one process would have been
        admitted that asked an exact bucket at the same moments. The slower the calls, the more of them meet.
        {_fallen_behind(ours, theirs)}

        {_busy_note(setting, theirs).strip()}
        """
    return text.strip().split("\n\n")


def _fallen_behind(ours: Measured, theirs: Measured) -> str:
    behind = [
        f"{100 * found.attempts / found.planned:.0f} % of the demand {where} ({name})"
        for name, measured in (("Sluice", ours), ("zae-limiter", theirs))
        for where, found in (
            *((f"at {demand:g}", found) for demand, found in measured.contention.items()),
            *((f"of [5] from {clients}", busy.clients) for clients, busy in measured.busy.items()),
        )
        if found.attempts < _KEPT_UP * found.planned
    ]
    return f"The processes fell behind and asked only for {', '.join(behind)}." if behind else ""


def _paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _line(row: Row) -> str:
    return "| " + " | ".join(row) + " |"
