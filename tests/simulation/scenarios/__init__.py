"""All scenarios, by name."""

from typing import Final

from tests.simulation.scenario import Scenario
from tests.simulation.scenarios.archive import ARCHIVE
from tests.simulation.scenarios.budgets import BUDGETS, LATE_SWEEPS, OVERRUNS
from tests.simulation.scenarios.chains import CHAINS
from tests.simulation.scenarios.changed_limits import CHANGED_LIMITS
from tests.simulation.scenarios.debts import DEBTS
from tests.simulation.scenarios.expiry import EXPIRY
from tests.simulation.scenarios.families import FAMILIES
from tests.simulation.scenarios.held import HELD
from tests.simulation.scenarios.holes import HOLES
from tests.simulation.scenarios.idempotency import IDEMPOTENCY
from tests.simulation.scenarios.identity import IDENTITY
from tests.simulation.scenarios.leases import LEASES
from tests.simulation.scenarios.merges import MERGES
from tests.simulation.scenarios.metering import METERING
from tests.simulation.scenarios.migration import MIGRATION
from tests.simulation.scenarios.moves import MOVES
from tests.simulation.scenarios.names import NAMES
from tests.simulation.scenarios.namespaces import NAMESPACES
from tests.simulation.scenarios.one_bucket import ONE_BUCKET
from tests.simulation.scenarios.pressure import PRESSURE
from tests.simulation.scenarios.provisioning import PROVISIONING
from tests.simulation.scenarios.removals import REMOVALS
from tests.simulation.scenarios.selection import SELECTION
from tests.simulation.scenarios.shards import SHARDS
from tests.simulation.scenarios.streams import STREAMS

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        ONE_BUCKET,
        CHAINS,
        CHANGED_LIMITS,
        EXPIRY,
        SHARDS,
        MERGES,
        LEASES,
        IDEMPOTENCY,
        FAMILIES,
        MOVES,
        MIGRATION,
        NAMESPACES,
        HELD,
        REMOVALS,
        PRESSURE,
        DEBTS,
        NAMES,
        HOLES,
        IDENTITY,
        PROVISIONING,
        STREAMS,
        ARCHIVE,
        METERING,
        BUDGETS,
        OVERRUNS,
        LATE_SWEEPS,
        SELECTION,
    )
}
