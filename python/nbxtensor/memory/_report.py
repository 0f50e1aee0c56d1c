"""Who holds the memory of a device, to the byte."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass

from nbxtensor._core import format_bytes
from nbxtensor.memory._arguments import printable

UNTAGGED = "untagged"
_HEADER = ("tag", "bytes", "size", "peak", "mapped", "objects")


@dataclass(frozen=True)
class Row:
    """One account of a device.

    Attributes
    ----------
    kind : str
        ``"device"`` (tensors of the heap), ``"mapped"`` (files and arrays used in place),
        ``"pinned"`` (page-locked host memory), ``"external"`` (what libraries said they hold);
        ``""`` for the whole device.
    tag : str
        Path of the tag, ``""`` for the account of the kind itself.
    bytes : int
        Held now by this account and those below it.
    own : int
        Held now by this account alone: over all rows these add up to the device's total.
    peak : int
        Most that was held at one time.
    requested : int
        What callers asked for; ``bytes`` is that rounded up to the heap's granule.
    mapped : int
        What live blocks of this account and those below it keep from going back to the driver:
        the bytes of their pages, or of their segments where the device has no pages. Accounts may
        share a page: it counts once for each of them, and once for the account above. Memory of
        others counts as in ``bytes``.
    objects : int
        Live storages.
    budget : int or None
        Limit of ``bytes``.
    """

    kind: str
    tag: str
    bytes: int
    own: int
    peak: int
    requested: int
    mapped: int
    objects: int
    budget: int | None

    @property
    def depth(self) -> int:
        """Parts of the path below the device."""
        return 0 if not self.kind else 1 + (self.tag.count("/") + 1 if self.tag else 0)


def rows_of(accounts: list[tuple[str, int, int, int, int, int, int | None]]) -> tuple[Row, ...]:
    """Turn accounts, depth first, into rows."""
    below: dict[str, int] = {}
    for path, held, *_ in accounts:
        parent = path.rpartition("/")[0]
        below[parent] = below.get(parent, 0) + held
    rows = []
    for path, held, peak, requested, mapped, objects, budget in accounts:
        _, _, rest = path.partition("/")
        kind, _, tag = rest.partition("/")
        own = held - below.get(path, 0)
        rows.append(Row(kind, tag, held, own, peak, requested, mapped, objects, budget))
    return tuple(rows)


class Report:
    """The accounts of one device at one moment.

    Attributes
    ----------
    device : str
        Name of the device.
    rows : tuple of Row
        Every account, the device's first, parents before children.
    total : int
        Bytes counted on the device: tensors, memory used in place, pinned memory, libraries.
    peak : int
        Most that was counted at one time.
    parked, pending, external : int
        Bytes that the heap keeps for later, that wait for queued work, and that others hold.
    """

    def __init__(self, rows: tuple[Row, ...], figures: dict[str, int | str | None]) -> None:
        self.rows = rows
        self.device = str(figures["device"])
        self.total = rows[0].bytes
        self.peak = rows[0].peak
        self.parked = int(figures["parked"] or 0)
        self.pending = int(figures["pending"] or 0)
        self.external = int(figures["external"] or 0)

    def by_tag(self) -> dict[str, int]:
        """Bytes of each top-level tag, of all kinds together; the values add up to ``total``."""
        result: dict[str, int] = {}
        for row in self.rows:
            if row.kind and (row.tag == "" or "/" not in row.tag):
                held = row.bytes if row.tag else row.own
                name = row.tag or UNTAGGED
                if held or row.tag:
                    result[name] = result.get(name, 0) + held
        return result

    def lines(self) -> Iterator[tuple[str, int, int | None, int | None, int]]:
        """Yield (name, bytes, peak, mapped, objects) of every account that held something.

        At each depth `bytes` and `objects` add up to the line above them.
        """
        below: dict[tuple[str, str], int] = {}
        for row in self.rows:
            if row.tag:
                parent = (row.kind, row.tag.rpartition("/")[0])
                below[parent] = below.get(parent, 0) + row.objects
        for row in self.rows:
            if not row.kind or not (row.bytes or row.peak):
                continue
            name = row.tag.rpartition("/")[2] if row.tag else row.kind
            yield "  " * (row.depth - 1) + name, row.bytes, row.peak, row.mapped, row.objects
            key = (row.kind, row.tag)
            if row.own and key in below:
                rest = "(own)" if row.tag else f"({UNTAGGED})"
                yield "  " * row.depth + rest, row.own, None, None, row.objects - below[key]

    def _table(self) -> list[tuple[str, ...]]:
        total = self.rows[0]
        last = ("total", total.bytes, total.peak, total.mapped, total.objects)
        return [
            (
                printable(name),
                f"{held:,}",
                format_bytes(held),
                "" if peak is None else format_bytes(peak),
                "" if mapped is None else format_bytes(mapped),
                f"{objects:,}",
            )
            for name, held, peak, mapped, objects in (*self.lines(), last)
        ]

    def _footer(self) -> str:
        budget = self.rows[0].budget
        return (
            f"parked {format_bytes(self.parked)}, pending {format_bytes(self.pending)}, "
            f"others {format_bytes(self.external)}, "
            f"budget {'none' if budget is None else format_bytes(budget)}"
        )

    def __str__(self) -> str:
        table = [_HEADER, *self._table()]
        widths = [max(len(line[i]) for line in table) for i in range(len(_HEADER))]
        text = [f"Memory of {self.device}"]
        for line in table:
            cells = [line[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
            text.append("  ".join(cells))
        return "\n".join([*text, self._footer()])

    def __repr__(self) -> str:
        return f"<Report of {self.device}: {self.total} bytes in {self.rows[0].objects} objects>"

    def _repr_html_(self) -> str:
        header = "".join(f"<th>{name}</th>" for name in _HEADER)
        body = "".join(
            "<tr>"
            f"<td style='text-align:left;white-space:pre'>{html.escape(line[0])}</td>"
            + "".join(f"<td>{cell}</td>" for cell in line[1:])
            + "</tr>"
            for line in self._table()
        )
        return (
            f"<table><caption>Memory of {html.escape(self.device)}</caption>"
            f"<thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{html.escape(self._footer())}</p>"
        )
