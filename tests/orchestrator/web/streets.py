"""Worlds to look at: a typical one, and one in which every text is hostile."""

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode
from uuid import UUID

from sqlalchemy.orm import Session

from orchestrator.measure.records import ChangePoint, Grown, Why
from orchestrator.store.findings import FindingRow
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.steps import StepState
from review_agents.records import (
    Change,
    Kind,
    Lifecycle,
    Measurement,
    Place,
    ProbeState,
    Ran,
    Severity,
    Symptom,
    Verdict,
    VerificationState,
)
from review_agents.records import Session as Timed
from tests.factories import (
    NOON,
    make_candidate,
    make_chunk,
    make_compared,
    make_measured,
    make_measurement,
    make_probe_result,
    make_repo,
    make_reproduction,
    make_review,
    make_schedule,
    make_sighting,
    make_step,
    make_step_found,
    make_verification,
)

# Ends attributes, elements, comments and scripts; looks like a template, a link and an entity; hides and reverses.
HOSTILE = (
    "\"'><script>alert('evil')</script><img src=x onerror=alert(1)>--></textarea></title></pre></svg>"
    "{{7*7}}{% raw %}${7*7}`<b>` [x](javascript:alert(1)) &lt;i&gt; hx-get=/evil javascript:alert(1) "
    "\u202egpj.exe\u2066\u200b\x1b[31mred\x1b]8;;http://evil.example\x07\x9b2J\r\ufeff data:text/html,<script>"
)


@dataclass(frozen=True)
class Street:
    repo: UUID
    reviews: tuple[UUID, ...]  # one a state
    done: UUID
    earlier: UUID
    running: UUID
    queued: UUID
    findings: tuple[UUID, ...]
    schedules: tuple[UUID, ...]
    steps: tuple[UUID, ...]
    benchmark: str

    @property
    def pages(self) -> list[str]:
        named = urlencode({"name": self.benchmark})
        return [
            "/",
            "/now",
            "/reviews",
            f"/reviews?repo={self.repo}&state=done&page=1",
            *(f"/reviews/{one}" for one in self.reviews),
            "/repos",
            "/ignored",
            f"/repos/{self.repo}",
            *(f"/findings/{one}" for one in self.findings),
            *(f"/reviews/{self.done}/findings/{one}/runs" for one in self.findings),
            "/schedules",
            f"/schedules?repo={self.repo}",
            *(f"/schedules/{one}" for one in self.schedules),
            *(f"/steps/{one}" for one in self.steps),
            "/compare",
            f"/compare?repo={self.repo}",
            f"/compare?other={self.done}",
            f"/compare?one={self.earlier}&other={self.done}",
            f"/repos/{self.repo}/measurements",
            f"/repos/{self.repo}/measurements?q=no+such&moved=true",
            f"/repos/{self.repo}/benchmark?{named}",
            f"/reviews/{self.done}/profile?{named}",
            "/node",
            "/api/docs",
        ]


def build(db: Session, text: str = "") -> Street:
    """One repo with reviews in all states. With `text`, every text that a repo or its author chooses is that one."""

    def say(plain: str) -> str:
        return text or plain

    repo = make_repo(db, name=say("spanparse"), url=say("https://git.example/team/spanparse"), default_ref=say("main"))
    earlier = make_review(db, repo, state=ReviewState.DONE, created_at=NOON - timedelta(days=2), commit="a" * 40)
    done = make_review(
        db,
        repo,
        state=ReviewState.DONE,
        created_at=NOON - timedelta(hours=9),
        ref=say("main"),
        commit_date=say("2026-11-29T21:14:00+01:00"),
        focuses=[say("docs")],
        requested_by="schedule",
        slot=NOON - timedelta(hours=9),
        sandbox={
            "name": "bubblewrap",
            "version": say("0.11.0"),
            "image": say("host /usr"),
            "python": say("3.11.7"),
            "missing_limits": [say("memory: no cgroup can be delegated here")],
        },
        model=say(""),
        node=say(""),
        tokens={say("prompt"): 12, "by_focus": {say("docs"): 3}},
        outcome_note=say(""),
        attempt=2,
    )
    others = [
        make_review(
            db,
            repo,
            state=state,
            ref=f"{say('branch')}{number}",
            created_at=NOON - timedelta(minutes=50 - number),
            machine=f"machine{number}" if state is not ReviewState.QUEUED else None,
            error=say("The sandbox image is not on this host.") if state is ReviewState.FAILED else "",
        )
        for number, state in enumerate(state for state in ReviewState if state is not ReviewState.DONE)
    ]
    running = next(one for one in others if one.state is ReviewState.RUNNING)
    queued = next(one for one in others if one.state is ReviewState.QUEUED)

    steps = [*make_steps(db, done.id, text), *make_steps(db, running.id, text, running=True)]
    make_measured(db, earlier, make_measurement(name=say("tests")))
    for one in measurements(text):
        make_measured(db, done, one, machine_key=say("machine/bubblewrap/host/3.11.7"))
    compare(db, done, text)

    findings = []
    for number, (lifecycle, state) in enumerate(
        (lifecycle, state) for lifecycle in Lifecycle for state in VerificationState
    ):
        severity = list(Severity)[number % len(Severity)]
        candidate = make_candidate(
            kind=list(Kind)[number % len(Kind)],
            rule=say("readme.output-differs"),
            title=f"{say('README shows a list, the package gives a `Span`')} {number}",
            description=say("The README shows `[1, 2, 3]`.\n\nThe package gives something else."),
            severity=severity,
            places=(
                Place(file=say("README.md"), line=number + 1, symbol=say("Usage"), quote=say(">>> parse('1-3')")),
                Place(file=say("docs/usage.md")),
            ),
            reproduction=None
            if number == 5
            else make_reproduction(
                command=say("python -c 'print(1 + 2)'"),
                expected=say("4"),
                observed=say("3"),
                control=say("true") if number % 2 else None,
                symptom=Symptom(contains=(say("3"),)),
            ),
            opinion=number == 5,
            shape=f"{number}",
            focus=say("") if number % 2 else "",
        )
        ran = Ran(exit=1, seconds=0.4, head=say("3\n"), tail=say("tail"), dropped_bytes=3)
        verification = make_verification(
            state,
            reason=say("shown in 2 of 2 runs"),
            runs=() if state is VerificationState.UNVERIFIED else (ran,) * 2,
            controls=(ran.model_copy(update={"exit": 0}),) * 2 if number % 2 else (),
        )
        sighting = make_sighting(
            db,
            done,
            candidate=candidate,
            verification=verification,
            lifecycle=lifecycle,
            seen_late=number % 7 == 3,
            ignored_by=f"operator: {say('we know')}" if lifecycle is Lifecycle.IGNORED else "",
        )
        if lifecycle is Lifecycle.IGNORED:
            db.get_one(FindingRow, sighting.finding_id).ignored_reason = say("we know")
        findings.append(sighting.finding_id)
    schedules = [
        make_schedule(db, repo, ref=say("main"), focuses=[say("docs")], last_note=say("unchanged, skipped")),
        make_schedule(db, repo, kind="loop", at="", pause_minutes=45, enabled=False, next_at=None),
    ]
    return Street(
        repo=repo.id,
        reviews=(done.id, *(one.id for one in others)),
        done=done.id,
        earlier=earlier.id,
        running=running.id,
        queued=queued.id,
        findings=tuple(findings),
        schedules=tuple(one.id for one in schedules),
        steps=tuple(steps),
        benchmark=say("tests"),
    )


def compare(db: Session, review: Review, text: str) -> None:
    """Every verdict; the first with profiles and a step that it confirmed."""

    def say(plain: str) -> str:
        return text or plain

    frame = say("scan").replace(";", ",")  # what stands between frames of a stack
    stacks = {f"/venv/plain/site-packages/{frame}.py:3:{frame}": 0.4, f"a.py:1:main;b.py:2:{frame}": 0.2}
    grown = (Grown(say("scan"), say("spanparse/lexer.py"), 88, 0.1, 0.2),)
    why = Why(grown, stacks, {**stacks, "a.py:1:main": 0.3}, {say("tomli"): (say("1.0"), say("1.1"))})
    key = say("machine/bubblewrap/host/3.11.7")
    make_compared(db, review, say("tests"), 1.12, why=why, machine_key=key, reason=say("both blocks agree"))
    for number, ratio in enumerate((0.8, 1.0, None)):
        make_compared(db, review, f"{say('more')}{number}", ratio, machine_key=key, same_code=number == 1)
    repo = db.get_one(Repo, review.repo_id)
    point = ChangePoint(say("tests"), "s", key, "a" * 40, "b" * 40, NOON - timedelta(days=2), NOON, 0.1, 0.112, 1.12, 1)
    make_step_found(db, repo, point, culprit=say("b" * 40), bisection={"problem": say("a commit could not be built")})


def make_steps(db: Session, review_id: UUID, text: str, *, running: bool = False) -> list[UUID]:
    """Every kind of step; a running review stands in the middle of them."""
    review = db.get(Review, review_id)
    assert review is not None
    names = [
        "checkout",
        "prepare",
        "probe:tests",
        "probe:readme",
        "probe:profile",
        "probe:wheel",
        "verify:a",
        "verify:b",
    ]
    made = []
    for at, name in enumerate(names):
        state = StepState.DONE if not running or at < 3 else StepState.RUNNING if at == 3 else StepState.PENDING
        changed = {"result": facts_of(name.partition(":")[2], text)} if name.startswith("probe:") else {}
        step = make_step(
            db,
            review,
            name,
            state=state,
            started_at=None if state is StepState.PENDING else NOON - timedelta(minutes=20 - at),
            ended_at=NOON - timedelta(minutes=20 - at) + timedelta(seconds=8) if state is StepState.DONE else None,
            summary=(text or "all well") if state is StepState.DONE else "",
            **(changed if state is StepState.DONE else {}),
        )
        if state is not StepState.PENDING:
            make_chunk(db, step, f"{text or 'collecting ...'}\n")
            make_chunk(db, step, text or "\x1b[32mok\x1b[0m\n")
        made.append(step.id)
    return made


def facts_of(probe: str, text: str) -> dict[str, object]:
    def say(plain: str) -> str:
        return text or plain

    facts: dict[str, dict[str, object]] = {
        "tests": {
            "command": say("python -m pytest -q"),
            "passed": 212,
            "failed": 1,
            "flaky": [say("tests/test_a.py::test_b")],
            "could_not_run": {say("tests/test_gui.py::test_window"): say("needs a display")},
            "failures": [
                {
                    "id": say("tests/test_merge.py::test_empty"),
                    "type": say("IndexError"),
                    "message": say("out of range"),
                }
            ],
            "slowest": [{"test": say("tests/test_big.py::test_million"), "seconds": 9.4}],
        },
        "readme": {
            "examples": [
                {"file": say("README.md"), "line": 41, "example": say("parse('1-3')"), "state": say("suspect")},
                {"file": say("README.md"), "line": 12, "example": say("spanparse --version"), "state": "matched"},
            ]
        },
        "profile": {
            "functions": [
                {"function": say("scan"), "file": say("spanparse/lexer.py"), "line": 88, "own_s": 11.2, "share": 0.61}
            ]
        },
        "wheel": {say("distribution"): {say("files"): [say("a"), 3, None]}},
    }
    state = ProbeState.COULD_NOT_RUN if probe == "wheel" else ProbeState.FAILED
    result = make_probe_result(
        probe, state=state, reason=say("needs a compiler"), summary=say("1 of 213 failed"), facts=facts[probe]
    )
    return result.model_dump(mode="json")


def measurements(text: str) -> list[Measurement]:
    void = (Timed(value=1.0, void=True, reason=text or "pressure"),) * 6
    return [
        make_measurement(
            name=text or "tests",
            command=text or "pytest -q",
            note=text,
            change=Change(ratio=1.12, low=1.08, high=1.15, verdict=Verdict.SLOWER),
        ),
        make_measurement(name=f"{text}void", sessions=void),
        make_measurement(name=f"{text}size", unit="bytes"),
    ]
