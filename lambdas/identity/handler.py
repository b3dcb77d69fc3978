"""Identity: logins, tokens, and the orgs and apps that they are for."""

from identity.routes import ROUTES, build_router
from sluice.edge.function import build_application, build_handler

application = build_application(build_router, ROUTES)
handler = build_handler(application)
