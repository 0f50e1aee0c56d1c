"""Reserved blocks: memory that grows at its address, under the same accounts and refusals."""

from __future__ import annotations

from collections.abc import Iterator

import nbxtensor as nbx
import numpy as np
import pytest
from nbxtensor import memory

MEGA = 1 << 20


@pytest.fixture(params=["cpu", "sim:0"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    before = memory.allocated(name)
    yield name
    memory.trim(name)
    assert memory.allocated(name) == before


def test_a_cache_grows_without_moving(device: str) -> None:
    with memory.tag("reserved_test"):
        cache = memory.reserve(64 * MEGA, device)
    before = memory.allocated(device)
    assert (cache.committed, cache.capacity) == (0, 64 * MEGA)
    assert cache.account.endswith("device/reserved_test")
    seed = int(np.random.SeedSequence().entropy) % 2**32  # type: ignore[arg-type]
    print("seed", seed)
    values = np.random.default_rng(seed).standard_normal((1024, 256)).astype(np.float32)
    address = cache.address
    assert cache.commit(MEGA) == 2 * MEGA
    first = cache.tensor((1024, 256), "float32")
    first.copy_(nbx.asarray(values, device=device))
    assert cache.commit(40 * MEGA) == 40 * MEGA
    assert cache.address == address == first.data_ptr()
    assert memory.allocated(device) == before + 40 * MEGA
    second = cache.tensor((1024, 256), "float32", offset=39 * MEGA)
    second.copy_(first)
    for tensor in (first, second):
        np.testing.assert_array_equal(np.asarray(tensor.cpu()), values)
    assert cache.tensors == 2
    del first, second, tensor, cache


def test_a_live_tensor_is_not_cut_off(device: str) -> None:
    block = memory.reserve(16 * MEGA, device)
    block.commit(8 * MEGA)
    tensor = block.tensor((3 * MEGA,), "uint8", offset=4 * MEGA)
    row = tensor[:10]
    del tensor
    with pytest.raises(ValueError, match=r"bytes 4194304 to 7340032; drop it, or keep at least"):
        block.decommit(6 * MEGA)
    assert block.committed == 8 * MEGA
    del row
    assert block.decommit(3 * MEGA) == 4 * MEGA
    with pytest.raises(ValueError, match="are not committed, 4194304 are; commit more first"):
        block.tensor((MEGA,), "float32", offset=MEGA)


def test_budgets_hold(device: str) -> None:
    block = memory.reserve(64 * MEGA, device)
    with memory.budget(memory.allocated(device) + 5 * MEGA, device):
        block.commit(3 * MEGA)
        with pytest.raises(nbx.OutOfMemoryError):
            block.commit(7 * MEGA)
        assert block.committed == 4 * MEGA


def test_bad_arguments_are_named(device: str) -> None:
    with pytest.raises(ValueError, match="reserve: max_bytes is 0"):
        memory.reserve(0, device)
    with pytest.raises(TypeError, match="reserve: max_bytes is '1 GiB'"):
        memory.reserve("1 GiB", device)  # type: ignore[arg-type]
    block = memory.reserve(4 * MEGA, device)
    with pytest.raises(ValueError, match="commit: 4194305 bytes are more than the 4194304"):
        block.commit(4 * MEGA + 1)
    with pytest.raises(ValueError, match="decommit: keep is -1"):
        block.decommit(-1)
    block.commit(MEGA)
    with pytest.raises(ValueError, match="offset is 3; give a multiple of 64"):
        block.tensor((4,), "float32", offset=3)
    assert "2097152 of 4194304 bytes committed" in repr(block)


def test_tensors_outlive_the_block_object(device: str) -> None:
    block = memory.reserve(4 * MEGA, device)
    block.commit(2 * MEGA)
    tensor = block.tensor((100,), "int32")
    del block
    tensor.fill_(7)
    assert np.asarray(tensor.cpu()).tolist() == [7] * 100


def assert_asleep(tensor: nbx.Tensor) -> None:
    for use in (lambda: tensor.cpu(), lambda: tensor.fill_(0), lambda: tensor[3:] + 1):
        with pytest.raises(ValueError, match=r"sim:0/device/reserved_test/sleep is asleep.*wake"):
            use()


def test_it_sleeps_with_its_tag_at_its_address() -> None:
    device = "sim:0"
    memory.trim(device)
    before = memory.allocated(device)
    with memory.tag("reserved_test/sleep"):
        block = memory.reserve(64 * MEGA, device)
    block.commit(6 * MEGA)
    values = np.arange(MEGA, dtype=np.float32)
    tensor = block.tensor((MEGA,), "float32", offset=MEGA)
    tensor.copy_(nbx.asarray(values, device=device))
    address = tensor.data_ptr()
    report = memory.sleep("reserved_test", device)
    assert report == memory.SleepReport(1, 6 * MEGA, 6 * MEGA, 6 * MEGA)
    assert block.asleep
    assert memory.allocated(device) == before
    assert_asleep(tensor)
    with pytest.raises(ValueError, match=r"commit: the reserved block of .* is asleep"):
        block.commit(8 * MEGA)
    assert memory.wake("reserved_test", device).granted == 6 * MEGA
    assert not block.asleep
    assert tensor.data_ptr() == address
    np.testing.assert_array_equal(np.asarray(tensor.cpu()), values)
    # The block, and a tensor of it, go in their sleep.
    memory.sleep("reserved_test", device)
    del block
    assert memory.sleeping("reserved_test", device).blocks == 1
    del tensor
    assert memory.sleeping("reserved_test", device).blocks == 0
    assert memory.allocated(device) == before


def test_nothing_is_committed_once_the_epoch_has_ended() -> None:
    name = "sim:1"
    memory.trim(name)
    free = memory.mem_get_info(name)[0]
    block = memory.reserve(8 * MEGA, name)
    block.commit(2 * MEGA)
    memory.new_epoch(name)
    with pytest.raises(
        ValueError, match=r"commit: the block is of epoch \d+ of sim:1, which ended"
    ):
        block.commit(4 * MEGA)
    del block
    memory.trim(name)
    assert memory.mem_get_info(name)[0] == free
