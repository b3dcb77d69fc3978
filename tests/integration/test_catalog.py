"""What a label stands for: whose word counts, which region's model, and how often AWS is asked."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sluice.core.arns import ModelInRegion, ProfileArn, ProfileRefused
from sluice.core.errors import InvalidRequest, ModelsUnavailable, NotFound, Unavailable, UnknownLabel
from sluice.core.orgs import AppSettings, OrgSettings
from sluice.repository import keys
from sluice.repository.labels import encode_label
from sluice.repository.orgs import app_put, decode_app
from sluice.services.catalog import ASKING_MS, Model
from sluice.services.definitions import AGAIN_MS, CACHE_MS, CACHE_SIZE
from sluice.services.labels import LabelFields
from sluice.services.profile_models import ANSWER_MS, REFUSAL_MS, SILENCE_MS
from sluice.services.profiles import ProfileOwner
from tests.fakes import FakeClock
from tests.integration.catalogs import (
    BOT,
    CHAT,
    HAIKU,
    OF_ORG,
    ORG,
    SOMEBODY,
    SONNET,
    SYSTEM_ARN,
    Shop,
    application_arn,
    of_app,
    put_tenant,
)
from tests.integration.conftest import NAMESPACE, Host
from tests.integration.test_limits import before_transact

EAST, WEST = "us-east-1", "us-west-2"
IN_EAST, IN_WEST = ModelInRegion(SONNET, EAST), ModelInRegion(HAIKU, WEST)
ABC = application_arn("abc")


@pytest.fixture
def shop(host: Host) -> Shop:
    put_tenant(host)
    return Shop.opened(host)


def resolve(shop: Shop, app: str | None = CHAT, label: str = "premium", region: str | None = EAST) -> Model:
    return shop.catalog.resolve(NAMESPACE, app, label, region)


def test_the_apps_profile_comes_first_then_the_orgs_then_the_definition(shop: Shop) -> None:
    with pytest.raises(UnknownLabel) as raised:
        resolve(shop)
    assert raised.value.field == "label"
    definition = shop.define("premium", "defined")
    assert resolve(shop) == Model("premium", "defined", EAST, definition)
    shop.let_stand("premium", application_arn("org"), ModelInRegion("of-the-org", EAST))
    assert [resolve(shop, app).model_id for app in (CHAT, BOT, None)] == ["of-the-org"] * 3
    shop.let_stand("premium", application_arn("chat"), ModelInRegion("of-chat", EAST), app=CHAT)
    assert [resolve(shop, app).model_id for app in (CHAT, BOT, None)] == ["of-chat", "of-the-org", "of-the-org"]
    # The definition is there for its price, whoever says which model it is.
    assert resolve(shop).definition == definition
    shop.labels.delete(NAMESPACE, "premium", author=SOMEBODY)
    assert resolve(shop) == Model("premium", "of-chat", EAST, None)
    shop.profiles.delete(of_app(CHAT), "premium", author=SOMEBODY)
    assert resolve(shop).model_id == "of-the-org"
    shop.profiles.delete(OF_ORG, "premium", author=SOMEBODY)
    with pytest.raises(UnknownLabel):
        resolve(shop)


def test_a_definition_holds_in_every_region_and_in_none(shop: Shop) -> None:
    shop.define("premium")
    assert [resolve(shop, region=region).region for region in (None, EAST)] == [None, EAST]
    assert shop.bedrock.asked == []


def test_the_region_chooses_the_model(shop: Shop) -> None:
    shop.let_stand("premium", ABC, IN_EAST, IN_WEST)
    assert [resolve(shop, region=region) for region in (EAST, WEST)] == [
        Model("premium", SONNET, EAST, None),
        Model("premium", HAIKU, WEST, None),
    ]
    assert shop.bedrock.asked == [ABC]


@pytest.mark.parametrize("region", [None, "eu-west-1", "us-east", "", "US-EAST-1"])
def test_a_region_is_needed_and_must_be_one_of_the_profiles(shop: Shop, region: str | None) -> None:
    shop.define("premium")
    shop.let_stand("premium", ABC, IN_EAST, IN_WEST)
    with pytest.raises(InvalidRequest) as raised:
        resolve(shop, region=region)
    assert raised.value.field == "region"
    assert ("us-east-1, us-west-2 only" in raised.value.detail) == (region is not None)
    assert shop.bedrock.asked == ([] if region is None else [ABC])


def test_a_profile_of_aws_is_priced_under_its_own_name(shop: Shop) -> None:
    shop.let_stand("premium", SYSTEM_ARN, IN_EAST, ModelInRegion(SONNET, WEST))
    assert [resolve(shop, region=region).model_id for region in (EAST, WEST)] == [f"us.{SONNET}"] * 2
    with pytest.raises(InvalidRequest):
        resolve(shop, region="eu-west-1")


def test_a_global_profile_serves_every_region(shop: Shop) -> None:
    arn = SYSTEM_ARN.replace("/us.", "/global.")
    shop.let_stand("premium", arn, IN_EAST, ModelInRegion(SONNET, None))
    assert [resolve(shop, region=region).model_id for region in (EAST, "eu-west-1")] == [f"global.{SONNET}"] * 2


def test_aws_is_asked_on_first_use_and_remembered(shop: Shop, clock: FakeClock) -> None:
    shop.let_stand("premium", ABC, IN_EAST, app=CHAT)
    shop.let_stand("premium", ABC, IN_EAST, app=BOT)
    assert shop.bedrock.asked == []
    for app in (CHAT, BOT, CHAT):
        resolve(shop, app)
    assert shop.bedrock.taken_asked() == [ABC]
    clock.advance(ANSWER_MS - 1)
    resolve(shop)
    assert shop.bedrock.taken_asked() == []
    clock.advance(1)
    shop.bedrock.models_of[ABC] = [ModelInRegion(HAIKU, EAST)]
    assert resolve(shop).model_id == HAIKU
    assert shop.bedrock.taken_asked() == [ABC]


def test_a_refusal_is_told_and_costs_a_call_a_minute(shop: Shop, clock: FakeClock) -> None:
    shop.define("premium")
    shop.let_stand("premium", ABC)
    shop.bedrock.models_of[ABC] = ProfileRefused("AWS knows no such inference profile")
    for _ in range(3):
        with pytest.raises(UnknownLabel, match="AWS knows no such inference profile") as raised:
            resolve(shop)
        assert raised.value.field == "label"
    clock.advance(REFUSAL_MS - 1)
    with pytest.raises(UnknownLabel):
        resolve(shop)
    assert shop.bedrock.taken_asked() == [ABC]
    clock.advance(1)
    shop.bedrock.models_of[ABC] = [IN_EAST]
    assert resolve(shop).model_id == SONNET


def test_another_arn_of_the_label_is_asked_at_once(shop: Shop) -> None:
    shop.let_stand("premium", ABC)
    shop.bedrock.models_of[ABC] = ProfileRefused("AWS knows no such inference profile")
    with pytest.raises(UnknownLabel):
        resolve(shop)
    shop.let_stand("premium", application_arn("right"), IN_EAST)
    assert resolve(shop).model_id == SONNET


@pytest.mark.parametrize("error", [ModelsUnavailable(), Unavailable("the table is away")])
def test_silence_is_unavailable_and_not_asked_into_for_each_event(
    shop: Shop, clock: FakeClock, error: Exception
) -> None:
    other, far = application_arn("other"), application_arn("far", WEST)
    shop.let_stand("premium", ABC)
    shop.let_stand("second", other, IN_EAST)
    shop.let_stand("third", far, IN_EAST)
    shop.bedrock.models_of[ABC] = error
    for label in ("premium", "premium", "second"):
        with pytest.raises(ModelsUnavailable):
            resolve(shop, label=label)
    # Another region may well answer.
    assert resolve(shop, label="third").model_id == SONNET
    assert shop.bedrock.taken_asked() == [ABC, far]
    clock.advance(SILENCE_MS - 1)
    with pytest.raises(ModelsUnavailable):
        resolve(shop, label="second")
    clock.advance(1)
    assert resolve(shop, label="second").model_id == SONNET
    assert shop.bedrock.taken_asked() == [other]


def test_the_silence_counts_from_the_end_of_the_wait(shop: Shop, clock: FakeClock) -> None:
    shop.let_stand("premium", ABC)

    class Slow:
        def models(self, _arn: object) -> Any:
            clock.advance(SILENCE_MS)
            waits.append(clock.now_ms)
            raise ModelsUnavailable

    waits: list[int] = []
    shop.catalog._models._source = Slow()
    for _ in range(2):
        with pytest.raises(ModelsUnavailable):
            resolve(shop)
    assert len(waits) == 1


def test_known_models_outlast_the_silence_of_aws(shop: Shop, clock: FakeClock) -> None:
    shop.let_stand("premium", ABC, IN_EAST)
    resolve(shop)
    shop.bedrock.taken_asked()
    clock.advance(3 * ANSWER_MS)
    shop.bedrock.models_of[ABC] = ModelsUnavailable()
    assert [resolve(shop).model_id for _ in range(3)] == [SONNET] * 3
    assert shop.bedrock.taken_asked() == [ABC]
    clock.advance(SILENCE_MS)
    shop.bedrock.models_of[ABC] = ProfileRefused("AWS knows no such inference profile")
    with pytest.raises(UnknownLabel):
        resolve(shop)
    # A refusal does not outlast it: it may be wrong by now.
    clock.advance(REFUSAL_MS)
    shop.bedrock.models_of[ABC] = ModelsUnavailable()
    with pytest.raises(ModelsUnavailable):
        resolve(shop)


def test_a_change_elsewhere_acts_within_a_minute(shop: Shop, clock: FakeClock, start_host: Callable[[], Host]) -> None:
    elsewhere = Shop.opened(start_host())
    elsewhere.define("premium", "defined")
    assert resolve(shop).model_id == "defined"
    shop.host.store.taken_calls()
    elsewhere.let_stand("premium", ABC, IN_EAST)
    shop.bedrock.models_of[ABC] = [IN_EAST]
    clock.advance(CACHE_MS - 1)
    assert resolve(shop).model_id == "defined"
    # The settings of the org live shorter, and are all that was read.
    assert "query" not in shop.host.store.taken_calls()
    clock.advance(1)
    assert resolve(shop).model_id == SONNET


def test_nobody_is_told_that_a_label_is_unknown_before_it_is_looked_for_again(
    shop: Shop, clock: FakeClock, start_host: Callable[[], Host]
) -> None:
    elsewhere = Shop.opened(start_host())
    with pytest.raises(UnknownLabel):
        resolve(shop)
    elsewhere.define("premium", "defined")
    shop.host.store.taken_calls()
    clock.advance(AGAIN_MS - 1)
    with pytest.raises(UnknownLabel):
        resolve(shop)
    assert shop.host.store.taken_calls() == []
    clock.advance(1)
    assert resolve(shop).model_id == "defined"


def test_the_minute_counts_from_before_the_read(shop: Shop, clock: FakeClock, start_host: Callable[[], Host]) -> None:
    """Whatever was changed while a slow read was under way may be missing in it."""
    elsewhere = Shop.opened(start_host())
    shop.catalog.is_defined(NAMESPACE, CHAT, "anything")
    clock.advance(CACHE_MS)

    def slow(verb: str, _request: object) -> None:
        if verb == "query":
            shop.host.store.after = None
            elsewhere.define("premium")
            clock.advance(40_000)

    shop.host.store.after = slow
    assert shop.catalog.definition(NAMESPACE, "premium") is None
    clock.advance(20_000)
    assert shop.catalog.definition(NAMESPACE, "premium") is not None


def test_what_was_read_before_a_change_here_is_not_kept(shop: Shop) -> None:
    def meanwhile(verb: str, _request: object) -> None:
        if verb == "query":
            shop.host.store.after = None
            shop.define("premium")

    shop.host.store.after = meanwhile
    assert shop.definitions.labels(NAMESPACE) == {}
    assert "premium" in shop.definitions.labels(NAMESPACE)


def test_a_failed_change_is_forgotten_as_well(shop: Shop, start_host: Callable[[], Host]) -> None:
    """Whoever met another writer knows that what is kept is old."""
    elsewhere = Shop.opened(start_host())
    assert shop.definitions.labels(NAMESPACE) == {}
    before_transact(shop.host, lambda: elsewhere.define("premium", HAIKU))
    shop.labels.put(NAMESPACE, "premium", LabelFields(SONNET), author=SOMEBODY)
    assert shop.definitions.labels(NAMESPACE)["premium"].model_id == SONNET


def test_more_than_a_page_of_labels_is_read(shop: Shop) -> None:
    big = replace(shop.define("label"), description="x" * 500)
    for number in range(300):
        one = replace(big, label=f"label-{number:03}", tier="t" * 128, family="ü" * 2000)
        shop.host.store.inner.put({"Item": encode_label(NAMESPACE, one)}, repeatable=True)
    shop.definitions.forget(NAMESPACE)
    shop.host.store.taken_calls()
    assert len(shop.definitions.labels(NAMESPACE)) == 301
    assert len(shop.host.store.taken_calls()) > 1
    assert len(shop.definitions.labels(NAMESPACE)) == 301
    assert shop.host.store.taken_calls() == []


def test_the_cache_is_bounded_by_what_is_in_it(shop: Shop) -> None:
    assert CACHE_SIZE >= 10_000
    shop.define("a")
    for app in (CHAT, BOT, ORG):
        shop.definitions.profiles(NAMESPACE, app)
    shop.definitions.labels(NAMESPACE)
    assert shop.definitions._cache.currsize == 3 + 2


@pytest.mark.parametrize("app", [None, CHAT])
def test_a_label_is_defined_by_any_of_them_and_aws_is_not_asked(shop: Shop, app: str | None) -> None:
    shop.define("defined")
    shop.let_stand("of-org", ABC)
    shop.let_stand("of-chat", ABC, app=CHAT)
    shop.let_stand("of-bot", ABC, app=BOT)
    known = [
        name for name in ("defined", "of-org", "of-chat", "of-bot") if shop.catalog.is_defined(NAMESPACE, app, name)
    ]
    assert known == ["defined", "of-org"] + (["of-chat"] if app == CHAT else [])
    assert shop.bedrock.asked == []


def test_nothing_crosses_a_namespace(shop: Shop) -> None:
    put_tenant(shop.host, namespace="elsewhere")
    shop.define("premium")
    shop.let_stand("second", ABC, IN_EAST)
    shop.let_stand("third", ABC, IN_EAST, app=CHAT)
    for label in ("premium", "second", "third"):
        with pytest.raises(UnknownLabel):
            shop.catalog.resolve("elsewhere", CHAT, label, EAST)
        assert not shop.catalog.is_defined("elsewhere", CHAT, label)
    assert shop.catalog.label_of("elsewhere", CHAT, SONNET) is None
    with pytest.raises(NotFound):
        shop.catalog.resolve("nowhere", None, "premium", EAST)


def with_ordering(shop: Shop, ordering: Sequence[str], of_chat: Sequence[str] | None = None) -> None:
    """The ordering of the org, and the app's own."""
    quotas = dict.fromkeys([*ordering, *(of_chat or ())], 1)
    put_tenant(shop.host, OrgSettings(model_ordering=tuple(ordering), quotas_usd_micros=quotas))
    if of_chat is not None:
        item = shop.host.store.inner.get(keys.app_settings(NAMESPACE, CHAT), consistent=True)
        assert item is not None
        seen = decode_app(item)
        own = replace(seen, settings=AppSettings(model_ordering=tuple(of_chat)))
        shop.host.store.inner.transact([app_put(own, seen)], "ordering")


def label_of(shop: Shop, model_id: str, app: str | None = CHAT) -> str | None:
    return shop.catalog.label_of(NAMESPACE, app, model_id)


def test_a_model_counts_under_the_label_that_resolves_to_it(shop: Shop) -> None:
    shop.define("premium", SONNET)
    shop.define("standard", HAIKU)
    assert [label_of(shop, model) for model in (SONNET, HAIKU, "unknown", f"us.{SONNET}")] == [
        "premium",
        "standard",
        None,
        None,
    ]


def test_of_several_the_first_of_the_ordering_then_by_name(shop: Shop) -> None:
    with_ordering(shop, ["other", "c", "b"], of_chat=["b", "c"])
    for label in ("a", "b", "c"):
        shop.define(label)
    assert [label_of(shop, SONNET, app) for app in (None, BOT, CHAT)] == ["c", "c", "b"]
    for label in ("b", "c"):
        shop.labels.delete(NAMESPACE, label, author=SOMEBODY)
    shop.define("aa")
    assert label_of(shop, SONNET) == "a"


def test_a_profile_hides_what_the_label_is_defined_as(shop: Shop) -> None:
    shop.define("premium", "defined")
    shop.let_stand("premium", ABC, IN_EAST, IN_WEST, app=CHAT)
    assert [label_of(shop, model, BOT) for model in ("defined", SONNET)] == ["premium", None]
    assert shop.bedrock.asked == []
    assert [label_of(shop, model) for model in ("defined", SONNET, HAIKU)] == [None, "premium", "premium"]
    assert shop.bedrock.asked == [ABC]


def test_every_process_counts_a_model_under_the_same_label(shop: Shop) -> None:
    """Hole: one that had never asked AWS for the profile counted the call under the model: no quota saw it."""
    shop.let_stand("premium", ABC, IN_EAST)
    model_id = resolve(shop).model_id
    other = Shop.opened(shop.host)
    other.bedrock.models_of = shop.bedrock.models_of
    assert label_of(other, model_id) == label_of(shop, model_id) == "premium"


def test_without_an_answer_of_aws_no_label_is_guessed(shop: Shop, clock: FakeClock) -> None:
    with_ordering(shop, ["first", "premium"])
    shop.define("first", HAIKU)
    shop.define("zone", SONNET)
    shop.let_stand("premium", ABC)
    shop.bedrock.models_of[ABC] = ModelsUnavailable()
    # What comes before it needs no answer.
    assert label_of(shop, HAIKU) == "first"
    assert shop.bedrock.asked == []
    with pytest.raises(ModelsUnavailable):
        label_of(shop, SONNET)
    shop.bedrock.models_of[ABC] = (IN_WEST,)
    clock.advance(SILENCE_MS)
    assert label_of(shop, SONNET) == "zone"


def test_no_attempt_asks_aws_without_end(shop: Shop, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told until then is kept."""
    for number in range(5):
        shop.let_stand(f"label-{number}", application_arn(f"of-{number}"), IN_WEST)
    shop.define("zone", SONNET)
    models = shop.bedrock.models

    def slow(arn: ProfileArn) -> tuple[ModelInRegion, ...]:
        clock.advance(ASKING_MS - 1)
        return models(arn)

    monkeypatch.setattr(shop.bedrock, "models", slow)
    for asked in (2, 2):
        with pytest.raises(ModelsUnavailable):
            label_of(shop, SONNET)
        assert len(shop.bedrock.taken_asked()) == asked
    assert label_of(shop, SONNET) == "zone"
    assert len(shop.bedrock.taken_asked()) == 1


def test_the_apps_profile_hides_the_orgs(shop: Shop) -> None:
    shop.let_stand("premium", ABC, IN_EAST)
    shop.let_stand("premium", application_arn("chat"), IN_WEST, app=CHAT)
    resolve(shop, CHAT, region=WEST)
    resolve(shop, None)
    assert [label_of(shop, SONNET, app) for app in (CHAT, BOT, None)] == [None, "premium", "premium"]
    assert [label_of(shop, HAIKU, app) for app in (CHAT, BOT, None)] == ["premium", None, None]


def test_a_profile_of_aws_is_known_by_its_name(shop: Shop) -> None:
    shop.let_stand("premium", SYSTEM_ARN, IN_EAST)
    assert label_of(shop, f"us.{SONNET}") == "premium"
    assert shop.bedrock.asked == []
    resolve(shop)
    assert [label_of(shop, model) for model in (f"us.{SONNET}", SONNET)] == ["premium", None]


def test_a_refused_profile_is_taken_for_the_definition(shop: Shop) -> None:
    shop.define("premium", SONNET)
    shop.let_stand("premium", ABC)
    shop.bedrock.models_of[ABC] = ProfileRefused("AWS knows no such inference profile")
    with pytest.raises(UnknownLabel):
        resolve(shop)
    assert label_of(shop, SONNET) == "premium"


def test_an_org_that_is_named_as_an_app_is_the_org(shop: Shop) -> None:
    shop.let_stand("premium", ABC, IN_EAST)
    assert resolve(shop, ORG) == resolve(shop, None)
    assert shop.profiles.get(ProfileOwner(NAMESPACE), "premium").entity == ORG
