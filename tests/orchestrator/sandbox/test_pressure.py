"""Contention from recorded kernel files."""

import pytest

from orchestrator.sandbox import pressure
from orchestrator.sandbox.pressure import Contention, Reading

PSI = "some avg10=7.65 avg60=10.29 avg300=23.41 total=165868012\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
STAT = """\
cpu  400 0 200 9000 50 10 20 30 7 0
cpu0 300 0 100 4000 25 10 10 20 7 0
cpu1 100 0 100 5000 25 0 10 10 0 0
intr 12345 6 7
"""


def test_pressure_total_is_in_seconds():
    assert pressure.total_of(PSI) == pytest.approx(165.868012)
    assert pressure.total_of("") is None


def test_busy_time_leaves_idle_and_guest_out_and_looks_at_the_pinned_cpus():
    assert pressure.busy_seconds(STAT, ()) == pytest.approx(660 * pressure.TICK_S)
    assert pressure.busy_seconds(STAT, (1,)) == pytest.approx(220 * pressure.TICK_S)


def test_foreign_time_is_what_others_used_of_the_watched_cpus():
    found = pressure.between(Reading(0, 0.0, 100.0), Reading(2, 0.1, 103.0), own_s=1.0, cpus=2)
    assert found.pressure == pytest.approx(0.05)
    assert found.foreign == pytest.approx((2.0 - pressure.TICK_S) / 4)


def test_stolen_time_is_nobody_s_work_and_told_apart():
    before, after = Reading(0, 0.0, 100.0), Reading(2, 0.0, 102.0, steal_s=0.5)
    found = pressure.between(before, after, own_s=1.0, cpus=2)
    assert found.steal == pytest.approx((0.5 - pressure.TICK_S) / 4)
    assert found.foreign == pytest.approx((0.5 - pressure.TICK_S) / 4)
    assert pressure.steal_seconds(STAT, ()) == pytest.approx(30 * pressure.TICK_S)


def test_the_service_s_own_processor_time_is_not_foreign():
    before, after = Reading(0, 0.0, 100.0, own_s=5.0), Reading(2, 0.0, 101.0, own_s=6.0)
    assert pressure.between(before, after, own_s=0.0, cpus=2).foreign == 0


def test_swapped_pages_are_found_where_the_kernel_counts_them():
    assert pressure.swapped_in("pgpgin 5\npswpin 12\npswpout 3\n") == 12
    assert pressure.swapped_in("") is None


def test_a_pinned_cpu_is_watched_with_those_on_its_core(tmp_path, monkeypatch: pytest.MonkeyPatch):
    for cpu, siblings in ((0, "0,4"), (1, "1"), (2, "2-3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(pressure, "CPUS", tmp_path)
    assert pressure.with_siblings((0, 1)) == (0, 1, 4)
    assert pressure.with_siblings((2,)) == (2, 3)
    assert pressure.with_siblings((9,)) == (9,)  # a kernel that does not tell
    assert pressure.with_siblings(()) == ()


def test_short_session_says_nothing_about_foreign_time():
    assert pressure.between(Reading(0, 0.0, 0.0), Reading(0.05, 0.0, 0.05), own_s=0, cpus=1).foreign is None


def test_kernel_without_pressure_files_gives_none():
    assert pressure.between(Reading(0, None, 0.0), Reading(1, None, 0.0), own_s=0, cpus=1).pressure is None


@pytest.mark.parametrize(
    ("contention", "own_share", "complaint"),
    [
        (Contention(0.0, 0.0), 0.5, ""),
        (Contention(None, None), 0.5, ""),
        (Contention(0.2, 0.0), 0.5, "waited for a processor during 20%"),
        (Contention(0.2, 0.0), 0.95, ""),  # we keep every CPU busy and so make the pressure ourselves
        (Contention(0.0, 0.3), 0.95, "others used 30%"),
    ],
)
def test_session_is_void_when_others_were_in_the_way(contention: Contention, own_share: float, complaint: str):
    found = contention.complaint(own_share=own_share, most_pressure=0.05, most_foreign=0.05, most_steal=0.01)
    assert complaint in found and bool(found) == bool(complaint)


def test_this_machine_can_be_read():
    first, second = pressure.read(), pressure.read((0,))
    assert second.at >= first.at and second.busy_s <= first.busy_s + 1
