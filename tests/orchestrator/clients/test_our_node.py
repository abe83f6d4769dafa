"""The agents' loop against our own node: real sockets, real prefix store, its own counters; the model is a script."""

from tests.bench import prefix


def test_over_thirty_turns_the_node_knows_nearly_all_of_each_prompt_by_its_own_counters() -> None:
    found = prefix.measured()
    assert found["known_share"] >= 0.95 and found["known_share_after_the_opening"] > found["known_share"]
    assert found["restored_share"] >= 0.94 and found["known_share_at_best"] >= found["known_share"]
    assert found["known_share_with_silent_turns"] >= 0.9
    assert found["known_share_of_the_next_focus"] > found["known_share"], "it begins with what the node has read"
