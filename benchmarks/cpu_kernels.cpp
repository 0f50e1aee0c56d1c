// Times the CPU device's kernels on the shapes of a 135M-parameter decoder.
//
//   cpu_kernels [threads]      (cpu_kernels.py compiles and runs it)
//
// Every line is the median of many runs: microseconds, and the rate that matters for the kernel
// (GB/s of weights or cache for decoding, GFLOP/s for prefill).
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/pool.h"
#include "cpu/quantized.h"
#include "cpu/target.h"
#include "launch/kernel.h"

namespace {

using nbx::DType;
using nbx::KernelCall;
using nbx::Scalar;
using nbx::ScalarKind;
using nbx::TensorView;

struct Tensor {
  DType dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::vector<std::byte> bytes;

  Tensor(DType type, std::vector<std::int64_t> extents) : dtype(type), shape(std::move(extents)) {
    strides.resize(shape.size());
    std::int64_t count = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      strides[i] = count;
      count *= shape[i];
    }
    bytes.resize(static_cast<std::size_t>(count * nbx::itemsize_of(type)));
  }
  Tensor& randomise() {
    std::minstd_rand rng(1);
    if (dtype == DType::float32) {
      auto* values = reinterpret_cast<float*>(bytes.data());
      for (std::size_t i = 0; i < bytes.size() / 4; ++i) {
        values[i] = static_cast<float>(rng() % 2048) / 1024.0F - 1.0F;
      }
    } else {
      // Bytes from 0x30 to 0x3b make every 16-bit float in them small but normal.
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(0x30 + rng() % 12);
    }
    return *this;
  }
  TensorView view() {
    return {bytes.data(), shape.data(), strides.data(), static_cast<std::int32_t>(shape.size()),
            dtype};
  }
  TensorView transposed() {
    std::swap(shape[0], shape[1]);
    std::swap(strides[0], strides[1]);
    return view();
  }
};

Scalar integer(std::int64_t value) {
  return {ScalarKind::kInteger, false, value, static_cast<double>(value), 0.0};
}
Scalar real(double value) { return {ScalarKind::kReal, false, 0, value, 0.0}; }
TensorView absent() { return {nullptr, nullptr, nullptr, 0, DType::float32}; }

/// Seconds so far: of this thread alone when it does all the work, so that a busy machine does not
/// show; else of the wall.
double now() {
  timespec time{};
  clock_gettime(nbx::cpu::thread_count() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Median seconds of one call, over about a third of a second.
double seconds(const char* name, const std::vector<TensorView>& tensors,
               const std::vector<Scalar>& scalars) {
  const nbx::HostKernel kernel = nbx::find_host_kernel(name);
  if (kernel == nullptr) {
    std::fprintf(stderr, "no kernel named %s\n", name);
    std::exit(1);
  }
  const KernelCall call{tensors.data(), tensors.size(), scalars.data(), scalars.size(), nullptr};
  std::vector<double> times;
  const double start = now();
  while (times.size() < 5 || now() - start < 0.3) {
    const double begin = now();
    kernel(call);
    times.push_back(now() - begin);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

void report(const std::string& what, double time, double amount, const char* unit) {
  std::printf("%-44s %10.1f us %9.1f %s\n", what.c_str(), time * 1e6, amount / time / 1e9, unit);
}

std::string shape_text(std::int64_t m, std::int64_t n, std::int64_t k) {
  return std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k);
}

void bench_quantized(nbx::cpu::Format format, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto& facts = nbx::cpu::facts_of(format);
  Tensor blocks(DType::uint8, {n, k / facts.block * facts.bytes});
  blocks.randomise();
  Tensor a(DType::float32, {m, k});
  a.randomise();
  Tensor out(DType::float32, {m, n});
  const double time = seconds("matmul:quantized", {out.view(), a.view(), blocks.view(), absent()},
                              {integer(static_cast<int>(format))});
  const bool few = m <= 4;
  report(std::string("matmul:quantized ") + facts.name + " " + shape_text(m, n, k), time,
         few ? static_cast<double>(blocks.bytes.size()) : 2.0 * static_cast<double>(m * n * k),
         few ? "GB/s" : "GFLOP/s");
}

void bench_dense(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k, bool transposed) {
  Tensor a(dtype, {m, k});
  a.randomise();
  Tensor b(dtype, transposed ? std::vector{n, k} : std::vector{k, n});
  b.randomise();
  Tensor out(dtype, {m, n});
  const double time = seconds(
      "matmul:dense", {out.view(), a.view(), transposed ? b.transposed() : b.view(), absent()}, {});
  const bool few = m <= 4;
  report(std::string("matmul:dense ") + nbx::facts_of(dtype).name + (transposed ? " T " : " ") +
             shape_text(m, n, k),
         time, few ? static_cast<double>(b.bytes.size()) : 2.0 * static_cast<double>(m * n * k),
         few ? "GB/s" : "GFLOP/s");
}

void bench_attention(std::int64_t queries, std::int64_t keys) {
  Tensor q(DType::float32, {1, 9, queries, 64});
  Tensor k(DType::float32, {1, 3, keys, 64});
  Tensor v(DType::float32, {1, 3, keys, 64});
  Tensor out(DType::float32, {1, 9, queries, 64});
  q.randomise();
  k.randomise();
  v.randomise();
  const double time =
      seconds("attention:forward", {out.view(), q.view(), k.view(), v.view(), absent()},
              {real(0.125), integer(1), Scalar{}, Scalar{}});
  const auto visible = static_cast<double>(queries * keys - queries * (queries - 1) / 2);
  report("attention " + std::to_string(queries) + " queries, " + std::to_string(keys) + " keys",
         time, 4.0 * 9 * 64 * visible, "GFLOP/s");
}

void bench_rows(std::int64_t rows) {
  const auto touched = [&](std::int64_t width, int tensors) {
    return static_cast<double>(rows * width * 4 * tensors);
  };
  const std::string suffix = " " + std::to_string(rows) + " rows";
  Tensor x(DType::float32, {rows, 576});
  Tensor y(DType::float32, {rows, 576});
  Tensor weight(DType::float32, {576});
  x.randomise();
  weight.randomise();
  report("norm:rms 576" + suffix,
         seconds("norm:rms", {y.view(), x.view(), weight.view()}, {real(1e-5)}), touched(576, 2),
         "GB/s");
  Tensor gate(DType::float32, {rows, 1536});
  Tensor up(DType::float32, {rows, 1536});
  Tensor out(DType::float32, {rows, 1536});
  gate.randomise();
  up.randomise();
  report("activation:silu_mul 1536" + suffix,
         seconds("activation:silu_mul", {out.view(), gate.view(), up.view()}, {}), touched(1536, 3),
         "GB/s");
  Tensor logits(DType::float32, {rows, 4096});
  Tensor weights(DType::float32, {rows, 4096});
  logits.randomise();
  report("norm:softmax 4096" + suffix, seconds("norm:softmax", {weights.view(), logits.view()}, {}),
         touched(4096, 2), "GB/s");
  Tensor heads(DType::float32, {1, rows, 9, 64});
  Tensor turned(DType::float32, {1, rows, 9, 64});
  Tensor positions(DType::int64, {1, rows});
  heads.randomise();
  report("position:rope 9 x 64" + suffix,
         seconds("position:rope", {turned.view(), heads.view(), positions.view()},
                 {real(1e5), integer(1), integer(64), real(1.0)}),
         touched(576, 2), "GB/s");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) nbx::cpu::set_thread_count(std::atoi(argv[1]));
  static constexpr const char* kLevels[] = {"baseline", "AVX2", "AVX-512"};
  std::printf("%d threads, %s\n", nbx::cpu::thread_count(),
              kLevels[static_cast<int>(nbx::cpu::simd_level())]);
  using nbx::cpu::Format;
  for (const std::int64_t m : {1, 2, 4, 16, 512}) {
    bench_quantized(Format::q4_1, m, 576, 576);
    bench_quantized(Format::q4_1, m, 192, 576);
    bench_quantized(Format::q4_1, m, 1536, 576);
    bench_quantized(Format::q4_1, m, 576, 1536);
  }
  bench_quantized(Format::q8_0, 1, 49152, 576);
  bench_dense(DType::float32, 1, 4096, 4096, true);
  bench_dense(DType::bfloat16, 1, 4096, 4096, true);
  bench_dense(DType::float32, 1, 4096, 4096, false);
  bench_dense(DType::float32, 512, 576, 576, false);
  bench_dense(DType::float32, 512, 1536, 576, true);
  bench_dense(DType::float32, 1024, 1024, 1024, false);
  bench_dense(DType::bfloat16, 1024, 1024, 1024, true);
  bench_attention(1, 256);
  bench_attention(1, 2048);
  bench_attention(512, 512);
  bench_rows(1);
  bench_rows(512);
  return 0;
}
