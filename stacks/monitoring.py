"""What people look at and what wakes them: one dashboard, and alarms on everything that breaks the promise.

What to measure is listed here; how it is drawn and alarmed is the library's.
"""

from collections.abc import Mapping
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
from stacks.api import ApiStack
from stacks.function import ServiceFunction
from stacks.jobs import JobsStack
from stacks.settings import Settings
from stacks.streams import StreamsStack

_PERIOD: Final = cdk.Duration.minutes(5)
_SLOW: Final = cdk.Duration.seconds(1)
# A scheduled run that comes near its time-out; of five runs in a period so many may fail.
_LONG_RUN: Final = cdk.Duration.seconds(50)
_FAILED_RUNS: Final = 2
# How far a function may be behind the stream. A day is all that the stream keeps.
_BEHIND: Final = cdk.Duration.minutes(10)
_NEAR_MAXIMUM_PERCENT: Final = 80
# The most that five minutes may count without an alarm. A signal that is not named here is only drawn.
_SIGNAL_ALARMS: Final[Mapping[Signal, int]] = {
    Signal.FAIL_OPEN_ADMISSIONS: 0,
    Signal.GIVE_BACKS_LOST: 10,
    Signal.INTERNAL_ERRORS: 0,
    Signal.JOBS_FAILED: 0,
    # In seconds. About 60 while every minute has its run, and that has time for all that is due.
    Signal.ROLLUP_LAG_SECONDS: 119,
    Signal.SECRETS_TOO_OLD: 0,
    Signal.STANDING_LOOKUPS_FAILED: 0,
    Signal.STORE_AMBIGUOUS_WRITES: 10,
    Signal.STORE_CONFLICTS: 100,
    Signal.STORE_THROTTLES: 100,
    # One that passes is tried again; one that stays goes to the failure queue.
    Signal.STREAM_FAILURES: 10,
    Signal.STREAM_GAPS: 0,
    # What fails is tried again with every run; what goes on failing shows as lag.
    Signal.TOTALS_FAILED: 10,
    # As with the totals.
    Signal.SWEEP_FAILURES: 10,
    # In seconds: what is held stays held, and budgets seem fuller than they are.
    Signal.SWEEP_LAG_SECONDS: 299,
    Signal.UNAVAILABLE: 5,
}
# Of these the highest of a period counts, of all others the sum.
_HIGHEST: Final = frozenset({Signal.ROLLUP_LAG_SECONDS, Signal.SWEEP_LAG_SECONDS})
_Groups = Mapping[str, tuple[Signal, ...]]
# What every function that takes tokens counts: is the bearer's standing read, remembered, or out of reach?
_STANDING: Final = (Signal.STANDING_READS, Signal.STANDING_CACHE_HITS, Signal.STANDING_LOOKUPS_FAILED)
_OUT_OF_REACH: Final = (Signal.UNAVAILABLE, Signal.STORE_AMBIGUOUS_WRITES)
_CONTENTION: Final = (Signal.STORE_CONFLICTS, Signal.STORE_THROTTLES)
# By service, because the code counts by service: a signal that is left out here has neither a graph nor an alarm.
_SIGNAL_GROUPS: Final[Mapping[str, _Groups]] = {
    "data_plane": {
        "Decisions": (Signal.ADMITTED, Signal.REFUSED, Signal.CONTENDED),
        "Table out of reach": (Signal.UNAVAILABLE, Signal.FAIL_OPEN_ADMISSIONS, Signal.STORE_AMBIGUOUS_WRITES),
        "Charged for nothing": (Signal.GIVE_BACKS_LOST,),
        "Buckets and configuration": (Signal.SHARDS_SPLIT, Signal.LEGACY_ITEMS_MOVED, Signal.CONFIGURATION_READS),
        "Usage events": (Signal.USAGE_EVENTS, Signal.USAGE_DUPLICATES, Signal.USAGE_UNPRICED),
        "Totals that could not be told": (Signal.TOTALS_FAILED,),
        "Held by hard budgets, in micro-dollars": (Signal.HELD_USD_MICROS,),
        "Calls reported after their holds expired": (Signal.HOLDS_SETTLED_LATE,),
        "What they cost, in micro-dollars": (Signal.LATE_SETTLED_USD_MICROS,),
        "Selection moved on by who asked": (Signal.STICKY_ADVANCES,),
        "Standing of bearers": _STANDING,
        "Contention in the table": _CONTENTION,
        "Bugs": (Signal.INTERNAL_ERRORS,),
    },
    "control_plane": {
        "Table out of reach": _OUT_OF_REACH,
        "Standing of bearers": _STANDING,
        "Contention in the table": _CONTENTION,
        "Bugs": (Signal.INTERNAL_ERRORS,),
    },
    "identity": {
        "Tokens": (Signal.TOKENS_ISSUED, Signal.TOKENS_REFUSED, Signal.TOKENS_REVOKED, Signal.LOGINS_THROTTLED),
        "Table out of reach": _OUT_OF_REACH,
        "Standing of bearers": _STANDING,
        "Contention in the table": _CONTENTION,
        "Bugs": (Signal.INTERNAL_ERRORS,),
    },
    "rollup": {
        "Totals": (Signal.TOTALS_ROLLED_UP, Signal.TOTALS_FAILED),
        "How long the oldest total was due, in seconds": (Signal.ROLLUP_LAG_SECONDS,),
        "Holds that expired": (Signal.HOLDS_EXPIRED, Signal.SWEEP_FAILURES),
        "What they held, in micro-dollars": (Signal.EXPIRED_USD_MICROS,),
        "How long the oldest hold is overdue, in seconds": (Signal.SWEEP_LAG_SECONDS,),
        "Quotas of today, at every sum": (Signal.QUOTAS_TIGHT, Signal.QUOTAS_EXCEEDED),
        "Selection moved on by the rollup": (Signal.STICKY_ADVANCES,),
        "Prices": (Signal.PRICES_REFRESHED,),
        "Keys": (Signal.SECRETS_TOO_OLD,),
        "Jobs": (Signal.JOB_STEPS, Signal.JOBS_FAILED, Signal.SHARDS_MERGED, Signal.LEGACY_ITEMS_MOVED),
        "Table out of reach": _OUT_OF_REACH,
        "Contention in the table": _CONTENTION,
    },
    "aggregator": {
        "Stream": (Signal.STREAM_RECORDS, Signal.SNAPSHOT_WRITES, Signal.STREAM_FAILURES),
        "Records that never came": (Signal.STREAM_GAPS,),
        "Buckets": (Signal.SHARDS_SPLIT,),
        "Totals": (Signal.TOTALS_MARKED,),
        "Alerts of budgets": (Signal.ALERTS_SENT,),
        "Table out of reach": _OUT_OF_REACH,
        "Contention in the table": _CONTENTION,
        "Bugs": (Signal.INTERNAL_ERRORS,),
    },
    "archiver": {
        "Archived": (Signal.ARCHIVED_RECORDS, Signal.STREAM_FAILURES),
        "Archived bytes": (Signal.ARCHIVED_BYTES,),
        "Table out of reach": (Signal.UNAVAILABLE, Signal.STORE_THROTTLES),
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
        api: ApiStack,
        jobs: JobsStack,
        streams: StreamsStack,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            description="Sluice: dashboard and alarms",
        )
        self._settings = settings
        self._facade = self._create_facade()
        self._watch_api(api.api)
        functions = (api.data_plane, api.control_plane, api.identity)
        for function in functions:
            self._watch_function(function)
        self._watch_schedule(jobs.rollup, jobs.undelivered)
        self._facade.add_large_header("Stream")
        self._watch_stream(streams.aggregator, streams.aggregator_failures)
        self._watch_stream(streams.archiver, streams.archiver_failures)
        self._facade.add_large_header("Signals")
        for function in (*functions, jobs.rollup, streams.aggregator, streams.archiver):
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
        self._watch_queue(undelivered, "Undelivered", "runs that could not be started")

    def _watch_stream(self, function: ServiceFunction, failures: sqs.Queue) -> None:
        name = function.node.id
        alarms = self._settings.alarms
        long = monitoring.LatencyThreshold(max_latency=_LONG_RUN, evaluation_periods=3, datapoints_to_alarm=3)
        behind = monitoring.MaxAgeThreshold(
            max_age_in_millis=_BEHIND.to_milliseconds(),
            evaluation_periods=1,
            datapoints_to_alarm=1,
            # No records, no age.
            treat_missing_data_override=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        self._facade.monitor_lambda_function(
            lambda_function=cast("lambda_.IFunction", function.function),
            alarm_friendly_name=name,
            human_readable_name=function.service_name,
            is_iterator=True,
            add_max_iterator_age_alarm={"Warning": behind} if alarms else None,
            add_fault_count_alarm=self._more_than(_FAILED_RUNS),
            add_throttles_count_alarm=self._more_than(_FAILED_RUNS),
            add_latency_p99_alarm={"Warning": long} if alarms else None,
        )
        self._watch_queue(failures, f"{name}Failures", f"what the {function.service_name} gave up on")

    def _watch_queue(self, queue: sqs.Queue, name: str, description: str) -> None:
        """Whatever lies in it waits for a person."""
        waiting = monitoring.MaxMessageCountThreshold(
            max_message_count=0,
            evaluation_periods=1,
            datapoints_to_alarm=1,
            treat_missing_data_override=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        self._facade.monitor_sqs_queue(
            queue=cast("sqs.IQueue", queue),
            alarm_friendly_name=name,
            human_readable_name=description,
            add_queue_max_size_alarm={"Warning": waiting} if self._settings.alarms else None,
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
            statistic=cloudwatch.Stats.MAXIMUM if signal in _HIGHEST else cloudwatch.Stats.SUM,
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
