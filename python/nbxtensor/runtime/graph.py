"""Graphs: work that is recorded once and runs again with one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from nbxtensor import _core
from nbxtensor._core import Capture, Device, RecordedGraph, Stream, TensorBase, current_stream
from nbxtensor.errors import InvalidTypeError, InvalidValueError
from nbxtensor.runtime.kernels import launch

__all__ = ["Graph", "GraphNode"]


class GraphNode(NamedTuple):
    """One recorded kernel.

    Attributes
    ----------
    kernel
        Its name.
    grid
        The blocks along each axis, as the driver launches them; None where the host runs it.
    arguments
        What it is given, as bits, by parameter name: addresses and numbers.
    """

    kernel: str
    grid: tuple[int, int, int] | None
    arguments: dict[str, Any]


class Graph:
    """Recorded work, with the memory that it uses.

    As a context manager it records what a stream is given inside the block, which is current there;
    nothing of it runs before `replay`. Memory that is allocated inside belongs to the graph, and
    every replay writes it again: tensors made inside are overwritten. `Graph.capture` makes a graph
    that can be called instead.

    Parameters
    ----------
    stream
        The stream to record. None takes the current one of the device, or a new one if that is the
        default stream, which cannot be recorded.
    device
        The device of the new stream; the default one if neither is given.
    """

    def __init__(self, stream: Stream | None = None, *, device: Device | str | None = None) -> None:
        if stream is not None and not isinstance(stream, Stream):
            raise InvalidTypeError(f"Graph: expected a Stream, got {type(stream).__name__}")
        if stream is None:
            stream = current_stream(device)
            if stream.handle == 0:
                stream = Stream(stream.device)
        elif device is not None and _core.device(device) != stream.device:
            raise InvalidValueError(
                f"Graph: the stream is of {stream.device.name}, the device given is {device}; "
                "give one of them"
            )
        self._capture = Capture(stream)
        self._recorded: RecordedGraph | None = None
        self._own_inputs: list[Any] = []
        self._own_outputs: list[Any] = []
        self._input_tree: Any = None
        self.outputs: Any = None

    @property
    def stream(self) -> Stream:
        """The stream that was recorded."""
        return self._capture.stream

    @property
    def device(self) -> Device:
        """The device that runs the graph."""
        return self._capture.stream.device

    @property
    def nodes(self) -> list[GraphNode]:
        """The recorded kernels in the order of their launch; copies and fills are not listed."""
        return [GraphNode(*row) for row in self._launchable().nodes]

    # ---- recording ---------------------------------------------------------------------------

    def __enter__(self) -> Graph:
        self._capture.enter()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end(kind is not None)

    def _end(self, failed: bool, built: bool = False) -> None:
        self._capture.exit(failed, built)
        self._recorded = self._capture.graph
        if self._recorded is not None:
            # Shadows the method: one call less, in what is called most.
            self.__dict__["replay"] = self._recorded.replay

    @classmethod
    def capture(
        cls, function: Callable[..., Any], *inputs: Any, stream: Stream | None = None
    ) -> Graph:
        """Record a function of tensors.

        The function runs once as usual first, so that kernels are compiled and caches filled; then
        it is called with copies of the inputs that belong to the graph, and recorded. What it
        changes besides its results is changed by the first run too.

        Parameters
        ----------
        function
            What to record. Python runs now and not at a replay: numbers and branches stay as they
            were.
        *inputs
            Tensors on one device, also in tuples, lists and dicts; what is no tensor stays as it
            is.
        stream
            As for `Graph`.

        Returns
        -------
        Graph
            To be called with inputs of the same shapes and dtypes.
        """
        tensors = _tensors_of(inputs)
        graph = cls(stream, device=_device_of(tensors) if stream is None else None)
        used = graph.stream
        for index, tensor in enumerate(tensors):
            if tensor.device != used.device:
                raise InvalidValueError(
                    f"Graph.capture: tensor {index} of the inputs is on {tensor.device.name}, the "
                    f"graph on {used.device.name}; move it there first"
                )
        used.wait_stream(current_stream(used.device))
        with _Tagged(), used:
            graph._own_inputs = [_core.copied(tensor) for tensor in tensors]
            function(*_replaced(inputs, iter(graph._own_inputs)))
        used.synchronize()
        with graph:
            outputs = function(*_replaced(inputs, iter(graph._own_inputs)))
            graph._own_outputs = [tensor.contiguous() for tensor in _tensors_of(outputs)]
        graph.outputs = _replaced(outputs, iter(graph._own_outputs))
        graph._input_tree = inputs
        return graph

    @classmethod
    def from_launches(
        cls, launches: Iterable[Sequence[Any]], *, stream: Stream | None = None
    ) -> Graph:
        """Build a graph of kernel launches, without the driver's recording.

        Parameters
        ----------
        launches
            (kernel, grid), (kernel, grid, args) or (kernel, grid, args, kwargs) of each, in order:
            each is what `launch` takes, and runs after the one before.
        stream
            As for `Graph`.
        """
        rows = [tuple(row) for row in launches]
        for index, row in enumerate(rows):
            if not 2 <= len(row) <= 4:
                raise InvalidValueError(
                    f"from_launches: launch {index} has {len(row)} parts; expected (kernel, grid, "
                    "args, kwargs)"
                )
        device = _device_of(_tensors_of(rows)) if stream is None else None
        graph = cls(stream, device=device)
        graph._capture.enter()
        failed = True
        try:
            for row in rows:
                _launch(*row)
            failed = False
        finally:
            graph._end(failed, built=True)
        return graph

    # ---- running -----------------------------------------------------------------------------

    def _launchable(self) -> RecordedGraph:
        if self._recorded is None:
            raise InvalidValueError(
                "graph: nothing is captured; use it in a `with` block that ends without an "
                "exception, or Graph.capture"
            )
        return self._recorded

    def replay(self, stream: Stream | None = None) -> None:
        """Run the recorded work in the order of a stream, the current one if none is given."""
        self._launchable().replay(stream)

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph on new inputs, in the order of the current stream.

        Returns
        -------
        Any
            What the function returned, in tensors that nothing writes to again.
        """
        recorded = self._launchable()
        if self._input_tree is None:
            raise InvalidValueError(
                "graph: it has no inputs; call replay(), or make it with Graph.capture"
            )
        tensors: list[Any] = []
        _match(self._input_tree, inputs, tensors, "inputs")
        results = recorded.call(self._own_inputs, tensors, self._own_outputs)
        return _replaced(self.outputs, iter(results))

    # ---- changes -----------------------------------------------------------------------------

    def rebind(self, old: TensorBase, new: TensorBase) -> None:
        """Let the kernels use another tensor in place of one, from the next replay on.

        Nothing is copied. Refused, with nothing changed, where the tensors differ in dtype, shape,
        strides or device, where the new one is aligned worse, or where something else than a kernel
        uses the old one.
        """
        self._launchable().rebind(old, new)

        def exchange(own: list[Any]) -> list[Any]:
            return [new if tensor is old else tensor for tensor in own]

        self._own_inputs = exchange(self._own_inputs)
        if any(tensor is old for tensor in self._own_outputs):
            self._own_outputs = exchange(self._own_outputs)
            self.outputs = _replaced(self.outputs, iter(self._own_outputs))

    def update(self, node: int, **numbers: Any) -> None:
        """Give a kernel other numbers, by the names of its parameters, from the next replay on.

        Parameters
        ----------
        node
            Its place in `nodes`.
        **numbers
            Values of parameters that the kernel takes at run time.
        """
        recorded = self._launchable()
        for name, value in numbers.items():
            recorded.update(node, name, value)


class _Tagged:
    """Counts under the caller's tag, or else under that of graphs."""

    def __enter__(self) -> None:
        self._former = _core.memory_set_tag("graph")
        if self._former:
            _core.memory_set_tag(self._former)

    def __exit__(self, *_: object) -> None:
        _core.memory_set_tag(self._former)


def _launch(kernel: Any, grid: Any, args: Any = (), kwargs: Any = None) -> None:
    launch(kernel, grid, *args, **(kwargs or {}))


# ---- trees of tensors ------------------------------------------------------------------------


def _tensors_of(tree: Any) -> list[Any]:
    if isinstance(tree, TensorBase):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [tensor for part in tree for tensor in _tensors_of(part)]
    if isinstance(tree, dict):
        return [tensor for part in tree.values() for tensor in _tensors_of(part)]
    return []


def _replaced(tree: Any, tensors: Any) -> Any:
    """Return the tree with the next tensors in place of its own."""
    if isinstance(tree, TensorBase):
        return next(tensors)
    if isinstance(tree, tuple):
        parts = [_replaced(part, tensors) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if isinstance(tree, list):
        return [_replaced(part, tensors) for part in tree]
    if isinstance(tree, dict):
        return {key: _replaced(part, tensors) for key, part in tree.items()}
    return tree


def _match(captured: Any, given: Any, tensors: list[Any], name: str) -> None:
    """Collect the tensors of inputs that are built as the captured ones."""
    if isinstance(captured, TensorBase):
        if not isinstance(given, TensorBase):
            raise InvalidTypeError(
                f"graph: {name} was a tensor in the capture, got {type(given).__name__}; convert "
                "it with asarray"
            )
        tensors.append(given)
        return
    if isinstance(captured, (tuple, list, dict)):
        if not isinstance(given, type(captured)) or len(given) != len(captured):
            size = f" of {len(given)}" if isinstance(given, (tuple, list, dict)) else ""
            raise InvalidValueError(
                f"graph: {name} was a {type(captured).__name__} of {len(captured)} in the capture, "
                f"got {type(given).__name__}{size}; capture again for other inputs"
            )
        if isinstance(captured, dict) and set(captured) != set(given):
            raise InvalidValueError(
                f"graph: {name} has the keys {sorted(map(str, given))}, in the capture "
                f"{sorted(map(str, captured))}; capture again for other inputs"
            )
        for key in captured if isinstance(captured, dict) else range(len(captured)):
            _match(captured[key], given[key], tensors, f"{name}[{key!r}]")
        return
    if captured is not given and captured != given:
        raise InvalidValueError(
            f"graph: {name} is {given!r}, in the capture it was {captured!r}, which stays; give a "
            "tensor, or capture again"
        )


def _device_of(tensors: list[Any]) -> Device | None:
    return tensors[0].device if tensors else None
