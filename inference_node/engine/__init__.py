"""Requests in, text out: the one thread that owns a target, and what it needs to serve clients fairly."""
