"""Labels and inference profiles in one process, with an AWS that says what a test wants said."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.core.arns import ModelInRegion, ProfileArn
from sluice.core.audit import Author
from sluice.core.labels import LabelDefinition
from sluice.core.orgs import OrgSettings
from sluice.repository.audit import AuditEvent, audit_query, decode_audit_event
from sluice.services.catalog import Catalog
from sluice.services.cursors import Cursors
from sluice.services.definitions import Definitions
from sluice.services.effects import Effects
from sluice.services.labels import LabelFields, Labels
from sluice.services.listing import Lists
from sluice.services.profile_models import ProfileModels
from sluice.services.profiles import ProfileOwner, Profiles
from sluice.services.settings import SettingsCache
from sluice.services.signing import Signer
from sluice.shell import new_token
from tests.fakes import never_random
from tests.integration.conftest import NAMESPACE, Host
from tests.tenancy import FixedKeys, tenant_items

ORG, CHAT, BOT = "acme", "chat", "bot"
SOMEBODY = Author("client-7", "request-9")
SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
HAIKU = "anthropic.claude-haiku-4-5-20251001-v1:0"
SYSTEM_ARN = f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.{SONNET}"


def application_arn(name: str = "abc", region: str = "us-east-1") -> str:
    return f"arn:aws:bedrock:{region}:123456789012:application-inference-profile/{name}"


@dataclass
class FakeBedrock:
    """`models`: what it says of each ARN; an error is raised. `asked`: which ARNs it was asked for."""

    models_of: dict[str, Sequence[ModelInRegion] | Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def models(self, arn: ProfileArn) -> tuple[ModelInRegion, ...]:
        self.asked.append(str(arn))
        told = self.models_of[str(arn)]
        if isinstance(told, Exception):
            raise told
        return tuple(told)

    def taken_asked(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


@dataclass
class Shop:
    """One process. `owner`s are made with `of_app` and `OF_ORG`."""

    host: Host
    labels: Labels
    profiles: Profiles
    catalog: Catalog
    bedrock: FakeBedrock
    definitions: Definitions

    @classmethod
    def opened(cls, host: Host) -> "Shop":
        effects = Effects(host.clock, never_random, new_token, host.meter)
        settings = SettingsCache(host.store, host.clock)
        definitions = Definitions(host.store, host.clock)
        lists = Lists(host.store, Cursors(Signer(FixedKeys())))
        bedrock = FakeBedrock()
        return cls(
            host=host,
            labels=Labels(host.store, definitions, lists, effects),
            profiles=Profiles(host.store, definitions, settings, lists, effects),
            catalog=Catalog(definitions, ProfileModels(bedrock, host.clock), settings),
            bedrock=bedrock,
            definitions=definitions,
        )

    def define(self, label: str, model_id: str = SONNET) -> LabelDefinition:
        return self.labels.put(NAMESPACE, label, LabelFields(model_id), author=SOMEBODY).stored

    def let_stand(self, label: str, arn: str, *models: ModelInRegion, app: str | None = None) -> None:
        """The label stands for a profile, of which AWS says that it has these models."""
        self.profiles.put(ProfileOwner(NAMESPACE, app), label, arn, None, author=SOMEBODY)
        self.bedrock.models_of[arn] = models

    def audit(self, subject: str) -> list[AuditEvent]:
        """The oldest first."""
        page = self.host.store.inner.query(audit_query(NAMESPACE, subject))
        return [decode_audit_event(item) for item in reversed(page.items)]


def put_tenant(host: Host, settings: OrgSettings | None = None, namespace: str = NAMESPACE) -> None:
    """An org with two apps."""
    for item in tenant_items(namespace, ORG, CHAT, BOT, settings=settings):
        host.store.inner.put({"Item": item}, repeatable=True)


OF_ORG = ProfileOwner(NAMESPACE)


def of_app(app: str, within: str | None = None) -> ProfileOwner:
    return ProfileOwner(NAMESPACE, app, within)
