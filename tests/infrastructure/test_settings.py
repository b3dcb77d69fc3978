"""The choice of an environment."""

import dataclasses

import pytest

from stacks.settings import ENVIRONMENTS, SettingsError, chosen


def test_there_are_four_environments() -> None:
    assert list(ENVIRONMENTS) == ["local", "dev", "staging", "prod"]
    assert all(chosen(name) is settings and settings.name == name for name, settings in ENVIRONMENTS.items())


@pytest.mark.parametrize("asked", ["production", "", "Dev", 1, ["dev"]])
def test_an_unknown_environment_is_named_with_the_known_ones(asked: object) -> None:
    with pytest.raises(SettingsError, match=r"unknown environment .*one of local, dev, staging, prod"):
        chosen(asked)


def test_no_environment_says_what_to_add() -> None:
    with pytest.raises(SettingsError, match=r"add -c env=NAME, one of local, dev, staging, prod"):
        chosen(None)


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ENVIRONMENTS["dev"].alarms = False  # type: ignore[misc]  # that this is refused is what is tested


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"alarms": False}, "never hear"), ({"retain_data": False}, "can not be destroyed")],
)
def test_settings_that_contradict_themselves(changes: dict[str, bool], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        dataclasses.replace(ENVIRONMENTS["prod"], **changes)  # type: ignore[arg-type]  # each value is a bool field
