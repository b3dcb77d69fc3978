"""The one place that tells others of alerts: EventBridge's default bus, and a topic."""

import json
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, Protocol

from botocore.exceptions import ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as ClientConnectionError

from sluice.core.alerts import Alert
from sluice.core.errors import Unavailable
from sluice.repository.alert_markers import alert_id

SOURCE: Final = "sluice"


class AlertBus(Protocol):
    def tell(self, alert: Alert) -> None:
        """At least once. Raises Unavailable where that is not certain."""
        ...


class EventsAndTopic:
    """`events_client`, `topic_client`: make boto3's for EventBridge and SNS, when there is something to tell."""

    def __init__(self, events_client: Callable[[], Any], topic_client: Callable[[], Any], topic: str) -> None:
        self._make = (events_client, topic_client)
        self._topic = topic
        self._lock = Lock()
        self._clients: tuple[Any, Any] | None = None

    def tell(self, alert: Alert) -> None:
        events, topic = self._both()
        detail = json.dumps(detail_of(alert), sort_keys=True)
        try:
            answer = events.put_events(Entries=[{"Source": SOURCE, "DetailType": alert.detail_type, "Detail": detail}])
            if answer["FailedEntryCount"]:
                raise Unavailable("an event was not taken")
            topic.publish(TopicArn=self._topic, Subject=alert.detail_type, Message=detail)
        except (ClientError, ClientConnectionError, HTTPClientError) as error:
            # Only the type: its own words may hold what a tenant wrote.
            raise Unavailable(type(error).__name__) from None

    def _both(self) -> tuple[Any, Any]:
        with self._lock:
            if self._clients is None:
                events, topic = self._make
                self._clients = events(), topic()
            return self._clients


def detail_of(alert: Alert) -> dict[str, object]:
    """As others read it. `id`: the same whenever the same alert is told again."""
    return {
        "id": alert_id(alert),
        "namespace": alert.namespace,
        "entity": alert.entity,
        "span": alert.slot.span.value,
        "period": alert.period,
        "dimension": alert.slot.dimension.value,
        "unit": alert.slot.dimension.unit,
        "percent": int(alert.percent) if alert.percent.isdecimal() else None,
        "limit": alert.limit,
        "used": alert.used,
        "type": alert.detail_type,
    }
