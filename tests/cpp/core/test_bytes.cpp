#include <gtest/gtest.h>

#include <random>

#include "core/bytes.h"
#include "core/error.h"

namespace nbx {
namespace {

TEST(ParseBytes, ReadsUnits) {
  EXPECT_EQ(parse_bytes("0", 0), 0u);
  EXPECT_EQ(parse_bytes("1048576", 0), 1048576u);
  EXPECT_EQ(parse_bytes("1_000", 0), 1000u);
  EXPECT_EQ(parse_bytes(" 2 GiB ", 0), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("2gb", 0), 2'000'000'000u);
  EXPECT_EQ(parse_bytes("1.5 KiB", 0), 1536u);
  EXPECT_EQ(parse_bytes(".5k", 0), 512u);
  EXPECT_EQ(parse_bytes("3 B", 0), 3u);
  EXPECT_EQ(parse_bytes("1 TiB", 0), std::uint64_t{1} << 40);
}

TEST(ParseBytes, PercentagesAreExact) {
  EXPECT_EQ(parse_bytes("80%", 1000), 800u);
  EXPECT_EQ(parse_bytes("100 %", ~std::uint64_t{0} >> 1), ~std::uint64_t{0} >> 1);
  EXPECT_EQ(parse_bytes("0%", 77), 0u);
  EXPECT_EQ(parse_bytes("12.5%", 8), 1u);
  EXPECT_EQ(parse_bytes("33%", 100), 33u);
}

TEST(ParseBytes, WholeNumbersOfUnitsRoundTrip) {
  std::random_device device;
  const auto seed = device();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t value = random() >> (1 + random() % 63);
    EXPECT_EQ(parse_bytes(std::to_string(value), 0), value);
    const std::uint64_t small = value >> 31;
    EXPECT_EQ(parse_bytes(std::to_string(small) + "MiB", 0), small << 20);
  }
}

TEST(ParseBytes, RefusesWithTheTextAndWhatIsAllowed) {
  for (const char* text :
       {"", "x", "-1", "2 apples", "1e9", "1..2", "101%", "100.1%", "GiB", "1.0000000001 GiB"}) {
    try {
      static_cast<void>(parse_bytes(text, 10));
      FAIL() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kValue) << text;
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("2 GiB"), std::string::npos);
    }
  }
  for (const char* text : {"9223372036854775808", "99999999999999999999999", "9000000 TiB"}) {
    try {
      static_cast<void>(parse_bytes(text, 10));
      FAIL() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOverflow) << text;
    }
  }
}

TEST(FormatBytes, TwoDecimalsAtMost) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes((std::uint64_t{1} << 20) - 1), "1 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{3} << 40), "3 TiB");
  EXPECT_EQ(format_bytes(~std::uint64_t{0}), "16 EiB");
}

}  // namespace
}  // namespace nbx
