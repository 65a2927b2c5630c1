// As much of CUDA as csrc/cuda uses, for g++: the threads of a block are fibers of one thread of
// the CPU, which change at shuffles and barriers. Blocks run one after the other, in an order that
// is no promise, and so do the lanes between two barriers: a missing barrier shows in the bytes.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  explicit dim3(unsigned x_) : x(x_) {}
};

inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
inline uint32_t __float_as_uint(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float __uint_as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
  }
  return result;
}

namespace fibers {

constexpr unsigned kLanes = 32;
constexpr size_t kStack = 64 << 10;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  uint64_t shuffles = 0, barriers = 0;
  uint32_t slots[2] = {0, 0};  // what this lane shows in even and odd shuffles
  bool is_done = false;
};

struct Block {
  std::vector<Fiber> fibers;
  ucontext_t scheduler;
  const std::function<void()>* kernel = nullptr;
  unsigned current = 0;
};

inline Block& block() {
  static Block instance;
  return instance;
}

}  // namespace fibers

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace fibers {

inline void change() {
  Block& b = block();
  const unsigned own = b.current;
  swapcontext(&b.fibers[own].context, &b.scheduler);
}

inline bool has_come(const Fiber& fiber, uint64_t Fiber::* counter, uint64_t count) {
  return fiber.is_done || fiber.*counter >= count;
}

// Until all fibers in [first, last) have done as many of these steps as this one.
inline void wait(uint64_t Fiber::* counter, unsigned first, unsigned last) {
  Block& b = block();
  const uint64_t count = ++(b.fibers[b.current].*counter);
  while (!std::all_of(b.fibers.begin() + first, b.fibers.begin() + last,
                      [=](const Fiber& f) { return has_come(f, counter, count); })) {
    change();
  }
}

inline uint32_t shuffle(uint32_t value, unsigned lane) {
  Block& b = block();
  const unsigned own = b.current, first = own / kLanes * kLanes;
  const unsigned parity = b.fibers[own].shuffles % 2;
  b.fibers[own].slots[parity] = value;
  wait(&Fiber::shuffles, first, first + kLanes);
  const Fiber& other = b.fibers[first + lane % kLanes];
  if (other.shuffles < b.fibers[own].shuffles) {
    std::fprintf(stderr, "a shuffle with a lane that has ended\n");
    std::abort();
  }
  return other.slots[parity];
}

inline void enter() {
  Block& b = block();
  (*b.kernel)();
  b.fibers[b.current].is_done = true;
  change();
}

inline void run_block(const std::function<void()>& kernel, unsigned threads, bool backwards) {
  Block& b = block();
  b.kernel = &kernel;
  if (b.fibers.size() < threads) b.fibers.resize(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& f = b.fibers[i];
    f.shuffles = f.barriers = 0;
    f.is_done = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = kStack;
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
  }
  for (bool is_running = true; is_running;) {
    is_running = false;
    for (unsigned i = 0; i < threads; ++i) {
      b.current = backwards ? threads - 1 - i : i;
      if (b.fibers[b.current].is_done) continue;
      threadIdx.x = b.current;
      is_running = true;
      swapcontext(&b.scheduler, &b.fibers[b.current].context);
    }
  }
}

}  // namespace fibers

inline uint32_t __shfl_sync(uint32_t, uint32_t value, uint32_t lane) {
  return fibers::shuffle(value, lane);
}
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t value, uint32_t mask) {
  return fibers::shuffle(value, (threadIdx.x % fibers::kLanes) ^ mask);
}
inline void __syncthreads() {
#if !defined(MXFP8_NO_BARRIERS)  // which a test of this method defines
  fibers::wait(&fibers::Fiber::barriers, 0, blockDim.x);
#endif
}

enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration = 9 };
using cudaStream_t = void*;
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  const std::function<void()> call = [&] { kernel(arguments...); };
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  for (unsigned i = gridDim.x; i-- > 0;) {
    blockIdx.x = i;
    fibers::run_block(call, blockDim.x, i % 2);
  }
  return cudaSuccess;
}
