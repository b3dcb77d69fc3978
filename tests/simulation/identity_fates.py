"""What must hold of secrets and tokens, whatever was drawn."""

from collections import Counter
from itertools import groupby
from typing import Final

from sluice.core.errors import SluiceError, TooManyRequests, Unauthorized
from sluice.core.identity import GRACE_HOURS_MAX, LEEWAY_MS, SECRETS_MAX
from tests.simulation.identity_deeds import Deed, Kind, Secret, journal_of
from tests.simulation.identity_hosts import Identity, TokenSet, desks_of
from tests.simulation.identity_lives import HOUR_MS, NEVER_MS, Lives, lives_of
from tests.simulation.scenario import Violated
from tests.simulation.world import Host, Outcome, World

REFUSED_WITHIN_MS: Final = 60_000
"""After the answer to whoever ended a token, in every process."""
LOGIN_EVERY_MS: Final = 2_100


def clients_have_owners(world: World) -> None:
    """After every write there are credentials for each org and app, and for nobody else, until a purge begins."""
    clients: dict[str, tuple[str, str]] = {}
    owners: dict[str, tuple[str, str]] = {}
    purged: set[str] = set()
    for write, records in groupby(world.table.stream, key=lambda record: record.write):
        touched: dict[str, str] = {}
        for record in records:
            for item, there in ((record.old, False), (record.new, True)):
                kind = None if item is None else item.get("kind")
                if item is None or kind not in {"client", "org", "app", "namespace"}:
                    continue
                namespace = str(item["ns"])
                if kind == "namespace":
                    purged |= {namespace} if item["state"] == "purging" else set()
                    continue
                client_id, known = str(item["client_id"]), clients if kind == "client" else owners
                touched[client_id] = namespace
                known.pop(client_id, None)
                if there:
                    known[client_id] = namespace, str(item["entity_id" if kind == "client" else kind])
        for client_id, namespace in touched.items():
            if clients.get(client_id) != owners.get(client_id) and namespace not in purged:
                raise Violated(
                    f"client {client_id} is of {clients.get(client_id)}, named by {owners.get(client_id)}, "
                    f"after write {write}"
                )


def rotated_one_by_one(world: World) -> None:
    """Who was told a secret made one generation, who was told otherwise none, in doubt at most one; never too many."""
    lives = lives_of(world)
    made: Counter[int] = Counter()
    for life in lives.lives.values():
        if [one.generation for one in life.rotations] != list(range(2, len(life.rotations) + 2)):
            raise Violated(f"generations are left out or made twice: {life}")
        made.update(rotation.request for rotation in life.rotations)
    for deed in lives.journal.of_kind(Kind.ROTATE):
        outcome = deed.request.outcome
        least = int(outcome is Outcome.DONE)
        most = int(outcome in {Outcome.DONE, Outcome.UNAVAILABLE, None})
        if not least <= made[deed.request.number] <= most:
            raise Violated(f"{made[deed.request.number]} generations by {deed}")
    for record in world.table.stream:
        if record.new is not None and record.new.get("kind") == "client":
            secrets = record.new["secrets"]
            assert isinstance(secrets, list)
            if not 1 <= len(secrets) <= SECRETS_MAX:
                raise Violated(f"{len(secrets)} secrets: {record}")


def refreshed_once(world: World) -> None:
    """Of one refresh token there is one set of successors at most, received or not."""
    journal = journal_of(world)
    successors: Counter[str] = Counter()
    for tokens in journal.issued:
        deed = journal.deeds[tokens.request]
        if deed.kind is Kind.REFRESH:
            assert deed.tokens is not None
            successors[deed.tokens.refresh.token_id] += 1
            if successors[deed.tokens.refresh.token_id] > 1:
                raise Violated(f"a refresh token had a second successor by {deed}")


def secrets_last_as_promised(world: World) -> None:
    """Until its end every secret works that somebody was told, after its end none."""
    lives = lives_of(world)
    for deed in lives.journal.of_kind(Kind.LOG_IN):
        assert deed.secret is not None
        life, generation = lives.life(deed.secret)
        _check(
            deed,
            over_ms=min(life.ended_ms, life.secret_ends_ms(generation) + lives.unsure_ms),
            doubtful_ms=min(life.ended_ms, life.secret_ends_ms(generation) - lives.unsure_ms),
        )


def tokens_end_in_time(world: World) -> None:
    """Tokens that were ended are refused soon, a refresh token at once; all others are not."""
    lives = lives_of(world)
    spread_ms = max(world.skews_ms) - min(world.skews_ms)
    for deed in lives.journal.of_kind(Kind.USE):
        assert deed.tokens is not None
        fate, expires_ms = lives.of_access(deed.tokens), deed.tokens.access.expires_at_ms
        _check(
            deed,
            over_ms=min(fate.certain_ms + REFUSED_WITHIN_MS, expires_ms + LEEWAY_MS + spread_ms),
            doubtful_ms=min(fate.possible_ms, expires_ms - spread_ms),
        )
        if deed.request.outcome is Outcome.DEGRADED and deed.closed:
            raise Violated(f"let through where that is closed: {deed}")
    for deed in lives.journal.of_kind(Kind.REFRESH):
        assert deed.tokens is not None
        fate, bearer = lives.of_refresh(deed.tokens), deed.tokens.access.bearer
        secret_ms = lives.lives[bearer.client_id].secret_ends_ms(bearer.secret_generation)
        doubtful_ms = min(fate.possible_ms, secret_ms - lives.unsure_ms)
        _check(
            deed,
            over_ms=min(fate.certain_ms, secret_ms + lives.unsure_ms),
            doubtful_ms=-NEVER_MS if lives.shown_before(deed) else doubtful_ms,
        )
        if deed.request.outcome is Outcome.DONE and lives.is_reuse(deed):
            raise Violated(f"a used refresh token was taken: {deed}")


def _check(deed: Deed, *, over_ms: int, doubtful_ms: int) -> None:
    """`over_ms`: from then on it must be refused. `doubtful_ms`: until then it must not."""
    request = deed.request
    if request.outcome is Outcome.DONE and request.started_ms > over_ms:
        raise Violated(f"over since {over_ms}, and taken: {deed}")
    if request.outcome is Outcome.REFUSED and request.ended_ms is not None and request.ended_ms < doubtful_ms:
        raise Violated(f"good, and refused: {deed}")


def end_in_peace(world: World) -> None:
    """A minute later every token, also one that nobody received, and every secret is worth what it should be.

    And once all graces are over, only the newest secrets are. Changes the world, and goes before the end of the jobs.
    """
    lives = lives_of(world)

    def judge(host: Host) -> None:
        identity = desks_of(world).at(host, world.scheduler.clock_ms)
        world.scheduler.pause(REFUSED_WITHIN_MS + 2 * max(map(abs, world.skews_ms)))
        for tokens in lives.journal.issued:
            _judge_tokens(world, identity, lives, tokens)
        _judge_secrets(world, identity, lives)
        world.scheduler.pause((GRACE_HOURS_MAX + 1) * HOUR_MS)
        _judge_secrets(world, identity, lives)

    world.afterwards(judge)


def _judge_tokens(world: World, identity: Identity, lives: Lives, tokens: TokenSet) -> None:
    fate, expires_ms = lives.of_access(tokens), tokens.access.expires_at_ms
    now_ms = world.scheduler.now_ms
    stands = _stands(identity, tokens)
    if stands and (fate.certain_ms < NEVER_MS or expires_ms + LEEWAY_MS + REFUSED_WITHIN_MS < now_ms):
        raise Violated(f"set {tokens.number} should be over since {fate.certain_ms}, and stands")
    if not stands and fate.possible_ms == NEVER_MS and now_ms < expires_ms:
        raise Violated(f"set {tokens.number} should stand, and does not")
    if lives.of_refresh(tokens).certain_ms < NEVER_MS:
        try:
            identity.logins.refresh(tokens.issued.refresh_token)
        except Unauthorized:
            return
        raise Violated(f"set {tokens.number} is over, and was refreshed")


def _stands(identity: Identity, tokens: TokenSet) -> bool:
    claims = identity.tokens.find(tokens.issued.access_token, identity.clock_ms())
    if claims is None:
        return False
    try:
        identity.bearers.require(claims, closed=True)
    except Unauthorized:
        return False
    return True


def _judge_secrets(world: World, identity: Identity, lives: Lives) -> None:
    for secret in lives.journal.secrets:
        world.scheduler.pause(LOGIN_EVERY_MS)
        life, generation = lives.life(secret)
        ends_ms = min(life.ended_ms, life.secret_ends_ms(generation))
        now_ms = world.scheduler.now_ms
        if abs(now_ms - ends_ms) <= lives.unsure_ms + REFUSED_WITHIN_MS:
            continue
        if _opens(identity, secret) is not (now_ms < ends_ms):
            raise Violated(f"generation {generation} of {life} ends at {ends_ms}, now is {now_ms}")


def _opens(identity: Identity, secret: Secret) -> bool:
    try:
        identity.logins.log_in(secret.client_id, secret.text)
    except Unauthorized:
        return False
    except TooManyRequests as error:
        raise Violated(f"one login every {LOGIN_EVERY_MS} ms is too many") from error
    except SluiceError as error:
        raise Violated(f"a login in peace: {error!r}") from error
    return True
