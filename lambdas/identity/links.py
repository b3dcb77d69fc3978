"""Where a client can go from an answer about orgs and apps, as OpenAPI links."""

from typing import Final

from sluice.edge.documentation import Links, link

_GET_ORG: Final = "get_org_v1_orgs__org__get"
_PUT_ORG: Final = "put_org_v1_orgs__org__put"
_GET_APP: Final = "get_app_v1_orgs__org__apps__app__get"
_PUT_APP: Final = "put_app_v1_orgs__org__apps__app__put"
_DELETE_APP: Final = "delete_app_v1_orgs__org__apps__app__delete"
_APPS: Final = "list_apps_v1_orgs__org__apps_get"
_LOG_IN: Final = "log_in_v1_auth_token_post"

_VERSION: Final = {"header.if-match": "$response.header.ETag"}
_CURSOR: Final = {"cursor": "$response.body#/next_cursor"}
_ORG: Final = {"org": "$response.body#/org"}
_APP: Final = {**_ORG, "app": "$response.body#/app"}
_FIRST_ORG: Final = {"org": "$response.body#/items/0/org"}
_FIRST_APP: Final = {**_FIRST_ORG, "app": "$response.body#/items/0/app"}
_CREDENTIALS: Final = {"client_id": "$response.body#/client_id", "client_secret": "$response.body#/client_secret"}

FROM_ORG: Final[Links] = {
    "get": link(_GET_ORG, _ORG),
    "change": link(_PUT_ORG, {**_ORG, **_VERSION}),
    "apps": link(_APPS, _ORG),
    "app": link(_PUT_APP, _ORG),
    "rotate": link("rotate_org_v1_orgs__org__credentials_rotate_post", _ORG),
    "purge": link("delete_org_v1_orgs__org__delete", {**_ORG, **_VERSION}),
}
FROM_APP: Final[Links] = {
    "get": link(_GET_APP, _APP),
    "change": link(_PUT_APP, {**_APP, **_VERSION}),
    "remove": link(_DELETE_APP, {**_APP, **_VERSION}),
    "rotate": link("rotate_app_v1_orgs__org__apps__app__credentials_rotate_post", _APP),
}
FROM_CREDENTIALS: Final[Links] = {"log in": link(_LOG_IN, {}, _CREDENTIALS)}
FROM_NEW_ORG: Final[Links] = {**FROM_ORG, **FROM_CREDENTIALS}
FROM_NEW_APP: Final[Links] = {**FROM_APP, **FROM_CREDENTIALS}
FROM_TOKENS: Final[Links] = {
    "refresh": link("refresh_v1_auth_refresh_post", {}, {"refresh_token": "$response.body#/refresh_token"}),
    "revoke": link("revoke_v1_auth_revoke_post", {}, {"token": "$response.body#/access_token"}),
    "whoami": link("whoami_v1_whoami_get", {}),
    "acquire": link("acquire_v1_acquire_post", {}),
}
FROM_ORGS: Final[Links] = {
    "get": link(_GET_ORG, _FIRST_ORG),
    "change": link(_PUT_ORG, _FIRST_ORG),
    "create": link(_PUT_ORG, {}),
    "next": link("list_orgs_v1_orgs_get", _CURSOR),
}
FROM_APPS: Final[Links] = {
    "get": link(_GET_APP, _FIRST_APP),
    "change": link(_PUT_APP, _FIRST_APP),
    "remove": link(_DELETE_APP, _FIRST_APP),
    "next": link(_APPS, {"org": "$request.path.org", **_CURSOR}),
}
FROM_PURGE: Final[Links] = {"get": link("job_v1_jobs__job__get", {"job": "$response.body#/id"})}
