"""The reviewer's mind: probes, focuses and judgement, with no hands of its own.

Nothing in this package opens a file, a socket or a process. What it needs from outside is
named in `ports`, and what it gives back is made of the records in `records`.
"""
