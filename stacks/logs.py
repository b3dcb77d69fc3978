"""Log groups: CloudWatch keeps an undeclared one for ever."""

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.settings import Settings

_RETENTION = {
    1: logs.RetentionDays.ONE_DAY,
    7: logs.RetentionDays.ONE_WEEK,
    30: logs.RetentionDays.ONE_MONTH,
    365: logs.RetentionDays.ONE_YEAR,
}


def log_group(scope: Construct, construct_id: str, *, settings: Settings) -> logs.LogGroup:
    return logs.LogGroup(
        scope,
        construct_id,
        retention=_RETENTION[settings.log_retention_days],
        removal_policy=cdk.RemovalPolicy.RETAIN if settings.retain_data else cdk.RemovalPolicy.DESTROY,
    )
