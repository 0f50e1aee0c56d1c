"""Traces of allocations: recording, reading, converting and viewing them.

>>> from nbxtensor.memory import trace
>>> events = trace.read("run.tsv.gz")
>>> trace.write(events, "run.pickle")
"""

from __future__ import annotations

from nbxtensor.memory.trace._formats import FORMATS, Format, read, write
from nbxtensor.memory.trace._text import TraceError
from nbxtensor.memory.trace._trace import Note, Trace

__all__ = ["FORMATS", "Format", "Note", "Trace", "TraceError", "read", "write"]
