"""Budgets of one focus: turns, tokens, seconds; which one runs out, and when to begin to conclude."""

from collections.abc import Callable

from review_agents.focus import Budget
from review_agents.records import Usage

NEARLY = 0.8  # of a budget: say so
TOO_LATE = 1.25  # of the seconds: an answer that still comes is not waited for
CONCLUDE = 0.92  # of tokens or seconds: what is left is for recording


class Meter:
    """Counts what a focus spends, in all its attempts. Seconds in which it waits for its node are none of its own:
    neither between attempts nor, once an answer has come, in the node's queue behind others."""

    def __init__(self, budget: Budget, clock: Callable[[], float], *, seconds: float, tokens: int | None = None):
        self.budget = budget
        self.seconds = max(1.0, min(seconds, budget.seconds))
        self.tokens = budget.tokens if tokens is None else min(budget.tokens, tokens)
        self.turns = 0
        self.spent = 0  # tokens that the node had not read before, and those that it wrote
        self.usage = Usage()
        self._clock = clock
        self._began = clock()
        self._known = 0  # tokens of the conversation so far
        self._before = 0.0  # seconds of earlier attempts, as far as answers tell them

    def count_earlier(self, usage: Usage) -> None:
        """One answer of an attempt before this one."""
        self.count(usage)
        self._before += usage.seconds

    def count(self, usage: Usage) -> None:
        """One answer. Counted by how the conversation grows, so that a server that hides its cache changes nothing."""
        prompt = usage.prompt or self._known  # not counted where we hung up; the next answer's count makes up for it
        self.spent += max(0, prompt - self._known) + usage.completion
        self._known = prompt + usage.completion
        self.usage += usage
        self.turns += 1

    def forget_prefix(self) -> None:
        """The history was cut: what comes now is read anew, behind the head."""
        self._known = 0

    @property
    def elapsed(self) -> float:
        return max(0.0, self._before + self._clock() - self._began - self.usage.waited_s)

    @property
    def shares(self) -> dict[str, float]:
        return {
            "turns": self.turns / self.budget.turns,
            "tokens": self.spent / max(1, self.tokens),
            "seconds": self.elapsed / self.seconds,
        }

    def over(self) -> str:
        """Which budget is used up, in words, or ""."""
        for what, share in self.shares.items():
            if share >= (1.0 if what == "turns" else 1.1):  # a started conclusion may overrun a little
                return self.words(what)
        return ""

    def too_late(self) -> bool:
        """Whether even an answer that is being written must be given up."""
        return self.shares["seconds"] >= TOO_LATE

    def concluding(self) -> str:
        """Which budget is so near its end that the rest is for recording, or ""."""
        if self.turns >= self.budget.turns - self.budget.conclude_turns:
            return self.words("turns")
        return next((self.words(what) for what in ("tokens", "seconds") if self.shares[what] >= CONCLUDE), "")

    def nearly(self) -> str:
        return next((self.words(what) for what, share in self.shares.items() if share >= NEARLY), "")

    def words(self, what: str) -> str:
        have = {
            "turns": f"{self.turns} of {self.budget.turns} turns",
            "tokens": f"{self.spent} of {self.tokens} tokens",
            "seconds": f"{self.elapsed:.0f} of {self.seconds:.0f} seconds",
        }
        return have[what]
