"""What a mutant is."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`seeds`: how many are tried at most, from `first` on: rare ones are looked for near where one was seen last.

    `also`: what the product itself may raise over what the hole left behind.
    """

    name: str
    scenario: str
    opened: Callable[[], AbstractContextManager[object]]
    seeds: int = 100
    also: tuple[type[Exception], ...] = ()
    first: int = 0
