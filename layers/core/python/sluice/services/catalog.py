"""Which model a label stands for: the app's inference profile says, else the org's, else the label's definition."""

from dataclasses import dataclass
from typing import Final

from sluice.core.arns import ProfileKind, ProfileRefused, model_in, priced_model_id
from sluice.core.errors import InvalidRequest, ModelsUnavailable, UnknownLabel
from sluice.core.labels import InferenceProfile, LabelDefinition
from sluice.services.definitions import Definitions
from sluice.services.profile_models import Models, ProfileModels
from sluice.services.settings import SettingsCache

ASKING_MS: Final = 2_000
"""Later than that AWS is asked nothing more for one model id: a function that waits for a thousand answers is ended
before it has them."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a call is priced as. `definition`: of its label, for the fallback price; None where the label has none."""

    label: str | None
    model_id: str
    region: str | None
    definition: LabelDefinition | None


class Catalog:
    """`app`: whose labels are asked for; None for the org itself. AWS is asked by `resolve` and `label_of` alone."""

    def __init__(self, definitions: Definitions, models: ProfileModels, settings: SettingsCache) -> None:
        self._definitions = definitions
        self._models = models
        self._settings = settings

    def resolve(self, namespace: str, app: str | None, label: str, region: str | None) -> Model:
        """Raises UnknownLabel; InvalidRequest where a profile has no model in the region; Unavailable."""
        try:
            return self._resolve(namespace, app, label, region)
        except UnknownLabel:
            if not self._definitions.look_again(namespace):
                raise
        return self._resolve(namespace, app, label, region)

    def label_of(self, namespace: str, app: str | None, model_id: str) -> str | None:
        """The label that resolves to a model: of several the first of the ordering, else the first by name.

        Raises Unavailable where AWS does not say what comes first: one process must not count a call under the label
        and another one under the model.
        """
        labels = self._definitions.labels(namespace)
        profiles = self._profiles(namespace, app)
        known = labels.keys() | profiles.keys()
        ordering = self._settings.tenant(namespace, app).effective.model_ordering
        first = [label for label in ordering if label in known]
        gives_up_ms = self._models.timer_ms() + ASKING_MS
        for label in (*first, *sorted(known.difference(first))):
            profile = profiles.get(label)
            if profile is not None and not _is_named(profile, model_id):
                is_late = self._models.timer_ms() >= gives_up_ms
                if is_late and not self._models.is_at_hand(profile.arn):
                    # What was told so far is kept, and the next attempt comes further.
                    raise ModelsUnavailable
            if self._stands_for(profile, labels.get(label), model_id):
                return label
        return None

    def is_defined(self, namespace: str, app: str | None, label: str) -> bool:
        return self.definition(namespace, label) is not None or self._profile(namespace, app, label) is not None

    def definition(self, namespace: str, label: str) -> LabelDefinition | None:
        return self._definitions.labels(namespace).get(label)

    def look_again(self, namespace: str) -> bool:
        """Before something is said to be missing that a definition may have. False where all was read just now."""
        return self._definitions.look_again(namespace)

    def forget(self, namespace: str) -> None:
        """Something was defined elsewhere, as others show: even what was read just now is too old."""
        self._definitions.forget(namespace)

    def _resolve(self, namespace: str, app: str | None, label: str, region: str | None) -> Model:
        profile = self._profile(namespace, app, label)
        definition = self.definition(namespace, label)
        if profile is not None:
            return Model(label, self._model_of(profile, region), region, definition)
        if definition is None:
            raise UnknownLabel("label", "is not defined")
        return Model(label, definition.model_id, region, definition)

    def _profile(self, namespace: str, app: str | None, label: str) -> InferenceProfile | None:
        own = None if app is None else self._definitions.profiles(namespace, app).get(label)
        return own or self._definitions.profiles(namespace, self._org(namespace, app)).get(label)

    def _profiles(self, namespace: str, app: str | None) -> dict[str, InferenceProfile]:
        own = {} if app is None else self._definitions.profiles(namespace, app)
        return {**self._definitions.profiles(namespace, self._org(namespace, app)), **own}

    def _org(self, namespace: str, app: str | None) -> str:
        # With the app, because its settings are mostly at hand.
        return self._settings.tenant(namespace, app).org.org

    def _model_of(self, profile: InferenceProfile, region: str | None) -> str:
        if region is None:
            raise InvalidRequest("region", "is needed: this label stands for an inference profile")
        try:
            models = self._models.of(profile.arn)
        except ProfileRefused as refused:
            raise UnknownLabel("label", f"stands for an inference profile, and {refused}") from refused
        model_id = model_in(models, region)
        if model_id is None:
            raise InvalidRequest("region", f"the inference profile of this label has models in {_regions(models)} only")
        return priced_model_id(profile.arn, model_id)

    def _stands_for(self, profile: InferenceProfile | None, definition: LabelDefinition | None, model_id: str) -> bool:
        if profile is not None and _is_named(profile, model_id):
            return True
        if profile is not None:
            try:
                models = self._models.of(profile.arn)
            except ProfileRefused:
                return _is_defined_as(definition, model_id)
            return any(priced_model_id(profile.arn, model.model_id) == model_id for model in models)
        return _is_defined_as(definition, model_id)


def _is_named(profile: InferenceProfile, model_id: str) -> bool:
    """A profile of AWS is priced under its own id: nobody has to be asked."""
    return profile.arn.kind is ProfileKind.SYSTEM and profile.arn.profile_id == model_id


def _is_defined_as(definition: LabelDefinition | None, model_id: str) -> bool:
    return definition is not None and definition.model_id == model_id


def _regions(models: Models) -> str:
    return ", ".join(sorted({model.region for model in models if model.region is not None}))
