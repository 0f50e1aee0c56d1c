// DLPack in both directions, versioned and legacy.
#include <memory>
#include <utility>
#include <vector>

#include "bindings/dlpack.h"
#include "bindings/tensor_copy.h"
#include "bindings/tensor_methods.h"
#include "core/error.h"

namespace nbx::python {
namespace {

struct TypeCode {
  DType dtype;
  dlpack::DataType code;
};
constexpr TypeCode kTypeCodes[] = {
#define NBX_TYPE_CODE(name, code, bits, lanes) {DType::name, {code, bits, lanes}},
    NBX_DTYPE_DLPACK(NBX_TYPE_CODE)
#undef NBX_TYPE_CODE
};

dlpack::Device device_of(const Device& device) noexcept {
  switch (device.kind()) {
    case DeviceKind::kCpu:
      return {dlpack::kCpu, 0};
    case DeviceKind::kCuda:
      return {dlpack::kCuda, device.ordinal()};
    case DeviceKind::kHip:
      return {dlpack::kRocm, device.ordinal()};
    case DeviceKind::kMetal:
      return {dlpack::kMetal, device.ordinal()};
    case DeviceKind::kSim:
      break;
  }
  return {dlpack::kExtension, device.ordinal()};
}

Device& device_from(const dlpack::Device& device) {
  switch (device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
    case dlpack::kRocmHost:
      return open_device(DeviceKind::kCpu, 0);
    case dlpack::kCuda:
      return open_device(DeviceKind::kCuda, device.ordinal);
    case dlpack::kRocm:
      return open_device(DeviceKind::kHip, device.ordinal);
    case dlpack::kMetal:
      return open_device(DeviceKind::kMetal, device.ordinal);
    case dlpack::kExtension:
      return open_device(DeviceKind::kSim, device.ordinal);
    default:
      throw Error(ErrorKind::kBuffer, "from_dlpack: device type " + std::to_string(device.type) +
                                          " is not known; copy to the cpu first");
  }
}

/// What an exported capsule keeps alive: a share of the storage, not the Python object.
template <class ManagedTensor>
struct Exported {
  ManagedTensor managed{};
  TensorMeta meta;
};

template <class ManagedTensor>
void delete_exported(ManagedTensor* self) {
  delete static_cast<Exported<ManagedTensor>*>(self->context);
}

template <class ManagedTensor>
ManagedTensor* exported(const TensorMeta& meta) {
  auto owner = std::make_unique<Exported<ManagedTensor>>();
  owner->meta = meta;
  ManagedTensor& managed = owner->managed;
  dlpack::Tensor& tensor = managed.tensor;
  // The consumer sees the address of element 0; alignment promises are ours to keep, not bytes.
  tensor.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(meta.data));
  tensor.device = device_of(meta.device());
  tensor.rank = meta.layout.rank();
  tensor.shape = owner->meta.layout.shape();
  tensor.strides = owner->meta.layout.strides();
  tensor.byte_offset = 0;
  for (const TypeCode& known : kTypeCodes) {
    if (known.dtype == meta.dtype) tensor.dtype = known.code;
  }
  managed.context = owner.get();
  managed.deleter = &delete_exported<ManagedTensor>;
  return &owner.release()->managed;
}

constexpr const char* kLegacyName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

/// Runs when nobody took the tensor out of the capsule.
template <class ManagedTensor>
void drop_capsule(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  auto* managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, name));
  if (managed->deleter != nullptr) managed->deleter(managed);
}

PyObject* make_capsule(const TensorMeta& meta, bool versioned, bool copied) {
  if (versioned) {
    auto* managed = exported<dlpack::ManagedVersioned>(meta);
    managed->major = dlpack::kMajor;
    managed->minor = dlpack::kMinor;
    managed->flags =
        (meta.storage->writable() ? 0 : dlpack::kReadOnly) | (copied ? dlpack::kCopied : 0);
    PyObject* capsule = PyCapsule_New(managed, kVersionedName, [](PyObject* dropped) {
      drop_capsule<dlpack::ManagedVersioned>(dropped, kVersionedName);
    });
    if (capsule == nullptr) managed->deleter(managed);
    return Owned(capsule).detach();
  }
  if (!meta.storage->writable()) {
    throw Error(ErrorKind::kBuffer,
                "__dlpack__: read-only memory needs a consumer of DLPack 1.0 or newer "
                "(max_version), or a copy");
  }
  auto* managed = exported<dlpack::Managed>(meta);
  PyObject* capsule = PyCapsule_New(managed, kLegacyName, [](PyObject* dropped) {
    drop_capsule<dlpack::Managed>(dropped, kLegacyName);
  });
  if (capsule == nullptr) managed->deleter(managed);
  return Owned(capsule).detach();
}

/// The major version that a consumer understands; 0 when it asked for none.
std::int64_t major_version(PyObject* version) {
  if (version == nullptr || version == Py_None) return 0;
  const Extents parts = to_extents(version, "__dlpack__: max_version");
  return parts.count > 0 ? parts.values[0] : 0;
}

/// A consumer's stream. The work is waited for on the host, so any valid one will do.
void check_stream(PyObject* stream, const Device& device) {
  if (stream == nullptr || stream == Py_None) return;
  const std::int64_t given = to_integer(stream, "__dlpack__: stream");
  const bool has_streams = device.kind() == DeviceKind::kCuda || device.kind() == DeviceKind::kHip;
  // 0 would be one of two streams on cuda, so the standard leaves it out there.
  const bool allowed =
      given == -1 ||
      (has_streams && (given > 0 || (given == 0 && device.kind() == DeviceKind::kHip)));
  if (allowed) return;
  throw Error(ErrorKind::kBuffer, "__dlpack__: stream is " + std::to_string(given) + "; " +
                                      device.name() + " takes None" +
                                      (has_streams ? ", -1 or a stream's number" : " or -1"));
}

PyObject* to_dlpack(PyObject* self, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&] {
    PyObject* bound[4];
    bind_arguments("__dlpack__", {"stream", "max_version", "dl_device", "copy"}, 0, 0, arguments,
                   count, names, bound);
    TensorMeta meta = meta_of(self);
    // A consumer knows neither of epochs nor of sleep.
    meta.storage->require_awake();
    check_stream(bound[0], meta.device());
    const bool may_copy = bound[3] == nullptr || bound[3] == Py_None;
    const bool must_copy = to_boolean(bound[3], false);
    bool copied = false;
    if (meta.dtype == DType::int4) {
      throw Error(ErrorKind::kBuffer,
                  "__dlpack__: packed int4 is not exchanged; convert to int8 or view as uint8");
    }
    if (bound[2] != nullptr && bound[2] != Py_None) {
      const Extents wanted = to_extents(bound[2], "__dlpack__: dl_device");
      const dlpack::Device here = device_of(meta.device());
      const bool same =
          wanted.count == 2 && wanted.values[0] == here.type && wanted.values[1] == here.ordinal;
      if (!same) {
        if (wanted.count != 2 || wanted.values[0] != dlpack::kCpu || (!may_copy && !must_copy)) {
          throw Error(ErrorKind::kBuffer, "__dlpack__: the tensor lives on " +
                                              meta.device().name() +
                                              "; only a copy to the cpu (1, 0) is offered");
        }
        meta = converted(meta, meta.dtype, open_device(DeviceKind::kCpu, 0), true);
        copied = true;
      }
    }
    if (must_copy && !copied) {
      meta = cloned(meta);
      copied = true;
    }
    if (!meta.storage->is_idle()) {
      const Unlocked unlocked;
      meta.storage->wait();
    }
    return make_capsule(meta, major_version(bound[1]) >= 1, copied);
  });
}

PyObject* dlpack_device(PyObject* self, FastArguments arguments, Py_ssize_t count,
                        PyObject* names) {
  return guarded([&] {
    bind_arguments("__dlpack_device__", {}, 0, 0, arguments, count, names, nullptr);
    const dlpack::Device device = device_of(meta_of(self).device());
    const std::int64_t pair[] = {device.type, device.ordinal};
    return tuple_of(pair, 2);
  });
}

template <class ManagedTensor>
void release_managed(void* owner) noexcept {
  auto* managed = static_cast<ManagedTensor*>(owner);
  if (managed->deleter != nullptr) managed->deleter(managed);
}

DType dtype_from(const dlpack::DataType& given) {
  for (const TypeCode& known : kTypeCodes) {
    if (known.code.code == given.code && known.code.bits == given.bits && given.lanes == 1 &&
        known.dtype != DType::int4) {
      return known.dtype;
    }
  }
  throw Error(ErrorKind::kBuffer, "from_dlpack: dtype (code " + std::to_string(given.code) + ", " +
                                      std::to_string(given.bits) + " bits, " +
                                      std::to_string(given.lanes) +
                                      " lanes) has no counterpart here");
}

/// A borrowed tensor over a producer's memory. The producer's deleter runs with the last view.
template <class ManagedTensor>
TensorMeta borrowed(ManagedTensor* managed, bool writable) {
  const dlpack::Tensor& tensor = managed->tensor;
  TensorMeta meta;
  meta.dtype = dtype_from(tensor.dtype);
  meta.layout.resize(tensor.rank);
  for (std::int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] < 0) {
      throw Error(ErrorKind::kBuffer, "from_dlpack: the producer's shape " +
                                          shape_text(tensor.shape, tensor.rank) +
                                          " has a negative extent");
    }
    meta.layout.shape()[i] = tensor.shape[i];
    if (tensor.strides != nullptr) meta.layout.strides()[i] = tensor.strides[i];
  }
  if (tensor.strides == nullptr) meta.layout.set_contiguous_strides();
  const auto base = static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(tensor.data));
  meta.data = base + tensor.byte_offset;
  const auto [low, high] = reach_of(meta.layout);
  const std::int64_t size = itemsize_of(meta.dtype);
  const bool empty = meta.layout.element_count() == 0;
  std::int64_t span = 0;
  if (__builtin_sub_overflow(high, low, &span) || __builtin_add_overflow(span, 1, &span) ||
      __builtin_mul_overflow(span, size, &span) || (!empty && tensor.data == nullptr)) {
    throw Error(ErrorKind::kBuffer,
                "from_dlpack: the producer's shape " +
                    shape_text(meta.layout.shape(), meta.layout.rank()) + " and strides " +
                    shape_text(meta.layout.strides(), meta.layout.rank()) +
                    (tensor.data == nullptr ? " come without memory" : " pass 2^63 - 1 bytes"));
  }
  const std::uint64_t bytes = empty ? 0 : static_cast<std::uint64_t>(span);
  // A tensor of this library that comes back is counted where it was made.
  const bool is_ours = managed->deleter == &delete_exported<ManagedTensor>;
  meta.storage = Storage::borrow(
      memory_of(device_from(tensor.device)), meta.data + static_cast<DeviceAddress>(low * size),
      bytes, is_ours ? 0 : bytes, writable, managed, &release_managed<ManagedTensor>);
  return meta;
}

TensorMeta take_capsule(PyObject* capsule) {
  TensorMeta meta;
  if (PyCapsule_IsValid(capsule, kVersionedName) != 0) {
    auto* managed =
        static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule, kVersionedName));
    if (managed->major != dlpack::kMajor) {
      throw Error(ErrorKind::kBuffer, "from_dlpack: version " + std::to_string(managed->major) +
                                          ".x is not understood, expected 1.x");
    }
    meta = borrowed(managed, (managed->flags & dlpack::kReadOnly) == 0);
    PyCapsule_SetName(capsule, "used_dltensor_versioned");
  } else if (PyCapsule_IsValid(capsule, kLegacyName) != 0) {
    auto* managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, kLegacyName));
    meta = borrowed(managed, true);
    PyCapsule_SetName(capsule, "used_dltensor");
  } else {
    PyErr_Clear();
    throw Error(ErrorKind::kBuffer,
                "from_dlpack: the capsule holds no tensor, or its tensor was taken already");
  }
  return meta;
}

/// Asks a producer for a capsule: with a version first, without for producers before 1.0.
PyObject* ask_producer(PyObject* producer, PyObject* device, PyObject* copy) {
  const Owned export_method(PyObject_GetAttrString(producer, "__dlpack__"));
  const Owned none(PyTuple_New(0));
  const Owned version(
      Py_BuildValue("(ii)", static_cast<int>(dlpack::kMajor), static_cast<int>(dlpack::kMinor)));
  const Owned keywords(PyDict_New());
  const auto set = [&](const char* name, PyObject* value) {
    if (value == nullptr || value == Py_None) return;
    if (PyDict_SetItemString(keywords.get(), name, value) < 0) throw PythonError{};
  };
  set("max_version", version.get());
  set("copy", copy);
  set("dl_device", device);
  PyObject* capsule = PyObject_Call(export_method.get(), none.get(), keywords.get());
  if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0 &&
      (copy == nullptr || copy == Py_None)) {
    PyErr_Clear();
    capsule = PyObject_Call(export_method.get(), none.get(), nullptr);
  }
  return Owned(capsule).detach();
}

PyObject* from_dlpack(PyObject*, FastArguments arguments, Py_ssize_t count, PyObject* names) {
  return guarded([&]() -> PyObject* {
    PyObject* bound[3];
    bind_arguments("from_dlpack", {"x", "device", "copy"}, 1, 1, arguments, count, names, bound);
    const bool moves = bound[1] != nullptr && bound[1] != Py_None;
    const bool must_copy = to_boolean(bound[2], false);
    const bool may_copy = bound[2] == nullptr || bound[2] == Py_None || must_copy;
    TensorMeta meta;
    if (is_tensor(bound[0])) {
      meta = must_copy ? cloned(meta_of(bound[0])) : meta_of(bound[0]);
    } else if (PyCapsule_CheckExact(bound[0])) {
      meta = take_capsule(bound[0]);
      if (must_copy) meta = cloned(meta);
    } else {
      const Owned capsule(ask_producer(bound[0], nullptr, bound[2]));
      meta = take_capsule(capsule.get());
    }
    if (moves && &to_device(bound[1]) != &meta.device()) {
      if (!may_copy) {
        throw Error(ErrorKind::kValue, "from_dlpack: moving from " + meta.device().name() + " to " +
                                           to_device(bound[1]).name() +
                                           " needs a copy, and copy=False forbids it");
      }
      meta = converted(meta, meta.dtype, to_device(bound[1]), false);
    }
    return wrapped(std::move(meta));
  });
}

const PyMethodDef kMethods[] = {
    method("__dlpack__", &to_dlpack,
           "__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None): a capsule."),
    method("__dlpack_device__", &dlpack_device, "(type, index) of the device, as DLPack counts."),
};

const PyMethodDef kFunctions[] = {
    method("from_dlpack", &from_dlpack,
           "from_dlpack(x, /, *, device=None, copy=None): the memory of another array library."),
};

}  // namespace

MethodTable interchange_methods() { return {kMethods, std::size(kMethods)}; }
MethodTable interchange_functions() { return {kFunctions, std::size(kFunctions)}; }

}  // namespace nbx::python
