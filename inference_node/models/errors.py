"""What can be told to whoever asked, in words. Everything else that is raised is a bug."""


class NodeError(Exception):
    """The thing, what was found, what was expected, what to do."""


class BadModel(NodeError):
    """A file that cannot be served: it names the key or tensor, what it holds, and what was expected there."""

    def __init__(self, where: object, key: str, *, found: object, expected: object, hint: str = "") -> None:
        super().__init__(f"{where}: {key} is {found}; expected {expected}.{' ' + hint if hint else ''}")
        self.key = key
        self.found = found
        self.expected = expected
