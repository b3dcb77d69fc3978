"""Entry point of the CDK command line: `cdk deploy -c env=dev --all`."""

import sys
from pathlib import Path

import aws_cdk as cdk

# The stacks share a few names with the product's code, which is not installed here.
sys.path.insert(0, str(Path(__file__).resolve().parent / "layers" / "core" / "python"))

from stacks.composition import compose
from stacks.settings import ENVIRONMENT_CONTEXT, SettingsError, chosen
from stacks.wheels import BuildError


def main() -> None:
    app = cdk.App()
    try:
        compose(app, chosen(app.node.try_get_context(ENVIRONMENT_CONTEXT)))
    except (SettingsError, BuildError) as error:
        sys.exit(f"sluice: {error}")
    app.synth()


if __name__ == "__main__":
    main()
