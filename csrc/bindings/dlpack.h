// The C structures of DLPack 1.1, an ABI between array libraries, restated from its specification.
#pragma once

#include <cstdint>

namespace nbx::dlpack {

inline constexpr std::uint32_t kMajor = 1;
inline constexpr std::uint32_t kMinor = 1;
inline constexpr std::uint64_t kReadOnly = 1;  // flag bits of ManagedTensorVersioned
inline constexpr std::uint64_t kCopied = 2;

enum DeviceType : std::int32_t {
  kCpu = 1,
  kCuda = 2,
  kCudaHost = 3,
  kMetal = 8,
  kRocm = 10,
  kRocmHost = 11,
  kExtension = 12,
};

struct Device {
  std::int32_t type;
  std::int32_t ordinal;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // elements; null means row-major before version 1.2
  std::uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed* self);
};

struct ManagedVersioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(ManagedVersioned* self);
  std::uint64_t flags;
  Tensor tensor;
};

}  // namespace nbx::dlpack
