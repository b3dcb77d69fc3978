"""Whether a bearer still stands: one read, remembered for half a minute, and what happens when it fails."""

from collections.abc import Callable

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Suspended, Unauthorized, Unavailable
from sluice.core.identity import Claims
from sluice.core.orgs import OrgSettings
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.orgs import app_delete, decode_app
from sluice.repository.revocations import family_mark_put, token_mark_put
from sluice.services.bearers import CACHE_MS
from tests.fakes import FakeClock
from tests.identities import Credential, Desk, engine_desk

ONE_READ = ["consistent batch_get"]


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Desk:
    return engine_desk(dynamodb, table, clock)


@pytest.fixture
def org(desk: Desk) -> Credential:
    return desk.make_org()


@pytest.fixture
def app(desk: Desk, org: Credential) -> Credential:
    return desk.make_app()


def claims_of(desk: Desk, credential: Credential) -> Claims:
    claims = desk.claims(desk.log_in(credential).access_token)
    desk.store.taken_calls()
    return claims


def no_answer(_verb: str, _request: object) -> None:
    raise Unavailable("no answer")


def test_one_read_answers_for_half_a_minute(desk: Desk, app: Credential) -> None:
    claims = claims_of(desk, app)
    for _ in range(3):
        desk.bearers.require(claims, closed=True)
    assert desk.store.taken_calls() == ONE_READ
    desk.clock.advance(CACHE_MS - 1)
    desk.bearers.require(claims, closed=True)
    assert desk.store.taken_calls() == []
    desk.clock.advance(1)
    desk.bearers.require(claims, closed=True)
    assert desk.store.taken_calls() == ONE_READ
    assert desk.meter.counts[Signal.STANDING_READS] == 2
    assert desk.meter.counts[Signal.STANDING_CACHE_HITS] == 3


@pytest.mark.parametrize("told", [True, False])
def test_what_the_org_says_about_its_callers_comes_along(desk: Desk, told: bool) -> None:
    credential = desk.make_org(settings=OrgSettings(auto_register_entities=told))
    assert desk.bearers.require(claims_of(desk, credential), closed=True).auto_register_entities is told


def revoke_token(desk: Desk, claims: Claims) -> None:
    desk.store.inner.put(token_mark_put(claims, desk.clock.now_ms), repeatable=True)


def revoke_family(desk: Desk, claims: Claims) -> None:
    desk.store.inner.put(family_mark_put(claims, desk.clock.now_ms), repeatable=True)


def rotate_without_grace(desk: Desk, claims: Claims) -> None:
    desk.rotate(claims.bearer.client_id, 0)


def suspend_org(desk: Desk, _claims: Claims) -> None:
    desk.suspend_org()


def suspend_app(desk: Desk, _claims: Claims) -> None:
    desk.suspend_app()


def purge(desk: Desk, _claims: Claims) -> None:
    desk.start_purge()


def delete_app(desk: Desk, claims: Claims) -> None:
    item = desk.store.inner.get(keys.app_settings("ns", claims.bearer.entity), consistent=True)
    assert item is not None
    desk.send(app_delete(decode_app(item)))


def delete_org(desk: Desk, _claims: Claims) -> None:
    desk.store.inner.delete({"Key": {**keys.org_settings("ns").attributes}})


def delete_namespace(desk: Desk, _claims: Claims) -> None:
    desk.store.inner.delete({"Key": {**keys.namespace_by_id("ns").attributes}})


ENDS = [
    (revoke_token, Unauthorized),
    (revoke_family, Unauthorized),
    (rotate_without_grace, Unauthorized),
    (suspend_org, Suspended),
    (suspend_app, Suspended),
    (purge, Unauthorized),
    (delete_app, Unauthorized),
    (delete_org, Unauthorized),
    (delete_namespace, Unauthorized),
]


@pytest.mark.parametrize(("end", "refusal"), ENDS)
def test_whatever_ends_a_bearer_acts_within_half_a_minute(
    desk: Desk, app: Credential, end: Callable[[Desk, Claims], None], refusal: type[Exception]
) -> None:
    claims = claims_of(desk, app)
    desk.bearers.require(claims, closed=True)
    end(desk, claims)
    desk.clock.advance(CACHE_MS - 1)
    desk.bearers.require(claims, closed=True)
    desk.clock.advance(1)
    with pytest.raises(refusal) as raised:
        desk.bearers.require(claims, closed=True)
    assert type(raised.value) is refusal
    # A process that has not seen the bearer yet refuses at once.
    with pytest.raises(refusal):
        desk.other_process(8).bearers.require(claims, closed=False)


def test_a_refusal_is_remembered_for_as_long_and_no_longer(desk: Desk, app: Credential) -> None:
    claims = claims_of(desk, app)
    desk.suspend_org()
    for _ in range(3):
        with pytest.raises(Suspended):
            desk.bearers.require(claims, closed=True)
    assert desk.store.taken_calls() == ONE_READ
    assert desk.meter.counts[Signal.TOKENS_REFUSED] == 3
    desk.suspend_org(suspended=False)
    desk.clock.advance(CACHE_MS - 1)
    with pytest.raises(Suspended):
        desk.bearers.require(claims, closed=True)
    assert desk.store.taken_calls() == []
    desk.clock.advance(1)
    desk.bearers.require(claims, closed=True)
    assert desk.store.taken_calls() == ONE_READ


def test_a_slow_read_shortens_what_is_remembered(desk: Desk, app: Credential) -> None:
    """What is written while the answer is on its way is not in it."""
    claims = claims_of(desk, app)

    def slow(_verb: str, _request: object) -> None:
        desk.clock.advance(20_000)

    desk.store.after = slow
    desk.bearers.require(claims, closed=True)
    desk.store.after = None
    desk.store.taken_calls()
    desk.clock.advance(CACHE_MS - 20_000)
    desk.bearers.require(claims, closed=True)
    assert desk.store.taken_calls() == ONE_READ


def test_a_failed_look_is_closed_where_it_must_be_and_open_where_it_may(desk: Desk, app: Credential) -> None:
    claims = claims_of(desk, app)
    desk.store.before = no_answer
    with pytest.raises(Unavailable):
        desk.bearers.require(claims, closed=True)
    desk.bearers.require(claims, closed=False)
    assert desk.meter.counts[Signal.STANDING_LOOKUPS_FAILED] == 2
    # Nothing of that is remembered.
    desk.store.before = None
    desk.suspend_org()
    with pytest.raises(Suspended):
        desk.bearers.require(claims, closed=False)


def test_what_is_remembered_needs_no_table(desk: Desk, app: Credential) -> None:
    claims = claims_of(desk, app)
    desk.bearers.require(claims, closed=True)
    desk.store.before = no_answer
    desk.bearers.require(claims, closed=True)
    assert desk.meter.counts[Signal.STANDING_LOOKUPS_FAILED] == 0


def test_a_remembered_refusal_stays_one_while_the_table_is_away(desk: Desk, app: Credential) -> None:
    claims = claims_of(desk, app)
    desk.suspend_org()
    with pytest.raises(Suspended):
        desk.bearers.require(claims, closed=False)
    desk.store.before = no_answer
    with pytest.raises(Suspended):
        desk.bearers.require(claims, closed=False)


def test_while_nothing_can_be_read_the_last_terms_of_the_org_hold(desk: Desk, app: Credential, org: Credential) -> None:
    """Nobody is registered by mistake: that would stay."""
    seen, unseen = claims_of(desk, app), claims_of(desk, org)
    desk.store.before = no_answer
    assert not desk.bearers.require(unseen, closed=False).auto_register_entities
    desk.store.before = None
    desk.bearers.require(seen, closed=False)
    desk.store.before = no_answer
    assert desk.bearers.require(unseen, closed=False).auto_register_entities


def test_another_org_with_the_same_app_is_another(desk: Desk, app: Credential) -> None:
    desk.make_org("other", "ns2")
    theirs = claims_of(desk, desk.make_app("chat", "ns2"))
    desk.suspend_app()
    desk.bearers.require(theirs, closed=True)
