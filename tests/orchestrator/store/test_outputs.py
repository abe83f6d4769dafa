from orchestrator.store import outputs
from orchestrator.store.session import Sessions
from tests.factories import make_review, make_step

ODD = "caf\u00e9 \ud800 \x00 \u2603\n"


def test_an_output_comes_back_as_it_was_and_a_second_one_of_that_number_takes_its_place(
    each_sessions: Sessions,
) -> None:
    with each_sessions.begin() as db:
        step = make_step(db, make_review(db), "focus:taste")
        for text in ("first", ODD):
            outputs.keep(db, step.id, 3, text, most_chars=100)
    with each_sessions.reading() as db:
        assert outputs.text_of(db, step.id, 3) == ODD and outputs.text_of(db, step.id, 4) is None


def test_the_oldest_outputs_of_a_step_go_and_the_newest_stays_however_long(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        step, other = (make_step(db, make_review(db), "focus:taste") for _ in range(2))
        outputs.keep(db, other.id, 1, "x" * 90, most_chars=100)
        for number in (1, 2, 3):
            outputs.keep(db, step.id, number, "x" * 40, most_chars=100)
        assert [outputs.text_of(db, step.id, number) is not None for number in (1, 2, 3)] == [False, True, True]
        outputs.keep(db, step.id, 4, "y" * 500, most_chars=100)
        assert [outputs.text_of(db, step.id, number) is not None for number in (2, 3, 4)] == [False, False, True]
        assert outputs.text_of(db, other.id, 1) == "x" * 90
        outputs.forget(db, other.review_id)
        assert outputs.text_of(db, other.id, 1) is None and outputs.text_of(db, step.id, 4) is not None
