"""Which frames of a traceback belong to the repo's own package."""

from review_agents.probes.comparing import ANSI
from review_agents.probes.shell import Package
from review_agents.probes.tracebacks import Frame, Raised, last_traceback


def own_traceback(output: str, package: Package) -> tuple[Raised, Frame | None] | None:
    """The last traceback of the output and its innermost frame in the package; None when there is no traceback."""
    raised = last_traceback(ANSI.sub("", output))
    if raised is None:
        return None
    own = next((frame for frame in reversed(raised.frames) if own_path(frame.file, package)), None)
    return raised, own


def own_path(file: str, package: Package) -> str:
    """The file's path below the folder that it is imported from when it belongs to the package, else empty."""
    for module in package.modules:
        folder = module.replace(".", "/")
        for mark in (f"/{folder}/", f"/{folder}.py"):
            at = file.rfind(mark)
            if at >= 0 and "/lib/python3" not in file[at:]:
                return file[at + 1 :]
    return ""
