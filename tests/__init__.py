"""Powertools reads its service name when it is first imported, so it is set before any test module is."""

import os

os.environ.setdefault("POWERTOOLS_SERVICE_NAME", "data_plane")
