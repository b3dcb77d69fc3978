"""Which label is chosen, and when to ask again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.orgs import INTERVAL_MIN_SECS, AppSettings, OrgSettings, effective_settings
from sluice.core.quotas import Mode
from sluice.core.selection import Choice, Reason, Spend, Stand, check_again_in_s, choose, usable_labels

ORDERING = ("premium", "standard", "economy")
QUOTAS = {"premium": 10, "standard": 5, "economy": 2}
HOUR_MS = 3_600_000
UNMOVED = Stand()


def spends(
    *spent: int,
    ordering: Sequence[str] = ORDERING,
    quotas: Mapping[str, int] = QUOTAS,
    defined: Sequence[str] = ORDERING,
) -> list[Spend]:
    """What was spent of the labels of the usual ordering, as it is asked for in another."""
    of_label = dict(zip(ORDERING, spent, strict=True))
    return [Spend(label, of_label[label], quotas[label]) for label in usable_labels(ordering, quotas, defined)]


def chosen(usable: Sequence[Spend], sticky: str | None = None, *, enabled: bool = True) -> Choice | None:
    return choose(usable, Stand(sticky, None if sticky is None else "premium"), sticky_enabled=enabled)


def moved_to(label: str, previous_label: str) -> Choice:
    return Choice(label, Reason.QUOTA_EXCEEDED, previous_label, moves=True)


class TestVectors:
    def test_21_the_first_is_spent(self) -> None:
        assert chosen(spends(10, 0, 0)) == moved_to("standard", "premium")

    def test_23_on_from_where_it_stands(self) -> None:
        assert chosen(spends(10, 5, 0), "standard") == moved_to("economy", "standard")
        assert chosen(spends(10, 5, 2), "economy") is None
        assert chosen(spends(10, 5, 2), "standard") is None

    def test_24_it_stays_where_it_is(self) -> None:
        raised = {**QUOTAS, "premium": 1_000}
        stays = Choice("standard", Reason.STICKY, "premium", moves=False)
        assert chosen(spends(10, 0, 0, quotas=raised), "standard") == stays

    def test_24_a_new_day_begins_at_the_first(self) -> None:
        assert chosen(spends(0, 0, 0)) == Choice("premium", Reason.NORMAL, None, moves=False)

    def test_24_without_sticky_it_begins_at_the_first(self) -> None:
        premium = Choice("premium", Reason.NORMAL, None, moves=False)
        assert chosen(spends(9, 4, 0), "standard", enabled=False) == premium

    def test_24_an_ordering_that_lacks_the_label_is_begun_anew(self) -> None:
        premium = Choice("premium", Reason.NORMAL, None, moves=False)
        assert chosen(spends(9, 0, 0, ordering=("premium", "economy")), "standard") == premium
        without = spends(10, 0, 0, ordering=("premium", "economy"))
        assert chosen(without, "standard") == moved_to("economy", "premium")

    def test_57_quotas_are_inherited_label_by_label(self) -> None:
        org = OrgSettings(model_ordering=ORDERING, quotas_usd_micros={"standard": 5_000_000, "economy": 2_000_000})
        effective = effective_settings(org, AppSettings(quotas_usd_micros={"premium": 50_000_000}))
        assert effective.quotas_usd_micros == {"premium": 50_000_000, "standard": 5_000_000, "economy": 2_000_000}
        usable = usable_labels(effective.model_ordering, effective.quotas_usd_micros, ORDERING)
        fresh = [Spend(label, 0, effective.quotas_usd_micros[label]) for label in usable]
        assert not any(one.is_spent for one in fresh)
        assert usable == ORDERING


class TestChoosing:
    def test_a_label_without_a_definition_or_a_quota_is_passed_over(self) -> None:
        assert usable_labels(ORDERING, {"standard": 5, "economy": 0}, ("premium", "economy", "other")) == ("economy",)
        standard = Choice("standard", Reason.NORMAL, None, moves=False)
        assert chosen(spends(0, 0, 0, defined=("standard", "economy"))) == standard

    def test_where_it_stands_is_forgotten_with_its_definition(self) -> None:
        premium = Choice("premium", Reason.NORMAL, None, moves=False)
        assert chosen(spends(9, 0, 0, defined=("premium", "economy")), "standard") == premium

    def test_nothing_to_choose_from(self) -> None:
        assert chosen([]) is None

    def test_a_quota_of_zero_is_spent(self) -> None:
        nothing = spends(0, 0, 0, quotas={**QUOTAS, "premium": 0})
        assert chosen(nothing) == moved_to("standard", "premium")

    def test_without_sticky_every_look_moves_on_anew(self) -> None:
        """Nothing is kept, so nothing is written."""
        expected = Choice("economy", Reason.QUOTA_EXCEEDED, "premium", moves=False)
        assert chosen(spends(10, 5, 1), "standard", enabled=False) == expected

    def test_it_never_skips_what_is_left_where_it_stands(self) -> None:
        stays = Choice("standard", Reason.STICKY, "premium", moves=False)
        assert chosen(spends(10, 4, 0), "standard") == stays

    def test_what_comes_first_is_normal_even_if_selection_moved_there(self) -> None:
        """The ordering changed since."""
        usable = spends(10, 0, 0, ordering=("standard", "premium"))
        assert chosen(usable, "standard") == Choice("standard", Reason.NORMAL, None, moves=False)

    @pytest.mark.parametrize("enabled", [True, False])
    def test_an_override_wins_over_quotas(self, enabled: bool) -> None:
        stand = Stand("standard", "premium", "economy")
        for spent in ((0, 0, 0), (10, 5, 2)):
            expected = Choice("economy", Reason.OVERRIDE, None, moves=False)
            assert choose(spends(*spent), stand, sticky_enabled=enabled) == expected

    def test_an_override_to_what_is_not_usable_does_nothing(self) -> None:
        """The ordering changed since."""
        stand = Stand("standard", "premium", "other")
        stays = Choice("standard", Reason.STICKY, "premium", moves=False)
        assert choose(spends(10, 0, 0), stand, sticky_enabled=True) == stays


@dataclass
class Day:
    """A day of selections, with what is kept of them."""

    stand: Stand = UNMOVED

    def select(self, usable: Sequence[Spend]) -> Choice | None:
        choice = choose(usable, self.stand, sticky_enabled=True)
        if choice is not None and choice.moves:
            self.stand = Stand(choice.label, choice.previous_label)
        return choice


amounts = st.lists(st.integers(0, 12), min_size=5, max_size=5)
labels = tuple("abcde")


@given(amounts, amounts, st.sampled_from([None, *labels, "gone"]), st.booleans())
def test_the_first_that_is_not_spent_from_where_it_stands(
    spent: list[int], quotas: list[int], sticky: str | None, enabled: bool
) -> None:
    usable = [Spend(*one) for one in zip(labels, spent, quotas, strict=True)]
    start = labels.index(sticky) if enabled and sticky in labels else 0
    choice = choose(usable, Stand(sticky), sticky_enabled=enabled)
    left = [one.label for one in usable[start:] if not one.is_spent]
    assert (None if choice is None else choice.label) == (left[0] if left else None)
    if choice is None:
        return
    moved = choice.label != labels[start]
    assert choice.moves == (moved and enabled)
    assert (choice.reason is Reason.QUOTA_EXCEEDED) == moved
    assert (choice.reason is Reason.NORMAL) == (choice.label == "a")


@given(st.lists(st.tuples(amounts, amounts), max_size=12))
def test_within_a_day_selection_never_moves_back(looks: list[tuple[list[int], list[int]]]) -> None:
    """Whatever totals and quotas it sees, old ones among them."""
    day, reached = Day(), 0
    for spent, quotas in looks:
        usable = [Spend(*one) for one in zip(labels, spent, quotas, strict=True)]
        choice = day.select(usable)
        if choice is not None:
            assert labels.index(choice.label) >= reached
            assert labels.index(choice.label) == reached or choice.reason is Reason.QUOTA_EXCEEDED
            reached = labels.index(choice.label)
            # Seen again, it stays.
            again = day.select(usable)
            assert again is not None
            assert (again.label, again.moves) == (choice.label, False)


class TestWhenToAskAgain:
    @pytest.mark.parametrize(
        ("spent", "elapsed_ms", "expected"),
        [
            (0, 0, 300),
            (0, HOUR_MS, 300),
            # 1000 an hour, 9000 left: in nine hours.
            (1_000, HOUR_MS, 300),
            # 9000 in an hour, 1000 left: in 400 s.
            (9_000, HOUR_MS, 300),
            # 9400 in an hour, 600 left: in 229.7 s.
            (9_400, HOUR_MS, 229),
            # 9000 in ten minutes, 1000 left: in 66.6 s.
            (9_000, HOUR_MS // 6, 66),
            # 9000 in a second.
            (9_000, 1_000, INTERVAL_MIN_SECS),
            (9_000, 0, INTERVAL_MIN_SECS),
        ],
    )
    def test_sooner_if_the_quota_is_reached_sooner(self, spent: int, elapsed_ms: int, expected: int) -> None:
        spend = Spend("premium", spent, 10_000)
        assert check_again_in_s(spend, Mode.NORMAL, 300, 60, elapsed_ms) == expected

    @pytest.mark.parametrize(
        ("spent", "mode", "expected"),
        [
            # 50 a minute, 500 left: in ten minutes.
            (9_500, Mode.TIGHT, 60),
            (9_999, Mode.TIGHT, INTERVAL_MIN_SECS),
            # An override goes on beyond the quota.
            (10_000, Mode.EXCEEDED, 60),
            (20_000, Mode.EXCEEDED, 60),
        ],
    )
    def test_more_often_where_little_is_left(self, spent: int, mode: Mode, expected: int) -> None:
        spend = Spend("premium", spent, 10_000)
        assert spend.mode(95) is mode
        assert check_again_in_s(spend, mode, 300, 60, 190 * 60_000) == expected

    def test_an_override_with_a_quota_of_zero(self) -> None:
        spend = Spend("premium", 0, 0)
        assert spend.mode(95) is Mode.EXCEEDED
        assert check_again_in_s(spend, Mode.EXCEEDED, 300, 60, HOUR_MS) == 60

    @given(st.integers(0, 10**15), st.integers(0, 10**15), st.integers(0, 90_000_000), st.integers(10, 3600))
    def test_never_later_than_the_interval_nor_at_once(
        self, spent: int, quota: int, elapsed_ms: int, interval_s: int
    ) -> None:
        seconds = check_again_in_s(Spend("a", spent, quota), Mode.NORMAL, interval_s, 10, elapsed_ms)
        assert INTERVAL_MIN_SECS <= seconds <= interval_s
