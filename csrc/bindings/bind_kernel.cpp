// Compiled kernels, kernels of simulated devices, and who watches launches.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/kernel_type.h"
#include "bindings/python_lock.h"
#include "bindings/translated.h"
#include "device/sim/sim.h"
#include "heap/blocking.h"
#include "launch/device_kernel.h"
#include "stream/callback.h"
#include "stream/fault.h"

namespace py = pybind11;

namespace nbx::python {
namespace {

constexpr std::array kSlotNames = {"skip",    "raw1",     "raw2",    "raw4",   "raw8",
                                   "float16", "bfloat16", "float32", "float64"};

Slot slot_named(const std::string& name) {
  for (std::size_t i = 0; i < kSlotNames.size(); ++i) {
    if (name == kSlotNames[i]) return static_cast<Slot>(i);
  }
  std::string known;
  for (const char* slot : kSlotNames) known += std::string(known.empty() ? "" : ", ") + slot;
  throw Error(ErrorKind::kValue, "slots: unknown slot '" + name + "'; known are " + known);
}

Device& device_of(const py::object& device) { return device.cast<Device&>(); }

KernelRecipe recipe_of(const std::string& name, const std::string& symbol,
                       const std::vector<std::string>& slots,
                       const std::vector<std::string>& parameters) {
  KernelRecipe recipe;
  recipe.parameters = parameters;
  recipe.name = name;
  recipe.symbol = symbol;
  for (const std::string& slot : slots) recipe.slots.push_back(slot_named(slot));
  return recipe;
}

std::shared_ptr<DeviceKernel> load_kernel(
    const py::object& device, const py::bytes& image, const std::string& name,
    const std::string& symbol, const std::vector<std::string>& slots, std::uint32_t threads,
    std::uint32_t shared_bytes, std::uint32_t cluster, bool cooperative, bool programmatic,
    std::uint64_t scratch_bytes, std::uint64_t scratch_alignment, std::uint32_t hidden_words,
    const std::vector<std::string>& parameters) {
  KernelRecipe recipe = recipe_of(name, symbol, slots, parameters);
  recipe.threads = threads;
  recipe.shared_bytes = shared_bytes;
  recipe.cluster = cluster;
  recipe.cooperative = cooperative;
  recipe.programmatic = programmatic;
  recipe.scratch_bytes = scratch_bytes;
  recipe.scratch_alignment = scratch_alignment;
  recipe.hidden_words = hidden_words;
  Device& target = device_of(device);
  const std::string bytes = image;
  const Unlocked unlocked;
  return std::make_shared<DeviceKernel>(target, bytes.data(), bytes.size(), std::move(recipe));
}

// ---- kernels of simulated devices ----------------------------------------------------------

/// A function of Python's that a simulated device runs as a kernel.
struct SimulatedKernel {
  std::string name;
  std::string image;
  Device& device;
  std::vector<Slot> slots;
  PyObject* function;
};

std::uint64_t bits_at(const void* address, std::uint32_t bytes) noexcept {
  std::uint64_t bits = 0;
  std::memcpy(&bits, address, bytes);  // of little-endian words the low bytes
  return bits;
}

void call_simulated(const SimulatedKernel& kernel, const LaunchGeometry& geometry,
                    void* const* arguments) {
  py::tuple words(kernel.slots.size());
  std::size_t at = 0;
  for (const Slot slot : kernel.slots) {
    words[at] = py::int_(bits_at(arguments[at], bytes_of(slot)));
    ++at;
  }
  const py::handle function(kernel.function);
  function(py::make_tuple(geometry.grid[0], geometry.grid[1], geometry.grid[2]), words);
}

void run_simulated(const LaunchGeometry& geometry, void* const* arguments, std::size_t /*count*/,
                   void* context) {
  const CallbackScope scope;
  const auto& kernel = *static_cast<const SimulatedKernel*>(context);
  if (Py_IsInitialized() == 0) return;
  const Locked lock;
  std::string text;
  try {
    call_simulated(kernel, geometry, arguments);
    return;
  } catch (const py::error_already_set& error) {
    text = py::str(error.value()).cast<std::string>();
  } catch (const std::exception& error) {
    text = error.what();
  }
  record_fault(kernel.device,
               Error(ErrorKind::kDevice, "kernel '" + kernel.name + "' failed: " + text));
}

void forget_simulated(SimulatedKernel* kernel) noexcept {
  const std::unique_ptr<SimulatedKernel> owned(kernel);
  {
    const BlockingScope scope;
    try {
      sim::unregister_kernel(kernel->image);
    } catch (const std::exception&) {
      return;  // never registered
    }
  }
  if (Py_IsInitialized() == 0) return;
  const Locked lock;
  Py_DECREF(kernel->function);
}

std::shared_ptr<DeviceKernel> simulate_kernel(const py::object& device, const std::string& name,
                                              py::object function,
                                              const std::vector<std::string>& slots,
                                              const std::vector<std::string>& parameters) {
  static std::atomic<std::uint64_t> number{0};
  Device& target = device_of(device);
  if (target.kind() != DeviceKind::kSim) {
    throw Error(ErrorKind::kValue, "simulate_kernel: expected a simulated device, got " +
                                       target.name() + "; load compiled code there");
  }
  KernelRecipe recipe =
      recipe_of(name, name + "#" + std::to_string(number.fetch_add(1)), slots, parameters);
  recipe.threads = 1;
  auto* simulated =
      std::make_unique<SimulatedKernel>(SimulatedKernel{name, recipe.symbol, target, {}, nullptr})
          .release();
  std::vector<std::uint32_t> bytes;
  for (const Slot slot : recipe.slots) {
    if (slot == Slot::kSkip) continue;
    simulated->slots.push_back(slot);
    bytes.push_back(bytes_of(slot));
  }
  simulated->function = function.release().ptr();
  const std::shared_ptr<SimulatedKernel> kept(simulated, &forget_simulated);
  const std::string image = recipe.symbol;
  const Unlocked unlocked;
  sim::register_kernel(image, &run_simulated, simulated, std::move(bytes));
  return std::make_shared<DeviceKernel>(target, image.data(), image.size(), std::move(recipe),
                                        kept);
}

// ---- launches -------------------------------------------------------------------------------

void launch_words(const DeviceKernel& kernel, const py::object& grid, const py::args& words) {
  if (words.size() != kernel.word_count()) {
    throw Error(ErrorKind::kValue, "launch: kernel '" + kernel.recipe().name + "' takes " +
                                       std::to_string(kernel.word_count()) + " words, got " +
                                       std::to_string(words.size()));
  }
  std::array<std::uint64_t, DeviceKernel::kMaximumWords> packed{};
  std::size_t at = 0;
  for (const Slot slot : kernel.slots()) {
    if (slot == Slot::kSkip) continue;
    const py::object word = words[at];
    packed[at] = translated([&] { return packed_number(slot, word.ptr(), "launch"); });
    ++at;
  }
  const Grid extents = translated([&] { return read_grid(grid.ptr(), "launch"); });
  Stream& stream = current_stream(kernel.device());
  const Unlocked unlocked;
  kernel.launch(stream, extents, packed.data());
}

class PythonObserver : public LaunchObserver {
 public:
  explicit PythonObserver(py::object callback) : callback_(callback.release().ptr()) {}
  ~PythonObserver() override {
    if (Py_IsInitialized() == 0) return;
    const Locked lock;
    Py_DECREF(callback_);
  }

  void on_launch(const LaunchNote& note) noexcept override {
    if (Py_IsInitialized() == 0) return;
    const Locked lock;
    PyObject* answer = PyObject_CallFunction(
        callback_, "s(KKK)sKK", note.kernel.c_str(), note.grid.x, note.grid.y, note.grid.z,
        note.stream.device().name().c_str(), static_cast<unsigned long long>(note.stream.handle()),
        static_cast<unsigned long long>(note.nanoseconds));
    if (answer == nullptr) PyErr_WriteUnraisable(callback_);
    Py_XDECREF(answer);
  }

 private:
  PyObject* callback_;
};

py::dict attributes_of(const DeviceKernel& kernel) {
  const KernelAttributes attributes = kernel.attributes();
  py::dict to;
  to["registers"] = attributes.registers;
  to["local_bytes"] = attributes.local_bytes;
  to["shared_bytes"] = attributes.shared_bytes;
  to["threads_per_block"] = attributes.threads_per_block;
  return to;
}

py::tuple slots_of(const DeviceKernel& kernel) {
  py::tuple names(kernel.slots().size());
  for (std::size_t i = 0; i < kernel.slots().size(); ++i) {
    names[i] = kSlotNames[static_cast<std::size_t>(kernel.slots()[i])];
  }
  return names;
}

void bind_device_kernel(py::module_& module) {
  py::class_<DeviceKernel, std::shared_ptr<DeviceKernel>>(
      module, "DeviceKernel", "A compiled kernel on a device; unloaded when nobody holds it.")
      .def_property_readonly("name", [](const DeviceKernel& k) { return k.recipe().name; })
      .def_property_readonly("symbol", [](const DeviceKernel& k) { return k.recipe().symbol; })
      .def_property_readonly("device",
                             [](const DeviceKernel& k) {
                               return py::reinterpret_borrow<py::object>(device_object(k.device()));
                             })
      .def_property_readonly("threads", [](const DeviceKernel& k) { return k.recipe().threads; })
      .def_property_readonly("shared_bytes",
                             [](const DeviceKernel& k) { return k.recipe().shared_bytes; })
      .def_property_readonly("slots", &slots_of)
      .def_property_readonly("attributes", &attributes_of)
      .def("launch", &launch_words, py::arg("grid"),
           "launch(grid, *words): submit the kernel on the current stream of its device; words are "
           "addresses and numbers, which nothing checks.")
      .def("__repr__", [](const DeviceKernel& k) {
        return "<kernel " + k.recipe().name + " on " + k.device().name() + ">";
      });
}

}  // namespace
}  // namespace nbx::python

namespace nbx {

void bind_kernel(py::module_& module) {
  using python::PythonObserver;
  python::bind_device_kernel(module);
  module.def("load_kernel", &python::load_kernel, py::arg("device"), py::arg("image"),
             py::arg("name"), py::arg("symbol"), py::arg("slots"), py::kw_only(),
             py::arg("threads"), py::arg("shared_bytes") = 0, py::arg("cluster") = 1,
             py::arg("cooperative") = false, py::arg("programmatic") = false,
             py::arg("scratch_bytes") = 0, py::arg("scratch_alignment") = 1,
             py::arg("hidden_words") = 0, py::arg("parameters") = std::vector<std::string>{},
             "Load a kernel of a compiled image.");
  module.def("simulate_kernel", &python::simulate_kernel, py::arg("device"), py::arg("name"),
             py::arg("function"), py::arg("slots"),
             py::arg("parameters") = std::vector<std::string>{},
             "A kernel of a simulated device that calls function(grid, words) in stream order; "
             "words are the bits of the parameters as integers.");
  py::class_<PythonObserver, std::shared_ptr<PythonObserver>>(module, "LaunchObserver",
                                                              "A callback that sees launches.")
      .def(py::init([](py::object callback) {
             auto observer = std::make_shared<PythonObserver>(std::move(callback));
             add_observer(observer);
             return observer;
           }),
           py::arg("callback"))
      .def(
          "close", [](const PythonObserver& observer) { remove_observer(&observer); },
          "Watch no longer.");
  python::bind_kernel_type(module.ptr());
}

}  // namespace nbx
