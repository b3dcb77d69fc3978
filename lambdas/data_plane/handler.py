"""The data plane: the hot function, asked before and after every model call."""

from data_plane.routes import ROUTES, build_router
from sluice.edge.function import build_application, build_handler

application = build_application(build_router, ROUTES)
handler = build_handler(application)
