// How units of work read strided tensors and write scales. Internal to the operations.
#pragma once

#include <cstring>

#include "kernels.h"

namespace mxfp8::cpu {

// Outputs beyond this are written past the cache: they would evict the input and not be there when
// needed.
constexpr int64_t kStreamBytes = int64_t{4} << 20;

// A thread should have at least this many elements: starting one costs about 5 us.
constexpr int64_t kElementsPerThread = 32768;

inline int64_t ceil_div(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int size_of(InputType type) { return type == InputType::kFp32 ? 4 : 2; }

inline int64_t grain_for(int64_t elements, int64_t units) {
  if (units <= 1 || elements <= kElementsPerThread) return units > 0 ? units : 1;
  return ceil_div(kElementsPerThread, ceil_div(elements, units));
}

// Rows [row, row + rows) x columns [column, column + columns) of a matrix to `to`, whose rows are
// `pitch` elements apart.
void gather(const View& view, const char* matrix, int64_t row, int64_t column, int64_t rows,
            int64_t columns, void* to, int64_t pitch);

// Size of the scale storage of one matrix.
int64_t scale_count(ScaleLayout layout, int64_t rows, int64_t columns);

// Stores scales of one row, columns [column, column + count); the column is a multiple of 4. In a
// swizzled layout the last group of 4 is completed with zeros.
inline void put_scales(uint8_t* matrix, ScaleLayout layout, int64_t padded_columns, int64_t row,
                       int64_t column, const uint8_t* bytes, int64_t count) {
  uint8_t* to = matrix + scale_offset(layout, row, column, padded_columns);
  if (layout == ScaleLayout::kLinear) {
    if (count == kTileBlocks) {
      std::memcpy(to, bytes, kTileBlocks);  // a copy of unknown length costs ten times as much
    } else {
      std::memcpy(to, bytes, count);
    }
    return;
  }
  const int64_t step = layout == ScaleLayout::kSwizzled32x4x4 ? 512 : 32;
  for (; count >= 4; count -= 4, bytes += 4, to += step) std::memcpy(to, bytes, 4);
  if (count > 0) {
    uint8_t group[4] = {};
    std::memcpy(group, bytes, count);
    std::memcpy(to, group, 4);
  }
}

// The same for scales that are 0.
inline void put_zero_scales(uint8_t* matrix, ScaleLayout layout, int64_t padded_columns,
                            int64_t row, int64_t column, int64_t count) {
  constexpr uint8_t kZeros[kTile] = {};
  for (int64_t c = 0; c < count; c += kTile) {
    put_scales(matrix, layout, padded_columns, row, column + c, kZeros, smaller(kTile, count - c));
  }
}

}  // namespace mxfp8::cpu
