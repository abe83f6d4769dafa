"""An inference node seen from the service: any server with the ordinary OpenAI-style HTTP interface."""

import time

import httpx

from review_agents.ports import NodeHealth

TIMEOUT_S = 4.0


class HttpNode:
    """The node at a base URL, with or without /v1 at its end."""

    def __init__(self, url: str, key: str = ""):
        self._models = f"{url.rstrip('/').removesuffix('/v1')}/v1/models"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def health(self) -> NodeHealth:
        """Ask now which models it serves."""
        started = time.monotonic()
        try:
            answer = httpx.get(self._models, headers=self._headers, timeout=TIMEOUT_S, trust_env=False)
            answer.raise_for_status()
            models = tuple(str(one["id"]) for one in answer.json()["data"])
        except httpx.HTTPStatusError as error:
            problem = f"it answered {error.response.status_code} to {self._models}"
        except httpx.HTTPError as error:
            problem = f"it does not answer: {error}" if str(error) else f"it does not answer ({type(error).__name__})"
        except (ValueError, KeyError, TypeError):
            problem = f"its answer to {self._models} is no list of models"
        else:
            return NodeHealth(reachable=True, models=models, seconds=time.monotonic() - started)
        return NodeHealth(reachable=False, problem=problem, seconds=time.monotonic() - started)
