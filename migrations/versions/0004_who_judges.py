"""Who judges and as what, with each review and each round: what a repo is asked as may differ from night to night.

How the old code behaves meanwhile: it leaves the columns empty, which means "as the repo is".
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("reviews", "schedules"):
        for column in ("profile", "flavour"):
            op.add_column(table, sa.Column(column, sa.Text(), nullable=False, server_default=""))
