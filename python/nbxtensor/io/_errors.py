"""The error of a file that does not hold what it says."""

from __future__ import annotations

from typing import Any

from nbxtensor import _core

# A lying file may hold a name, or a value in place of a number, as long as the file.
_SHOWN = 500


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:400]}...{text[-60:]}"


class FormatError(_core.Error, ValueError):
    """A model file is truncated, contradicts itself or is of an unknown form.

    Attributes
    ----------
    path : str
        The file.
    tensor : str or None
        The tensor at fault, where there is one.
    figures : dict
        The numbers of the text, by name; each is an attribute of its own too.
    """

    def __init__(
        self, path: str, problem: str, *, tensor: str | None = None, **figures: Any
    ) -> None:
        where = path if tensor is None else f"{path}: tensor {_short(repr(tensor))}"
        super().__init__(f"{where}: {_short(problem)}")
        self.path = path
        self.tensor = tensor
        self.figures = figures
        self.__dict__.update(figures)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (str(self), self.path, self.tensor, self.figures)


def _rebuild(text: str, path: str, tensor: str | None, figures: dict[str, Any]) -> FormatError:
    error = FormatError.__new__(FormatError, text)
    error.path, error.tensor, error.figures = path, tensor, figures
    error.__dict__.update(figures)
    return error
