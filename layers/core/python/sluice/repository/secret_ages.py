"""How old a secret's value is, as Secrets Manager says. Its value is never asked for."""

from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError


class SecretDates:
    """`client`: boto3's for Secrets Manager."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def changed_at_ms(self, secret: str) -> int | None:
        """When it was last changed, or made where it never was; None while nobody answers that."""
        try:
            answer = self._client.describe_secret(SecretId=secret)
        except (BotoCoreError, ClientError):
            return None
        changed: datetime | None = answer.get("LastChangedDate") or answer.get("CreatedDate")
        return None if changed is None else int(changed.timestamp() * 1000)
