"""Who may call what: every endpoint of every function is in the table, and nothing else is."""

from typing import Any

import pytest

from control_plane.routes import ROUTES as CONTROL_PLANE
from data_plane.routes import ROUTES as DATA_PLANE
from identity.routes import ROUTES as IDENTITY
from sluice.core.identity import Role
from sluice.edge.access import ACCESS, Scope
from sluice.edge.application import Application

FUNCTIONS = (DATA_PLANE, CONTROL_PLANE, IDENTITY)
ENDPOINTS = [(method, path) for routes in FUNCTIONS for path, methods in routes.items() for method in methods]


def test_every_endpoint_is_in_the_table_once() -> None:
    assert sorted(ENDPOINTS) == sorted(ACCESS)


def test_a_route_that_the_table_does_not_know_can_not_be_served() -> None:
    nothing: Any = None
    with pytest.raises(KeyError):
        Application(nothing, {"/v1/new": ("GET",)}, nothing, nothing, nothing)


def test_nothing_else_is_open() -> None:
    assert {endpoint for endpoint, access in ACCESS.items() if access.scope is Scope.OPEN} == {
        ("GET", "/v1/health"),
        ("GET", "/v1/ready"),
        ("GET", "/v1/openapi.json"),
        ("POST", "/v1/auth/token"),
        ("POST", "/v1/auth/refresh"),
    }


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=" ".join)
def test_an_app_is_confined_wherever_it_is_let_in(endpoint: tuple[str, str]) -> None:
    access = ACCESS[endpoint]
    confining = {
        Scope.CALLER,
        Scope.PATH_ENTITY,
        Scope.PUT_ENTITY,
        Scope.QUERY_APP,
        Scope.QUERY_ENTITY,
        Scope.ASKED_ENTITY,
        Scope.BODY_ENTITY,
        Scope.LEASE,
    }
    if Role.APP in access.roles:
        assert access.scope in confining
    assert (access.scope is Scope.OPEN) == (not access.roles)
    assert (access.scope in (Scope.ORG, Scope.REGISTRY)) <= (Role.APP not in access.roles)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=" ".join)
def test_only_taking_and_returning_tokens_goes_on_while_nobody_can_tell_what_was_revoked(
    endpoint: tuple[str, str],
) -> None:
    taking = endpoint[1] in ("/v1/acquire", "/v1/explain") or endpoint[1].startswith("/v1/leases/")
    assert ACCESS[endpoint].closed == (not taking and ACCESS[endpoint].scope is not Scope.OPEN)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=" ".join)
def test_a_path_has_what_its_scope_goes_by(endpoint: tuple[str, str]) -> None:
    scope, path = ACCESS[endpoint].scope, endpoint[1]
    assert (scope is Scope.ORG) == ("<org>" in path)
    if scope in (Scope.PATH_ENTITY, Scope.PUT_ENTITY):
        assert "<entity>" in path
