"""Who calls. There is no login yet: one namespace may be opened by an explicit setting, else nobody is let in."""

from collections.abc import Callable
from http import HTTPStatus

from sluice.edge.application import Caller, Event
from sluice.edge.problems import Problem, RequestRejected
from sluice.edge.requests import path_of
from sluice.shell import Environment


def open_namespace(environment: Environment, open_paths: frozenset[str]) -> Callable[[Event], Caller | None]:
    """Callers act in the namespace that the environment opens. Open paths need no caller at all."""

    def identify(event: Event) -> Caller | None:
        if path_of(event) in open_paths:
            return None
        if environment.open_namespace is None:
            detail = "this deployment accepts no calls: it has neither a login nor an open namespace"
            headers = {"WWW-Authenticate": "Bearer"}
            raise RequestRejected(Problem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, headers=headers))
        return Caller(environment.open_namespace)

    return identify
