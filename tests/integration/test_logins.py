"""Logins on a real engine: the throttle, refresh tokens that are good once, and what ends what."""

import hmac
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Contended, Suspended, TooManyRequests, Unauthorized, Unavailable, WrongCredentials
from sluice.core.identity import ACCESS_MS, LEEWAY_MS, REFRESH_MS, SECRETS_MAX, TokenType
from sluice.core.limits import SYSTEM, Limit, OnUnavailable
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.items import decode_bucket
from sluice.repository.revocations import decode_mark
from sluice.services import client_secrets
from sluice.services.bearers import CACHE_MS
from sluice.services.configuration import Configuration
from sluice.services.limits import Limits
from sluice.services.logins import LOGINS_PER_MINUTE, UNKNOWN_CLIENT_BUCKETS
from sluice.services.tokens import IssuedTokens
from sluice.shell import new_token
from tests.fakes import FakeClock, never_random
from tests.identities import HOUR_MS, Credential, Desk, at_the, engine_desk

LIMIT = Limit(10, 10, 10, 60)


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Desk:
    return engine_desk(dynamodb, table, clock)


@pytest.fixture
def org(desk: Desk) -> Credential:
    return desk.make_org()


@pytest.fixture
def app(desk: Desk, org: Credential) -> Credential:
    return desk.make_app()


def is_refused(desk: Desk, issued: IssuedTokens) -> tuple[bool, bool]:
    """Access and refresh, the first once nobody remembers it."""
    desk.clock.advance(CACHE_MS)
    try:
        desk.use(issued.access_token)
    except Unauthorized:
        access = True
    else:
        access = False
    try:
        desk.logins.refresh(issued.refresh_token)
    except WrongCredentials:
        return access, True
    return access, False


def logins_of(desk: Desk, client_id: str, secret: str = "wrong") -> list[str]:
    """What each of one more than a minute's logins came to."""
    outcomes = []
    for _ in range(LOGINS_PER_MINUTE + 1):
        try:
            desk.logins.log_in(client_id, secret)
        except (WrongCredentials, TooManyRequests) as error:
            outcomes.append(type(error).__name__)
        else:
            outcomes.append("tokens")
    return outcomes


def test_a_login_gives_tokens_for_whom_the_client_is(desk: Desk, org: Credential, app: Credential) -> None:
    for credential, entity, role in ((org, "acme", "org"), (app, "chat", "app")):
        bearer = desk.use(desk.log_in(credential).access_token).bearer
        assert (bearer.client_id, bearer.namespace) == (credential.client_id, "ns")
        assert (bearer.entity, bearer.role.value, bearer.secret_generation) == (entity, role, 1)
    assert desk.meter.counts[Signal.TOKENS_ISSUED] == 2


def test_tokens_carry_the_generation_of_the_secret_that_opened_them(desk: Desk, org: Credential) -> None:
    new = desk.rotate(org.client_id, 24)
    assert desk.use(desk.log_in(new).access_token).bearer.secret_generation == 2
    assert desk.use(desk.log_in(org).access_token).bearer.secret_generation == 1


@pytest.mark.parametrize("wrong", ["", "sk_", "sk_" + "A" * 43, "\ud800", "é", "x" * 300])
def test_a_wrong_secret_is_refused(desk: Desk, org: Credential, wrong: str) -> None:
    with pytest.raises(WrongCredentials):
        desk.logins.log_in(org.client_id, wrong)
    assert desk.meter.counts[Signal.TOKENS_REFUSED] == 1


@pytest.mark.parametrize("client_id", ["", "nobody", "a/b#c", "\ud800", "é" * 200, "client:x", "$SYSTEM"])
def test_an_unknown_client_is_refused_like_a_wrong_secret(desk: Desk, client_id: str) -> None:
    with pytest.raises(WrongCredentials):
        desk.logins.log_in(client_id, "sk_")


def test_the_secret_of_another_client_is_wrong(desk: Desk, org: Credential, app: Credential) -> None:
    with pytest.raises(WrongCredentials):
        desk.logins.log_in(org.client_id, app.client_secret)


def test_an_unknown_client_costs_what_a_known_one_costs(
    desk: Desk, org: Credential, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same calls and comparisons, first on cold caches and then on warm ones."""
    compared: list[int] = []

    class Counting:
        digest = staticmethod(hmac.digest)

        @staticmethod
        def compare_digest(left: Any, right: Any) -> bool:
            compared.append(1)
            return hmac.compare_digest(left, right)

    monkeypatch.setattr(client_secrets, "hmac", Counting)

    def cost(client_id: str) -> tuple[list[str], int]:
        compared.clear()
        desk.store.taken_calls()
        with pytest.raises(WrongCredentials):
            desk.logins.log_in(client_id, "sk_wrong")
        return desk.store.taken_calls(), len(compared)

    for _ in range(3):
        known, unknown = cost(org.client_id), cost("nobody")
        assert known == unknown
        assert known[1] == SECRETS_MAX
        assert known[0][0] == "consistent get"


def test_thirty_logins_a_minute_for_each_client(desk: Desk, org: Credential, app: Credential) -> None:
    assert logins_of(desk, org.client_id) == ["WrongCredentials"] * LOGINS_PER_MINUTE + ["TooManyRequests"]
    # The right secret does not help, and nobody else suffers.
    with pytest.raises(TooManyRequests) as refused:
        desk.log_in(org)
    assert refused.value.retry_after_ms == 60_000 // LOGINS_PER_MINUTE
    assert desk.meter.counts[Signal.LOGINS_THROTTLED] == 2
    desk.log_in(app)
    with pytest.raises(WrongCredentials):
        desk.logins.log_in("nobody", "x")
    desk.clock.advance(refused.value.retry_after_ms - 1)
    with pytest.raises(TooManyRequests):
        desk.log_in(org)
    desk.clock.advance(1)
    desk.log_in(org)


def test_the_throttle_is_one_for_all_processes(desk: Desk, org: Credential) -> None:
    other = desk.other_process(8)
    for number in range(LOGINS_PER_MINUTE):
        (desk, other)[number % 2].log_in(org)
    for process in (desk, other):
        with pytest.raises(TooManyRequests):
            process.log_in(org)


def test_its_bucket_is_in_the_tenants_namespace_and_nobody_can_name_it(desk: Desk, org: Credential) -> None:
    desk.log_in(org)
    buckets = [
        decode_bucket(item) for item in desk.store.inner.scan({}).items if str(item["PK"]).startswith("ns/BUCKET#")
    ]
    assert [(bucket.entity, bucket.resource) for bucket in buckets] == [(f"$client:{org.client_id}", "$login")]


def test_unknown_clients_share_a_few_buckets_in_the_registry(desk: Desk) -> None:
    for number in range(60):
        with pytest.raises((WrongCredentials, TooManyRequests)):
            desk.logins.log_in(f"nobody-{number}", "x")
    partitions = {str(item["PK"]) for item in desk.store.inner.scan({}).items}
    assert 1 < len(partitions) <= UNKNOWN_CLIENT_BUCKETS
    assert all(partition.startswith("_/BUCKET#$client:unknown-") for partition in partitions)


def test_the_tenants_own_limits_do_not_change_the_throttle(desk: Desk, org: Credential) -> None:
    limits = Limits(desk.store, Configuration(desk.store, desk.clock), desk.clock, never_random, new_token)
    limits.put("ns", SYSTEM, {"logins": Limit(1, 1, 1, 60), "rpm": LIMIT})
    assert logins_of(desk, org.client_id, org.client_secret).count("tokens") == LOGINS_PER_MINUTE


def test_an_open_gate_of_the_tenant_opens_no_login(desk: Desk, org: Credential) -> None:
    limits = Limits(desk.store, Configuration(desk.store, desk.clock), desk.clock, never_random, new_token)
    limits.put("ns", SYSTEM, {"rpm": LIMIT}, OnUnavailable.ALLOW)
    desk.log_in(org)

    def fail(verb: str, _request: object) -> None:
        if verb in {"put", "update"}:
            raise Unavailable("no answer")

    desk.store.before = fail
    with pytest.raises(Unavailable):
        desk.log_in(org)


def test_a_refresh_gives_new_tokens_of_the_same_family(desk: Desk, app: Credential) -> None:
    first = desk.log_in(app)
    desk.clock.advance(1000)
    second = desk.logins.refresh(first.refresh_token)
    before = desk.claims(first.refresh_token, TokenType.REFRESH)
    after = desk.claims(second.refresh_token, TokenType.REFRESH)
    assert (after.family, after.bearer) == (before.family, before.bearer)
    assert after.token_id != before.token_id
    assert after.expires_at_ms == before.expires_at_ms + 1000
    assert desk.use(second.access_token).family == before.family
    # The older access token lives on to its own end.
    desk.use(first.access_token)


def test_a_refresh_token_used_again_ends_its_family(desk: Desk, org: Credential) -> None:
    stranger = desk.log_in(org)
    first = desk.log_in(org)
    second = desk.logins.refresh(first.refresh_token)
    with pytest.raises(WrongCredentials):
        desk.logins.refresh(first.refresh_token)
    assert is_refused(desk, first) == (True, True)
    assert is_refused(desk, second) == (True, True)
    assert is_refused(desk, stranger) == (False, False)


def test_of_two_refreshes_at_once_one_gets_tokens_that_are_worth_nothing(desk: Desk, org: Credential) -> None:
    """The loser looked before the winner wrote, so only the transaction can tell."""
    first = desk.log_in(org)
    won: list[IssuedTokens] = []
    other = desk.other_process(8)
    at_the("transact", desk, lambda: won.append(other.logins.refresh(first.refresh_token)))
    with pytest.raises(WrongCredentials):
        desk.logins.refresh(first.refresh_token)
    assert len(won) == 1
    for tokens in (first, won[0]):
        assert is_refused(desk, tokens) == (True, True)


def test_of_many_refreshes_in_threads_one_gets_tokens_at_most(desk: Desk, org: Credential) -> None:
    first = desk.log_in(org)
    processes = [desk.other_process(seed) for seed in range(8)]

    def refresh(process: Desk) -> IssuedTokens | None:
        try:
            return process.logins.refresh(first.refresh_token)
        except (WrongCredentials, Contended):
            return None

    with ThreadPoolExecutor(len(processes)) as threads:
        won = [issued for issued in threads.map(refresh, processes) if issued is not None]
    assert len(won) <= 1
    assert is_refused(desk, first) == (True, True)
    for issued in won:
        assert is_refused(desk, issued) == (True, True)


def test_a_refresh_is_refused_whose_family_or_client_ends_meanwhile(desk: Desk, org: Credential) -> None:
    """After the look, before the transaction."""
    other = desk.other_process(8)
    first, second = desk.log_in(org), desk.log_in(org)
    claims = desk.claims(first.access_token)
    at_the("transact", desk, lambda: other.logins.revoke(claims, first.refresh_token))
    with pytest.raises(WrongCredentials):
        desk.logins.refresh(first.refresh_token)
    at_the("transact", desk, lambda: other.rotate(org.client_id, 0))
    with pytest.raises(WrongCredentials):
        desk.logins.refresh(second.refresh_token)
    # Neither was used up by that, and neither family was taken for stolen.
    assert (
        desk.store.inner.get(keys.revoked_token(desk.claims(second.refresh_token, TokenType.REFRESH).token_id)) is None
    )
    assert desk.store.inner.get(keys.revoked_family(desk.claims(second.access_token).family)) is None


@pytest.mark.parametrize("token_type", [TokenType.ACCESS, TokenType.REFRESH])
def test_revoking_ends_an_access_token_alone_and_a_refresh_token_with_its_family(
    desk: Desk, org: Credential, token_type: TokenType
) -> None:
    issued = desk.log_in(org)
    caller = desk.use(issued.access_token)
    is_refresh = token_type is TokenType.REFRESH
    desk.logins.revoke(caller, issued.refresh_token if is_refresh else issued.access_token)
    assert desk.meter.counts[Signal.TOKENS_REVOKED] == 1
    assert is_refused(desk, issued) == (True, is_refresh)


def test_what_is_known_to_be_revoked_costs_no_write(desk: Desk, org: Credential) -> None:
    issued = desk.log_in(org)
    desk.logins.revoke(desk.claims(issued.access_token), issued.refresh_token)
    desk.store.taken_calls()
    with pytest.raises(WrongCredentials):
        desk.logins.refresh(issued.refresh_token)
    assert desk.store.taken_calls() == ["consistent batch_get"]


def test_a_used_refresh_token_ends_its_family_too(desk: Desk, org: Credential) -> None:
    first = desk.log_in(org)
    second = desk.logins.refresh(first.refresh_token)
    desk.logins.revoke(desk.use(second.access_token), first.refresh_token)
    assert is_refused(desk, second) == (True, True)


def test_an_app_ends_its_own_tokens_and_an_org_those_of_its_namespace(
    desk: Desk, org: Credential, app: Credential
) -> None:
    other_app, other_org = desk.make_app("mail"), desk.make_org("other", "ns2")
    callers = {name: desk.use(desk.log_in(one).access_token) for name, one in (("org", org), ("app", app))}
    for caller, credential, ends in (
        ("app", app, True),
        ("app", other_app, False),
        ("app", org, False),
        ("app", other_org, False),
        ("org", app, True),
        ("org", other_app, True),
        ("org", org, True),
        ("org", other_org, False),
    ):
        issued = desk.log_in(credential)
        desk.logins.revoke(callers[caller], issued.refresh_token)
        desk.logins.revoke(callers[caller], issued.access_token)
        assert is_refused(desk, issued) == (ends, ends)


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "é", "\ud800", "x" * 4096])
def test_revoking_what_is_no_token_does_nothing(desk: Desk, org: Credential, token: str) -> None:
    caller = desk.use(desk.log_in(org).access_token)
    desk.store.taken_calls()
    desk.logins.revoke(caller, token)
    assert desk.store.taken_calls() == []


def test_a_rotation_without_grace_ends_every_token_of_the_client(desk: Desk, org: Credential, app: Credential) -> None:
    of_app = desk.log_in(app)
    opened = [desk.log_in(org)]
    opened.append(desk.logins.refresh(desk.log_in(org).refresh_token))
    second = desk.rotate(org.client_id, 168)
    opened.append(desk.log_in(second))
    new = desk.rotate(org.client_id, 0)
    assert [is_refused(desk, tokens) for tokens in opened] == [(True, True)] * 3
    assert is_refused(desk, desk.log_in(new)) == (False, False)
    assert is_refused(desk, of_app) == (False, False)


def test_a_rotation_with_grace_ends_no_token_until_then(desk: Desk, org: Credential) -> None:
    opened = desk.log_in(org)
    desk.rotate(org.client_id, 1)
    desk.clock.advance(HOUR_MS - 1)
    opened = desk.logins.refresh(opened.refresh_token)
    desk.clock.advance(1)
    with pytest.raises(WrongCredentials):
        desk.logins.refresh(opened.refresh_token)
    # The access token that was refreshed in time lives to its own end; refusing is not reuse.
    desk.use(opened.access_token)
    assert desk.store.inner.get(keys.revoked_family(desk.claims(opened.access_token).family)) is None


def test_a_refresh_token_ends_after_thirty_days(desk: Desk, org: Credential) -> None:
    opened = desk.log_in(org)
    desk.clock.advance(REFRESH_MS + LEEWAY_MS)
    with pytest.raises(WrongCredentials):
        desk.logins.refresh(opened.refresh_token)
    assert desk.meter.counts[Signal.TOKENS_REFUSED] == 1


def test_an_access_token_refreshes_nothing(desk: Desk, org: Credential) -> None:
    opened = desk.log_in(org)
    desk.store.taken_calls()
    with pytest.raises(WrongCredentials):
        desk.logins.refresh(opened.access_token)
    assert desk.store.taken_calls() == []


def test_who_is_suspended_neither_logs_in_nor_refreshes_and_loses_nothing(
    desk: Desk, org: Credential, app: Credential
) -> None:
    opened = desk.log_in(app)
    desk.suspend_org()
    for credential in (org, app):
        with pytest.raises(Suspended):
            desk.log_in(credential)
    with pytest.raises(Suspended):
        desk.logins.refresh(opened.refresh_token)
    desk.suspend_org(suspended=False)
    opened = desk.logins.refresh(opened.refresh_token)
    desk.suspend_app()
    with pytest.raises(Suspended):
        desk.logins.refresh(opened.refresh_token)
    with pytest.raises(Suspended):
        desk.log_in(app)
    desk.log_in(org)


def test_a_wrong_secret_does_not_learn_that_an_org_is_suspended(desk: Desk, org: Credential) -> None:
    desk.suspend_org()
    with pytest.raises(WrongCredentials):
        desk.logins.log_in(org.client_id, "sk_wrong")


def test_nobody_enters_a_namespace_that_is_being_purged(desk: Desk, org: Credential) -> None:
    opened = desk.log_in(org)
    desk.start_purge()
    with pytest.raises(WrongCredentials):
        desk.log_in(org)
    with pytest.raises(WrongCredentials):
        desk.logins.refresh(opened.refresh_token)


def test_a_reuse_leaves_no_mark_in_a_namespace_that_is_being_purged(desk: Desk, org: Credential) -> None:
    """The purge looks for marks only so long; all tokens have ended with its start."""
    opened = desk.log_in(org)
    family = desk.tokens.read(opened.refresh_token, TokenType.REFRESH, desk.clock.now_ms).family
    desk.logins.refresh(opened.refresh_token)
    desk.start_purge()
    with pytest.raises(WrongCredentials):
        desk.logins.refresh(opened.refresh_token)
    assert desk.store.get(keys.revoked_family(family), consistent=True) is None


@pytest.mark.parametrize("verb", ["consistent get", "consistent batch_get", "transact"])
def test_while_the_table_does_not_answer_nobody_gets_tokens(desk: Desk, org: Credential, verb: str) -> None:
    opened = desk.log_in(org)

    def fail() -> None:
        raise Unavailable("no answer")

    at_the(verb, desk, fail)
    if verb != "transact":
        with pytest.raises(Unavailable):
            desk.log_in(org)
    if verb != "consistent get":
        at_the(verb, desk, fail)
        with pytest.raises(Unavailable):
            desk.logins.refresh(opened.refresh_token)


def test_marks_end_after_the_last_token_that_they_are_about(desk: Desk, org: Credential) -> None:
    opened = desk.log_in(org)
    refresh, access = desk.claims(opened.refresh_token, TokenType.REFRESH), desk.claims(opened.access_token)
    desk.logins.refresh(opened.refresh_token)
    desk.logins.revoke(access, opened.access_token)
    desk.clock.advance(5000)
    desk.logins.revoke(access, opened.refresh_token)
    desk.rotate(org.client_id, 0)
    now_s, beyond_s = desk.clock.now_ms // 1000, 10 + 3600
    expected = {
        keys.revoked_token(access.token_id): (access.issued_at_ms + ACCESS_MS) // 1000 + beyond_s,
        keys.revoked_token(refresh.token_id): (refresh.issued_at_ms + REFRESH_MS) // 1000 + beyond_s,
        keys.revoked_family(access.family): now_s + REFRESH_MS // 1000 + beyond_s,
        keys.revoked_client(org.client_id): now_s + REFRESH_MS // 1000 + beyond_s,
    }
    for key, ttl in expected.items():
        item = desk.store.inner.get(key, consistent=True)
        assert item is not None
        assert item["ttl"] == ttl
        assert decode_mark(item).namespace == "ns"
