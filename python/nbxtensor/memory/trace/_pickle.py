"""Pickles of plain containers: a reader that can name no class, and what the viewer understands.

The general unpickler runs what a file tells it to. This reader knows dict, list, tuple, str, int,
float, bool and None, and refuses everything else by name.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from nbxtensor.memory.trace._text import TraceError, shown

PLAIN = "dict, list, tuple, str, int, float, bool and None"
_CLASSES = {
    ord("c"): "GLOBAL",
    ord("i"): "INST",
    ord("o"): "OBJ",
    ord("R"): "REDUCE",
    ord("b"): "BUILD",
    0x81: "NEWOBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x92: "NEWOBJ_EX",
    0x93: "STACK_GLOBAL",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
}
_MARK = object()
_UNSIGNED = {1: struct.Struct("<B"), 2: struct.Struct("<H"), 4: struct.Struct("<I")}


def dumps(value: Any) -> bytes:
    """Pickle plain containers with protocol 2: opcodes that every version of the viewer knows."""
    return pickle.dumps(value, protocol=2)


def loads(data: bytes, name: str = "pickle") -> Any:
    """Read one pickle of plain containers, protocol 2 to 4."""
    return _Reader(data, name).run()


class _Reader:
    """A stack machine over the opcodes of plain containers."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._at = 0
        self._opcode = 0  # where the present one stands
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Read up to STOP."""
        while True:
            self._opcode = self._at
            code = self._number(1)
            if code == ord("."):
                if len(self._stack) != 1 or self._stack[0] is _MARK:
                    self._fail(f"{len(self._stack)} values at the end", "one")
                if self._at != len(self._data):
                    self._fail(f"{len(self._data) - self._at} bytes behind the end", "none")
                return self._stack[0]
            if code in _CLASSES:
                self._refuse(code)
            action = _ACTIONS.get(code)
            if action is None:
                self._fail(f"opcode {code:#04x}", f"the opcodes of {PLAIN}")
            action(self)

    def _fail(self, found: str, allowed: str) -> NoReturn:
        raise TraceError(f"{self._name}, byte {self._opcode}", found, allowed)

    def _refuse(self, code: int) -> NoReturn:
        """Name the class that the file wants."""
        what = ""
        if code in (ord("c"), ord("i")):
            lines = self._data[self._at : self._at + 400].split(b"\n")[:2]
            what = ".".join(line.decode("latin-1") for line in lines)
        elif code == 0x93:
            texts = [value for value in self._stack[-2:] if isinstance(value, str)]
            what = ".".join(texts)
        named = f" of {shown(what)}" if what else ""
        self._fail(f"{_CLASSES[code]}{named}", f"{PLAIN}; a file that names classes can run code")

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            self._fail(f"the end of the file, {count} bytes wanted", "a whole pickle")
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self, size: int) -> int:
        return int(_UNSIGNED[size].unpack(self._take(size))[0])

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            self._fail("an opcode without its value", "a value before it")
        return self._stack.pop()

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            self._fail("an item without its container", f"a {kind.__name__} before it")
        return self._stack[-1]

    def _to_mark(self) -> list[Any]:
        items = []
        while self._stack and self._stack[-1] is not _MARK:
            items.append(self._stack.pop())
        if not self._stack:
            self._fail("no mark", "a mark before the items")
        self._stack.pop()
        items.reverse()
        return items

    # ---- opcodes -----------------------------------------------------------------------------

    def protocol(self) -> None:
        """PROTO."""
        version = self._number(1)
        if not 2 <= version <= 4:
            self._fail(f"protocol {version}", "2, 3 or 4")

    def frame(self) -> None:
        """FRAME: a hint for readers of streams."""
        self._take(8)

    def text(self, size: int) -> None:
        """SHORT_BINUNICODE, BINUNICODE."""
        raw = self._take(self._number(size))
        try:
            self._stack.append(raw.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            self._fail(shown(raw), "UTF-8 text")

    def integer(self) -> None:
        """BININT."""
        self._stack.append(struct.unpack("<i", self._take(4))[0])

    def small(self, size: int) -> None:
        """BININT1, BININT2."""
        self._stack.append(self._number(size))

    def long(self) -> None:
        """LONG1, up to the 9 bytes of an unsigned 64-bit number."""
        size = self._number(1)
        if size > 9:
            self._fail(f"a number of {size} bytes", "up to 9 bytes")
        self._stack.append(int.from_bytes(self._take(size), "little", signed=True))

    def real(self) -> None:
        """BINFLOAT."""
        self._stack.append(struct.unpack(">d", self._take(8))[0])

    def push(self, make: Callable[[], Any]) -> None:
        """Push a constant or an empty container."""
        self._stack.append(make())

    def pack(self, count: int) -> None:
        """TUPLE1, TUPLE2, TUPLE3."""
        items = [self._pop() for _ in range(count)]
        self._stack.append(tuple(reversed(items)))

    def collect(self, kind: Callable[[list[Any]], Any]) -> None:
        """TUPLE, LIST."""
        self._stack.append(kind(self._to_mark()))

    def append(self) -> None:
        """Run APPEND."""
        value = self._pop()
        self._top(list).append(value)

    def extend(self) -> None:
        """Run APPENDS."""
        items = self._to_mark()
        self._top(list).extend(items)

    def set_item(self) -> None:
        """Run SETITEM."""
        value, key = self._pop(), self._pop()
        self._set(self._top(dict), key, value)

    def set_items(self) -> None:
        """Run SETITEMS."""
        self._set_all(self._to_mark(), None)

    def dictionary(self) -> None:
        """Run DICT."""
        items = self._to_mark()
        self._stack.append({})
        self._set_all(items, self._stack[-1])

    def _set_all(self, items: list[Any], into: dict[Any, Any] | None) -> None:
        target = self._top(dict) if into is None else into
        if len(items) % 2:
            self._fail("a key without its value", "pairs")
        for i in range(0, len(items), 2):
            self._set(target, items[i], items[i + 1])

    def _set(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        if not isinstance(key, str | int | float | bool | None):
            self._fail(f"a {type(key).__name__} as a key", "a text or a number")
        target[key] = value

    def remember(self, size: int) -> None:
        """MEMOIZE (0), BINPUT (1), LONG_BINPUT (4)."""
        if not self._stack:
            self._fail("nothing to remember", "a value before it")
        self._memo[self._number(size) if size else len(self._memo)] = self._stack[-1]

    def recall(self, size: int) -> None:
        """BINGET, LONG_BINGET."""
        number = self._number(size)
        if number not in self._memo:
            self._fail(f"value {number}, which was not stored", "values that were")
        self._stack.append(self._memo[number])


_ACTIONS: dict[int, Callable[[_Reader], None]] = {
    0x80: _Reader.protocol,
    0x95: _Reader.frame,
    0x8C: lambda reader: reader.text(1),
    ord("X"): lambda reader: reader.text(4),
    ord("J"): _Reader.integer,
    ord("K"): lambda reader: reader.small(1),
    ord("M"): lambda reader: reader.small(2),
    0x8A: _Reader.long,
    ord("G"): _Reader.real,
    ord("N"): lambda reader: reader.push(lambda: None),
    0x88: lambda reader: reader.push(lambda: True),
    0x89: lambda reader: reader.push(lambda: False),
    ord("}"): lambda reader: reader.push(dict),
    ord("]"): lambda reader: reader.push(list),
    ord(")"): lambda reader: reader.push(tuple),
    ord("("): lambda reader: reader.push(lambda: _MARK),
    0x85: lambda reader: reader.pack(1),
    0x86: lambda reader: reader.pack(2),
    0x87: lambda reader: reader.pack(3),
    ord("t"): lambda reader: reader.collect(tuple),
    ord("l"): lambda reader: reader.collect(list),
    ord("d"): _Reader.dictionary,
    ord("a"): _Reader.append,
    ord("e"): _Reader.extend,
    ord("s"): _Reader.set_item,
    ord("u"): _Reader.set_items,
    0x94: lambda reader: reader.remember(0),
    ord("q"): lambda reader: reader.remember(1),
    ord("r"): lambda reader: reader.remember(4),
    ord("h"): lambda reader: reader.recall(1),
    ord("j"): lambda reader: reader.recall(4),
}
