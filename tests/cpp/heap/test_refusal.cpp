#include "heap/refusal.h"

#include <gtest/gtest.h>

namespace nbx {
namespace {

constexpr std::uint64_t kMega = 1 << 20;

RefusalFigures figures() {
  RefusalFigures f;
  f.device = "sim:0";
  f.tag = "sim:0/device";
  f.requested = f.granted = 40 * kMega;
  f.live = 50 * kMega;
  f.driver_total = 64 * kMega;
  f.driver_free = 14 * kMega;
  f.external = 0;
  return f;
}

std::string text(const RefusalFigures& f) { return refusal(f).what(); }

bool has(const RefusalFigures& f, const std::string& name) {
  const Error error = refusal(f);
  for (const auto& entry : error.figures()) {
    if (entry.first == name) return true;
  }
  return false;
}

TEST(Refusal, EachCauseHasARemedyThatWouldWork) {
  RefusalFigures f = figures();
  EXPECT_NE(text(f).find("release at least 26 MiB on sim:0"), std::string::npos) << text(f);

  f = figures();
  f.over_budget = true;
  f.limit = 60 * kMega;
  f.held = 50 * kMega;
  EXPECT_NE(text(f).find("release 30 MiB under sim:0/device"), std::string::npos) << text(f);
  // The budget was set below what was held.
  f.limit = 45 * kMega;
  EXPECT_NE(text(f).find("release 45 MiB under sim:0/device"), std::string::npos) << text(f);
  f.limit = 30 * kMega;
  f.held = 10 * kMega;
  EXPECT_NE(text(f).find("to at least 50 MiB"), std::string::npos) << text(f);
  // Raising a budget beyond the device would change nothing.
  f.requested = f.granted = 65 * kMega;
  EXPECT_EQ(text(f).find("raise"), std::string::npos) << text(f);
  EXPECT_NE(text(f).find("at most 64 MiB"), std::string::npos) << text(f);

  f = figures();
  f.parked = 45 * kMega;
  f.live = 5 * kMega;
  f.largest_hole = 20 * kMega;
  EXPECT_NE(text(f).find("in pieces"), std::string::npos) << text(f);
  EXPECT_NE(text(f).find("at most 20 MiB"), std::string::npos) << text(f);

  f = figures();
  f.live = 10 * kMega;
  f.external = 40 * kMega;
  EXPECT_NE(text(f).find("40 MiB are held by others"), std::string::npos) << text(f);
}

TEST(Refusal, UnknownFiguresAreLeftOut) {
  RefusalFigures f = figures();
  for (const char* name :
       {"requested", "live", "pool_cached", "pool_blocks", "pending", "largest_hole", "driver_free",
        "driver_total", "shortfall", "external", "would_fit", "device", "tag", "parked"}) {
    EXPECT_TRUE(has(f, name)) << name;
  }
  EXPECT_FALSE(has(f, "budget"));
  f.driver_free.reset();
  f.driver_total.reset();
  f.external.reset();
  for (const char* name : {"driver_free", "driver_total", "shortfall", "external", "would_fit"}) {
    EXPECT_FALSE(has(f, name)) << name;
  }
  EXPECT_FALSE(text(f).empty());
}

}  // namespace
}  // namespace nbx
