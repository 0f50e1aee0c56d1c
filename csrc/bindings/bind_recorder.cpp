// The recorder: its events as arrays, recordings, and the Python frames behind a number.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "account/recorder.h"
#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/python_error.h"
#include "core/environment.h"
#include "heap/blocks.h"
#include "storage/storage.h"

namespace nbx {
namespace {

namespace py = pybind11;
using Words = py::array_t<std::uint64_t>;

/// (words of n events as n rows of 4, their threads, how many are missing).
py::tuple arrays_of(const std::vector<RecordedRun>& runs) {
  py::ssize_t count = 0;
  std::uint64_t lost = 0;
  for (const RecordedRun& run : runs) {
    count += static_cast<py::ssize_t>(run.events.size());
    lost += run.lost;
  }
  Words words({count, py::ssize_t{4}});
  Words threads(count);
  std::uint64_t* word = words.mutable_data();
  std::uint64_t* thread = threads.mutable_data();
  for (const RecordedRun& run : runs) {
    if (run.events.empty()) continue;
    std::memcpy(word, run.events.data(), run.events.size() * sizeof(RecordedEvent));
    word += run.events.size() * 4;
    for (std::size_t i = 0; i < run.events.size(); ++i) *thread++ = run.thread;
  }
  return py::make_tuple(std::move(words), std::move(threads), lost);
}

template <class Read>
py::tuple without_python(const Read& read) {
  std::vector<RecordedRun> runs;
  {
    const py::gil_scoped_release release;
    runs = read();
  }
  return arrays_of(runs);
}

/// The fields of packed events, a column each, in the order of `RecordedFields`.
py::tuple fields_of(const py::object& packed) {
  const auto words = py::array_t<std::uint64_t, py::array::c_style>::ensure(packed);
  if (!words || words.ndim() != 2 || words.shape(1) != 4) {
    PyErr_Clear();
    throw Error(ErrorKind::kType,
                "recorder_fields: got no rows of 4 words; give what a recording "
                "gave");
  }
  const py::ssize_t count = words.shape(0);
  std::vector<py::array_t<std::int64_t>> columns;
  std::vector<std::int64_t*> next;
  for (int i = 0; i < 9; ++i) next.push_back(columns.emplace_back(count).mutable_data());
  for (py::ssize_t i = 0; i < count; ++i) {
    RecordedEvent event;
    std::memcpy(event.words, words.data(i, 0), sizeof event.words);
    const RecordedFields f = event.unpack();
    std::size_t column = 0;
    for (const std::uint64_t value :
         {f.ticks, static_cast<std::uint64_t>(f.action), std::uint64_t{f.heap}, f.address, f.bytes,
          std::uint64_t{f.stream}, std::uint64_t{f.account}, std::uint64_t{f.generation},
          std::uint64_t{f.origin}}) {
      *next[column++]++ = static_cast<std::int64_t>(value);
    }
  }
  return py::tuple(py::cast(columns));
}

/// Numbers of actions by name.
py::dict actions() {
  using Action = RecordedAction;
  py::dict result;
  const auto put = [&](const char* name, Action action) {
    result[name] = static_cast<int>(action);
  };
  put("allocate", Action::kAllocate);
  put("free", Action::kFree);
  put("free_pending", Action::kFreePending);
  put("free_completed", Action::kFreeCompleted);
  put("map", Action::kMap);
  put("unmap", Action::kUnmap);
  put("steal", Action::kSteal);
  put("refuse", Action::kRefuse);
  put("tag", Action::kTag);
  put("mark", Action::kMark);
  put("annotate", Action::kAnnotate);
  put("epoch", Action::kEpoch);
  put("sleep", Action::kSleep);
  put("wake", Action::kWake);
  return result;
}

// ---- origins -----------------------------------------------------------------------------------

constexpr int kMostFrames = 32;

/// Call stacks by value: the same stack has one number for ever. Code objects stay alive.
struct Stacks {
  using Frame = std::pair<PyObject*, int>;  // code object, line
  std::mutex mutex;
  std::unordered_map<std::string, std::uint32_t> numbers;  // by the bytes of the frames
  std::deque<std::vector<Frame>> stacks;
  std::atomic<int> frames{0};
};
Stacks& stacks() {
  static auto* const instance = std::make_unique<Stacks>().release();
  return *instance;
}
constinit thread_local bool capturing = false;

std::uint32_t number_of(const Stacks::Frame* frames, std::size_t count) {
  // Padding of a pair is not part of its value.
  std::string key;
  key.reserve(count * 12);
  for (std::size_t i = 0; i < count; ++i) {
    key.append(reinterpret_cast<const char*>(&frames[i].first), sizeof(PyObject*));
    key.append(reinterpret_cast<const char*>(&frames[i].second), sizeof(int));
  }
  Stacks& known = stacks();
  const std::lock_guard<std::mutex> guard(known.mutex);
  const auto found = known.numbers.find(key);
  if (found != known.numbers.end()) return found->second;
  if (known.stacks.size() >= RecordedEvent::kSmallMax - 1) return 0;
  known.stacks.emplace_back(frames, frames + count);
  for (std::size_t i = 0; i < count; ++i) Py_INCREF(frames[i].first);
  const auto number = static_cast<std::uint32_t>(known.stacks.size());
  known.numbers.emplace(std::move(key), number);
  return number;
}

/// Whether a frame runs code of this package: callers want to know where they asked.
bool is_ours(PyFrameObject* frame) noexcept {
  static PyObject* const key = PyUnicode_InternFromString("__name__");
#if PY_VERSION_HEX >= 0x030B0000
  PyObject* globals = PyFrame_GetGlobals(frame);
#else
  PyObject* globals = PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_globals");
#endif
  PyObject* name = globals == nullptr ? nullptr : PyDict_GetItemWithError(globals, key);
  const char* text = name != nullptr && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr;
  if (text == nullptr) PyErr_Clear();
  const bool ours = text != nullptr && std::strncmp(text, "nbxtensor", 9) == 0 &&
                    (text[9] == '.' || text[9] == '\0');
  Py_XDECREF(globals);
  return ours;
}

/// Takes the frames of this thread, innermost first, from the first one on that is not ours.
std::size_t take_frames(std::array<Stacks::Frame, kMostFrames>* frames, bool skip) noexcept {
  const auto most = static_cast<std::size_t>(stacks().frames.load(std::memory_order_relaxed));
  std::size_t count = 0;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr && count < most) {
    skip = skip && is_ours(frame);
    if (!skip) {
      PyCodeObject* code = PyFrame_GetCode(frame);
      (*frames)[count++] = {reinterpret_cast<PyObject*>(code), PyFrame_GetLineNumber(frame)};
    }
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  return count;
}

std::uint32_t capture() noexcept {
  if (capturing || Py_IsInitialized() == 0 || PyGILState_Check() == 0) return 0;
  // Frames become objects, which may collect garbage, which may free blocks.
  capturing = true;
  PyObject *kind = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &value, &trace);  // a finalizer may run while an exception is on its way
  std::array<Stacks::Frame, kMostFrames> frames;
  std::size_t count = take_frames(&frames, true);
  if (count == 0) count = take_frames(&frames, false);
  std::uint32_t number = 0;
  try {
    if (count != 0) number = number_of(frames.data(), count);
  } catch (const std::bad_alloc&) {
    number = 0;  // unknown
  }
  for (std::size_t i = 0; i < count; ++i) Py_DECREF(frames[i].first);
  PyErr_Restore(kind, value, trace);
  capturing = false;
  return number;
}

int set_origins(std::int64_t frames) {
  if (frames < 0 || frames > kMostFrames) {
    throw Error(ErrorKind::kValue, "set_origins: got " + std::to_string(frames) + "; give 0 .. " +
                                       std::to_string(kMostFrames) +
                                       " frames (NBX_MEMORY_ORIGINS sets the first value)");
  }
  const int former = stacks().frames.exchange(static_cast<int>(frames));
  Recorder::set_origin_hook(frames == 0 ? nullptr : &capture);
  return former;
}

/// The frames of a number, innermost first: (file, line, function).
std::vector<std::tuple<std::string, int, std::string>> origin_frames(std::uint32_t number) {
  std::vector<Stacks::Frame> frames;
  {
    Stacks& known = stacks();
    const std::lock_guard<std::mutex> guard(known.mutex);
    if (number != 0 && number <= known.stacks.size()) frames = known.stacks[number - 1];
  }
  std::vector<std::tuple<std::string, int, std::string>> result;
  for (const auto& [code, line] : frames) {
    const auto object = py::reinterpret_borrow<py::object>(code);
    result.emplace_back(py::str(object.attr("co_filename")).cast<std::string>(), line,
                        py::str(object.attr("co_name")).cast<std::string>());
  }
  return result;
}

// ---- names -------------------------------------------------------------------------------------

std::unordered_map<std::uint32_t, std::string> account_paths(const py::object& device) {
  try {
    DeviceMemory& memory = memory_of(python::to_device(device.ptr()));
    std::unordered_map<std::uint32_t, std::string> paths;
    for (auto& [id, path] : memory.root.pruned()) paths[id] = std::move(path);
    for (const AccountStatistics& row : memory.root.report()) paths[row.id] = row.path;
    return paths;
  } catch (const python::PythonError&) {
    throw py::error_already_set();
  }
}

/// (segments, blocks) of a device's heap, as structured arrays.
py::tuple memory_blocks(const py::object& device) {
  DeviceMemory* memory = nullptr;
  try {
    memory = &memory_of(python::to_device(device.ptr()));
  } catch (const python::PythonError&) {
    throw py::error_already_set();
  }
  HeapBlocks found;
  {
    const py::gil_scoped_release release;
    found = memory->heap.blocks();
  }
  py::array_t<SegmentView> segments(static_cast<py::ssize_t>(found.segments.size()));
  py::array_t<BlockView> blocks(static_cast<py::ssize_t>(found.blocks.size()));
  std::copy(found.segments.begin(), found.segments.end(), segments.mutable_data());
  std::copy(found.blocks.begin(), found.blocks.end(), blocks.mutable_data());
  return py::make_tuple(std::move(segments), std::move(blocks));
}

RecordedAction action_of(int action) {
  if (action < static_cast<int>(RecordedAction::kAllocate) ||
      action > static_cast<int>(RecordedAction::kWake)) {
    throw Error(ErrorKind::kValue,
                "recorder_note: got action " + std::to_string(action) + "; give 2 .. 15");
  }
  return static_cast<RecordedAction>(action);
}

void bind_notes(py::module_& module) {
  module.def(
      "recorder_note",
      [](int action, std::uint8_t heap, std::uint64_t address, std::uint64_t bytes,
         std::uint32_t stream, std::uint32_t account, std::uint32_t generation,
         std::uint32_t origin) {
        Recorder::note_now(action_of(action), heap, address, bytes, stream, account, generation,
                           origin);
      },
      py::arg("action"), py::arg("heap") = 0, py::arg("address") = 0, py::arg("bytes") = 0,
      py::arg("stream") = 0, py::arg("account") = 0, py::arg("generation") = 0,
      py::arg("origin") = 0, "Note one event of the calling thread.");
  module.def("recorder_origin", &Recorder::origin, "The number of the calling stack; 0 if off.");
  module.def("recorder_intern", &Recorder::intern, py::arg("text"), "The number of a text.");
  module.def("recorder_text", &Recorder::text_of, py::arg("number"), "The text of a number.");
  module.def("recorder_frames", &origin_frames, py::arg("origin"),
             "(file, line, function) of every frame of an origin, innermost first.");
  module.def("recorder_accounts", &account_paths, py::arg("device"),
             "The paths of a device's accounts by their numbers.");
  module.def("recorder_open_heap", &Recorder::open_heap, py::arg("name"),
             "A number for the events of one heap.");
  module.def("recorder_close_heap", &Recorder::close_heap, py::arg("heap"), "Give it back.");
  module.def("recorder_heap_name", &Recorder::heap_name, py::arg("heap"), "The name of a heap.");
}

}  // namespace

void bind_recorder(py::module_& module) {
  PYBIND11_NUMPY_DTYPE(SegmentView, address, bytes, has_gaps, single_home);
  PYBIND11_NUMPY_DTYPE(BlockView, address, bytes, requested, generation, stream, account, origin,
                       segment, state);
  module.def("memory_blocks", &memory_blocks, py::arg("device"),
             "What a device's heap holds, block by block: (segments, blocks).");
  py::class_<Recording>(module, "Recording", "Every event from its construction to stop().")
      .def(py::init<std::uint64_t>(), py::arg("limit"))
      .def(
          "take", [](Recording& self) { return without_python([&] { return self.take(); }); },
          "The events that filled up since the last call: (words, threads, missing).")
      .def(
          "stop", [](Recording& self) { return without_python([&] { return self.stop(); }); },
          "End it and return the rest.")
      .def_property_readonly("running", &Recording::running)
      .def_property_readonly("lost", &Recording::lost);
  module.def(
      "recorder_events", [] { return without_python([] { return Recorder::read(); }); },
      "What the rings of all threads hold: (words, threads, missing).");
  module.def(
      "recorder_fields", &fields_of, py::arg("words"),
      "Columns of ticks, actions, heaps, addresses, bytes, streams, accounts, generations and "
      "origins of packed events.");
  module.def("recorder_actions", &actions, "The numbers of actions by name.");
  module.def(
      "recorder_clock",
      [] {
        const RecorderClock clock = Recorder::clock();
        return py::make_tuple(clock.first_ticks, clock.first_nanoseconds, clock.last_ticks,
                              clock.last_nanoseconds, clock.wall_nanoseconds);
      },
      "(first ticks, first ns, last ticks, last ns, ns since 1970 at the last).");
  module.def("recorder_set_events", &Recorder::set_events_per_thread, py::arg("events"),
             "Set the events that a thread's ring holds; 0 turns the recorder off. Returns the "
             "former number.");
  module.def("recorder_event_limit", &Recorder::events_per_thread,
             "The events that a thread's ring holds.");
  module.def("recorder_set_origins", &set_origins, py::arg("frames"),
             "Set the Python frames that are kept of every allocation; returns the former number.");
  bind_notes(module);
  const std::int64_t frames = environment_integer("NBX_MEMORY_ORIGINS");
  if (frames != 0) set_origins(frames);
}

}  // namespace nbx
