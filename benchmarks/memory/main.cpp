// Host cost of the allocator as one JSON object: nanoseconds unless the name says otherwise.
// Arguments name the parts to run; none runs all.
#include <cstdlib>
#include <cstring>

#include "harness.h"

int main(int count, char** arguments) {
  struct Part {
    const char* name;
    void (*run)(bench::Report* report);
  };
  const Part parts[] = {{"pairs", bench::time_pairs},
                        {"threads", bench::time_threads},
                        {"holes", bench::time_holes},
                        {"observers", bench::time_observers}};
  for (int i = 1; i < count; ++i) {
    bool known = false;
    for (const Part& part : parts) known = known || std::strcmp(part.name, arguments[i]) == 0;
    if (!known) {
      std::fprintf(stderr, "unknown part '%s'; give pairs, threads, holes or observers\n",
                   arguments[i]);
      return 2;
    }
  }
  if (setenv("NBX_SIM_DEVICES", "2", 1) != 0) return 1;
  bench::Report report;
  for (const Part& part : parts) {
    bool wanted = count == 1;
    for (int i = 1; i < count; ++i) wanted = wanted || std::strcmp(part.name, arguments[i]) == 0;
    if (wanted) part.run(&report);
  }
  report.print();
  return 0;
}
