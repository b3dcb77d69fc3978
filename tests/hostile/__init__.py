"""The product under input that means it harm: generated requests, links followed, hostile ids, bytes that are no JSON.

| module | what |
|---|---|
| `gateway`, `product` | both functions in one process, on the simulated table, behind what API Gateway does |
| `furniture` | two tenants with something in every corner |
| `document` | the OpenAPI document as it is tested |
| `generated` | requests by schemathesis: as documented, likely to meet something, and not as documented |
| `checks`, `fuzz` | what must be true of every answer |
| `ids` | ids that were made to collide |

`SLUICE_FUZZ_REQUESTS` (10000) and `SLUICE_FUZZ_SEED` change how many and which. A failure prints how to see it again.
"""
