#include "storage.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace mxfp8::cpu {
namespace {

// Elements of a row that a unit takes: long runs keep the processor's prefetching going.
constexpr int64_t kMaxChunkColumns = 8192;

// Stores `length` bytes, kTile of them past the cache if `stream` and alignment allow it: whole
// cache lines in places far apart, which ordinary stores would read first.
inline void put_line(uint8_t* to, const uint8_t* from, int64_t length, bool stream) {
  if (length != kTile) {
    std::memcpy(to, from, length);
    return;
  }
#if defined(__SSE2__)
  if (stream && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
    for (int i = 0; i < kTile; i += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
    return;
  }
#endif
  std::memcpy(to, from, kTile);
}

// A whole tile of rows `stride` bytes apart to dense rows. The next tile of the same rows is asked
// for meanwhile: of rows so short the processor prefetches little by itself.
template <int kBytes>
inline void copy_tile(const char* source, int64_t stride, char* to) {
  for (int64_t r = 0; r < kTile; ++r, source += stride, to += kBytes) {
    std::memcpy(to, source, kBytes);
    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(source + kBytes + i);
  }
}

}  // namespace

QuantizeRows::QuantizeRows(const View& input, const Format& format, const Quantized& output)
    : input_(input),
      kernel_(kernels().quantize[static_cast<int>(format.input)][static_cast<int>(format.element)]),
      mode_(format.mode),
      output_(output) {
  if (output_.layout == ScaleLayout::kLinear && output_.columns == input_.columns &&
      input_.is_contiguous()) {
    // Blocks do not cross rows, so the whole tensor is one long row.
    input_ = input_.flattened();
    output_.columns = input_.columns;
  }
  const int64_t elements = input_.batches * input_.rows * output_.columns;
  padded_rows_ = round_up(input_.rows, tile_rows(output_.layout));
  strip_rows_ = kTile;
  chunk_columns_ = kMaxChunkColumns;
  if (input_.batches * ceil_div(padded_rows_, strip_rows_) *
          ceil_div(output_.columns, chunk_columns_) <
      64) {
    // Few units: smaller ones, so that many cores have work.
    chunk_columns_ = 2048;
    if (output_.layout != ScaleLayout::kSwizzled32x4x4) strip_rows_ = 8;
  }
  strips_ = ceil_div(padded_rows_, strip_rows_);
  chunks_ = ceil_div(output_.columns, chunk_columns_);
  stream_ = elements >= kStreamBytes;
  units = input_.batches * strips_ * chunks_;
  grain = grain_for(elements, units);
}

// Data and scale bytes of one row, columns [column, column + columns); rows below the matrix have
// scales of 0 and no data.
void QuantizeRows::quantize_row(const char* matrix, int64_t batch, int64_t row, int64_t column,
                                int64_t columns, uint8_t* bytes) const {
  const int64_t blocks = columns / kBlockSize;
  if (row >= input_.rows) {
    std::memset(bytes, 0, blocks);
    return;
  }
  const int size = input_.element_size;
  const char* source = matrix + (row * input_.row_stride + column) * size;
  uint8_t* data = output_.data + (batch * input_.rows + row) * output_.columns + column;
  const int64_t real = smaller(input_.columns - column, columns);
  int64_t done = real > 0 ? real / kBlockSize : 0;
  if (done > 0) kernel_(source, done, mode_, data, bytes, stream_);
  while (done < blocks) {
    // The end of a padded row: real elements, then zeros.
    alignas(64) char padded[kTile * 4] = {};
    const int64_t count = smaller(blocks - done, kTileBlocks);
    const int64_t first = done * kBlockSize;
    if (real > first)
      std::memcpy(padded, source + first * size, smaller(real - first, kTile) * size);
    kernel_(padded, count, mode_, data + first, bytes + done, false);
    done += count;
  }
}

void QuantizeRows::unit(int64_t index) const {
  const int64_t column = index % chunks_ * chunk_columns_;
  const int64_t first_row = index / chunks_ % strips_ * strip_rows_;
  const int64_t batch = index / chunks_ / strips_;
  const int64_t columns = smaller(chunk_columns_, output_.columns - column);
  const int64_t end_row = smaller(first_row + strip_rows_, padded_rows_);
  const int64_t blocks = columns / kBlockSize;
  const int64_t padded_columns =
      round_up(output_.columns / kBlockSize, tile_columns(output_.layout));
  uint8_t* scale = output_.scale + batch * padded_rows_ * padded_columns;
  const char* matrix = input_.batch(batch);

  if (output_.layout == ScaleLayout::kLinear) {
    uint8_t* to = scale + first_row * padded_columns + column / kBlockSize;
    for (int64_t row = first_row; row < end_row; ++row, to += padded_columns) {
      quantize_row(matrix, batch, row, column, columns, to);
    }
    return;
  }
  if (output_.layout == ScaleLayout::kSwizzled8x4) {
    uint8_t bytes[kMaxChunkColumns / kBlockSize];
    for (int64_t row = first_row; row < end_row; ++row) {
      quantize_row(matrix, batch, row, column, columns, bytes);
      put_scales(scale, output_.layout, padded_columns, row, column / kBlockSize, bytes, blocks);
    }
    return;
  }
  // The scales of 128 rows first, then tile by tile: row by row they would go to one cache line of
  // every tile, 512 bytes apart, of which only 8 sets of the cache hold any.
  constexpr int64_t kPitch = kMaxChunkColumns / kBlockSize + 16;
  uint8_t bytes[kTile * kPitch];
  for (int64_t row = 0; row < kTile; ++row) {
    quantize_row(matrix, batch, first_row + row, column, columns, bytes + row * kPitch);
    std::memset(bytes + row * kPitch + blocks, 0, kTileBlocks);
  }
  uint8_t* to =
      scale + scale_offset(output_.layout, first_row, column / kBlockSize, padded_columns);
  for (int64_t c = 0; c < blocks; c += kTileBlocks) {
    for (int line = 0; line < 32; ++line) {
      for (int quarter = 0; quarter < 4; ++quarter, to += 4) {
        std::memcpy(to, bytes + (quarter * 32 + line) * kPitch + c, 4);
      }
    }
  }
}

QuantizeTiles::QuantizeTiles(const View& input, const Format& format, const Quantized& rows,
                             const Quantized& columns)
    : input_(input),
      row_kernel_(
          kernels().quantize[static_cast<int>(format.input)][static_cast<int>(format.element)]),
      tile_kernel_(kernels().quantize_tile[static_cast<int>(format.input)]
                                          [static_cast<int>(format.element)]),
      mode_(format.mode),
      rows_(rows),
      columns_(columns) {
  row_tiles_ = ceil_div(columns_.data != nullptr ? columns_.columns : input_.rows, kTile);
  column_tiles_ = ceil_div(rows_.data != nullptr ? rows_.columns : input_.columns, kTile);
  units = input_.batches * row_tiles_ * column_tiles_;
  grain = grain_for(units * kTile * kTile, units);
  stream_ = units * kTile * kTile >= kStreamBytes;
}

void QuantizeTiles::unit(int64_t index) const {
  const int64_t column = index % column_tiles_ * kTile;
  const int64_t row = index / column_tiles_ % row_tiles_ * kTile;
  const int64_t batch = index / column_tiles_ / row_tiles_;
  const int64_t rows = smaller(kTile, input_.rows - row);
  const int64_t columns = smaller(kTile, input_.columns - column);
  const char* matrix = input_.batch(batch);

  // Dense, because rows a power of two apart would share few sets of the cache and evict each other
  // between the passes; zeros where the matrix ends.
  alignas(64) char tile[kTile * kTile * 4];
  if (rows < kTile || columns < kTile) {
    std::memset(tile, 0, kTile * kTile * input_.element_size);
    if (rows > 0 && columns > 0) gather(input_, matrix, row, column, rows, columns, tile, kTile);
  } else if (input_.column_stride == 1) {
    const int size = input_.element_size;
    const char* source = matrix + (row * input_.row_stride + column) * size;
    (size == 2 ? copy_tile<kTile * 2> : copy_tile<kTile * 4>)(source, input_.row_stride * size,
                                                              tile);
  } else {
    gather(input_, matrix, row, column, rows, columns, tile, kTile);
  }
  if (rows_.data != nullptr) quantize_rows(tile, batch, row, column);
  if (columns_.data != nullptr) quantize_columns(tile, batch, row, column);
}

void QuantizeTiles::quantize_rows(const char* tile, int64_t batch, int64_t row,
                                  int64_t column) const {
  const int64_t padded_rows = round_up(input_.rows, tile_rows(rows_.layout));
  const int64_t scale_columns = round_up(rows_.columns / kBlockSize, tile_columns(rows_.layout));
  const int64_t length = smaller(kTile, rows_.columns - column);
  const int64_t rows = smaller(kTile, input_.rows - row);
  uint8_t* scale = rows_.scale + batch * padded_rows * scale_columns;
  if (length <= 0) return;
  alignas(64) uint8_t data[kTile * kTile];
  alignas(64) uint8_t bytes[kTile * kTileBlocks];
  if (rows > 0) row_kernel_(tile, rows * kTileBlocks, mode_, data, bytes, false);
  for (int64_t r = row; r < smaller(row + kTile, padded_rows); ++r) {
    const uint8_t zeros[kTileBlocks] = {};
    const bool real = r < input_.rows;
    if (real) {
      put_line(rows_.data + (batch * input_.rows + r) * rows_.columns + column,
               data + (r - row) * kTile, length, stream_);
    }
    put_scales(scale, rows_.layout, scale_columns, r, column / kBlockSize,
               real ? bytes + (r - row) * kTileBlocks : zeros, length / kBlockSize);
  }
}

void QuantizeTiles::quantize_columns(const char* tile, int64_t batch, int64_t row,
                                     int64_t column) const {
  const int64_t padded_rows = round_up(input_.columns, tile_rows(columns_.layout));
  const int64_t scale_columns =
      round_up(columns_.columns / kBlockSize, tile_columns(columns_.layout));
  const int64_t length = smaller(kTile, columns_.columns - row);
  uint8_t* scale = columns_.scale + batch * padded_rows * scale_columns;
  if (length <= 0) return;
  alignas(64) uint8_t data[kTile * kTile];
  alignas(64) uint8_t bytes[kTile * kTileBlocks];
  tile_kernel_(tile, static_cast<int>(length / kBlockSize), mode_, data, bytes);
  for (int64_t c = column; c < smaller(column + kTile, padded_rows); ++c) {
    const uint8_t zeros[kTileBlocks] = {};
    const bool real = c < input_.columns;
    if (real) {
      put_line(columns_.data + (batch * input_.columns + c) * columns_.columns + row,
               data + (c - column) * kTile, length, stream_);
    }
    put_scales(scale, columns_.layout, scale_columns, c, row / kBlockSize,
               real ? bytes + (c - column) * kTileBlocks : zeros, length / kBlockSize);
  }
}

}  // namespace mxfp8::cpu
