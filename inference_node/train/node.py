"""A node on another machine, asked over HTTP: its key, its words when it refused, when it wants to be asked again."""

from __future__ import annotations

import httpx


def client(url: str, key: str, silence_s: float) -> httpx.Client:
    """silence_s: how long an answer may be silent."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=silence_s)


def refusal(reply: httpx.Response) -> str:
    """In the node's words, where it has some."""
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status_code}"


def retry_after(reply: httpx.Response, otherwise: float, most: float) -> float:
    """Seconds to wait, by the reply's Retry-After where it has one."""
    after = reply.headers.get("Retry-After", "")
    return min(float(after) if after.isdigit() else otherwise, most)
