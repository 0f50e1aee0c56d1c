// Which of the two drivers is built.
#pragma once

#ifdef NBX_STUB_HIP
#include "device/hip/abi.h"
namespace abi = nbx::hip;
using Word = int;
#define STUB_FUNCTIONS NBX_HIP_FUNCTIONS
inline constexpr int STUB_VERSION = 70100000;
#else
#include "device/cuda/abi.h"
namespace abi = nbx::cuda;
using Word = unsigned;
#define STUB_FUNCTIONS NBX_CUDA_FUNCTIONS
inline constexpr int STUB_VERSION = 12040;
#endif
#include "stub/engine.h"

using namespace abi;  // the signatures in its list of functions name its types

inline const unsigned* grid_of(const abi::KernelNode& node) {
#ifdef NBX_STUB_HIP
  return &node.grid.x;
#else
  return node.grid;
#endif
}
inline const unsigned* block_of(const abi::KernelNode& node) {
#ifdef NBX_STUB_HIP
  return &node.block.x;
#else
  return node.block;
#endif
}

/// The device's attributes, with figures as of a small card.
inline bool stub_attribute(int id, int* value) {
  struct Row {
    int cuda, hip, cuda_value, hip_value;
  };
  constexpr Row kRows[] = {
      {1, 56, 1024, 1024},
      {10, 87, 32, 64},
      {12, 71, 65536, 65536},
      {13, 5, 1500000, 2100000},
      {16, 63, 20, 38},
      {18, 16, 0, 0},
      {36, 60, 2000000, 1300000},
      {37, 59, 1024, 8192},
      {38, 19, 4 << 20, 4 << 20},
      {39, 57, 2048, 2048},
      {75, 23, 9, 9},
      {76, 61, 0, 4},
      {81, 10002, 233472, 65536},
      {82, 72, 65536, 65536},
      {97, 74, 232448, 65536},
      {102, 89, 1, 1},
      {120, -1, 1, 0},
      {127, -1, 1, 0},
  };
  for (const Row& row : kRows) {
#ifdef NBX_STUB_HIP
    if (row.hip != id) continue;
    *value = row.hip_value;
#else
    if (row.cuda != id) continue;
    *value = row.cuda_value;
#endif
    return true;
  }
  return false;
}
