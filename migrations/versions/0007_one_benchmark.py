"""The nights of one benchmark are read by its name, however many other benchmarks its repo has.

How the old code behaves meanwhile: as before; the index is only read.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_measurements_name", "measurements", ["repo_id", "name", "at"])
