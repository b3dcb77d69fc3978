"""Accepting a finding of cdk-nag: always on one construct, always with the reason that is true there."""

import aws_cdk as cdk
from constructs import IConstruct


def accept(construct: IConstruct, finding: str, reason: str) -> None:
    """`finding` is the full id of one finding, such as `AwsSolutions-IAM5[Resource::*]`."""
    # Without the name of the pack in front the acceptance works but leaves no record.
    acknowledgment = cdk.Acknowledgment(id=f"AwsSolutions::{finding}", reason=reason)
    cdk.Validations.of(construct).acknowledge(acknowledgment)
