"""The waiting line."""

import threading

from inference_node.engine.queue import FairQueue


def test_clients_take_turns_and_their_own_requests_stay_in_order() -> None:
    queue: FairQueue[str] = FairQueue(10)
    for client, item in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")]:
        assert queue.put(client, item)
    assert [queue.take() for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_full_queue_takes_nothing_more_until_there_is_room() -> None:
    queue: FairQueue[int] = FairQueue(2)
    assert queue.put("a", 1) and queue.put("b", 2)
    assert not queue.put("a", 3)
    queue.take()
    assert queue.put("a", 3)


def test_removing_a_waiting_item_makes_room_and_leaves_the_others() -> None:
    queue: FairQueue[int] = FairQueue(2)
    queue.put("a", 1)
    queue.put("a", 2)
    assert queue.remove(1)
    assert not queue.remove(1)
    assert len(queue) == 1
    assert queue.take() == 2


def test_closing_wakes_the_taker_and_gives_back_what_waited() -> None:
    queue: FairQueue[int] = FairQueue(5)
    taken: list[int | None] = []
    taker = threading.Thread(target=lambda: taken.append(queue.take()))
    taker.start()
    assert queue.close() == []
    taker.join(5)
    assert taken == [None]
    assert not queue.put("a", 1)
