"""What the writers of exports are given."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from orchestrator.services.views import FindingRow, ReviewPage
from review_agents.records import Verification


@dataclass(frozen=True, slots=True)
class WholeReview:
    page: ReviewPage
    findings: tuple[FindingRow, ...]  # worst first, fixed and ignored ones last
    verifications: Mapping[UUID, Verification]  # by the finding's id
