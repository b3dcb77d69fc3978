"""Labels of an org: read, listed, replaced and removed.

A label may be removed while an ordering names it, and named before it is defined: selection skips it meanwhile.
"""

from dataclasses import dataclass
from functools import partial

from sluice.core.audit import SYSTEM_SUBJECT, Action, Author
from sluice.core.errors import InvalidRequest
from sluice.core.labels import LabelDefinition
from sluice.repository import money_keys
from sluice.repository.labels import decode_label, label_delete, label_image, label_put, labels_query
from sluice.repository.store import Store
from sluice.services.definitions import LABELS_MAX, Definitions
from sluice.services.effects import Effects
from sluice.services.listing import Listed, Lists, PageRequest
from sluice.services.replacing import Precondition, Replaced, Replacing, Shelf


@dataclass(frozen=True, slots=True)
class LabelFields:
    """What is put, as a whole."""

    model_id: str
    tier: str | None = None
    family: str | None = None
    description: str | None = None
    input_price_usd_micros_per_1m: int | None = None
    output_price_usd_micros_per_1m: int | None = None


def any_label(_label: LabelDefinition | None) -> bool:
    return True


class Labels:
    def __init__(self, store: Store, definitions: Definitions, lists: Lists, effects: Effects) -> None:
        self._definitions = definitions
        self._lists = lists
        self._replacing = Replacing(store, effects)

    def get(self, namespace: str, label: str) -> LabelDefinition:
        return self._replacing.get(_shelf(namespace, label))

    def list(self, namespace: str, page: PageRequest) -> Listed[LabelDefinition]:
        """By name."""
        return self._lists.whole((namespace, "labels"), labels_query(namespace), page, decode_label)

    def put(
        self,
        namespace: str,
        label: str,
        fields: LabelFields,
        precondition: Precondition[LabelDefinition] = any_label,
        *,
        author: Author,
    ) -> Replaced[LabelDefinition]:
        def make(before: LabelDefinition | None, now_ms: int) -> LabelDefinition:
            if before is None and len(self._definitions.labels(namespace)) >= LABELS_MAX:
                raise InvalidRequest("label", f"there are {LABELS_MAX} labels already")
            return _defined(label, fields, before, now_ms)

        try:
            return self._replacing.put(_shelf(namespace, label), make, precondition, Action.LABEL_PUT, author)
        finally:
            self._definitions.forget(namespace)

    def delete(
        self,
        namespace: str,
        label: str,
        precondition: Precondition[LabelDefinition] = any_label,
        *,
        author: Author,
    ) -> None:
        try:
            self._replacing.delete(_shelf(namespace, label), precondition, Action.LABEL_DELETE, author)
        finally:
            self._definitions.forget(namespace)


def _shelf(namespace: str, label: str) -> Shelf[LabelDefinition]:
    return Shelf(
        namespace=namespace,
        key=money_keys.label(namespace, label),
        decode=decode_label,
        put=partial(label_put, namespace),
        delete=partial(label_delete, namespace),
        image=label_image,
        subject=SYSTEM_SUBJECT,
        target=f"labels/{label}",
        missing="there is no such label",
    )


def _defined(label: str, fields: LabelFields, before: LabelDefinition | None, now_ms: int) -> LabelDefinition:
    return LabelDefinition(
        label=label,
        model_id=fields.model_id,
        tier=fields.tier,
        family=fields.family,
        description=fields.description,
        input_price_usd_micros_per_1m=fields.input_price_usd_micros_per_1m,
        output_price_usd_micros_per_1m=fields.output_price_usd_micros_per_1m,
        version=1 if before is None else before.version + 1,
        created_at_ms=now_ms if before is None else before.created_at_ms,
        updated_at_ms=now_ms,
    )
