"""Routes of inference profiles: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.label_models import ProfileAnswer, ProfileBody, ProfilePage
from control_plane.links import FROM_PROFILE, FROM_PROFILES, NEXT_PROFILES
from sluice.core.labels import InferenceProfile
from sluice.edge.callers import author_of, caller_of
from sluice.edge.conventions import (
    DELETE_RESPONSES,
    NOT_FOUND,
    PAGE_DEFAULT,
    IfMatch,
    PageCursor,
    PageLimit,
    get_responses,
    list_responses,
    put_responses,
    put_status,
    removed,
)
from sluice.edge.documentation import problems
from sluice.edge.etags import profile_etag, profile_if_match
from sluice.edge.models import ID_PATTERN
from sluice.services.listing import PageRequest
from sluice.services.profiles import ProfileOwner
from sluice.shell import Services

PROFILES: Final = "/v1/inference-profiles"
PROFILE: Final = "/v1/inference-profiles/<label>"
PROFILE_ROUTES: Final = {PROFILES: ("GET",), PROFILE: ("GET", "PUT", "DELETE")}

_LabelPath = Annotated[str, Path(pattern=ID_PATTERN)]
_App = Annotated[str | None, Query(pattern=ID_PATTERN, description="an app; without it, all apps of the org")]
# The app that is named may not be there.
_PUT: Final[dict[int, Any]] = {**put_responses(ProfileAnswer, FROM_PROFILE), **problems(NOT_FOUND)}


def add_profile_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    profiles = services.money.profiles

    def owner(app: str | None) -> ProfileOwner:
        caller = caller_of(router)
        return ProfileOwner(caller.namespace, app, caller.within)

    @router.get(
        PROFILES,
        summary="The inference profiles of an app, or those for all apps of the org, by label",
        responses=list_responses(ProfilePage, {**FROM_PROFILES, **NEXT_PROFILES}, of_one=True),
    )
    def list_profiles(app: _App = None, limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> ProfilePage:
        return ProfilePage.of(profiles.list(owner(app), PageRequest(limit, cursor)), app)

    @router.get(
        PROFILE,
        summary="The inference profile that a label stands for in an app, or in all apps of the org",
        responses=get_responses(ProfileAnswer),
    )
    def get_profile(label: _LabelPath, app: _App = None) -> Response[ProfileAnswer]:
        return _answer(profiles.get(owner(app), label), app, HTTPStatus.OK)

    @router.put(
        PROFILE,
        summary="Let a label stand for an inference profile; AWS is asked for its models when it is first used",
        responses=_PUT,
    )
    def put_profile(
        label: _LabelPath, body: ProfileBody, app: _App = None, match: IfMatch = None
    ) -> Response[ProfileAnswer]:
        done = profiles.put(
            owner(app),
            label,
            body.inference_profile_arn,
            body.description,
            profile_if_match(match),
            author=author_of(router),
        )
        return _answer(done.stored, app, put_status(created=done.created))

    @router.delete(
        PROFILE,
        summary="Remove an inference profile: the label stands for the org's, or for its definition, again",
        responses=DELETE_RESPONSES,
    )
    def delete_profile(label: _LabelPath, app: _App = None, match: IfMatch = None) -> Response[str]:
        profiles.delete(owner(app), label, profile_if_match(match), author=author_of(router))
        return removed()


def _answer(profile: InferenceProfile, app: str | None, status: HTTPStatus) -> Response[ProfileAnswer]:
    return Response(
        status_code=status,
        content_type="application/json",
        body=ProfileAnswer.of(profile, app),
        headers={"ETag": profile_etag(profile)},
    )
