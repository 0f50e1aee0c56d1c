// Letting go of the Python lock, and taking it back from threads that outlive the interpreter.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <unistd.h>

namespace nbx::python {

/// Up to Python 3.13 a thread that asks for the lock during finalization is ended by an unwinding
/// that no destructor may let through, which would end the whole process with an error. Such a
/// thread stays here instead, as newer Pythons do by themselves. Also around calls of Python code
/// from frames with destructors: the code may let go of the lock, and want it back.
template <class Function>
auto take_lock(Function function) noexcept {
  try {
    return function();
  } catch (...) {
    while (true) pause();
  }
}

inline void retake_lock(PyThreadState* state) noexcept {
  take_lock([state] { PyEval_RestoreThread(state); });
}

/// Lets other Python threads run while it lives, if asked to.
class Unlocked {
 public:
  explicit Unlocked(bool release = true) noexcept
      : state_(release ? PyEval_SaveThread() : nullptr) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() {
    if (state_ != nullptr) retake_lock(state_);
  }

 private:
  PyThreadState* state_;
};

/// Holds the Python lock while it lives, on any thread.
class Locked {
 public:
  Locked() noexcept : state_(take_lock([] { return PyGILState_Ensure(); })) {}
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

}  // namespace nbx::python
