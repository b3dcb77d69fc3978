"""What people look at and what wakes them: one dashboard, and alarms on everything that breaks the promise.

What to measure is listed here; how it is drawn and alarmed is the library's.
"""

from collections.abc import Mapping, Sequence
from typing import Final, cast

import aws_cdk as cdk
import cdk_monitoring_constructs as monitoring
from aws_cdk import aws_apigatewayv2 as apigateway
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.core.signals import METRICS_NAMESPACE, Signal
from stacks.function import ServiceFunction
from stacks.jobs import JobsStack
from stacks.settings import Settings

_PERIOD: Final = cdk.Duration.minutes(5)
_SLOW: Final = cdk.Duration.seconds(1)
# A scheduled run that comes near its time-out; of five runs in a period so many may fail.
_LONG_RUN: Final = cdk.Duration.seconds(50)
_FAILED_RUNS: Final = 2
_NEAR_MAXIMUM_PERCENT: Final = 80
# The most that five minutes may count without an alarm. A signal that is not named here is only drawn.
_SIGNAL_ALARMS: Final[Mapping[Signal, int]] = {
    Signal.FAIL_OPEN_ADMISSIONS: 0,
    Signal.GIVE_BACKS_LOST: 10,
    Signal.INTERNAL_ERRORS: 0,
    Signal.JOBS_FAILED: 0,
    Signal.STORE_AMBIGUOUS_WRITES: 10,
    Signal.STORE_CONFLICTS: 100,
    Signal.STORE_THROTTLES: 100,
    Signal.UNAVAILABLE: 5,
}
_Groups = Mapping[str, tuple[Signal, ...]]
# By service, because the code counts by service: a signal that is left out here has neither a graph nor an alarm.
_SIGNAL_GROUPS: Final[Mapping[str, _Groups]] = {
    "data_plane": {
        "Decisions": (Signal.ADMITTED, Signal.REFUSED, Signal.CONTENDED),
        "Table out of reach": (Signal.UNAVAILABLE, Signal.FAIL_OPEN_ADMISSIONS, Signal.STORE_AMBIGUOUS_WRITES),
        "Charged for nothing": (Signal.GIVE_BACKS_LOST,),
        "Buckets and configuration": (Signal.SHARDS_SPLIT, Signal.LEGACY_ITEMS_MOVED, Signal.CONFIGURATION_READS),
        "Contention in the table": (Signal.STORE_CONFLICTS, Signal.STORE_THROTTLES),
        "Bugs": (Signal.INTERNAL_ERRORS,),
    },
    "control_plane": {
        "Table out of reach": (Signal.UNAVAILABLE, Signal.STORE_AMBIGUOUS_WRITES),
        "Contention in the table": (Signal.STORE_CONFLICTS, Signal.STORE_THROTTLES),
        "Bugs": (Signal.INTERNAL_ERRORS,),
    },
    "rollup": {
        "Jobs": (Signal.JOB_STEPS, Signal.JOBS_FAILED, Signal.SHARDS_MERGED, Signal.LEGACY_ITEMS_MOVED),
        "Table out of reach": (Signal.UNAVAILABLE, Signal.STORE_AMBIGUOUS_WRITES),
        "Contention in the table": (Signal.STORE_CONFLICTS, Signal.STORE_THROTTLES),
    },
}
_TRANSACTION_CONFLICTS: Final = 100

_Alarm = Mapping[str, monitoring.ErrorCountThreshold]


class MonitoringStack(cdk.Stack):
    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        table: dynamodb.TableV2,
        api: apigateway.HttpApi,
        functions: Sequence[ServiceFunction],
        jobs: JobsStack,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            description="Sluice: dashboard and alarms",
        )
        self._settings = settings
        self._facade = self._create_facade()
        self._watch_api(api)
        for function in functions:
            self._watch_function(function)
        self._watch_schedule(jobs.rollup, jobs.undelivered)
        self._facade.add_large_header("Signals")
        for function in (*functions, jobs.rollup):
            self._watch_signals(function)
        self._watch_table(table)

    def _create_facade(self) -> monitoring.MonitoringFacade:
        topic = self._alarm_topic() if self._settings.alarm_topic else None
        action = None
        if topic is not None:
            told = cast("sns.ITopic", topic)
            action = cast(
                "monitoring.IAlarmActionStrategy",
                monitoring.SnsAlarmActionStrategy(on_alarm_topic=told, on_ok_topic=told),
            )
        name = f"Sluice-{self._settings.name}"
        return monitoring.MonitoringFacade(
            self,
            "Monitoring",
            alarm_factory_defaults=monitoring.AlarmFactoryDefaults(
                alarm_name_prefix=name, actions_enabled=topic is not None, action=action
            ),
            metric_factory_defaults=monitoring.MetricFactoryDefaults(namespace=METRICS_NAMESPACE, period=_PERIOD),
            dashboard_factory=cast(
                "monitoring.IDynamicDashboardFactory",
                monitoring.DefaultDashboardFactory(self, "Dashboards", dashboard_name_prefix=name),
            ),
        )

    def _alarm_topic(self) -> sns.Topic:
        """Encrypted with a key of its own: CloudWatch may not use the key that AWS manages for SNS."""
        key = kms.Key(
            self,
            "AlarmKey",
            description=f"Sluice {self._settings.name}: alarm notifications",
            enable_key_rotation=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        topic = sns.Topic(self, "Alarms", master_key=cast("kms.IKey", key), enforce_ssl=True)
        ours = {"StringEquals": {"aws:SourceAccount": self.account}}
        cloudwatch_alarms = cast("iam.IPrincipal", iam.ServicePrincipal("cloudwatch.amazonaws.com"))
        key.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[cloudwatch_alarms],
                actions=["kms:Decrypt", "kms:GenerateDataKey"],
                # In the policy of a key, * is the key itself.
                resources=["*"],
                conditions=ours,
            )
        )
        # The policy that demands TLS replaces the default one, which let the account's alarms publish.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[cloudwatch_alarms],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions=ours,
            )
        )
        cdk.CfnOutput(self, "AlarmTopicArn", value=topic.topic_arn)
        return topic

    def _watch_api(self, api: apigateway.HttpApi) -> None:
        self._facade.add_large_header("Requests")
        self._facade.monitor_api_gateway_v2_http_api(
            api=cast("apigateway.IHttpApi", api),
            alarm_friendly_name="Api",
            add5xx_count_alarm=self._more_than(5),
        )

    def _watch_function(self, function: ServiceFunction) -> None:
        slow = monitoring.LatencyThreshold(max_latency=_SLOW, evaluation_periods=3, datapoints_to_alarm=3)
        self._facade.monitor_lambda_function(
            lambda_function=cast("lambda_.IFunction", function.function),
            alarm_friendly_name=function.node.id,
            human_readable_name=function.service_name,
            add_fault_count_alarm=self._more_than(5),
            add_throttles_count_alarm=self._more_than(0),
            add_latency_p99_alarm={"Warning": slow} if self._settings.alarms else None,
        )

    def _watch_schedule(self, function: ServiceFunction, undelivered: sqs.Queue) -> None:
        self._facade.add_large_header("Jobs")
        alarms = self._settings.alarms
        long = monitoring.LatencyThreshold(max_latency=_LONG_RUN, evaluation_periods=3, datapoints_to_alarm=3)
        # Nothing to count means that nothing ran.
        silent = monitoring.MinUsageCountThreshold(
            min_count=1,
            evaluation_periods=3,
            datapoints_to_alarm=3,
            treat_missing_data_override=cloudwatch.TreatMissingData.BREACHING,
        )
        self._facade.monitor_lambda_function(
            lambda_function=cast("lambda_.IFunction", function.function),
            alarm_friendly_name=function.node.id,
            human_readable_name=function.service_name,
            add_fault_count_alarm=self._more_than(_FAILED_RUNS),
            add_throttles_count_alarm=self._more_than(_FAILED_RUNS),
            add_latency_p99_alarm={"Warning": long} if alarms else None,
            add_min_invocations_count_alarm={"Warning": silent} if alarms else None,
        )
        waiting = monitoring.MaxMessageCountThreshold(
            max_message_count=0,
            evaluation_periods=1,
            datapoints_to_alarm=1,
            treat_missing_data_override=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        self._facade.monitor_sqs_queue(
            queue=cast("sqs.IQueue", undelivered),
            alarm_friendly_name="Undelivered",
            human_readable_name="runs that could not be started",
            add_queue_max_size_alarm={"Warning": waiting} if alarms else None,
        )

    def _more_than(self, count: int) -> _Alarm | None:
        if not self._settings.alarms:
            return None
        threshold = monitoring.ErrorCountThreshold(max_error_count=count, evaluation_periods=1, datapoints_to_alarm=1)
        return {"Warning": threshold}

    def _watch_signals(self, function: ServiceFunction) -> None:
        service = function.service_name
        groups = [
            monitoring.CustomMetricGroup(title=title, metrics=[self._signal(service, signal) for signal in signals])
            for title, signals in _SIGNAL_GROUPS[service].items()
        ]
        self._facade.monitor_custom(
            metric_groups=groups, alarm_friendly_name=function.node.id, human_readable_name=service
        )

    def _signal(self, service: str, signal: Signal) -> cloudwatch.Metric | monitoring.CustomMetricWithAlarm:
        # As `sluice.shell` emits them: environments that share an account must not share an alarm.
        metric = cloudwatch.Metric(
            namespace=METRICS_NAMESPACE,
            metric_name=signal.value,
            dimensions_map={"environment": self._settings.name, "service": service},
            statistic=cloudwatch.Stats.SUM,
            period=_PERIOD,
        )
        if signal not in _SIGNAL_ALARMS:
            return metric
        return self._alarmed(metric, signal.value, _SIGNAL_ALARMS[signal])

    def _alarmed(
        self, metric: cloudwatch.Metric, name: str, most: int
    ) -> cloudwatch.Metric | monitoring.CustomMetricWithAlarm:
        if not self._settings.alarms:
            return metric
        threshold = monitoring.CustomThreshold(
            threshold=most,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            # Counted only when it happens: silence is good news.
            treat_missing_data_override=cloudwatch.TreatMissingData.NOT_BREACHING,
            # One period is enough: a gate that opened by itself must not wait for a second one.
            evaluation_periods=1,
            datapoints_to_alarm=1,
        )
        return monitoring.CustomMetricWithAlarm(
            metric=metric, alarm_friendly_name=name, add_alarm={"Warning": threshold}
        )

    def _watch_table(self, table: dynamodb.TableV2) -> None:
        settings = self._settings
        throttled = (
            {"Warning": monitoring.ThrottledEventsThreshold(max_throttled_events_threshold=0)}
            if settings.alarms
            else None
        )
        self._facade.add_large_header("Table")
        self._facade.monitor_dynamo_table(
            table=cast("dynamodb.ITable", table),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            alarm_friendly_name="Table",
            add_read_throttled_events_count_alarm=throttled,
            add_write_throttled_events_count_alarm=throttled,
            add_consumed_read_capacity_alarm=self._near(settings.max_read_request_units),
            add_consumed_write_capacity_alarm=self._near(settings.max_write_request_units),
        )
        conflicts = table.metric("TransactionConflict", statistic=cloudwatch.Stats.SUM, period=_PERIOD)
        watched = self._alarmed(conflicts, "TransactionConflict", _TRANSACTION_CONFLICTS)
        self._facade.monitor_custom(
            metric_groups=[monitoring.CustomMetricGroup(title="Conflicting transactions", metrics=[watched])],
            alarm_friendly_name="Table",
            human_readable_name="transactions",
        )

    def _near(self, maximum_units: int) -> Mapping[str, monitoring.ConsumedCapacityThreshold] | None:
        if not self._settings.alarms:
            return None
        units = maximum_units * _NEAR_MAXIMUM_PERCENT // 100
        return {"Warning": monitoring.ConsumedCapacityThreshold(max_consumed_capacity_units=units)}
