"""The control plane: configuration over HTTP, and every path that no other function serves."""

from control_plane.routes import ROUTES, build_router
from sluice.edge.function import build_application, build_handler

application = build_application(build_router, ROUTES)
handler = build_handler(application)
