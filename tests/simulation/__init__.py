"""The product on a simulated table: clients interleaved at every store call, clocks that differ, faults on every call.

| module | what |
|---|---|
| `language`, `syntax`, `expressions` | the expression language, parsed and compiled |
| `table`, `indexes`, `queries`, `stream` | a table that answers and refuses as DynamoDB does |
| `store` | the product's store Protocol over it, with the product's own retry loop |
| `scheduler`, `network`, `faults` | fibers in the order of a simulated time; what goes wrong on the way |
| `world`, `scenario`, `scenarios/` | what runs: clients, their programs, one seed of it |
| `changes`, `invariants`, `limit_changes` | what must hold, judged by the table's stream |
| `money_hosts`, `paces`, `rollups` | the services about money; who keeps the daily totals, and when |
| `usage_books`, `usage_fates`, `local_days` | what was reported, and what must hold of it |
| `choices`, `choice_fates` | who asked which label to use, and what must hold of that |
| `job_runs` | the scheduled runs of migrations and purges |
| `paths`, `reach` | the write paths, and that every fault met every one of them |
| `mutants` | closed holes opened again: each must be caught |
| `generator`, `hostile`, `disagreements`, `journal` | the same calls on the simulated table and on a real engine |

A seed that fails prints how to run it again: `python -m tests.simulation.replay --scenario X --seed N`.
"""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]

# pytest has set these; a replay is started without it.
for _folder in ("lambdas", "layers/core/python"):
    if str(_ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(_ROOT / _folder))
