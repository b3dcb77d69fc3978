"""What a synth left behind, in the shapes that the tests ask for."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk.assertions import Template

from stacks.settings import ENVIRONMENTS, Settings

ROOT: Final = Path(__file__).resolve().parent.parent.parent
CDK_JSON: Final[Mapping[str, Any]] = json.loads((ROOT / "cdk.json").read_text())
PARTS: Final = ("Data", "Api", "Jobs", "Streams", "Monitoring")

# The export of another stack, in whose name are the environment and a checksum.
_IMPORT: Final = re.compile(r"Sluice-\w+-\w+:ExportsOutput\w+")

Properties = Mapping[str, Any]


def new_app(folder: Path) -> cdk.App:
    """An app with the flags of cdk.json, which only the command line would read."""
    return cdk.App(context=dict(CDK_JSON["context"]), outdir=str(folder))


@dataclass(frozen=True)
class Assembly:
    settings: Settings
    folder: Path

    def raw(self, part: str) -> Mapping[str, Any]:
        loaded: Mapping[str, Any] = json.loads(
            (self.folder / f"{self.settings.stack_name(part)}.template.json").read_text()
        )
        return loaded

    def template(self, part: str) -> Template:
        return Template.from_json(dict(self.raw(part)))

    def resources(self, part: str, kind: str) -> Mapping[str, Properties]:
        return {
            name: resource.get("Properties", {})
            for name, resource in self.raw(part)["Resources"].items()
            if resource["Type"] == kind
        }

    def only(self, part: str, kind: str) -> Properties:
        (found,) = self.resources(part, kind).values()
        return found

    def exported(self, part: str, reference: Properties) -> Any:
        """The value in the stack `part` that another stack's import stands for."""
        outputs = self.raw(part)["Outputs"].values()
        (value,) = (o["Value"] for o in outputs if o.get("Export", {}).get("Name") == reference["Fn::ImportValue"])
        return value

    def secret(self, purpose: str) -> str:
        """The logical id of a secret: it begins with the construct that made it."""
        secrets = self.resources("Data", "AWS::SecretsManager::Secret")
        (name,) = (name for name in secrets if name.startswith(f"{purpose}Secret"))
        return name

    def secrets(self, references: Iterable[Properties]) -> list[str]:
        """The purposes of the secrets that another stack imports by their ARN, sorted: the order has no meaning."""
        made = [self.exported("Data", reference)["Ref"] for reference in references]
        return sorted(name.partition("Secret")[0] for name in made)

    def functions(self, part: str = "Api") -> Mapping[str, Properties]:
        """The functions of a stack by their service name."""
        found = self.resources(part, "AWS::Lambda::Function").values()
        named = {function["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"]: function for function in found}
        assert len(named) == len(found)
        return named

    def logical_id(self, service: str, part: str = "Api") -> str:
        function = self.functions(part)[service]
        (name,) = (n for n, other in self.resources(part, "AWS::Lambda::Function").items() if other == function)
        return name

    def alias(self, service: str, part: str = "Api") -> tuple[str, Properties]:
        """The logical id and the properties of a function's one alias."""
        function = {"Ref": self.logical_id(service, part)}
        aliases = self.resources(part, "AWS::Lambda::Alias").items()
        ((name, alias),) = ((name, alias) for name, alias in aliases if alias["FunctionName"] == function)
        return name, alias

    def statements(self, kind: str) -> Iterator[Properties]:
        for part in PARTS:
            for properties in self.resources(part, kind).values():
                yield from properties["PolicyDocument"]["Statement"]

    def acceptances(self) -> set[tuple[str, str]]:
        """(construct below its stack, finding) of everything that cdk-nag found and somebody accepted."""
        report = json.loads((self.folder / "validation-report.json").read_text())
        (nag,) = (entry for entry in report["pluginReports"] if entry["pluginName"] == "AwsSolutions")
        assert nag["conclusion"] == "success"
        return {
            (finding["acknowledgedAt"].partition("/")[2], _IMPORT.sub("<import>", finding["ruleName"]))
            for finding in nag["suppressedViolations"]
        }


ALL: Final = tuple(ENVIRONMENTS)
