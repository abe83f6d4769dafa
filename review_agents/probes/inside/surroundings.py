"""Sent as `sitecustomize.py`: the same program at another time.

What an example prints must not depend on the day it is run. Under this module the clock is years ahead, so an output
that is the same with and without it does not tell the time. Only the clock is changed here; hash seed and time zone
are changed by environment variables.
"""

# mypy: ignore-errors

import datetime
import time

AHEAD_S = (3 * 365 + 157) * 86400 + 5 * 3600 + 1234.5

_time, _time_ns, _localtime, _gmtime, _strftime, _ctime = (
    time.time, time.time_ns, time.localtime, time.gmtime, time.strftime, time.ctime,
)  # fmt: skip
time.time = lambda: _time() + AHEAD_S
time.time_ns = lambda: _time_ns() + int(AHEAD_S * 10**9)
time.localtime = lambda seconds=None: _localtime(time.time() if seconds is None else seconds)
time.gmtime = lambda seconds=None: _gmtime(time.time() if seconds is None else seconds)
time.strftime = lambda form, moment=None: _strftime(form, time.localtime() if moment is None else moment)
time.ctime = lambda seconds=None: _ctime(time.time() if seconds is None else seconds)

_date, _datetime = datetime.date, datetime.datetime


class _OfDate(type(_date)):
    def __instancecheck__(cls, thing):
        return isinstance(thing, _date)

    def __subclasscheck__(cls, kind):
        return issubclass(kind, _date)


class _OfDatetime(type(_datetime)):
    def __instancecheck__(cls, thing):
        return isinstance(thing, _datetime)

    def __subclasscheck__(cls, kind):
        return issubclass(kind, _datetime)


def _later():
    return datetime.timedelta(seconds=AHEAD_S)


class _Date(_date, metaclass=_OfDate):
    @classmethod
    def today(cls):
        now = _datetime.now() + _later()
        return cls(now.year, now.month, now.day)

    def __repr__(self):
        text = super().__repr__()
        return "datetime.date" + text[text.index("(") :]


class _Datetime(_datetime, metaclass=_OfDatetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + _later()

    @classmethod
    def utcnow(cls):
        return super().utcnow() + _later()

    @classmethod
    def today(cls):
        return super().today() + _later()

    def __repr__(self):
        text = super().__repr__()
        return "datetime.datetime" + text[text.index("(") :]


_Date.__name__ = _Date.__qualname__ = "date"
_Datetime.__name__ = _Datetime.__qualname__ = "datetime"
_Date.__module__ = _Datetime.__module__ = "datetime"
datetime.date = _Date
datetime.datetime = _Datetime
