// Arguments of a kernel's call: what they make of the specialisation key, and the bits to pass.
#pragma once

#include "bindings/hot.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings/op.h"
#include "launch/device_kernel.h"

namespace nbx::python {

/// The class that new tensors have (tensor_type.cpp): nearly every tensor is of exactly this type.
extern PyTypeObject* tensor_class;

enum class Annotation : std::uint8_t { kNone, kInteger, kReal, kBoolean, kPointer };

struct KernelParameter {
  PyObject* name;           // interned
  PyObject* default_value;  // null: required
  bool is_constexpr;
  bool is_const;  // a pointer that is only read, said by an annotation
  bool specialize;
  bool align;
  bool reads;  // declared: the kernel does not write what it points to
  Annotation annotation;
  std::string type;  // of the annotation
};

/// What an argument is to the compiler.
enum class Tag : std::uint8_t {
  kPointer = 1,
  kInt32,
  kInt64,
  kUnsigned64,
  kOne,  // compiled in, as is None
  kBoolean,
  kReal,
  kNone,
  kTuple,
  kConstant,  // compiled in: an object that stands for a value of the language
  kAnnotated,
};

struct Argument {
  Tag tag;
  std::uint8_t dtype = 0;  // of a pointer: a place in the table of pointer types
  bool divisible = false;
  bool one = false;      // of an annotated integer
  bool near = false;     // addresses less than 2 GiB
  bool boolean = false;  // an annotated integer that was a bool
  std::uint64_t bits = 0;

  [[nodiscard]] std::uint64_t key() const noexcept {
    return static_cast<std::uint64_t>(tag) | std::uint64_t{dtype} << 8 |
           std::uint64_t{divisible} << 16 | std::uint64_t{one} << 17 | std::uint64_t{near} << 18 |
           std::uint64_t{boolean} << 19;
  }
  [[nodiscard]] bool passed() const noexcept {
    return tag != Tag::kOne && tag != Tag::kNone && tag != Tag::kConstant;
  }
};

struct KernelOperand {
  const TensorMeta* tensor;
  std::uint16_t parameter;
};

inline constexpr std::size_t kMaximumKernelParameters = 96;
inline constexpr std::size_t kMaximumOptions = 16;

struct KernelSignature {
  std::string name;
  std::vector<KernelParameter> parameters;
  bool declares_reads = false;
};

/// One call: its arguments in the order of the parameters, options by name, key and words.
struct KernelCallState {
  explicit KernelCallState(const KernelSignature& of) noexcept : signature(of) {}
  KernelCallState(const KernelCallState&) = delete;
  KernelCallState& operator=(const KernelCallState&) = delete;
  ~KernelCallState();

  const KernelSignature& signature;
  PyObject* values[kMaximumKernelParameters];  // borrowed
  PyObject* option_names[kMaximumOptions];     // borrowed or in `owned`, interned, in order
  PyObject* option_values[kMaximumOptions];    // borrowed
  std::size_t option_count = 0;
  Key key;
  InlineVector<std::uint64_t, 64> bits;  // of what is passed, tuples one by one
  InlineVector<KernelOperand, 32> operands;
  Device* device = nullptr;
  std::size_t first = 0;             // the parameter that said which device
  InlineVector<PyObject*, 4> owned;  // made on the way
  InlineVector<PyObject*, 16> kept;  // borrowed: what the key knows by identity
};

/// Binds arguments to parameters. Throws PythonError with TypeError set.
void bind_kernel_call(KernelCallState& call, PyObject* const* arguments, std::size_t positional,
                      PyObject* keyword_names);
/// Fills key, bits, operands and device. Throws Error, or PythonError.
void read_kernel_call(KernelCallState& call);
/// (types, constants, nested, hints, specialized, options): what the compiler is told of the call.
/// Throws PythonError.
[[nodiscard]] PyObject* describe_kernel_call(const KernelCallState& call);
/// "kernel 'add': parameter 'x' "
[[nodiscard]] std::string place_of(const KernelSignature& signature, std::size_t parameter);

/// What answers for objects that are no tensors and no numbers, None for unknown ones; of other
/// libraries' tensors ("pointer", address, type, device), of constants ("constant", value).
extern PyObject* foreign_argument;

}  // namespace nbx::python
