"""Stands between the worker and the container engine, and lets only sandboxes be made.

Whoever may create a container with any body is root on the host. So this small server alone holds the
engine's socket and offers the worker another one, on which a request passes only if its method and
path are on a list, its query is known, its body fits a schema (rebuilt, never copied) and the thing it
names was made through this very proxy. Everything else is answered 403 with the reason.
"""
