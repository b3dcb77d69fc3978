"""The jobs of a namespace, page by page, the newest first."""

from sluice.repository.jobs import Job
from sluice.services.cursors import Cursors, Position
from sluice.services.jobs import Jobs
from sluice.services.listing import Listed, PageRequest


class JobLists:
    def __init__(self, jobs: Jobs, cursors: Cursors) -> None:
        self._jobs = jobs
        self._cursors = cursors

    def of(self, namespace: str, page: PageRequest) -> Listed[Job]:
        purpose = (namespace, "jobs")
        before = next(iter(self._cursors.read(purpose, page.cursor).within), None)
        found = self._jobs.list(namespace, limit=page.limit, before=before)
        following = found.next_before
        cursor = None if following is None else self._cursors.write(purpose, Position(within=(following,)))
        return Listed(tuple(found.jobs), cursor)
