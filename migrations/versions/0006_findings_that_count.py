"""Lists of what is open and of what is ignored look at those findings only, not at all that were ever fixed.

How the old code behaves meanwhile: as before, and slower; the indexes are only read.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

UNFIXED, IGNORED = sa.text("state <> 'fixed'"), sa.text("ignored_reason <> '' OR repo_ignores <> ''")


def upgrade() -> None:
    op.create_index(
        "ix_findings_unfixed",
        "findings",
        ["repo_id", "state", "severity"],
        sqlite_where=UNFIXED,
        postgresql_where=UNFIXED,
    )
    op.create_index("ix_findings_ignored", "findings", ["repo_id"], sqlite_where=IGNORED, postgresql_where=IGNORED)
