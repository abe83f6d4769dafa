"""The tables that a review of a repo needs, from submission to findings, numbers and rounds.

How the old code behaves meanwhile: there is none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "machines",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("worker_pid", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sandbox", sa.JSON(), nullable=True),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("current_review", sa.Uuid(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_machines")),
    )
    op.create_table(
        "repos",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("default_ref", sa.Text(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("flavour", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repos")),
        sa.UniqueConstraint("url", name=op.f("uq_repos_url")),
    )
    op.create_table(
        "schedules",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("repo_id", sa.Uuid(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("at", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("pause_minutes", sa.Integer(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("skip_unchanged", sa.Boolean(), nullable=False),
        sa.Column("focuses", sa.JSON(), nullable=False),
        sa.Column("budget_minutes", sa.Integer(), nullable=True),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_slot", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_note", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["repo_id"], ["repos.id"], name=op.f("fk_schedules_repo_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index("ix_schedules_due", "schedules", ["enabled", "next_at"], unique=False)
    op.create_index("ix_schedules_repo", "schedules", ["repo_id"], unique=False)
    op.create_table(
        "reviews",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("repo_id", sa.Uuid(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("commit", sa.Text(), nullable=False),
        sa.Column("commit_date", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("focuses", sa.JSON(), nullable=False),
        sa.Column("budget_minutes", sa.Integer(), nullable=False),
        sa.Column("budget_tokens", sa.Integer(), nullable=True),
        sa.Column("agents", sa.Boolean(), nullable=False),
        sa.Column("force", sa.Boolean(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("schedule_id", sa.Uuid(), nullable=True),
        sa.Column("slot", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("heartbeat", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=True),
        sa.Column("sandbox", sa.JSON(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("tokens", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("outcome_note", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["repo_id"], ["repos.id"], name=op.f("fk_reviews_repo_id")),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_reviews_schedule_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reviews")),
        sa.UniqueConstraint("schedule_id", "slot", name=op.f("uq_reviews_schedule_id_slot")),
    )
    op.create_index("ix_reviews_created", "reviews", ["created_at", "id"], unique=False)
    op.create_index("ix_reviews_repo_created", "reviews", ["repo_id", "created_at", "id"], unique=False)
    op.create_index("ix_reviews_slot", "reviews", ["slot"], unique=False)
    op.create_index("ix_reviews_state_created", "reviews", ["state", "created_at"], unique=False)
    op.create_index(
        "uq_reviews_running_on_machine",
        "reviews",
        ["machine"],
        unique=True,
        sqlite_where=sa.text("state IN ('running', 'cancelling')"),
        postgresql_where=sa.text("state IN ('running', 'cancelling')"),
    )
    op.create_index(
        "uq_reviews_waiting",
        "reviews",
        ["repo_id", "ref"],
        unique=True,
        sqlite_where=sa.text("state = 'queued' AND started_at IS NULL"),
        postgresql_where=sa.text("state = 'queued' AND started_at IS NULL"),
    )
    op.create_table(
        "findings",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("repo_id", sa.Uuid(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("symbol", sa.Text(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("first_review_id", sa.Uuid(), nullable=False),
        sa.Column("last_review_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("severity", sa.String(length=24), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("repo_ignores", sa.Text(), nullable=False),
        sa.Column("ignored_reason", sa.Text(), nullable=False),
        sa.Column("ignored_until", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["first_review_id"], ["reviews.id"], name=op.f("fk_findings_first_review_id")),
        sa.ForeignKeyConstraint(["last_review_id"], ["reviews.id"], name=op.f("fk_findings_last_review_id")),
        sa.ForeignKeyConstraint(["repo_id"], ["repos.id"], name=op.f("fk_findings_repo_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_findings")),
        sa.UniqueConstraint("repo_id", "fingerprint", name=op.f("uq_findings_repo_id_fingerprint")),
    )
    op.create_index("ix_findings_repo_state", "findings", ["repo_id", "state"], unique=False)
    op.create_table(
        "measurements",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("review_id", sa.Uuid(), nullable=False),
        sa.Column("repo_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("machine_key", sa.Text(), nullable=False),
        sa.Column("commit", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sessions", sa.JSON(), nullable=False),
        sa.Column("median", sa.Double(), nullable=True),
        sa.Column("spread", sa.Double(), nullable=True),
        sa.Column("contaminated", sa.Integer(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("verdict", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["repo_id"], ["repos.id"], name=op.f("fk_measurements_repo_id")),
        sa.ForeignKeyConstraint(
            ["review_id"], ["reviews.id"], name=op.f("fk_measurements_review_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurements")),
        sa.UniqueConstraint("review_id", "name", name=op.f("uq_measurements_review_id_name")),
    )
    op.create_index("ix_measurements_series", "measurements", ["repo_id", "at"], unique=False)
    op.create_table(
        "steps",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("review_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("box", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["review_id"], ["reviews.id"], name=op.f("fk_steps_review_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_steps")),
        sa.UniqueConstraint("review_id", "name", name=op.f("uq_steps_review_id_name")),
    )
    op.create_table(
        "candidates",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["step_id"], ["steps.id"], name=op.f("fk_candidates_step_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_candidates")),
        sa.UniqueConstraint("step_id", "attempt", "seq", name=op.f("uq_candidates_step_id_attempt_seq")),
    )
    op.create_table(
        "log_chunks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("review_id", sa.Uuid(), nullable=False),
        sa.Column("step_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["review_id"], ["reviews.id"], name=op.f("fk_log_chunks_review_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["step_id"], ["steps.id"], name=op.f("fk_log_chunks_step_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_chunks")),
        sa.UniqueConstraint("step_id", "attempt", "seq", name=op.f("uq_log_chunks_step_id_attempt_seq")),
    )
    op.create_index("ix_log_chunks_review", "log_chunks", ["review_id", "id"], unique=False)
    op.create_table(
        "logs",
        sa.Column("step_id", sa.Uuid(), nullable=False),
        sa.Column("compressed", sa.LargeBinary(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["step_id"], ["steps.id"], name=op.f("fk_logs_step_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("step_id", name=op.f("pk_logs")),
    )
    op.create_table(
        "sightings",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("review_id", sa.Uuid(), nullable=False),
        sa.Column("finding_id", sa.Uuid(), nullable=False),
        sa.Column("lifecycle", sa.String(length=24), nullable=False),
        sa.Column("seen_late", sa.Boolean(), nullable=False),
        sa.Column("severity", sa.String(length=24), nullable=False),
        sa.Column("source", sa.String(length=24), nullable=False),
        sa.Column("focus", sa.Text(), nullable=False),
        sa.Column("ignored_by", sa.Text(), nullable=False),
        sa.Column("verification_state", sa.String(length=24), nullable=False),
        sa.Column("verification_reason", sa.Text(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("verification", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["finding_id"], ["findings.id"], name=op.f("fk_sightings_finding_id")),
        sa.ForeignKeyConstraint(["review_id"], ["reviews.id"], name=op.f("fk_sightings_review_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sightings")),
        sa.UniqueConstraint("review_id", "finding_id", name=op.f("uq_sightings_review_id_finding_id")),
    )
    op.create_index(
        "ix_sightings_counts",
        "sightings",
        ["review_id", "lifecycle", "seen_late", "verification_state", "severity"],
        unique=False,
    )
    op.create_index("ix_sightings_finding", "sightings", ["finding_id"], unique=False)
