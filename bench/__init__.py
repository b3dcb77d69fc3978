"""What an operation costs: calls, capacity units and client CPU. Never wall-clock time: machines are shared."""
