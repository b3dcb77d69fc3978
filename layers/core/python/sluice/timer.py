"""How much time went by, for whatever may live only so and so long."""

import time
from threading import Lock


class Timer:
    """Ages by whichever clock went further: the wall clock may be set back, the monotonic one may stand still while
    the machine does. So nothing that lives so and so long lives longer."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._age_ns = 0
        self._monotonic_ns, self._wall_ns = time.monotonic_ns(), time.time_ns()

    def __call__(self) -> int:
        with self._lock:
            monotonic_ns, wall_ns = time.monotonic_ns(), time.time_ns()
            self._age_ns += max(monotonic_ns - self._monotonic_ns, wall_ns - self._wall_ns)
            self._monotonic_ns, self._wall_ns = monotonic_ns, wall_ns
            return self._age_ns // 1_000_000
