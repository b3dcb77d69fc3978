"""An entity that nobody knows is registered by asking, once, below whoever calls for it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from sluice.core.audit import Author
from sluice.core.errors import LimitExceeded, NeverAdmissible, NoLimits, NotFound, UnknownLimit
from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.audit import audit_query, decode_audit_event
from sluice.repository.items import Entity, decode_entity
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.services.registration import Registration
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host

BELOW_APP = Registration("app", Author("client-7", "request-1"))
AT_THE_TOP = Registration(None, Author("client-7", "request-1"))
HUNDRED = {"rpm": Limit(100, 100, 100, 60)}


def ask(
    host: Host,
    registration: Registration | None = BELOW_APP,
    entity: str = ENTITY,
    consume: Mapping[str, int] = MappingProxyType({"rpm": 1}),
) -> None:
    host.service.acquire(AcquireRequest(NAMESPACE, entity, RESOURCE, consume, None, registration))


def stored(host: Host, entity: str = ENTITY) -> Entity | None:
    item = host.store.inner.get(keys.entity(NAMESPACE, entity), consistent=True)
    return None if item is None else decode_entity(item)


@pytest.fixture
def app(host: Host) -> Host:
    host.entities.put(NAMESPACE, "app", EntityChange())
    host.put_limits(HUNDRED, Scope("app", RESOURCE))
    host.put_limits(HUNDRED)
    host.store.taken_calls()
    return host


def test_the_first_acquire_registers_and_takes_from_the_parent_at_once(app: Host) -> None:
    ask(app)
    # Its own parts and the parent's; then the registration; then both buckets.
    assert app.store.taken_calls() == ["batch_get", "batch_get", "transact", "put", "put"]
    found = stored(app)
    assert found is not None
    assert (found.parent, found.cascade, found.version) == ("app", True, 1)
    ask(app)
    assert app.store.taken_calls() == ["update", "update"]
    bucket = app.store.inner.get(keys.bucket(NAMESPACE, "app", RESOURCE, 0), consistent=True)
    assert bucket is not None
    assert bucket["b_rpm_tc"] == 2_000


def test_a_registration_is_told_in_the_audit(app: Host) -> None:
    ask(app)
    (item,) = app.store.inner.query(audit_query(NAMESPACE, ENTITY)).items
    event = decode_audit_event(item)
    assert (event.action, event.author, event.before) == ("entity.register", BELOW_APP.author, None)
    assert event.after is not None
    assert event.after["parent"] == "app"


def test_without_a_caller_of_its_own_it_stands_at_the_top(app: Host) -> None:
    ask(app, AT_THE_TOP)
    found = stored(app)
    assert found is not None
    assert found.parent is None


def test_a_caller_that_asks_for_itself_is_not_put_below_itself(app: Host) -> None:
    ask(app, entity="app")
    found = stored(app, "app")
    assert found is not None
    assert (found.parent, found.version) == (None, 1)


def test_a_parent_that_does_not_exist_is_not_found(host: Host) -> None:
    host.put_limits(HUNDRED)
    with pytest.raises(NotFound):
        ask(host)
    assert stored(host) is None
    assert host.find_bucket() is None


@pytest.mark.parametrize(
    ("consume", "error"), [({"rpm": 101}, NeverAdmissible), ({"other": 1}, UnknownLimit), ({"rpm": 100}, None)]
)
def test_what_can_never_pass_registers_nobody(
    app: Host, consume: dict[str, int], error: type[Exception] | None
) -> None:
    if error is None:
        ask(app, consume=consume)
        assert stored(app) is not None
        return
    with pytest.raises(error):
        ask(app, consume=consume)
    assert stored(app) is None


def test_without_limits_nobody_is_registered(host: Host) -> None:
    host.entities.put(NAMESPACE, "app", EntityChange())
    with pytest.raises(NoLimits):
        ask(host)
    assert stored(host) is None


def test_of_two_that_register_one_does_and_the_other_follows(app: Host, start_host: Callable[[], Host]) -> None:
    """The other one was put below a team meanwhile: that stands, and its chain is taken."""
    other = start_host()
    other.entities.put(NAMESPACE, "team", EntityChange(parent="app"))
    other.put_limits(HUNDRED, Scope("team", RESOURCE))

    def put_elsewhere(verb: str, _request: Any) -> None:
        if verb == "transact":
            app.store.before = None
            other.entities.put(NAMESPACE, ENTITY, EntityChange(parent="team"))

    app.store.before = put_elsewhere
    ask(app)
    found = stored(app)
    assert found is not None
    assert found.parent == "team"
    team = app.store.inner.get(keys.bucket(NAMESPACE, "team", RESOURCE, 0), consistent=True)
    assert team is not None
    assert team["b_rpm_tc"] == 1_000


def test_a_refused_first_acquire_registers_too(app: Host) -> None:
    ask(app, entity="another", consume={"rpm": 100})
    with pytest.raises(LimitExceeded):
        ask(app)
    assert stored(app) is not None


def test_no_registration_was_asked_for(app: Host) -> None:
    ask(app, None)
    assert stored(app) is None
