// What the files of `_core.Op` and `_core.Plan` share: bound calls, their keys, cached plans.
#pragma once

#include "bindings/hot.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "launch/plan.h"

namespace nbx::python {

/// How a parameter is bound; the same numbers stand in python/nbxtensor/ops/signature.py.
enum class ParameterKind : int {
  kTensor,
  kOptionalTensor,
  kTensorList,
  kOperand,          // tensor or number; of a number only the type is in the key
  kOptionalOperand,  // the same, or None
  kScalar,           // number or None, known to kernels only when they run
  kStatic,           // hashable value, part of the key
  kWritten,          // tensor that the op writes
};

/// A runtime scalar that must lie in a range; checked at each call before anything is allocated.
struct ScalarGuard {
  std::uint16_t index;
  std::int64_t low;
  std::uint64_t high;
  std::string name;
  ErrorKind error = ErrorKind::kIndex;
  std::string reason;  // why it must lie there; empty for a count or a place
};

struct PlanRecord {
  Plan plan;
  std::vector<std::uint16_t> written;  // argument tensors that steps write
  std::vector<ScalarGuard> guards;
  bool release_lock = false;  // long enough to let other Python threads run meanwhile
  bool only_launches = false;
};

/// The record inside a `_core.Plan` object; null with TypeError set if it is none.
[[nodiscard]] std::shared_ptr<PlanRecord> plan_record(PyObject* plan) noexcept;
void bind_plan(PyObject* module);

/// Trivially copyable items, inline for ordinary calls.
template <class T, std::size_t kInline>
class InlineVector {
 public:
  InlineVector() noexcept = default;
  InlineVector(const InlineVector&) = delete;
  InlineVector& operator=(const InlineVector&) = delete;

  void push_back(const T& item) { *extend(1) = item; }
  void append(const void* items, std::size_t count) {
    if (count != 0) std::memcpy(extend(count), items, count * sizeof(T));
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* data() noexcept { return items_; }
  [[nodiscard]] const T* data() const noexcept { return items_; }
  [[nodiscard]] T* begin() noexcept { return items_; }
  [[nodiscard]] T* end() noexcept { return items_ + size_; }
  [[nodiscard]] const T* begin() const noexcept { return items_; }
  [[nodiscard]] const T* end() const noexcept { return items_ + size_; }
  T& operator[](std::size_t i) noexcept { return items_[i]; }

 private:
  T* extend(std::size_t count) {
    if (size_ + count > capacity_) [[unlikely]]
      grow(count);
    T* end = items_ + size_;
    size_ += count;
    return end;
  }
  __attribute__((noinline, cold)) void grow(std::size_t count) {
    capacity_ = 2 * capacity_ + count;
    auto larger = std::make_unique<T[]>(capacity_);
    std::memcpy(larger.get(), items_, size_ * sizeof(T));
    overflow_ = std::move(larger);
    items_ = overflow_.get();
  }

  alignas(T) unsigned char inline_[kInline * sizeof(T)];
  T* items_ = reinterpret_cast<T*>(inline_);
  std::size_t size_ = 0;
  std::size_t capacity_ = kInline;
  std::unique_ptr<T[]> overflow_;
};

using Key = InlineVector<std::uint64_t, 120>;

struct Parameter {
  PyObject* name;           // interned
  PyObject* default_value;  // null: required
  ParameterKind kind;
  std::vector<PyObject*> aliases;  // interned
};

inline constexpr std::size_t kMaximumParameters = 16;

/// The signature and switches of an op.
struct Signature {
  std::string name;
  std::vector<Parameter> parameters;
  std::size_t positional = 0;                // parameters that may be given by position
  bool is_operator = false;                  // answers NotImplemented to foreign operands
  bool is_reflected = false;                 // the first two arguments arrive swapped
  std::size_t written = kMaximumParameters;  // the parameter that is written, if any
};

/// One call, bound: what the cache looks up and what run_plan takes. Holds references only to what
/// it made itself; the caller's arguments outlive it.
struct BoundCall {
  PyObject* values[kMaximumParameters];  // borrowed, or owned by `owned`
  InlineVector<PyObject*, 4> owned;      // numbers of foreign types, clones of overlapping inputs
  InlineVector<TensorMeta*, 12> tensors;
  InlineVector<PyObject*, 12> objects;  // of the tensors
  InlineVector<Scalar, 6> scalars;
  DeviceMemory* memory = nullptr;
  Key key;

  BoundCall() noexcept = default;
  BoundCall(const BoundCall&) = delete;
  BoundCall& operator=(const BoundCall&) = delete;
  ~BoundCall() {
    for (PyObject* object : owned) Py_DECREF(object);
  }
};

enum class BindResult { kBound, kForeign, kFailed };

/// Binds arguments to parameters and builds the key. kForeign: a tensor parameter got an object of
/// another type, whose position is in `foreign` (no exception set). kFailed: exception set.
[[nodiscard]] BindResult bind_call(const Signature& signature, PyObject* const* arguments,
                                   std::size_t positional, PyObject* keyword_names,
                                   std::uint64_t generation, BoundCall& call, std::size_t* foreign);

/// Reads a signature from (name, kind, default or ..., aliases) tuples; throws what pybind11
/// throws.
[[nodiscard]] Signature read_signature(PyObject* name, PyObject* parameters, int positional,
                                       bool is_operator, bool is_reflected);

/// A number of Python as the core knows it; false with an exception set (OverflowError).
[[nodiscard]] bool scalar_from_number(PyObject* number, Scalar* scalar) noexcept;

}  // namespace nbx::python
