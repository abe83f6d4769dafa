"""What an agent's calls printed, whole, by the number of the call. Kept while its step may still go on.

The conversation shows the model a cut; the rest it reads by name, also after the review has waited for its node.
"""

import zlib
from uuid import UUID

from sqlalchemy import ForeignKey, LargeBinary, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import Base
from orchestrator.store.steps import Step

QUIET = {"synchronize_session": False}


class Output(Base):
    __tablename__ = "outputs"

    step_id: Mapped[UUID] = mapped_column(ForeignKey("steps.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    chars: Mapped[int]
    compressed: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)  # zlib over UTF-8


def keep(db: Session, step_id: UUID, number: int, text: str, *, most_chars: int) -> None:
    """The oldest go when all of the step's have more characters than that; the newest stays, however long."""
    compressed = zlib.compress(text.encode("utf-8", "surrogatepass"))
    db.merge(Output(step_id=step_id, number=number, chars=len(text), compressed=compressed))
    db.flush()
    sizes = db.execute(
        select(Output.number, Output.chars).where(Output.step_id == step_id).order_by(Output.number.desc())
    )
    kept = 0
    for one, chars in sizes.all():
        kept += chars
        if kept > most_chars and one != number:
            older = delete(Output).where(Output.step_id == step_id, Output.number <= one)
            db.execute(older, execution_options=QUIET)
            return


def text_of(db: Session, step_id: UUID, number: int) -> str | None:
    found = db.scalar(select(Output.compressed).where(Output.step_id == step_id, Output.number == number))
    return None if found is None else zlib.decompress(found).decode("utf-8", "surrogatepass")


def forget_step(db: Session, step_id: UUID) -> None:
    """It has ended: nobody reads on."""
    db.execute(delete(Output).where(Output.step_id == step_id), execution_options=QUIET)


def forget(db: Session, review_id: UUID) -> None:
    its_steps = select(Step.id).where(Step.review_id == review_id)
    db.execute(delete(Output).where(Output.step_id.in_(its_steps)), execution_options=QUIET)
