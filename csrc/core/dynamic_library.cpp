#include "core/dynamic_library.h"

#include <dlfcn.h>

namespace nbx {

DynamicLibrary::DynamicLibrary(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      reason_.clear();
      return;
    }
    const char* text = dlerror();
    reason_ = text != nullptr ? text : name;
  }
}

void* DynamicLibrary::symbol(const char* name) const noexcept {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

}  // namespace nbx
