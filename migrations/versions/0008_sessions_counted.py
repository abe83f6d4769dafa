"""A measurement says how many of its sessions count, so that a page of many nights reads no session at all.

How the old code behaves meanwhile: as before. Rows that it writes leave the number empty, and readers then count.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("measurements", sa.Column("good", sa.Integer(), nullable=True))
    op.execute("UPDATE measurements SET good = json_array_length(sessions) - contaminated")
