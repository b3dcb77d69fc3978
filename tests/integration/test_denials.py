"""A refusal that still stands costs no call, and never refuses what refill alone would admit."""

from collections.abc import Callable

from sluice.core.limits import Limit
from sluice.core.signals import Signal
from sluice.repository import writes
from sluice.repository.keys import Key
from sluice.services.denials import DENIAL_MS, DenyCache
from tests.fakes import FakeClock
from tests.integration.conftest import Host
from tests.integration.test_acquire import per_minute


def test_asking_again_costs_nothing_and_says_the_same_time(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=10)
    first = host.refused(rpm=1)
    host.store.taken_calls()
    clock.advance(300)
    again = host.refused(rpm=1)
    assert host.store.taken_calls() == []
    assert again.admit_at_ms == first.admit_at_ms
    assert host.meter.counts[Signal.REFUSED] == 2


def test_what_the_image_covers_is_tried(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=7)
    host.refused(rpm=4)
    host.acquire(rpm=3)
    assert host.level_milli("rpm") == 0


def test_refill_alone_is_never_refused_wrongly(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rps": Limit(10, 10, 10, 1)})
    host.acquire(rps=10)
    for _ in range(20):
        refused = host.refused(rps=1)
        clock.now_ms = refused.admit_at_ms
        host.acquire(rps=1)


def test_what_is_given_back_is_seen_after_a_second(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(6)})
    host.acquire(rpm=6)
    host.refused(rpm=3)
    back = writes.give_back(host.bucket().key, host.bucket().generation, {"rpm": 5_000})
    host.store.inner.update(back, repeatable=False)
    clock.advance(DENIAL_MS - 1)
    host.refused(rpm=3)
    clock.advance(1)
    host.acquire(rpm=3)


def test_a_refusal_from_the_cache_does_not_prolong_itself(host: Host, clock: FakeClock) -> None:
    """Hole: a deny cache that lives too long, because every answer from it renews it."""
    host.put_limits({"rpd": Limit(1, 1, 1, 86_400)})
    host.acquire(rpd=1)
    host.refused(rpd=1)
    host.store.taken_calls()
    for _ in range(20):
        clock.advance(DENIAL_MS // 10)
        host.refused(rpd=1)
    assert host.store.taken_calls() == ["update", "update"]


def test_other_limits_are_not_judged_by_an_old_image(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=10)
    host.refused(rpm=1)
    host.put_limits({"rpm": per_minute(10), "tpm": per_minute(10)})
    host.acquire(tpm=1)


def test_a_refusal_elsewhere_is_not_known_here(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=10)
    other.refused(rpm=1)
    host.store.taken_calls()
    host.refused(rpm=1)
    assert host.store.taken_calls() == ["update"]


def test_the_cache_is_bounded(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=10)
    image = host.bucket()
    denials = DenyCache(clock, size=1)
    denials.remember(image.key, [image])
    assert denials.images(image.key, image.fingerprint) == (image,)
    assert denials.images(image.key, "other") == ()
    denials.remember(Key("other", "s"), [image])
    assert denials.images(image.key, image.fingerprint) == ()


def test_an_admission_ends_an_older_refusal(host: Host) -> None:
    """Else the next refusal would quote levels that this process knows to be past."""
    host.put_limits({"rpm": per_minute(5), "tpm": per_minute(5)})
    host.acquire(rpm=5)
    host.refused(rpm=1)
    host.acquire(tpm=5)
    refused = host.refused(rpm=1, tpm=5)
    assert {violation.limit: violation.available for violation in refused.violations} == {"rpm": 0, "tpm": 0}
