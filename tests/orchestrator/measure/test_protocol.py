from orchestrator.measure import protocol
from orchestrator.measure.records import Block, Metric, Side, Taken, Unit
from review_agents.records import Session


def taken(place: int, side: Side, value: float, *, void: bool = False, attempt: int = 1, **more: object) -> Taken:
    session = Session.model_validate({"value": value, "void": void, "reason": "busy" if void else "", **more})
    return Taken(Block.SCREEN, place, side, attempt, session)


def test_sides_alternate_so_that_a_steady_drift_touches_both_alike() -> None:
    for block in Block:
        places = list(protocol.turns(block))
        at = {side: [turn.place for turn in places if turn.side is side] for side in Side}
        assert len(at[Side.BASE]) == len(at[Side.HEAD]) == protocol.sessions_each(block)
        assert sum(at[Side.BASE]) == sum(at[Side.HEAD])
    assert [turn.side.value[0] for turn in protocol.turns(Block.SCREEN)] == list("bhhb" * 3)


def test_a_pair_shares_its_hash_seed_and_no_two_pairs_do() -> None:
    turns = [*protocol.turns(Block.SCREEN), *protocol.turns(Block.CONFIRM)]
    seeds = [turn.seed for turn in turns]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == len(turns) // 2


def test_short_commands_are_started_several_times_in_a_session() -> None:
    assert protocol.processes(2.0) == 1
    assert protocol.processes(0.04) == 3
    assert protocol.processes(0.0) == protocol.MOST_PROCESSES


def test_only_what_fits_the_time_is_measured_and_half_is_kept_for_the_second_block() -> None:
    each = protocol.seconds(Block.SCREEN, 1.0)
    assert protocol.affordable([1.0, 100.0, 1.0, 1.0], 4.2 * each) == [True, False, True, False]
    assert protocol.affordable([1.0], each) == [False]


def test_a_place_whose_every_session_is_void_contaminates_the_block() -> None:
    tries = [taken(0, Side.BASE, 1.0, void=True, attempt=attempt) for attempt in (1, 2, 3, 4)]
    assert protocol.contaminated(tries) == "a session was void 4 times (busy)"


def test_a_good_repeat_heals_its_place_and_void_values_are_never_used() -> None:
    tries = [taken(0, Side.BASE, 9.0, void=True), taken(0, Side.BASE, 1.0, attempt=2), taken(1, Side.HEAD, 2.0)]
    assert protocol.contaminated(tries) == ""
    wall = Metric(protocol.WALL, Unit.SECONDS, 0.001)
    assert protocol.values(tries, Block.SCREEN, Side.BASE, wall) == [1.0]
    assert protocol.values(tries, Block.CONFIRM, Side.BASE, wall) == []


def test_a_benchmark_that_times_itself_is_judged_by_its_own_figures() -> None:
    sessions = [
        taken(0, Side.BASE, 1.0, peak_bytes=100, figures={"get": 1e-6, "put": 2e-6}),
        taken(1, Side.HEAD, 1.0, peak_bytes=100, figures={"get": 2e-6}),
    ]
    assert [metric.name for metric in protocol.metrics(sessions)] == ["get", "peak memory"]
    assert protocol.series_name("python bench.py", protocol.metrics(sessions)[0]) == "python bench.py: get"


def test_a_command_without_figures_is_judged_by_wall_time_and_instructions_where_there_are_any() -> None:
    plain = [taken(0, Side.BASE, 1.0, peak_bytes=100)]
    counted = [taken(0, Side.BASE, 1.0, peak_bytes=100, group_peak_bytes=300, instructions=10_000)]
    assert [metric.name for metric in protocol.metrics(plain)] == ["", "peak memory"]
    assert [metric.name for metric in protocol.metrics(counted)] == ["", "peak memory", "instructions"]
    memory = protocol.metrics(counted)[1]
    assert protocol.value_of(plain[0].session, memory) == 100
    assert protocol.value_of(counted[0].session, memory) == 300  # the whole group where the kernel tells it
