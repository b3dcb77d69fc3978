"""The only configuration: one frozen value per environment, chosen with `-c env=NAME`."""

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

ENVIRONMENT_CONTEXT: Final = "env"


class SettingsError(ValueError):
    """What was asked for on the command line can not be deployed. The message is for a person."""


class WheelTarget(StrEnum):
    """Whose Python the third-party wheels are installed for."""

    LAMBDA = "lambda"
    THIS_MACHINE = "this-machine"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    name: str
    # Data outlives its stack: `cdk destroy` leaves table, keys and bucket behind.
    retain_data: bool
    deletion_protection: bool
    # None: the environment's data is disposable.
    point_in_time_recovery_days: int | None
    customer_managed_key: bool
    # A ceiling on the bill of a runaway caller. Reaching it throttles, and throttling has an alarm.
    max_read_request_units: int
    max_write_request_units: int
    archive_expiry_days: int
    # The archive as a table that Athena can ask.
    analytics: bool
    api_rate_per_second: int
    api_burst: int
    memory_mb: int
    snap_start: bool
    wheel_target: WheelTarget
    store_timeout_ms: int
    # Metrics are log lines too, and count as INFO: a higher level would drop them all. A lower one is the runtime's as
    # well, and the SDK then logs session tokens and the ids of tenants.
    log_level: Literal["INFO"]
    log_retention_days: int
    # Where AWS's price list is asked: few regions have it. None: only the prices that ship with the product are known.
    pricing_region: Literal["us-east-1", "eu-central-1", "ap-south-1"] | None
    alarms: bool
    # Alarms without a topic still show on the dashboard; only a topic tells somebody.
    alarm_topic: bool
    # Alerts of budgets are kept for whoever looks, where nobody subscribes to them.
    alert_queue: bool

    def __post_init__(self) -> None:
        if self.alarm_topic and not self.alarms:
            raise SettingsError(f"{self.name}: a topic without alarms would never hear anything")
        if self.deletion_protection and not self.retain_data:
            raise SettingsError(f"{self.name}: a protected table can not be destroyed with its stack")

    def stack_name(self, part: str) -> str:
        return f"Sluice-{self.name}-{part}"


_LOCAL: Final = Settings(
    name="local",
    retain_data=False,
    deletion_protection=False,
    point_in_time_recovery_days=None,
    customer_managed_key=False,
    max_read_request_units=4_000,
    max_write_request_units=4_000,
    archive_expiry_days=7,
    analytics=False,
    api_rate_per_second=1_000,
    api_burst=2_000,
    memory_mb=512,
    snap_start=False,
    wheel_target=WheelTarget.THIS_MACHINE,
    # Two busy cores stall a process for seconds; that must not look like an unavailable table.
    store_timeout_ms=5_000,
    log_level="INFO",
    log_retention_days=1,
    # The engine has no price list.
    pricing_region=None,
    # The engine collects no metrics and refuses alarms with labels or metric math.
    alarms=False,
    alarm_topic=False,
    alert_queue=True,
)

_DEV: Final = Settings(
    name="dev",
    retain_data=False,
    deletion_protection=False,
    point_in_time_recovery_days=None,
    customer_managed_key=False,
    max_read_request_units=1_000,
    max_write_request_units=1_000,
    archive_expiry_days=30,
    analytics=False,
    api_rate_per_second=100,
    api_burst=200,
    memory_mb=1_024,
    snap_start=True,
    wheel_target=WheelTarget.LAMBDA,
    store_timeout_ms=2_000,
    log_level="INFO",
    log_retention_days=7,
    pricing_region="us-east-1",
    alarms=True,
    alarm_topic=False,
    alert_queue=False,
)

_STAGING: Final = dataclasses.replace(
    _DEV,
    name="staging",
    point_in_time_recovery_days=7,
    customer_managed_key=True,
    max_read_request_units=4_000,
    max_write_request_units=4_000,
    archive_expiry_days=90,
    analytics=True,
    api_rate_per_second=1_000,
    api_burst=2_000,
    memory_mb=1_769,
    log_retention_days=30,
    alarm_topic=True,
)

_PROD: Final = dataclasses.replace(
    _STAGING,
    name="prod",
    retain_data=True,
    deletion_protection=True,
    point_in_time_recovery_days=35,
    max_read_request_units=40_000,
    max_write_request_units=40_000,
    archive_expiry_days=2_555,
    api_rate_per_second=5_000,
    api_burst=10_000,
    log_retention_days=365,
)

ENVIRONMENTS: Final[Mapping[str, Settings]] = MappingProxyType(
    {settings.name: settings for settings in (_LOCAL, _DEV, _STAGING, _PROD)}
)


def chosen(environment: object) -> Settings:
    """The settings that the context value of the command line asks for."""
    known = ", ".join(ENVIRONMENTS)
    if environment is None:
        raise SettingsError(f"no environment chosen: add -c {ENVIRONMENT_CONTEXT}=NAME, one of {known}")
    if not isinstance(environment, str) or environment not in ENVIRONMENTS:
        raise SettingsError(f"unknown environment {environment!r}: use -c {ENVIRONMENT_CONTEXT}=NAME, one of {known}")
    return ENVIRONMENTS[environment]
