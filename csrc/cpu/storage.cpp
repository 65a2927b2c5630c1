#include "storage.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace mxfp8::cpu {
namespace {

// Rounding and subnormals as IEEE 754 has them for the length of a scope: callers may have asked
// for flushing (torch.set_flush_denormal), which would change bytes.
class StandardFloats {
 public:
#if defined(__SSE2__)
  StandardFloats() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~StandardFloats() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  StandardFloats() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
  }
  ~StandardFloats() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

 private:
  uint64_t saved_;
#endif
};

template <typename T>
void gather_elements(const char* source, int64_t row_stride, int64_t column_stride, int64_t rows,
                     int64_t columns, T* to, int64_t pitch) {
  const T* from = reinterpret_cast<const T*>(source);
  // The inner loop follows the smaller stride, so that a cache line is used up before the next.
  if (row_stride < column_stride) {
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(to + r * pitch + c, from + r * row_stride + c * column_stride, sizeof(T));
      }
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      std::memcpy(to + r * pitch + c, from + r * row_stride + c * column_stride, sizeof(T));
    }
  }
}

}  // namespace

bool View::is_contiguous() const {
  if (columns > 1 && column_stride != 1) return false;
  if (rows > 1 && row_stride != columns) return false;
  int64_t expected = rows * columns;
  for (int64_t d = batch_dimensions - 1; d >= 0; --d) {
    if (batch_sizes[d] > 1 && batch_strides[d] != expected) return false;
    expected *= batch_sizes[d];
  }
  return true;
}

View View::transposed() const {
  View view = *this;
  view.rows = columns;
  view.columns = rows;
  view.row_stride = column_stride;
  view.column_stride = row_stride;
  return view;
}

View View::flattened() const {
  View view = *this;
  view.columns = rows * columns * batches;
  view.rows = view.batches = 1;
  view.batch_dimensions = 0;
  view.column_stride = 1;
  return view;
}

void Work::run(int64_t begin, int64_t end) const {
  const StandardFloats guard;
  for (int64_t index = begin; index < end; ++index) unit(index);
#if defined(__SSE2__)
  _mm_sfence();  // streaming stores become visible before the caller tells other threads
#endif
}

void gather(const View& view, const char* matrix, int64_t row, int64_t column, int64_t rows,
            int64_t columns, void* to, int64_t pitch) {
  const char* source =
      matrix + (row * view.row_stride + column * view.column_stride) * view.element_size;
  if (view.column_stride == 1) {
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(static_cast<char*>(to) + r * pitch * view.element_size,
                  source + r * view.row_stride * view.element_size, columns * view.element_size);
    }
  } else if (view.element_size == 4) {
    gather_elements(source, view.row_stride, view.column_stride, rows, columns,
                    static_cast<uint32_t*>(to), pitch);
  } else if (view.element_size == 2) {
    gather_elements(source, view.row_stride, view.column_stride, rows, columns,
                    static_cast<uint16_t*>(to), pitch);
  } else {
    gather_elements(source, view.row_stride, view.column_stride, rows, columns,
                    static_cast<uint8_t*>(to), pitch);
  }
}

int64_t scale_count(ScaleLayout layout, int64_t rows, int64_t columns) {
  return round_up(rows, tile_rows(layout)) * round_up(columns, tile_columns(layout));
}

}  // namespace mxfp8::cpu
