#include "device/hip/hip.h"

#ifdef __linux__
#include <link.h>
#endif

#include <cstdlib>
#include <string>
#include <vector>

#include "core/dynamic_library.h"
#include "core/environment.h"
#include "device/gpu/table.h"
#include "device/hip/api.h"

namespace nbx::hip {
namespace {

constexpr const char* kBase = "libamdhip64.so";

/// Copies that are in the process already: two runtimes in one process do not mix.
std::vector<std::string> mapped_copies() {
  std::vector<std::string> paths;
#ifdef __linux__
  const auto note = [](dl_phdr_info* info, std::size_t, void* to) {
    const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    const std::size_t slash = path.rfind('/');
    const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
    if (name.rfind(kBase, 0) == 0) static_cast<std::vector<std::string>*>(to)->push_back(path);
    return 0;
  };
  dl_iterate_phdr(note, &paths);
#endif
  return paths;
}

std::vector<std::string> candidates() {
  const std::string chosen = environment_text("NBX_HIP_LIBRARY");
  if (!chosen.empty()) return {chosen};
  std::vector<std::string> names = mapped_copies();
  std::vector<std::string> folders = {""};
  const char* const root = std::getenv("ROCM_PATH");
  if (root != nullptr && *root != '\0') folders.push_back(std::string(root) + "/lib/");
  folders.emplace_back("/opt/rocm/lib/");
  for (const std::string& folder : folders) {
    // The unversioned name belongs to installations for development.
    for (const char* version : {".10", ".9", ".8", ".7", ".6", ""}) {
      names.push_back(folder + kBase + version);
    }
  }
  return names;
}

}  // namespace

Probe Api::load() {
  std::string reason;
  for (const std::string& name : candidates()) {
    const DynamicLibrary library{name.c_str()};
    if (!library.loaded()) {
      if (reason.empty()) reason = library.reason();
      continue;
    }
    std::string missing;
#define NBX_FIND(member, symbol, needed, ...)           \
  member = library.function<decltype(member)>(#symbol); \
  if ((needed) && member == nullptr) missing += " " #symbol;
    NBX_HIP_FUNCTIONS(NBX_FIND)
#undef NBX_FIND
    if (missing.empty()) return {Availability::kReady, 0, {}};
    return {Availability::kNoDevice, 0,
            name + " lacks" + missing + ": it is older than ROCm 6.0; install a newer one"};
  }
  return {Availability::kLibraryAbsent, 0, reason};
}

const Primitives* primitives() {
  static const Primitives table = gpu::make_table<Api>();
  return &table;
}

const Probe& probe() { return gpu::driver<Api>().probe; }

}  // namespace nbx::hip
