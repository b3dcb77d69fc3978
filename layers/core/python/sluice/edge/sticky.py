"""Where selection stands on a day, as it is shown."""

from pydantic import BaseModel, Field

from sluice.edge.problems import rfc3339
from sluice.edge.times import optional_time
from sluice.repository.sticky import UNMOVED, StickyState


class StickyOverrideAnswer(BaseModel):
    label: str
    reason: str
    until: str


class StickyAnswer(BaseModel):
    label: str | None = Field(description="where selection stands; null before it moved")
    previous_label: str | None
    since: str | None
    override: StickyOverrideAnswer | None = Field(description="what somebody set for the day")

    @classmethod
    def of(cls, state: StickyState) -> "StickyAnswer | None":
        """None where selection did not move and nobody set a label."""
        if state == UNMOVED:
            return None
        override = state.override
        return cls(
            label=state.active_label,
            previous_label=state.previous_label,
            since=optional_time(state.moved_at_ms),
            override=None
            if override is None
            else StickyOverrideAnswer(label=override.label, reason=override.reason, until=rfc3339(override.until_ms)),
        )
