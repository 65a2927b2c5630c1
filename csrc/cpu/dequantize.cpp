#include "storage.h"

namespace mxfp8::cpu {
namespace {

constexpr int64_t kBufferedBlocks = 128;

// Reads scales of a stored tensor, which may have any strides itself.
class ScaleReader {
 public:
  ScaleReader(const View& stored, ScaleLayout layout, int64_t batch)
      : stored_(stored),
        layout_(layout),
        matrix_(reinterpret_cast<const uint8_t*>(stored.batch(batch))),
        dense_(stored.column_stride == 1 &&
               (stored.rows <= 1 || stored.row_stride == stored.columns)) {}

  void read(int64_t row, int64_t column, int64_t count, uint8_t* to) const {
    if (layout_ == ScaleLayout::kLinear && stored_.column_stride == 1) {
      std::memcpy(to, matrix_ + row * stored_.row_stride + column, count);
      return;
    }
    for (int64_t c = 0; c < count; ++c) {
      const int64_t place = scale_offset(layout_, row, column + c, stored_.columns);
      to[c] = matrix_[dense_ ? place
                             : place / stored_.columns * stored_.row_stride +
                                   place % stored_.columns * stored_.column_stride];
    }
  }

  // The scales themselves, where they lie in order.
  const uint8_t* direct(int64_t row, int64_t column) const {
    const bool in_order = layout_ == ScaleLayout::kLinear && stored_.column_stride == 1;
    return in_order ? matrix_ + row * stored_.row_stride + column : nullptr;
  }

 private:
  const View& stored_;
  ScaleLayout layout_;
  const uint8_t* matrix_;
  bool dense_;
};

}  // namespace

Dequantize::Dequantize(const View& data, const View& scale, ElementType element, ScaleLayout layout,
                       InputType output_type, void* output)
    : data_(data),
      scale_(scale),
      layout_(layout),
      kernel_(kernels().dequantize[static_cast<int>(element)][static_cast<int>(output_type)]),
      output_(static_cast<char*>(output)),
      output_size_(size_of(output_type)) {
  if (layout_ == ScaleLayout::kLinear && data_.is_contiguous() && scale_.is_contiguous()) {
    data_ = data_.flattened();
    scale_ = scale_.flattened();
  }
  const int64_t elements = data_.batches * data_.rows * data_.columns;
  strip_rows_ = kTile;
  chunk_columns_ = 8192;
  if (data_.batches * ceil_div(data_.rows, strip_rows_) * ceil_div(data_.columns, chunk_columns_) <
      64) {
    strip_rows_ = 8;
    chunk_columns_ = 2048;
  }
  strips_ = ceil_div(data_.rows, strip_rows_);
  chunks_ = ceil_div(data_.columns, chunk_columns_);
  stream_ = elements * output_size_ >= kStreamBytes;
  units = data_.batches * strips_ * chunks_;
  grain = grain_for(elements, units);
}

void Dequantize::unit(int64_t index) const {
  const int64_t first_column = index % chunks_ * chunk_columns_;
  const int64_t first_row = index / chunks_ % strips_ * strip_rows_;
  const int64_t batch = index / chunks_ / strips_;
  const int64_t end_column = smaller(first_column + chunk_columns_, data_.columns);
  const int64_t end_row = smaller(first_row + strip_rows_, data_.rows);
  const char* matrix = data_.batch(batch);
  const ScaleReader scales(scale_, layout_, batch);
  for (int64_t row = first_row; row < end_row; ++row) {
    for (int64_t column = first_column; column < end_column;) {
      uint8_t bytes[kBufferedBlocks];
      alignas(64) uint8_t codes[kBufferedBlocks * kBlockSize];
      int64_t blocks = (end_column - column) / kBlockSize;
      const uint8_t* scale = scales.direct(row, column / kBlockSize);
      const bool dense = data_.column_stride == 1;
      if (scale == nullptr || !dense) blocks = smaller(blocks, kBufferedBlocks);
      if (scale == nullptr) {
        scales.read(row, column / kBlockSize, blocks, bytes);
        scale = bytes;
      }
      const uint8_t* data = codes;
      if (dense) {
        data = reinterpret_cast<const uint8_t*>(matrix) + row * data_.row_stride + column;
      } else {
        gather(data_, matrix, row, column, 1, blocks * kBlockSize, codes, 0);
      }
      const int64_t place = (batch * data_.rows + row) * data_.columns + column;
      kernel_(data, scale, blocks, output_ + place * output_size_, stream_);
      column += blocks * kBlockSize;
    }
  }
}

SwizzleScale::SwizzleScale(const View& linear, ScaleLayout layout, uint8_t* output)
    : linear_(linear), layout_(layout), output_(output) {
  padded_rows_ = round_up(linear.rows, tile_rows(layout));
  padded_columns_ = round_up(linear.columns, tile_columns(layout));
  units = linear.batches * padded_rows_;
  grain = grain_for(units * padded_columns_, units);
}

void SwizzleScale::unit(int64_t index) const {
  const int64_t row = index % padded_rows_;
  const int64_t batch = index / padded_rows_;
  uint8_t* scale = output_ + batch * padded_rows_ * padded_columns_;
  if (row >= linear_.rows) {
    put_zero_scales(scale, layout_, padded_columns_, row, 0, linear_.columns);
    return;
  }
  const ScaleReader reader(linear_, ScaleLayout::kLinear, batch);
  for (int64_t column = 0; column < linear_.columns; column += kBufferedBlocks) {
    uint8_t bytes[kBufferedBlocks];
    const int64_t count = smaller(kBufferedBlocks, linear_.columns - column);
    reader.read(row, column, count, bytes);
    put_scales(scale, layout_, padded_columns_, row, column, bytes, count);
  }
}

UnswizzleScale::UnswizzleScale(const View& stored, int64_t rows, int64_t columns,
                               ScaleLayout layout, uint8_t* output)
    : stored_(stored), rows_(rows), columns_(columns), layout_(layout), output_(output) {
  units = stored.batches * rows;
  grain = grain_for(units * columns, units);
}

void UnswizzleScale::unit(int64_t index) const {
  const ScaleReader reader(stored_, layout_, index / rows_);
  reader.read(index % rows_, 0, columns_, output_ + index * columns_);
}

}  // namespace mxfp8::cpu
