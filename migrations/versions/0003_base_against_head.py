"""Comparisons of base and head, steps in series, and under what conditions a number was taken.

How the old code behaves meanwhile: it does not know the tables and leaves them alone; of measurements it writes rows
without surroundings, which is allowed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("measurements", sa.Column("surroundings", sa.JSON(), nullable=True))
    op.create_table(
        "comparisons",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("review_id", sa.Uuid(), nullable=False),
        sa.Column("repo_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("machine_key", sa.Text(), nullable=False),
        sa.Column("base_commit", sa.Text(), nullable=False),
        sa.Column("head_commit", sa.Text(), nullable=False),
        sa.Column("same_code", sa.Boolean(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verdict", sa.String(length=24), nullable=False),
        sa.Column("ratio", sa.Double(), nullable=True),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("void", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["repo_id"], ["repos.id"], name=op.f("fk_comparisons_repo_id")),
        sa.ForeignKeyConstraint(
            ["review_id"], ["reviews.id"], name=op.f("fk_comparisons_review_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comparisons")),
        sa.UniqueConstraint("review_id", "name", name=op.f("uq_comparisons_review_id_name")),
    )
    op.create_index("ix_comparisons_series", "comparisons", ["repo_id", "name", "at"], unique=False)
    op.create_index("ix_comparisons_same_code", "comparisons", ["same_code", "at"], unique=False)
    op.create_table(
        "change_points",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("repo_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("machine_key", sa.Text(), nullable=False),
        sa.Column("from_commit", sa.Text(), nullable=False),
        sa.Column("to_commit", sa.Text(), nullable=False),
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ratio", sa.Double(), nullable=False),
        sa.Column("culprit", sa.Text(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("bisection", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["repo_id"], ["repos.id"], name=op.f("fk_change_points_repo_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_change_points")),
        sa.UniqueConstraint(
            "repo_id",
            "name",
            "machine_key",
            "to_commit",
            name=op.f("uq_change_points_repo_id_name_machine_key_to_commit"),
        ),
    )
