"""Sequences of store calls from a seed: the shapes that the product sends, mixed with ones that AWS refuses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from sluice.repository.keys import Key
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Page, Store
from sluice.repository.wire import Item, Value
from tests.simulation.hostile import HOSTILE, Hostile

STEPS_LEAST: Final = 3
STEPS_MOST: Final = 7
HOSTILE_SHARE: Final = 0.12
PAGES_MAX: Final = 12
# Far ahead: an engine deletes what has expired whenever it likes.
EXPIRES_AT_S: Final = 4_000_000_000

Answer = object
Run = Callable[[Store], Answer]
Values = dict[str, Value]


@dataclass(frozen=True)
class Step:
    """One call, or the pages of one query. `text`: what to print when two stores disagree about it."""

    text: str
    run: Run


@dataclass(frozen=True)
class Sequence:
    seed: int
    steps: tuple[Step, ...]
    keys: tuple[Key, ...]


def sequence(seed: int) -> Sequence:
    maker = _Maker(seed, Random(f"sequence {seed}"))
    steps = [maker.first_step()]
    steps += [maker.step() for _ in range(maker.random.randint(STEPS_LEAST, STEPS_MOST))]
    return Sequence(seed, tuple(steps), tuple(maker.keys))


@dataclass
class _Maker:
    """Few keys, few attributes and small numbers, so that steps of one sequence meet."""

    seed: int
    random: Random
    sent: list[tuple[list[TransactWrite], str]] = field(default_factory=list)
    keys: list[Key] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [Key(f"c{self.seed}/{pk}", f"#{sk}") for pk in "AB" for sk in ("STATE", "CONFIG#x")]

    def first_step(self) -> Step:
        """Something to work on: most conditions fail where there is nothing."""
        items = [self._item(key) for key in self.random.sample(self.keys, 3)]
        writes: list[TransactWrite] = [{"Put": {"Item": item}} for item in items]
        token = f"{self.seed}-first-{self.random.getrandbits(40):x}"
        self.sent.append((writes, token))
        return Step(f"transact {token} {writes}", lambda store: store.transact(writes, token))

    def step(self) -> Step:
        if self.random.random() < HOSTILE_SHARE:
            return self._hostile(self.random.choice(HOSTILE))
        weighted = [
            (self._put_step, 3),
            (self._update_step, 8),
            (self._delete_step, 1),
            (self._get_step, 1),
            (self._batch_step, 1),
            (self._transact_step, 4),
            (self._query_step, 2),
        ]
        (make,) = self.random.choices([one for one, _ in weighted], [weight for _, weight in weighted])
        return make()

    def _put_step(self) -> Step:
        request = self._put()
        return Step(f"put {request}", lambda store: store.put(request, repeatable=True))

    def _update_step(self) -> Step:
        request = self._update(self._key())
        return Step(f"update {request}", lambda store: store.update(request, repeatable=False))

    def _delete_step(self) -> Step:
        request = self._delete(self._key())
        return Step(f"delete {request}", lambda store: store.delete(request))

    def _get_step(self) -> Step:
        key = self._key()
        return Step(f"get {key}", lambda store: store.get(key, consistent=True))

    def _batch_step(self) -> Step:
        keys = self.random.sample(self.keys, self.random.randint(1, len(self.keys)))
        return Step(f"batch_get {keys}", lambda store: _in_order(store.batch_get(keys, consistent=True)))

    def _transact_step(self) -> Step:
        if self.sent and self.random.random() < 0.25:
            writes, token = self.random.choice(self.sent)
            if self.random.random() < 0.3:
                writes = [self._transact_element(self._key())]
        else:
            keys = self.random.sample(self.keys, self.random.choice([1, 2, 2, 3, 4]))
            writes = [self._transact_element(key) for key in keys]
            token = f"{self.seed}-{len(self.sent)}-{self.random.getrandbits(40):x}"
            self.sent.append((writes, token))
        return Step(f"transact {token} {writes}", lambda store: store.transact(writes, token))

    def _transact_element(self, key: Key) -> TransactWrite:
        kind = self.random.choice(["Put", "Update", "Update", "Update", "Delete", "ConditionCheck"])
        if kind == "Put":
            return {"Put": self._put(key)}
        if kind == "Update":
            return {"Update": self._update(key)}
        if kind == "Delete":
            return {"Delete": self._delete(key)}
        condition, names, values = self._condition()
        check: Any = {"Key": {**key.attributes}, "ConditionExpression": condition}
        checked: Any = _with(check, names, values)
        return {"ConditionCheck": checked}

    def _query_step(self) -> Step:
        pk = self.random.choice(self.keys).pk
        request: dict[str, Any] = {"ConsistentRead": True}
        values: Values = {":p": pk}
        shape = self.random.randrange(7)
        index = None
        if shape == 0:
            condition = "PK = :p"
        elif shape == 1:
            condition, values[":s"] = "PK = :p AND begins_with(SK, :s)", self.random.choice(["#", "#C", "#S"])
        elif shape == 2:
            condition = "PK = :p AND SK BETWEEN :s AND :t"
            values |= {":s": "#A", ":t": self.random.choice(["#CONFIG#x", "#M", "#Z"])}
        elif shape == 3:
            condition = f"PK = :p AND SK {self.random.choice(['<', '<=', '>', '>=', '='])} :s"
            values[":s"] = "#CONFIG#x"
        else:
            index = self.random.choice(["GSI1", "GSI3"])
            condition, values[":p"] = f"{index}PK = :p", f"c{self.seed}/INDEX"
            if shape == 5:
                condition, values[":s"] = f"{condition} AND begins_with({index}SK, :s)", "B"
            elif shape == 6:
                condition, values[":s"] = f"{condition} AND {index}SK > :s", "B1"
            request = {"IndexName": index}
        if self.random.random() < 0.5:
            request["Limit"] = self.random.randint(1, 4)
        if self.random.random() < 0.4:
            request["ScanIndexForward"] = self.random.random() < 0.5
        if self.random.random() < 0.3 and index != "GSI3":
            request["FilterExpression"], values[":f"] = "n > :f OR attribute_exists(doc.x)", self.random.randint(-3, 6)
        request |= {"KeyConditionExpression": condition, "ExpressionAttributeValues": values}
        return Step(f"query {request}", lambda store: _pages(store, request))

    def _hostile(self, hostile: Hostile) -> Step:
        key = self._key()
        return Step(f"hostile {hostile.text}", lambda store: hostile.run(store, key))

    def _expires_at_s(self) -> int:
        return EXPIRES_AT_S + self.random.randint(0, 3)

    def _key(self) -> Key:
        return self.random.choice(self.keys)

    def _put(self, key: Key | None = None) -> Any:
        item = self._item(key or self._key())
        if self.random.random() < 0.4:
            return {"Item": item}
        condition, names, values = self._condition()
        return _with({"Item": item, "ConditionExpression": condition}, names, values)

    def _item(self, key: Key) -> Item:
        item: Item = {**key.attributes, **self._attributes()}
        if self.random.random() < 0.3:
            # A sort key of its own for each item: what comes first among equals is nobody's promise.
            name = self.random.choice(["GSI1", "GSI3"])
            item |= {f"{name}PK": f"c{self.seed}/INDEX", f"{name}SK": f"B{self.keys.index(key)}"}
        return item

    def _delete(self, key: Key) -> Any:
        if self.random.random() < 0.3:
            return {"Key": {**key.attributes}}
        condition, names, values = self._condition()
        return _with({"Key": {**key.attributes}, "ConditionExpression": condition}, names, values)

    def _attributes(self) -> Item:
        pool: Item = {
            "n": self.random.randint(-5, 9),
            "v": self.random.randint(0, 3),
            "b_rpm_tk": self.random.randint(-(10**24), -(10**24) + 9),
            "b_rpm_tc": self.random.randint(0, 5),
            "gen": self.random.randint(1, 2),
            "lh": self.random.choice(["aa:1", "aa:2", "bb:1"]),
            "ttl": self._expires_at_s(),
            "name": self.random.choice(["", "x", "äö€", "xy"]),
            "flag": self.random.random() < 0.5,
            "nothing": None,
            "doc": {"x": self.random.randint(0, 3), "y": {"z": "t"}},
            "list": [1, "a", {"k": None}],
        }
        return {name: value for name, value in pool.items() if self.random.random() < 0.75}

    def _condition(self) -> tuple[str, Mapping[str, str], Values]:
        """One to three conditions of the shapes in use, joined."""
        names: dict[str, str] = {}
        values: Values = {}
        parts = [self._one_condition(number, names, values) for number in range(self.random.choice([1, 1, 2, 3]))]
        text = parts[0]
        for part in parts[1:]:
            text = f"{text} {self.random.choice(['AND', 'AND', 'OR'])} {part}"
        return text, names, values

    def _one_condition(self, number: int, names: dict[str, str], values: Values) -> str:
        low = self.random.randint(-4, 6)
        tokens = -(10**24) + self.random.randint(0, 9)
        elements: list[Value] = [1, "a", {"k": None}, True]
        element = self.random.choice(elements)
        a, b = f":a{number}", f":b{number}"
        shapes: list[tuple[str, Values, Mapping[str, str]]] = [
            ("attribute_exists(PK)", {}, {}),
            ("attribute_not_exists(PK)", {}, {}),
            (f"lh = {a}", {a: self.random.choice(["aa:1", "bb:1"])}, {}),
            (f"gen = {a} AND lh = {b}", {a: 1, b: "aa:1"}, {}),
            (f"b_rpm_tk BETWEEN {a} AND {b}", {a: tokens, b: tokens + self.random.randint(0, 6)}, {}),
            (f"b_rpm_tk {self.random.choice(['>', '<=', '>='])} {a}", {a: tokens}, {}),
            (f"(attribute_not_exists(#ttl) OR #ttl >= {a})", {a: self._expires_at_s()}, {"#ttl": "ttl"}),
            (f"#ttl = {a}", {a: self._expires_at_s()}, {"#ttl": "ttl"}),
            (f"attribute_not_exists(PK) OR v < {a}", {a: self.random.randint(0, 3)}, {}),
            (f"v = {a} AND n <> {b}", {a: 1, b: low}, {}),
            (f"NOT (n < {a} OR n > {b})", {a: low, b: low + 3}, {}),
            (f"n IN ({a}, {b})", {a: low, b: low + 1}, {}),
            (f"#name = {a}", {a: self.random.choice(["", "x"])}, {"#name": "name"}),
            (f"contains(#name, {a})", {a: "x"}, {"#name": "name"}),
            (f"contains(#list, {a})", {a: element}, {"#list": "list"}),
            (f"doc.x >= {a} OR doc.y.z = {b}", {a: 2, b: "t"}, {}),
            (f"doc = {a}", {a: {"x": 1, "y": {"z": "t"}}}, {}),
            (f"flag = {a}", {a: self.random.choice([True, 1])}, {}),
            (f"nothing = {a}", {a: None}, {}),
            (f"size(#name) > {a}", {a: 1}, {"#name": "name"}),
            (f"begins_with(#name, {a})", {a: "x"}, {"#name": "name"}),
            ("n < v", {}, {}),
        ]
        text, more_values, more_names = self.random.choice(shapes)
        values |= more_values
        names |= more_names
        return text

    def _update(self, key: Key) -> Any:
        # Without one an item is made where there is none.
        condition, names, values = ("", {}, {}) if self.random.random() < 0.2 else self._condition()
        sections: dict[str, list[str]] = {"SET": [], "ADD": ["v :one"], "REMOVE": []}
        values[":one"] = 1
        changes: list[Callable[[], tuple[str, str, Values, Mapping[str, str]]]] = [
            lambda: ("SET", "b_rpm_tk = :top", {":top": -(10**24) + 5}, {}),
            lambda: ("ADD", "b_rpm_tk :less", {":less": -self.random.randint(1, 4)}, {}),
            lambda: ("ADD", "b_rpm_tc :take", {":take": self.random.randint(0, 4)}, {}),
            lambda: ("SET", "#ttl = :new_ttl", {":new_ttl": EXPIRES_AT_S + 3}, {"#ttl": "ttl"}),
            lambda: ("SET", "n = if_not_exists(n, :zero) + :more", {":zero": 0, ":more": 2}, {}),
            lambda: ("SET", "lh = :new_lh", {":new_lh": "bb:1"}, {}),
            lambda: ("SET", "gen = if_not_exists(gen, :gen)", {":gen": 7}, {}),
            lambda: ("SET", "flag = :flag", {":flag": True}, {}),
            lambda: ("SET", "doc = :doc", {":doc": {"x": 1, "y": {"z": "t"}}}, {}),
            lambda: ("SET", "copied = if_not_exists(doc.x, :nothing)", {":nothing": None}, {}),
            lambda: ("REMOVE", "nothing", {}, {}),
            lambda: ("REMOVE", "#name", {}, {"#name": "name"}),
            lambda: ("SET", "GSI1PK = :gp, GSI1SK = :gs", self._index_values(key), {}),
            lambda: ("REMOVE", "GSI3PK", {}, {}),
            lambda: ("REMOVE", "#index_pk, #index_sk", {}, {"#index_pk": "GSI3PK", "#index_sk": "GSI3SK"}),
            lambda: ("SET", "#made = if_not_exists(#made, :at), #at = :at", {":at": 3}, {"#made": "made", "#at": "at"}),
        ]
        # These need what the condition then asks for: an attribute that is missing would refuse the whole request.
        guarded: list[tuple[str, str, str, Values]] = [
            ("attribute_exists(doc.y)", "ADD", "doc.x :x", {":x": 1}),
            ("attribute_exists(doc.y.z)", "SET", "doc.y.z = doc.x", {}),
            ("attribute_exists(doc.y)", "REMOVE", "doc.y.z", {}),
            ("attribute_exists(n) AND attribute_exists(v)", "SET", "other = n - v", {}),
            ("attribute_exists(n)", "SET", "n = n + :plus", {":plus": 3}),
        ]
        for change in self.random.sample(changes, self.random.randint(0, 4)):
            section, text, more_values, more_names = change()
            sections[section].append(text)
            values |= more_values
            names = {**names, **more_names}
        written = " ".join(text for texts in sections.values() for text in texts)
        if self.random.random() < 0.3 and "doc" not in written and "n =" not in written:
            guard, section, text, more_values = self.random.choice(guarded)
            condition = f"{guard} AND ({condition})" if condition else guard
            sections[section].append(text)
            values |= more_values
        clauses = [f"{verb} {', '.join(parts)}" for verb, parts in sections.items() if parts]
        request: dict[str, Any] = {"Key": {**key.attributes}, "UpdateExpression": " ".join(clauses)}
        if condition:
            request["ConditionExpression"] = condition
        return _with(request, names, values)

    def _index_values(self, key: Key) -> Values:
        return {":gp": f"c{self.seed}/INDEX", ":gs": f"B{self.keys.index(key)}"}


def _with(request: dict[str, Any], names: Mapping[str, str], values: Values) -> dict[str, Any]:
    if names:
        request["ExpressionAttributeNames"] = dict(names)
    if values:
        request["ExpressionAttributeValues"] = values
    return request


def _in_order(items: list[Item]) -> list[Item]:
    return sorted(items, key=lambda item: (str(item["PK"]), str(item["SK"])))


def _pages(store: Store, request: Mapping[str, Any]) -> list[Page]:
    """All pages. Whether a full last page points to an empty one behind it is nobody's promise either."""
    pages: list[Page] = []
    start: Item | None = None
    while len(pages) < PAGES_MAX and (not pages or start is not None):
        more = {} if start is None else {"ExclusiveStartKey": start}
        page = store.query({**request, **more})  # type: ignore[typeddict-item]  # built from parts
        pages.append(page)
        start = page.next_start
    while len(pages) > 1 and not pages[-1].items:
        pages.pop()
    return [*pages[:-1], Page(pages[-1].items, None)]
