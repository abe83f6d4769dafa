"""What a review's checks came to, so that nothing found never reads like nothing looked at.

Pages, exports, command line and exit status all show what is told here; none of them counts by itself.
"""

from collections.abc import Collection, Iterable, Sequence

from orchestrator.services.views import Checks, Evidence, Unable
from review_agents.records import ProbeState

INSTALL = "install"
NOT_INSTALLED = "the package could not be installed: "  # how a check begins that only passes on why `install` failed
RAN = (ProbeState.PASSED, ProbeState.FAILED)


def checks_of(evidence: Sequence[Evidence]) -> Checks:
    """Of one review, whose evidence is given in the order of its steps."""
    unable = unable_of((one.probe, one.reason) for one in evidence if one.state is ProbeState.COULD_NOT_RUN)
    ended = [one.probe for one in evidence if one.state is not ProbeState.COULD_NOT_RUN]
    return Checks(
        ran=tuple(one.probe for one in evidence if one.state in RAN),
        idle=tuple(one.probe for one in evidence if one.state is ProbeState.NOT_APPLICABLE),
        unable=unable,
        barred=barred_by(unable, ended),
    )


def unable_of(unable: Iterable[tuple[str, str]]) -> tuple[Unable, ...]:
    """Each distinct reason once, in the order in which they came up. Takes probes that could not run, and why."""
    by_reason: dict[str, list[str]] = {}
    for probe, reason in unable:
        by_reason.setdefault(reason.removeprefix(NOT_INSTALLED), []).append(probe)
    return tuple(Unable(reason=reason, probes=tuple(probes)) for reason, probes in by_reason.items())


def barred_by(unable: Sequence[Unable], ended: Collection[str]) -> str:
    """Why there was nothing to check with; empty where there was.

    `install` says that it could not run only for what is not the repo's own: network, index, a compiler, a Python.
    It bars the review where that stopped another check, too, or where no other came to an end at all. In a repo
    without Python its downloads may fail and the build pass nevertheless.
    """
    installing = next((one.reason for one in unable if INSTALL in one.probes), "")
    others = sum(len(one.probes) for one in unable) - bool(installing)
    if installing and (others or not set(ended)):
        return installing
    return "; ".join(one.reason for one in unable) if others and not set(ended) - {INSTALL} else ""


def in_short(unable: Sequence[Unable], ended: Collection[str]) -> str:
    """For a line in a list: empty where every check could run."""
    if barred_by(unable, ended):
        return "nothing could be checked"
    number = sum(len(one.probes) for one in unable)
    return f"{number} {'check' if number == 1 else 'checks'} could not run" if number else ""
