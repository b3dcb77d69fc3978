"""A settle that brings its usage along: the lease is closed with what was really used, its buckets are corrected and
the call is counted, in one transaction.

The report of the call says what its lease is settled with, so that metering counts it exactly as it counts any other:
the event makes it once, and the item of the lease, in the same transaction, makes the correction once. Whichever of the
two is there already is left as it is:

- The lease is settled with these amounts: the call is counted, and what is held for it is settled. Whoever settled
  first and knows the usage only later is not turned away.
- The call is counted: the lease is settled if it is still open. That happens where a faster clock took it for expired.
- The lease is closed otherwise, or the call was reported otherwise: nothing happens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sluice.core.lease import Lease
from sluice.core.reports import UsageReport
from sluice.services.judging import Reporter
from sluice.services.leases import Changed, Leases
from sluice.services.metering import Counted, Metering


@dataclass(frozen=True, slots=True)
class Settled:
    """`changed`: of the lease. `counted`: of the call."""

    changed: Changed
    counted: Counted


class Settling:
    """Safe to share between threads."""

    def __init__(self, leases: Leases, metering: Metering) -> None:
        self._leases = leases
        self._metering = metering

    def settle(self, lease: Lease, actual: Mapping[str, int], reporter: Reporter, report: UsageReport) -> Settled:
        """Limits that are left out keep their amount. The same again is answered the same, as a duplicate."""
        self._leases.check_settle(lease, actual)
        counted = self._metering.submit(reporter, replace(report, lease=lease, actual=actual))
        # Once it was counted here the time does not matter any more: what was done is answered.
        changed = counted.settled or self._leases.settle(lease, actual)
        return Settled(changed, counted)
