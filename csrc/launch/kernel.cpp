#include "launch/kernel.h"

#include <cstdio>
#include <cstdlib>
#include <map>

namespace nbx {
namespace {

struct Record {
  HostKernel kernel;
  const char* file;
  int line;
};

// Filled by static initialisers of other files, so it is made on first use.
std::map<std::string, Record>& records() {
  static std::map<std::string, Record> table;
  return table;
}

}  // namespace

HostKernelRegistration::HostKernelRegistration(const char* name, HostKernel kernel,
                                               const char* file, int line) {
  const auto [found, inserted] = records().try_emplace(name, Record{kernel, file, line});
  if (!inserted) {
    std::fprintf(stderr, "nbxtensor: host kernel '%s' is registered twice: %s:%d and %s:%d\n", name,
                 found->second.file, found->second.line, file, line);
    std::abort();
  }
}

HostKernel find_host_kernel(const std::string& name) noexcept {
  const auto found = records().find(name);
  return found == records().end() ? nullptr : found->second.kernel;
}

std::vector<std::string> host_kernel_names() {
  std::vector<std::string> names;
  names.reserve(records().size());
  for (const auto& [name, record] : records()) names.push_back(name);
  return names;
}

}  // namespace nbx
