// Where blocks start: the block that holds an address, in a few steps whatever the sizes.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/large_pages.h"

namespace nbx {

/// For each page of 64 KiB the first block that starts in it, and bitmaps of the pages that have
/// one. Memory comes when a page is written, so that a large range of addresses costs little.
class BlockStarts {
 public:
  static constexpr std::uint32_t kPageBits = 16;

  BlockStarts() = default;
  /// For `bytes` of addresses. Throws std::bad_alloc.
  explicit BlockStarts(std::uint64_t bytes)
      : first_(make<std::uint32_t>((bytes >> kPageBits) + 1)) {
    std::uint64_t places = (bytes >> kPageBits) + 1;
    for (auto& level : levels_) {
      places = (places + 63) / 64;
      level = make<std::uint64_t>(places);
    }
    places_ = (bytes >> kPageBits) + 1;
  }

  /// For starts that change often, in no order.
  void prefer_large_pages() noexcept {
    nbx::prefer_large_pages(first_.get(), places_ * sizeof(std::uint32_t));
  }
  [[nodiscard]] std::uint32_t operator[](std::uint64_t page) const noexcept { return first_[page]; }
  /// Brings what `set` and `clear` write.
  void fetch(std::uint64_t page) const noexcept { __builtin_prefetch(&first_[page], 1); }
  void set(std::uint64_t page, std::uint32_t block) noexcept {
    first_[page] = block;
    for (auto& level : levels_) {
      level[page / 64] |= std::uint64_t{1} << (page % 64);
      page /= 64;
    }
  }
  void clear(std::uint64_t page) noexcept {
    first_[page] = 0;
    for (auto& level : levels_) {
      level[page / 64] &= ~(std::uint64_t{1} << (page % 64));
      if (level[page / 64] != 0) return;
      page /= 64;
    }
  }
  /// The last page up to `page` in which a block starts; the first page always has one.
  [[nodiscard]] std::uint64_t last_up_to(std::uint64_t page) const noexcept {
    std::uint64_t place = page;
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      const std::uint64_t below =
          levels_[level][place / 64] & (~std::uint64_t{0} >> (63 - place % 64));
      if (below != 0) {
        place = place / 64 * 64 + top(below);
        while (level-- > 0) place = place * 64 + top(levels_[level][place]);
        return place;
      }
      place /= 64;
      if (place == 0) break;
      --place;  // words before this one
    }
    return 0;
  }
  [[nodiscard]] BlockStarts copy() const {
    if (places_ == 0) return BlockStarts();
    BlockStarts result((places_ - 1) << kPageBits);
    for (std::uint64_t page = 0; page < places_; ++page) {
      // Reading an unwritten page would not give it memory, but takes as long as the range is
      // large; the lowest bitmap says what to read.
      if (page % 64 == 0 && levels_[0][page / 64] == 0) {
        page += 63;
        continue;
      }
      if (first_[page] != 0) result.set(page, first_[page]);
    }
    return result;
  }

 private:
  struct Free {
    void operator()(void* pointer) const noexcept { std::free(pointer); }
  };
  template <class T>
  using Array = std::unique_ptr<T[], Free>;
  template <class T>
  [[nodiscard]] static Array<T> make(std::uint64_t count) {
    Array<T> array(static_cast<T*>(std::calloc(count, sizeof(T))));
    if (array == nullptr) throw std::bad_alloc();
    return array;
  }
  [[nodiscard]] static std::uint64_t top(std::uint64_t word) noexcept {
    return static_cast<std::uint64_t>(63 - __builtin_clzll(word));
  }

  std::uint64_t places_ = 0;
  Array<std::uint32_t> first_;
  std::array<Array<std::uint64_t>, 5> levels_;
};

}  // namespace nbx
