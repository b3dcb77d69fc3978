"""Inference profiles: which one a label stands for, in one app or in all apps of an org.

They are read, listed, replaced and removed here, and go with their app. An app's own comes before the org's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from sluice.core.arns import parse_profile_arn
from sluice.core.audit import Action, Author
from sluice.core.errors import Forbidden, InvalidRequest, NotFound
from sluice.core.labels import InferenceProfile
from sluice.repository import keys, money_keys
from sluice.repository.profiles import (
    app_exists,
    decode_profile,
    profile_delete,
    profile_image,
    profile_put,
    profile_target,
    profiles_query,
)
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Store
from sluice.services.definitions import LABELS_MAX, Definitions
from sluice.services.effects import Effects
from sluice.services.listing import Listed, Lists, PageRequest
from sluice.services.replacing import Precondition, Replaced, Replacing, Shelf
from sluice.services.settings import SettingsCache


@dataclass(frozen=True, slots=True)
class ProfileOwner:
    """`app`: None for the whole org. `within`: the app that asks, which may act on itself alone; None for an org."""

    namespace: str
    app: str | None = None
    within: str | None = None

    def check_reading(self) -> None:
        """What is another app's looks as if there were none."""
        if self.within is not None and self.app not in (None, self.within):
            raise _no_such_app()

    def check_changing(self) -> None:
        self.check_reading()
        if self.within is not None and self.app is None:
            raise Forbidden("the inference profiles of the whole org are the org's to change")


def any_profile(_profile: InferenceProfile | None) -> bool:
    return True


class Profiles:
    def __init__(
        self, store: Store, definitions: Definitions, settings: SettingsCache, lists: Lists, effects: Effects
    ) -> None:
        self._store = store
        self._definitions = definitions
        self._settings = settings
        self._lists = lists
        self._replacing = Replacing(store, effects)

    def get(self, owner: ProfileOwner, label: str) -> InferenceProfile:
        owner.check_reading()
        return self._replacing.get(_shelf(owner, self._entity(owner), label))

    def list(self, owner: ProfileOwner, page: PageRequest) -> Listed[InferenceProfile]:
        """By label. Of an app only its own."""
        owner.check_reading()
        entity = self._entity(owner)
        purpose = (owner.namespace, "inference-profiles", entity)
        return self._lists.whole(purpose, profiles_query(owner.namespace, entity), page, decode_profile)

    def put(
        self,
        owner: ProfileOwner,
        label: str,
        inference_profile_arn: str,
        description: str | None,
        precondition: Precondition[InferenceProfile] = any_profile,
        *,
        author: Author,
    ) -> Replaced[InferenceProfile]:
        """AWS is not asked before the label is used: an ARN that it does not know is stored as well."""
        owner.check_changing()
        arn = parse_profile_arn("inference_profile_arn", inference_profile_arn)
        entity = self._entity(owner)
        new = InferenceProfile(entity, label, arn, description, version=1, created_at_ms=0, updated_at_ms=0)

        def make(before: InferenceProfile | None, now_ms: int) -> InferenceProfile:
            if before is None:
                if len(self._definitions.profiles(owner.namespace, entity)) >= LABELS_MAX:
                    raise InvalidRequest("label", f"there are {LABELS_MAX} inference profiles already")
                return replace(new, created_at_ms=now_ms, updated_at_ms=now_ms)
            return replace(new, version=before.version + 1, created_at_ms=before.created_at_ms, updated_at_ms=now_ms)

        try:
            return self._replacing.put(_shelf(owner, entity, label), make, precondition, Action.PROFILE_PUT, author)
        finally:
            self._definitions.forget(owner.namespace)

    def delete(
        self,
        owner: ProfileOwner,
        label: str,
        precondition: Precondition[InferenceProfile] = any_profile,
        *,
        author: Author,
    ) -> None:
        owner.check_changing()
        shelf = _shelf(owner, self._entity(owner), label)
        try:
            self._replacing.delete(shelf, precondition, Action.PROFILE_DELETE, author)
        finally:
            self._definitions.forget(owner.namespace)

    def _entity(self, owner: ProfileOwner) -> str:
        """Where they stand. Raises NotFound for what is no app."""
        if owner.app is None:
            return self._settings.org(owner.namespace).org
        if self._store.get(keys.app_settings(owner.namespace, owner.app), consistent=True) is None:
            raise _no_such_app()
        return owner.app


def _shelf(owner: ProfileOwner, entity: str, label: str) -> Shelf[InferenceProfile]:
    namespace = owner.namespace
    guard: Sequence[TransactWrite] = () if owner.app is None else [app_exists(namespace, owner.app)]
    return Shelf(
        namespace=namespace,
        key=money_keys.profile(namespace, entity, label),
        decode=decode_profile,
        put=partial(profile_put, namespace),
        delete=partial(profile_delete, namespace),
        image=profile_image,
        subject=entity,
        target=profile_target(label, owner.app),
        missing="there is no such inference profile",
        guard=guard,
    )


def _no_such_app() -> NotFound:
    return NotFound("there is no such app")
