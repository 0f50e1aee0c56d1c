// The peer: an allocator as caching allocators are usually built. Free blocks in an ordered set by
// size and address, live ones in a hash map by address, best fit, coalescing, all under one mutex.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bench {

class OrderedSetAllocator {
 public:
  std::uint64_t allocate(std::uint64_t bytes) {
    bytes = (std::max<std::uint64_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit;
    const std::lock_guard<std::mutex> guard(mutex_);
    Node key{0, bytes};
    auto found = free_.lower_bound(&key);
    if (found == free_.end()) found = free_.insert(grow(bytes)).first;
    Node* node = *found;
    free_.erase(found);
    if (node->bytes > bytes) {
      Node* rest = make(node->address + bytes, node->bytes - bytes);
      rest->previous = node;
      rest->next = node->next;
      if (rest->next != nullptr) rest->next->previous = rest;
      node->next = rest;
      node->bytes = bytes;
      rest->free = true;
      free_.insert(rest);
    }
    node->free = false;
    live_.emplace(node->address, node);
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return node->address;
  }

  void free(std::uint64_t address) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = live_.find(address);
    Node* node = found->second;
    live_.erase(found);
    held_ -= node->bytes;
    if (node->next != nullptr && node->next->free) join(node, node->next);
    if (node->previous != nullptr && node->previous->free) {
      Node* left = node->previous;
      free_.erase(left);
      take_over(left, node);
      node = left;
    }
    node->free = true;
    free_.insert(node);
  }

 private:
  static constexpr std::uint64_t kUnit = 256;
  static constexpr std::uint64_t kSegment = std::uint64_t{20} << 20;

  struct Node {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    Node* previous = nullptr;
    Node* next = nullptr;
    bool free = false;
  };
  struct BySize {
    bool operator()(const Node* a, const Node* b) const noexcept {
      return std::pair(a->bytes, a->address) < std::pair(b->bytes, b->address);
    }
  };

  Node* make(std::uint64_t address, std::uint64_t bytes) {
    if (spare_.empty()) {
      nodes_.push_back(std::make_unique<Node>());
      spare_.push_back(nodes_.back().get());
    }
    Node* node = spare_.back();
    spare_.pop_back();
    *node = Node{address, bytes};
    return node;
  }
  Node* grow(std::uint64_t bytes) {
    const std::uint64_t segment = std::max(bytes, kSegment);
    Node* node = make(end_, segment);
    end_ += segment + kUnit;  // segments are no neighbours
    node->free = true;
    return node;
  }
  void take_over(Node* left, Node* right) {
    left->bytes += right->bytes;
    left->next = right->next;
    if (left->next != nullptr) left->next->previous = left;
    spare_.push_back(right);
  }
  void join(Node* left, Node* right) {
    free_.erase(right);
    take_over(left, right);
  }

  std::mutex mutex_;
  std::set<Node*, BySize> free_;
  std::unordered_map<std::uint64_t, Node*> live_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Node*> spare_;
  std::uint64_t end_ = kUnit;
  std::uint64_t held_ = 0, peak_ = 0;
};

}  // namespace bench
