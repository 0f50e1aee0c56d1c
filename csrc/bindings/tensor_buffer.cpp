// The buffer protocol, both ways: tensors as buffers, and buffers of others as tensors.
#include <algorithm>
#include <climits>
#include <memory>
#include <vector>

#include "bindings/python_lock.h"
#include "bindings/tensor_copy.h"
#include "bindings/tensor_methods.h"
#include "core/error.h"

namespace nbx::python {
namespace {

/// The struct-module code of a dtype; null where there is none.
const char* format_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::bool_:
      return "?";
    case DType::int8:
      return "b";
    case DType::int16:
      return "h";
    case DType::int32:
      return "i";
    case DType::int64:
      return sizeof(long) == 8 ? "l" : "q";
    case DType::uint8:
      return "B";
    case DType::uint16:
      return "H";
    case DType::uint32:
      return "I";
    case DType::uint64:
      return sizeof(long) == 8 ? "L" : "Q";
    case DType::float16:
      return "e";
    case DType::float32:
      return "f";
    case DType::float64:
      return "d";
    case DType::complex64:
      return "Zf";
    case DType::complex128:
      return "Zd";
    default:
      return nullptr;
  }
}

bool column_major(const Layout& layout) noexcept {
  std::int64_t expected = 1;
  bool dense = true;
  for (std::int32_t i = 0; i < layout.rank(); ++i) {
    if (layout.shape()[i] == 0) return true;
    if (layout.shape()[i] != 1) {
      dense = dense && layout.strides()[i] == expected;
      expected *= layout.shape()[i];
    }
  }
  return dense;
}

void check_request(const TensorMeta& meta, int flags) {
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorKind::kBuffer, "buffer: " + message);
  };
  const std::string name = facts_of(meta.dtype).name;
  if (!meta.device().host_readable()) {
    refuse("the tensor lives on " + meta.device().name() +
           ", not in host memory; call cpu() first");
  }
  if (format_of(meta.dtype) == nullptr) {
    refuse(name + " has no buffer format; view it as an integer dtype of its width, or convert it");
  }
  if ((flags & PyBUF_WRITABLE) == PyBUF_WRITABLE) {
    if (!meta.storage->writable()) refuse("the memory is read-only");
    if (repeats_elements(meta.layout)) refuse("an expanded tensor cannot be written");
  }
  const bool rows = meta.layout.contiguous();
  if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !rows) {
    refuse("the tensor is not row-major; call contiguous() first");
  }
  if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !column_major(meta.layout)) {
    refuse("the tensor is not column-major");
  }
  if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !rows &&
      !column_major(meta.layout)) {
    refuse("the tensor has gaps; call contiguous() first");
  }
  if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !rows) {
    refuse("the tensor has strides, which were not asked for; call contiguous() first");
  }
}

void fill_buffer(PyObject* self, Py_buffer* buffer, int flags) {
  TensorMeta& meta = meta_of(self);
  check_request(meta, flags);
  if (!meta.storage->is_idle()) {
    const Unlocked unlocked;
    meta.storage->wait();
  }
  const std::int32_t rank = meta.layout.rank();
  const int size = itemsize_of(meta.dtype);
  std::unique_ptr<Py_ssize_t[]> strides;
  if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) {
    strides = std::make_unique<Py_ssize_t[]>(static_cast<std::size_t>(rank) + 1);
    for (std::int32_t i = 0; i < rank; ++i)
      strides[static_cast<std::size_t>(i)] = meta.layout.strides()[i] * size;
  }
  // Consumers refuse null even for no bytes.
  static std::byte nothing;
  buffer->buf = meta.data == 0 ? &nothing : reinterpret_cast<void*>(meta.data);
  buffer->len = static_cast<Py_ssize_t>(bytes_of(meta.dtype, meta.layout.element_count()));
  buffer->itemsize = size;
  buffer->readonly = meta.storage->writable() && !repeats_elements(meta.layout) ? 0 : 1;
  buffer->ndim = rank;
  buffer->format =
      (flags & PyBUF_FORMAT) == PyBUF_FORMAT ? const_cast<char*>(format_of(meta.dtype)) : nullptr;
  buffer->shape =
      (flags & PyBUF_ND) == PyBUF_ND ? reinterpret_cast<Py_ssize_t*>(meta.layout.shape()) : nullptr;
  buffer->strides = strides.get();
  buffer->suboffsets = nullptr;
  buffer->internal = strides.release();
  buffer->obj = Py_NewRef(self);
}

/// Releases the exporter's buffer; also from threads that do not hold the Python lock.
void release_owner(void* owner) noexcept {
  auto* buffer = static_cast<Py_buffer*>(owner);
  // After the interpreter's end its memory is gone with it.
  if (Py_IsInitialized() == 0) return;
  const Locked lock;
  PyBuffer_Release(buffer);
  delete buffer;
}

struct BufferDeleter {
  void operator()(Py_buffer* buffer) const noexcept { release_owner(buffer); }
};
using OwnedBuffer = std::unique_ptr<Py_buffer, BufferDeleter>;

OwnedBuffer acquire(PyObject* object, int flags) {
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object, buffer.get(), flags) < 0) throw PythonError{};
  return OwnedBuffer(buffer.release());
}

Device& host_device(PyObject* object, const char* function) {
  Device& device = to_device(object);
  if (!device.host_readable()) {
    throw Error(ErrorKind::kUnsupported,
                std::string(function) + ": host memory cannot be used in place on " +
                    device.name() + "; map it on the cpu and move it with .to()");
  }
  return device;
}

PyObject* map_buffer(PyObject*, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[3];
    bind_arguments("map_buffer", {"buffer", "device", "writable"}, 1, 3, arguments, count, names,
                   bound);
    const bool writable = to_boolean(bound[2], false);
    Device& device = host_device(bound[1], "map_buffer");
    OwnedBuffer buffer = acquire(bound[0], writable ? PyBUF_WRITABLE : PyBUF_SIMPLE);
    const auto bytes = static_cast<std::uint64_t>(buffer->len);
    const auto address = static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(buffer->buf));
    TensorMeta meta;
    meta.storage = Storage::borrow(memory_of(device), address, bytes, bytes, writable, buffer.get(),
                                   &release_owner);
    static_cast<void>(buffer.release());
    const std::int64_t shape[] = {static_cast<std::int64_t>(bytes)};
    const std::int64_t strides[] = {1};
    meta.data = address;
    meta.dtype = DType::uint8;
    meta.layout = Layout(shape, strides, 1);
    return wrapped(std::move(meta));
  });
}

Layout layout_of(const Py_buffer& buffer, DType dtype) {
  const Py_ssize_t size = itemsize_of(dtype);
  if (buffer.itemsize != size) {
    throw Error(ErrorKind::kType, "from_buffer: items of " + std::to_string(buffer.itemsize) +
                                      " bytes are not " + facts_of(dtype).name + ", which has " +
                                      std::to_string(size));
  }
  Layout layout;
  layout.resize(buffer.ndim);
  for (std::int32_t i = 0; i < buffer.ndim; ++i) {
    layout.shape()[i] = buffer.shape[i];
    if (buffer.strides[i] % size != 0 && buffer.shape[i] > 1) {
      throw Error(ErrorKind::kValue, "from_buffer: axis " + std::to_string(i) +
                                         " has a stride of " + std::to_string(buffer.strides[i]) +
                                         " bytes, not a multiple of the item size " +
                                         std::to_string(size) + "; copy the array first");
    }
    layout.strides()[i] = buffer.strides[i] / size;
  }
  return layout;
}

PyObject* from_buffer(PyObject*, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[3];
    bind_arguments("from_buffer", {"buffer", "dtype", "device"}, 2, 3, arguments, count, names,
                   bound);
    Device& device = host_device(bound[2], "from_buffer");
    TensorMeta meta;
    meta.dtype = to_dtype(bound[1]);
    OwnedBuffer buffer = acquire(bound[0], PyBUF_STRIDES);
    meta.layout = layout_of(*buffer, meta.dtype);
    meta.data = static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(buffer->buf));
    const auto [low, high] = reach_of(meta.layout);
    const bool empty = meta.layout.element_count() == 0;
    const std::int64_t size = itemsize_of(meta.dtype);
    const std::uint64_t bytes = empty ? 0 : static_cast<std::uint64_t>((high - low + 1) * size);
    meta.storage =
        Storage::borrow(memory_of(device), meta.data + static_cast<DeviceAddress>(low * size),
                        bytes, bytes, buffer->readonly == 0, buffer.get(), &release_owner);
    static_cast<void>(buffer.release());
    return wrapped(std::move(meta));
  });
}

const PyMethodDef kFunctions[] = {
    method("map_buffer", &map_buffer,
           "map_buffer(buffer, device=None, writable=False): the bytes of any buffer as a uint8 "
           "tensor, in place; read-only unless `writable`."),
    method("from_buffer", &from_buffer,
           "from_buffer(buffer, dtype, device=None): a strided buffer as a tensor, in place."),
};

}  // namespace

MethodTable buffer_functions() { return {kFunctions, std::size(kFunctions)}; }

int tensor_get_buffer(PyObject* self, Py_buffer* buffer, int flags) {
  if (buffer == nullptr) {
    PyErr_SetString(PyExc_BufferError, "buffer: null view");
    return -1;
  }
  buffer->obj = nullptr;
  return guarded_status([&] { fill_buffer(self, buffer, flags); });
}

void tensor_release_buffer(PyObject*, Py_buffer* buffer) {
  delete[] static_cast<Py_ssize_t*>(buffer->internal);
  buffer->internal = nullptr;
}

}  // namespace nbx::python
