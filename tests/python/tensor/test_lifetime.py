"""Memory returns when the last reference drops: accounts, references, threads."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import _core, memory


def held(device: str) -> int:
    return memory.report(device).total


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_the_account_returns_to_its_earlier_value(device: str) -> None:
    gc.collect()
    before = held(device)
    tensor = _core.empty((64, 64), "float32", device).fill_(1)
    assert held(device) >= before + 16384
    views = [tensor[1:], tensor.T, *tensor.unbind(), tensor[None], tensor.detach()]
    taken = tensor[[1, 2]], tensor[tensor.bool()], tensor.to("bfloat16"), tensor.cpu().numpy()
    tensor[tensor[:1].expand(64, 64).bool()] = 2
    tensor[1:] = tensor[:-1]
    repr(tensor)
    del tensor, taken
    assert held(device) == before + views[0].storage().nbytes
    del views
    assert held(device) == before


@pytest.mark.parametrize(
    "act",
    [
        lambda x: x[[0, 99]],
        lambda x: x.__setitem__([0, 99], 1),
        lambda x: x.__setitem__(slice(None), np.zeros(7)),
        lambda x: x.reshape(7),
        lambda x: x.to("float33"),
        lambda x: x.as_strided((100,), (1,)),
        lambda x: x.split([1, 2]),
        lambda x: nbx.asarray([[1], [1, 2]]),
        lambda x: x[np.zeros((9,), bool)],
    ],
)
def test_refusals_leave_nothing_behind(act: Any) -> None:
    tensor = _core.empty((4, 3), "float32", "cpu").fill_(0)
    gc.collect()
    before = held("cpu")
    with pytest.raises((ValueError, IndexError, TypeError)):
        act(tensor)
    gc.collect()
    assert held("cpu") == before
    assert tensor.storage().owners == 2


def test_views_share_one_storage() -> None:
    tensor = _core.empty((4, 4))
    views = [tensor[0], tensor.T, tensor[1:].reshape(-1)]
    assert tensor.storage().owners == 5
    del views
    assert tensor.storage().owners == 2


def test_tensors_are_weakly_referenced_and_not_collected() -> None:
    tensor = _core.empty((2,))
    storage = tensor.storage()
    gone: list[int] = []
    weakref.finalize(tensor, gone.append, 1)
    weakref.finalize(storage, gone.append, 2)
    assert not gc.is_tracked(tensor)
    del tensor
    assert gone == [1]
    del storage
    assert gone == [1, 2]


def test_subclasses_are_made_and_dropped() -> None:
    class Marked(nbx.Tensor):
        __slots__ = ()

    with pytest.raises(TypeError, match="Marked has no constructor"):
        Marked()
    with pytest.raises(TypeError, match="empty __slots__"):
        _core.register_tensor_class(type("Wide", (nbx.Tensor,), {}))


def test_storage_from_python() -> None:
    before = held("cpu")
    storage = _core.Storage(1000, "cpu")
    assert (storage.nbytes, storage.writable, storage.borrowed) == (1000, True, False)
    assert storage.data_ptr() % 64 == 0
    assert str(storage.device) == "cpu"
    assert storage.account.startswith("cpu/")
    assert storage != _core.Storage(1000, "cpu")
    del storage
    assert held("cpu") == before
    with pytest.raises(ValueError, match="nbytes must be 0 or more"):
        _core.Storage(-1)


def test_threads_share_tensors(rng: np.random.Generator) -> None:
    array = rng.normal(size=(64, 64))
    tensor = nbx.asarray(array, copy=True)
    before = held("cpu")
    failures: list[BaseException] = []

    def work(row: int) -> None:
        try:
            for step in range(200):
                view = tensor[row : row + 8, ::-1].T
                assert view.shape == (64, 8)
                copied = view.clone()
                copied[step % 64] = 0.0
                assert tensor[row, step % 64].item() == array[row, step % 64]
                np.from_dlpack(copied)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(8 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert held("cpu") == before
    assert tensor.storage().owners == 2
