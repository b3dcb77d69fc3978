"""Hostile tokens: every one is refused alike, and none that we did not sign costs a look at the table."""

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

import pytest
from aws_lambda_powertools.event_handler.api_gateway import Router

from data_plane.routes import ROUTES as DATA_PLANE_ROUTES
from data_plane.routes import build_router as build_data_plane
from identity.routes import ROUTES as IDENTITY_ROUTES
from identity.routes import build_router as build_identity
from sluice.core.errors import Unauthorized, WrongCredentials
from sluice.core.identity import TokenType
from sluice.edge.application import Application
from sluice.edge.function import Handler, build_handler
from sluice.edge.identity import Identity
from sluice.edge.requests import BODY_BYTES_MAX
from sluice.repository import keys
from sluice.repository.orgs import app_delete, decode_app
from sluice.repository.retries import Retries
from sluice.repository.revocations import family_mark_put, token_mark_put
from sluice.services.bearers import CACHE_MS
from sluice.services.tokens import TOKEN_MAX
from sluice.shell import Services, logger
from tests.fakes import CountingMeter, FakeClock
from tests.hostile.forgery import Forge, forged
from tests.hostile.gateway import Answer, answer_of, event_of
from tests.hostile.product import BASE_URL, REQUEST_ID, services_on
from tests.http import Context
from tests.identities import Desk, TurningKeys
from tests.recording import RecordingStore
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.table import SimulatedTable

KEY: Final = b"k" * 64
ACQUIRE: Final = ("POST", "/v1/acquire", {"entity": "chat", "resource": "gpt-4", "consume": {"rpm": 1}})
WHOAMI: Final = ("GET", "/v1/whoami", None)
USAGE: Final = (
    "POST",
    "/v1/usage",
    {"request_id": "r-1", "label": "premium", "input_tokens": 1, "output_tokens": 1, "status": "ok"},
)
SELECTION: Final = ("GET", "/v1/selection", None)
BOTH: Final = (TokenType.ACCESS, TokenType.REFRESH)


class Edge:
    """The real functions on a table in memory. `store`: what they ask of it. `desk`: makes their tenant."""

    def __init__(self) -> None:
        logger.setLevel("ERROR")
        clock, meter = FakeClock(), CountingMeter()
        inner = SimulatedStore(SimulatedTable(clock), PerfectWire(), Retries(clock.advance, lambda _below: 0, meter))
        self.store = RecordingStore(inner)
        self.desk = Desk(inner, clock, token_keys=TurningKeys(KEY), issuer="sluice-hostile")
        services = services_on(self.store, clock, Random(7), meter)
        self._data_plane = _function(build_data_plane, DATA_PLANE_ROUTES, services, clock, meter)
        self._identity = _function(build_identity, IDENTITY_ROUTES, services, clock, meter)
        self.desk.make_org()
        self.app = self.desk.make_app()
        self.issued = self.desk.log_in(self.app)

    def send(self, request: tuple[str, str, object], headers: Mapping[str, str]) -> Answer:
        method, path, body = request
        handler = self._data_plane if path in DATA_PLANE_ROUTES else self._identity
        content = b"" if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **headers}
        context: Any = Context()
        self.store.taken_calls()
        return answer_of(handler(event_of(method, BASE_URL + path, sent, content, REQUEST_ID), context))

    def bear(self, token: str, request: tuple[str, str, object] = ACQUIRE) -> Answer:
        return self.send(request, {"authorization": f"Bearer {token}"})

    def forge(self, token_type: TokenType) -> Forge:
        token = self.issued.access_token if token_type is TokenType.ACCESS else self.issued.refresh_token
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return Forge(KEY, claims, self.desk.clock.now_ms // 1000)


def _function(
    build: Callable[[Services], Router],
    routes: Mapping[str, tuple[str, ...]],
    services: Services,
    clock: FakeClock,
    meter: CountingMeter,
) -> Handler:
    identity = Identity(services.tokens, services.bearers, services.operators, clock)
    return build_handler(Application(build(services), routes, identity.caller, services.confinement, meter))


@pytest.fixture
def edge() -> Edge:
    return Edge()


def test_the_forge_makes_what_is_accepted(edge: Edge) -> None:
    """So each hostile token is refused for its one flaw, and for nothing else."""
    for token_type in BOTH:
        forge = edge.forge(token_type)
        assert edge.desk.claims(forge.good, token_type).bearer.entity == "chat"
    answer = edge.bear(edge.forge(TokenType.ACCESS).good, WHOAMI)
    assert answer.json()["entity"] == "chat"
    # Past the door: what is missing are limits.
    assert edge.bear(edge.forge(TokenType.ACCESS).good).status == 422


@pytest.mark.parametrize("token_type", BOTH)
def test_there_are_many_and_each_is_another(edge: Edge, token_type: TokenType) -> None:
    forge = edge.forge(token_type)
    cases = forged(forge)
    assert len(cases) >= 900
    assert [name for name, count in Counter(name for name, _ in cases).items() if count > 1] == []
    assert forge.good not in {token for _, token in cases}


@pytest.mark.parametrize("token_type", BOTH)
def test_none_of_them_is_read(edge: Edge, token_type: TokenType) -> None:
    told = set()
    accepted = []
    for name, token in forged(edge.forge(token_type)):
        try:
            edge.desk.claims(token, token_type)
        except Unauthorized as refusal:
            told.add((type(refusal), str(refusal), refusal.__cause__, refusal.__context__))
        else:
            accepted.append(name)
    assert accepted == []
    assert told == {(Unauthorized, str(Unauthorized()), None, None)}


@pytest.mark.parametrize("request_sent", [ACQUIRE, WHOAMI, USAGE, SELECTION])
def test_every_one_gets_the_same_answer_and_none_a_look_at_the_table(
    edge: Edge, request_sent: tuple[str, str, object]
) -> None:
    answers = set()
    looked = []
    for name, token in forged(edge.forge(TokenType.ACCESS)):
        answer = edge.bear(token, request_sent)
        answers.add((answer.status, answer.body, tuple(sorted(answer.headers.items()))))
        if edge.store.calls:
            looked.append(name)
    assert looked == []
    ((status, body, headers),) = answers
    assert status == 401
    assert json.loads(body)["type"] == "urn:sluice:problem:unauthorized"
    assert ("WWW-Authenticate", "Bearer") in headers
    assert edge.bear("").body == body


def test_a_refresh_is_refused_alike_and_looks_at_nothing(edge: Edge) -> None:
    """Over HTTP; what no field may hold is refused as such."""
    answers, looked = set(), []
    for name, token in forged(edge.forge(TokenType.REFRESH)):
        answer = edge.send(("POST", "/v1/auth/refresh", {"refresh_token": token}), {})
        if edge.store.calls:
            looked.append(name)
        if len(token) > BODY_BYTES_MAX:
            assert (name, answer.status) == (name, 413)
        elif not 0 < len(token) <= TOKEN_MAX or _has_lone_surrogate(token):
            assert (name, answer.status, answer.json()["field"]) == (name, 400, "refresh_token")
            assert len(answer.body) < 1000
        else:
            answers.add((answer.status, answer.body))
    assert looked == []
    ((status, _),) = answers
    assert status == 401


def _has_lone_surrogate(token: str) -> bool:
    """A pair of them is one character once it went through JSON."""
    return any("\ud800" <= letter <= "\udfff" for letter in json.loads(json.dumps(token)))


def test_a_type_is_not_taken_for_the_other(edge: Edge) -> None:
    assert edge.bear(edge.issued.refresh_token).body == edge.bear("x").body
    assert edge.store.calls == []
    wrong = edge.send(("POST", "/v1/auth/refresh", {"refresh_token": edge.issued.access_token}), {})
    assert (wrong.status, edge.store.calls) == (401, [])


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "{token}"},
        {"authorization": "Basic {token}"},
        {"authorization": "Token {token}"},
        {"authorization": "Bearer: {token}"},
        {"authorization": "Bearer\t{token}"},
        {"authorization": "Bearer  {token}"},
        {"authorization": "Bearer {token} "},
        {"authorization": "Bearer {token},Bearer {token}"},
        {"authorization": "Bearer x,Bearer {token}"},
        {"authorization": "\u212aearer {token}"},
        {"x-authorization": "Bearer {token}"},
        {"proxy-authorization": "Bearer {token}"},
        {"cookie": "authorization=Bearer {token}"},
        {"x-api-key": "{token}"},
        {"x-api-key": KEY.decode()},
        {"authorization": f"Bearer {KEY.decode()}"},
    ],
)
def test_a_good_token_in_the_wrong_place_is_none(edge: Edge, header: Mapping[str, str]) -> None:
    sent = {name: value.replace("{token}", edge.issued.access_token) for name, value in header.items()}
    answer = edge.send(WHOAMI, sent)
    assert (answer.status, answer.body) == (401, edge.bear("x", WHOAMI).body)


def test_whom_a_signed_token_names_is_looked_up_once(edge: Edge) -> None:
    """Signed with our key for somebody who is not there: one read, and not even that when it comes again."""
    forge = edge.forge(TokenType.ACCESS)
    body = edge.bear("x").body
    for number, changed in enumerate(
        (
            {"ns": "ns2"},
            {"ns": "_"},
            {"ns": "ns/SYSTEM#"},
            {"ns": "\ud800"},
            {"ns": "\0" * 256},
            {"ent": "\ud800" * 85},
            {"ent": "mail"},
            {"ent": "acme"},
            {"ent": "\0"},
            {"ent": "../acme"},
        )
    ):
        token = forge.with_claims(jti=f"jti-{number}", **changed)
        answer = edge.bear(token)
        assert (changed, answer.status, answer.body) == (changed, 401, body)
        assert edge.store.calls == ["consistent batch_get"]
        assert edge.bear(token).body == body
        assert edge.store.calls == []


def _revoke_token(edge: Edge) -> None:
    claims = edge.desk.claims(edge.issued.access_token)
    edge.desk.store.inner.put(token_mark_put(claims, edge.desk.clock.now_ms), repeatable=True)


def _revoke_family(edge: Edge) -> None:
    claims = edge.desk.claims(edge.issued.access_token)
    edge.desk.store.inner.put(family_mark_put(claims, edge.desk.clock.now_ms), repeatable=True)


def _rotate(edge: Edge) -> None:
    edge.desk.rotate(edge.app.client_id, 0)


def _delete_app(edge: Edge) -> None:
    item = edge.desk.store.inner.get(keys.app_settings("ns", "chat"), consistent=True)
    assert item is not None
    edge.desk.send(app_delete(decode_app(item)))


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (_revoke_token, "unauthorized"),
        (_revoke_family, "unauthorized"),
        (_rotate, "unauthorized"),
        (_delete_app, "unauthorized"),
        (lambda edge: edge.desk.start_purge(), "unauthorized"),
        (lambda edge: edge.desk.suspend_org(), "suspended"),
        (lambda edge: edge.desk.suspend_app(), "suspended"),
    ],
)
def test_what_was_ended_is_refused_after_one_look(edge: Edge, end: Callable[[Edge], None], kind: str) -> None:
    assert edge.bear(edge.issued.access_token).status == 422
    end(edge)
    edge.desk.clock.advance(CACHE_MS)
    answer = edge.bear(edge.issued.access_token)
    assert edge.store.calls == ["consistent batch_get"]
    assert answer.json()["type"] == f"urn:sluice:problem:{kind}"
    if kind == "unauthorized":
        assert (answer.status, answer.body) == (401, edge.bear("x").body)
    else:
        assert answer.status == 403
        assert answer.body == edge.bear(edge.issued.access_token, WHOAMI).body


def test_a_used_refresh_token_is_refused_like_a_wrong_one(edge: Edge) -> None:
    def refresh(token: str) -> Answer:
        return edge.send(("POST", "/v1/auth/refresh", {"refresh_token": token}), {})

    first = refresh(edge.issued.refresh_token)
    assert first.status == 200
    assert refresh(edge.issued.refresh_token).body == refresh("x").body
    assert refresh(first.json()["refresh_token"]).body == refresh("x").body
    with pytest.raises(WrongCredentials):
        edge.desk.logins.refresh(first.json()["refresh_token"])


def test_a_flood_of_unknown_key_names_asks_for_the_keys_once_each(edge: Edge) -> None:
    """The source of the keys bounds how often it really reads; a token causes one question at most."""
    cases = [token for name, token in forged(edge.forge(TokenType.ACCESS)) if name.startswith("kid")]
    asked = edge.desk.token_keys.look_ups
    for token in cases:
        assert edge.desk.tokens.find(token, edge.desk.clock.now_ms) is None
        assert edge.desk.token_keys.look_ups - asked <= 1
        asked = edge.desk.token_keys.look_ups
