// The native CPU backend without torch: kernels on dense blocks, one table of them for each
// instruction set, and the operations on strided tensors built on top.
#pragma once

#include <cstdint>

#include "../mxfp8.h"

namespace mxfp8::cpu {

// A tile is what the column kernels work on: one 128 x 4 scale tile, two cache lines of every
// output row.
constexpr int kTile = 128;
constexpr int kTileBlocks = kTile / kBlockSize;

// Kernels of one instruction set, indexed by the enums of mxfp8.h. Pointers need no alignment.
// `stream` allows stores that bypass the cache, for outputs that do not fit into it.
struct Kernels {
  using Quantize = void (*)(const void* input, int64_t blocks, ScalingMode mode, uint8_t* data,
                            uint8_t* scale, bool stream);
  // Input of 32 * blocks dense rows of kTile elements (blocks <= kTileBlocks) to
  // data[kTile][kTile] and scale[kTile][kTileBlocks], both transposed: a block is 32 rows of one
  // column.
  using QuantizeTile = void (*)(const void* input, int blocks, ScalingMode mode, uint8_t* data,
                                uint8_t* scale);
  using Dequantize = void (*)(const uint8_t* data, const uint8_t* scale, int64_t blocks,
                              void* output, bool stream);
  const char* name;
  Quantize quantize[3][2];
  QuantizeTile quantize_tile[3][2];
  Dequantize dequantize[2][3];
};

const Kernels& kernels_portable();
#if defined(__x86_64__)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
#endif

// The best table that this processor and system can run, or the one that MXFP8_OPS_CPU_ISA names.
const Kernels& kernels();
// Chooses by name; false if the name is unknown or the processor cannot run it.
bool set_kernels(const char* name);

// A tensor [*batch, rows, columns] with strides in elements; [K] is one row.
struct View {
  const void* data;
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
  int64_t column_stride;
  int64_t batches;
  int64_t batch_dimensions;
  const int64_t* batch_sizes;
  const int64_t* batch_strides;
  int element_size;

  const char* batch(int64_t index) const {
    int64_t offset = 0;
    for (int64_t d = batch_dimensions - 1; d >= 0; --d) {
      offset += index % batch_sizes[d] * batch_strides[d];
      index /= batch_sizes[d];
    }
    return static_cast<const char*>(data) + offset * element_size;
  }
  bool is_contiguous() const;
  View transposed() const;
  // A contiguous view as one long row.
  View flattened() const;
};

struct Format {
  InputType input;
  ElementType element;
  ScalingMode mode;
};

// Contiguous results of one direction; `columns` is the padded length of a data row.
struct Quantized {
  uint8_t* data;
  uint8_t* scale;
  ScaleLayout layout;
  int64_t columns;
};

// An operation cut into units that any number of threads may run in any order. Units write disjoint
// bytes, and together every byte of the outputs.
class Work {
 public:
  virtual ~Work() = default;
  virtual void unit(int64_t index) const = 0;
  // Runs units [begin, end) with round-to-nearest and subnormals on, whatever the caller has set.
  void run(int64_t begin, int64_t end) const;

  int64_t units = 0;
  // Fewest units worth a thread of their own.
  int64_t grain = 1;
};

// Rows of `input`; `output.columns` >= input.columns.
class QuantizeRows final : public Work {
 public:
  QuantizeRows(const View& input, const Format& format, const Quantized& output);
  void unit(int64_t index) const override;

 private:
  void quantize_row(const char* matrix, int64_t batch, int64_t row, int64_t column, int64_t columns,
                    uint8_t* bytes) const;

  View input_;
  Kernels::Quantize kernel_;
  ScalingMode mode_;
  Quantized output_;
  int64_t padded_rows_;
  int64_t strip_rows_;
  int64_t chunk_columns_;
  int64_t strips_;
  int64_t chunks_;
  bool stream_;
};

// Tiles of `input`, quantized along rows (data of `rows` not null), columns (`columns`) or both.
class QuantizeTiles final : public Work {
 public:
  QuantizeTiles(const View& input, const Format& format, const Quantized& rows,
                const Quantized& columns);
  void unit(int64_t index) const override;

 private:
  void quantize_rows(const char* tile, int64_t batch, int64_t row, int64_t column) const;
  void quantize_columns(const char* tile, int64_t batch, int64_t row, int64_t column) const;

  View input_;
  Kernels::Quantize row_kernel_;
  Kernels::QuantizeTile tile_kernel_;
  ScalingMode mode_;
  Quantized rows_;
  Quantized columns_;
  int64_t row_tiles_;
  int64_t column_tiles_;
  bool stream_;
};

class Dequantize final : public Work {
 public:
  Dequantize(const View& data, const View& scale, ElementType element, ScaleLayout layout,
             InputType output_type, void* output);
  void unit(int64_t index) const override;

 private:
  View data_;
  View scale_;
  ScaleLayout layout_;
  Kernels::Dequantize kernel_;
  char* output_;
  int output_size_;
  int64_t strip_rows_;
  int64_t chunk_columns_;
  int64_t strips_;
  int64_t chunks_;
  bool stream_;
};

// Linear scales to a layout, padding bytes 0.
class SwizzleScale final : public Work {
 public:
  SwizzleScale(const View& linear, ScaleLayout layout, uint8_t* output);
  void unit(int64_t index) const override;

 private:
  View linear_;
  ScaleLayout layout_;
  uint8_t* output_;
  int64_t padded_rows_;
  int64_t padded_columns_;
};

// The inverse: `stored` is the swizzled tensor, `rows` and `columns` those of the linear one.
class UnswizzleScale final : public Work {
 public:
  UnswizzleScale(const View& stored, int64_t rows, int64_t columns, ScaleLayout layout,
                 uint8_t* output);
  void unit(int64_t index) const override;

 private:
  View stored_;
  int64_t rows_;
  int64_t columns_;
  ScaleLayout layout_;
  uint8_t* output_;
};

}  // namespace mxfp8::cpu
