// The portable kernels, and the choice of a table.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "block_kernels.h"

namespace mxfp8::cpu {

const Kernels& kernels_portable() {
  static constexpr Kernels kTable = plain_kernels("portable");
  return kTable;
}

namespace {

// __builtin_cpu_supports asks the processor and, for AVX and AVX-512, whether the system saves the
// registers.
const Kernels* find_kernels(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vbmi");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("avx");
  if (avx512 && (name == nullptr || std::strcmp(name, "avx512") == 0)) return &kernels_avx512();
  if (avx2 && (name == nullptr || std::strcmp(name, "avx2") == 0)) return &kernels_avx2();
#endif
  if (name == nullptr || std::strcmp(name, "portable") == 0) return &kernels_portable();
  return nullptr;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels() {
  const Kernels* table = chosen.load(std::memory_order_relaxed);
  if (table == nullptr) {
    const char* name = std::getenv("MXFP8_OPS_CPU_ISA");
    table = find_kernels(name != nullptr && *name != '\0' ? name : nullptr);
    if (table == nullptr) table = find_kernels(nullptr);
    chosen.store(table, std::memory_order_relaxed);
  }
  return *table;
}

bool set_kernels(const char* name) {
  const Kernels* table = find_kernels(name);
  if (table != nullptr) chosen.store(table, std::memory_order_relaxed);
  return table != nullptr;
}

}  // namespace mxfp8::cpu
