"""The two layers of every function, as constructs."""

from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from stacks.settings import Settings
from stacks.wheels import LayerBuild, core_layer, vendor_layer


class ServiceLayers(Construct):
    """One pair per stack, made from one pair of assets.

    A layer shared across stacks leaves the other stack's functions on its old version; the asset, named by its digest,
    is uploaded once however many stacks use it.
    """

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings) -> None:
        super().__init__(scope, construct_id)
        target = settings.wheel_target
        self.versions = [
            self._layer("Vendor", vendor_layer(target), "Third-party packages of Sluice"),
            self._layer("Core", core_layer(target), "The sluice package"),
        ]

    def _layer(self, construct_id: str, build: LayerBuild, description: str) -> lambda_.ILayerVersion:
        layer = lambda_.LayerVersion(
            self,
            construct_id,
            code=lambda_.Code.from_asset(
                str(build.folder), asset_hash=build.digest, asset_hash_type=cdk.AssetHashType.CUSTOM
            ),
            compatible_architectures=[lambda_.Architecture.ARM_64],
            compatible_runtimes=[lambda_.Runtime.PYTHON_3_14],
            description=description,
        )
        return cast("lambda_.ILayerVersion", layer)
