// Counting checks for the native tests, and the numbers that the checks share.
#pragma once

#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>

inline int64_t checks = 0, failures = 0;

inline void expect(const char* what, int64_t argument, int64_t actual, int64_t expected) {
  ++checks;
  if (actual == expected) return;
  if (++failures <= 20) {
    std::printf("%s(0x%" PRIx64 ") is 0x%" PRIx64 ", expected 0x%" PRIx64 "\n", what, argument,
                actual, expected);
  }
}

inline int report() {
  std::printf("%" PRId64 " checks, %" PRId64 " failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
