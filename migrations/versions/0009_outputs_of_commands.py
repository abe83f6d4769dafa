"""What agents' commands printed, whole, for as long as the step that ran them may go on.

How the old code behaves meanwhile: it does not know the table and leaves it alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "outputs",
        sa.Column("step_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("chars", sa.Integer(), nullable=False),
        sa.Column("compressed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["step_id"], ["steps.id"], name=op.f("fk_outputs_step_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("step_id", "number", name=op.f("pk_outputs")),
    )
