"""`.lamplighter.toml` of a reviewed repo: what it wishes for. A mistake in it is said, never fatal."""

import tomllib

from pydantic import ValidationError

from review_agents.records import RepoSettings

FILE = ".lamplighter.toml"
MOST_BYTES = 100_000


def parsed(text: str | None) -> tuple[RepoSettings, tuple[str, ...]]:
    """The settings and what is wrong with them, in words. Without the file: the defaults.

    An unknown or ill-typed key is left out; the others count.
    """
    if text is None:
        return RepoSettings(), ()
    if len(text) > MOST_BYTES:
        return RepoSettings(), (f"{FILE} is ignored: it is larger than {MOST_BYTES} bytes.",)
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return RepoSettings(), (f"{FILE} is ignored: it is no valid TOML ({error}).",)
    problems = []
    try:
        return RepoSettings.model_validate(given), ()
    except ValidationError as error:
        for problem in error.errors():
            name = str(problem["loc"][0])
            if given.pop(name, None) is not None:
                problems.append(f"{FILE}: {name} is ignored: {problem['msg']}.")
    return RepoSettings.model_validate(given), tuple(problems)
