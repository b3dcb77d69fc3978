"""What the audit says, read past the product's own lists."""

from sluice.repository.audit import AuditEvent, decode_audit_event
from sluice.repository.wire import Item
from tests.integration.conftest import Host


def all_items(host: Host) -> list[Item]:
    page = host.store.inner.scan({"ConsistentRead": True})
    items = list(page.items)
    while page.next_start is not None:
        page = host.store.inner.scan({"ConsistentRead": True, "ExclusiveStartKey": page.next_start})
        items += page.items
    return items


def events(host: Host, action: str | None = None) -> list[AuditEvent]:
    """In the order of their time."""
    found = [decode_audit_event(item) for item in all_items(host) if item.get("kind") == "audit"]
    return sorted((event for event in found if action in {None, event.action}), key=lambda event: event.at_ms)


def other_items(host: Host) -> list[Item]:
    """What is stored besides the audit."""
    return [item for item in all_items(host) if item.get("kind") != "audit"]
