"""What a service cannot do, in two kinds: the request is impossible, or the outside failed.

Anything else that rises is a bug. Messages are for the person who asked: the thing, what was
found, what was expected, what to do.
"""

from uuid import UUID


class ServiceError(Exception):
    """Base of all that doors turn into answers."""


class ImpossibleRequest(ServiceError):
    """Asked again in the same way it will fail again."""


class BadInput(ImpossibleRequest):
    """A value that was given is not acceptable."""

    def __init__(self, field: str, message: str):
        super().__init__(message)
        self.field = field  # name of the form field, API field or option
        self.message = message


class BadTarget(BadInput):
    """The repository that was named cannot be reviewed."""


class NotThere(ImpossibleRequest):
    """There is no such thing."""

    thing = "thing"

    def __init__(self, key: UUID | str):
        super().__init__(f"There is no {self.thing} {key}.")


class UnknownReview(NotThere):
    thing = "review"


class UnknownRepo(NotThere):
    thing = "repo"


class UnknownFinding(NotThere):
    thing = "finding"


class UnknownSchedule(NotThere):
    thing = "schedule"


class UnknownStep(NotThere):
    thing = "step"


class UnknownAccount(NotThere):
    thing = "account"


class WrongPassword(ImpossibleRequest):
    """Nobody is let in with that."""


class NotAllowed(ImpossibleRequest):
    """The account may not do this."""


class TooManyTries(ImpossibleRequest):
    """Guessing is slowed down."""

    def __init__(self, wait_s: int):
        super().__init__(f"Too many tries. Wait {wait_s} s, then try again.")
        self.wait_s = wait_s


class NotNow(ImpossibleRequest):
    """The thing is in a state in which this cannot be done."""


class OutsideError(ServiceError):
    """Something outside failed: a remote, the sandbox, the node, the disk."""

    def __init__(self, message: str, *, retry: bool):
        super().__init__(message)
        self.retry = retry  # True: the same call may work later. False: somebody must act first.
