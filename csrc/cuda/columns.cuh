// Quantization along the columns, alone or with the rows, from one read. A thread block takes a
// tile of 128 x 128, a warp 32 rows x 64 columns of it, a lane 8 x 8: pairs of rows of one column
// are what the hardware conversion packs, so codes come out transposed and only codes pass through
// shared memory, one byte an element. Rows of both outputs are stored in runs of 64 and 128 bytes.
#pragma once

#include "units.cuh"

namespace mxfp8::cuda {

constexpr int kTile = 128;
constexpr int kTileThreads = 256;
constexpr int kTileBlocks = kTile / kBlockSize;
constexpr int kVector = 16;

struct TileScales {
  uint8_t* scale;
  int64_t stride;          // bytes of one matrix
  uint32_t rows, columns;  // of the storage
  ScaleLayout layout;
};

struct TileParameters {
  const char* input;
  int64_t rows, columns, batch_stride, row_stride;
  uint8_t* row_data;
  uint8_t* column_data;
  int64_t row_width, column_width;  // padded columns and padded rows
  TileScales row_scales, column_scales;
  FastDivisor column_tiles, row_tiles;
  ScaleRule rule;
  bool aligned;
};

// Of the four pairs of blocks in `peaks`, each maximised over the four lanes that differ in the
// bits `high` and `low` of their number, this lane gets the one numbered 2 * (lane & high) + (lane
// & low).
template <InputType kInput>
__device__ __forceinline__ Peaks<kInput> reduce_scatter(const Peaks<kInput> (&peaks)[4],
                                                        uint32_t lane, uint32_t high,
                                                        uint32_t low) {
  const bool upper = lane & high;
  Peaks<kInput> a = upper ? peaks[2] : peaks[0];
  Peaks<kInput> b = upper ? peaks[3] : peaks[1];
  a.include((upper ? peaks[0] : peaks[2]).from_lane_xor(high));
  b.include((upper ? peaks[1] : peaks[3]).from_lane_xor(high));
  const bool odd = lane & low;
  Peaks<kInput> own = odd ? b : a;
  own.include((odd ? a : b).from_lane_xor(low));
  return own;
}

// Four neighbouring scales of one row of the storage. What lies outside the matrix is 0.
__device__ __forceinline__ void store_scales(const TileScales& s, uint32_t batch, uint32_t row,
                                             uint32_t column, uint32_t word) {
  if (row >= s.rows || column >= s.columns) return;
  uint8_t* to = s.scale + batch * s.stride + scale_place(s.layout, row, column, s.columns);
  if (s.columns % 4 == 0) {
    *reinterpret_cast<uint32_t*>(to) = word;
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    if (column + i < s.columns) to[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

template <InputType kInput, ElementType kElement, bool kRows>
__global__ void __launch_bounds__(kTileThreads, kInput == InputType::kFp32 ? 2 : 3)
    tile_kernel(const __grid_constant__ TileParameters p) {
  using C = Chunk<kInput>;
  constexpr bool kExact = kInput == InputType::kFp32;
  __shared__ uint4 codes[kTile * kTile / kVector];
  __shared__ uint32_t row_bytes[kTile], column_bytes[kTile];

  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t row_tiles = p.column_tiles.quotient(blockIdx.x);
  const uint32_t tile_column = blockIdx.x - row_tiles * p.column_tiles.divisor;
  const uint32_t batch = p.row_tiles.quotient(row_tiles);
  const uint32_t tile_row = row_tiles - batch * p.row_tiles.divisor;
  const uint32_t row_block = warp / 2;
  const uint32_t row_in_tile = row_block * 32 + lane / 8 * 8;
  const uint32_t column_in_tile = warp % 2 * 64 + lane % 8 * 8;
  const int64_t first_row = int64_t{tile_row} * kTile + row_in_tile;
  const int64_t first_column = int64_t{tile_column} * kTile + column_in_tile;

  wait_for_previous_kernel();
  let_next_kernel_start();
  C chunks[8];
  const char* from = p.input + (batch * p.batch_stride + first_row * p.row_stride + first_column) *
                                   C::kElementBytes;
  const int64_t from_step = p.row_stride * C::kElementBytes;
  const bool whole = p.aligned && (tile_row + 1) * int64_t{kTile} <= p.rows &&
                     (tile_column + 1) * int64_t{kTile} <= p.columns;
  if (whole) {
#pragma unroll
    for (int i = 0; i < 8; ++i) chunks[i].load(from + i * from_step);
  } else {
    const int64_t left = p.columns - first_column;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool inside = first_row + i < p.rows;
      chunks[i] = empty_chunk<kInput>();
      if (inside && left >= kChunk && p.aligned) {
        chunks[i].load(from + i * from_step);
      } else if (inside && left > 0) {
        chunks[i].load_part(from + i * from_step, left);
      }
    }
  }

  if constexpr (kRows) {
    Peaks<kInput> peaks[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      peaks[k] = Peaks<kInput>::of_chunks(chunks[2 * k], chunks[2 * k + 1]);
    }
    const Peaks<kInput> own = reduce_scatter<kInput>(peaks, lane, 2, 1);
    const uint32_t first = p.rule.template byte<kElement, kExact>(own.first_bits());
    const uint32_t second = p.rule.template byte<kElement, kExact>(own.second_bits());
    uint8_t* scales = reinterpret_cast<uint8_t*>(row_bytes + row_in_tile + lane % 4 * 2) +
                      column_in_tile / kBlockSize;
    scales[0] = static_cast<uint8_t>(first);
    scales[4] = static_cast<uint8_t>(second);
    uint8_t* to = p.row_data + (batch * p.rows + first_row) * p.row_width + first_column;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t both = __shfl_sync(kFullWarp, first | second << 8, (lane & ~3u) | k);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 row = encode_chunk<kInput, kElement>(chunks[2 * k + i], both >> (8 * i) & 255);
        if (whole || (first_row + 2 * k + i < p.rows && first_column < p.row_width)) {
          *reinterpret_cast<uint2*>(to + (2 * k + i) * p.row_width) = row;
        }
      }
    }
  }

  {
    Peaks<kInput> peaks[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) peaks[k] = Peaks<kInput>::of_columns(chunks, k);
    const Peaks<kInput> own = reduce_scatter<kInput>(peaks, lane, 16, 8);
    const uint32_t first = p.rule.template byte<kElement, kExact>(own.first_bits());
    const uint32_t second = p.rule.template byte<kElement, kExact>(own.second_bits());
    uint8_t* scales =
        reinterpret_cast<uint8_t*>(column_bytes + column_in_tile + lane / 8 * 2) + row_block;
    scales[0] = static_cast<uint8_t>(first);
    scales[4] = static_cast<uint8_t>(second);
    // Vectors of a column are permuted by the lane that holds it: the 8 lanes of a row of lanes
    // then write to different banks, and so do the 8 threads that read a column back.
    const uint32_t vector = (row_in_tile / kVector) ^ (lane % 8);
    uint2* to = reinterpret_cast<uint2*>(codes + column_in_tile * (kTile / kVector) + vector) +
                lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t both = __shfl_sync(kFullWarp, first | second << 8, lane % 8 + 8 * k);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = 2 * k + i;
        const uint32_t byte = both >> (8 * i) & 255;
        const float inverse = inverse_scale(byte);
        const uint2 column = {
            encode4<kElement>(chunks[0].value(c) * inverse, chunks[1].value(c) * inverse,
                              chunks[2].value(c) * inverse, chunks[3].value(c) * inverse),
            encode4<kElement>(chunks[4].value(c) * inverse, chunks[5].value(c) * inverse,
                              chunks[6].value(c) * inverse, chunks[7].value(c) * inverse)};
        const bool finite = byte != kE8m0Nan;
        to[c * (kTile / sizeof(uint2))] = {finite ? column.x : kNanWord,
                                           finite ? column.y : kNanWord};
      }
    }
  }

  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile * kTile / kVector / kTileThreads; ++i) {
    const uint32_t index = i * kTileThreads + threadIdx.x;
    const uint32_t column = index / (kTile / kVector), vector = index % (kTile / kVector);
    const uint4 run = codes[index - vector + (vector ^ (column / 8 % 8))];
    const int64_t to_column = int64_t{tile_column} * kTile + column;
    const int64_t to_row = int64_t{tile_row} * kTile + vector * kVector;
    if (whole || (to_column < p.columns && to_row < p.column_width)) {
      *reinterpret_cast<uint4*>(p.column_data + (batch * p.columns + to_column) * p.column_width +
                                to_row) = run;
    }
  }
  const uint32_t place = threadIdx.x % kTile;
  if (threadIdx.x < kTile) {
    store_scales(p.column_scales, batch, tile_column * kTile + place, tile_row * kTileBlocks,
                 column_bytes[place]);
  } else if (kRows) {
    store_scales(p.row_scales, batch, tile_row * kTile + place, tile_column * kTileBlocks,
                 row_bytes[place]);
  }
}

inline TileScales tile_scales(const Quantized& output, int64_t rows) {
  TileScales s{};
  s.scale = output.scale;
  s.layout = output.layout;
  s.rows = static_cast<uint32_t>(round_up(rows, tile_rows(output.layout)));
  s.columns = static_cast<uint32_t>(
      round_up(output.padded_columns / kBlockSize, tile_columns(output.layout)));
  s.stride = int64_t{s.rows} * s.columns;
  return s;
}

template <InputType kInput, ElementType kElement>
cudaError_t quantize_tiles(const View& input, ScalingMode mode, const Quantized* rows,
                           const Quantized& columns, const Device& device) {
  constexpr int kBytes = Chunk<kInput>::kElementBytes;
  TileParameters p{};
  p.input = static_cast<const char*>(input.data);
  p.rows = input.rows;
  p.columns = input.columns;
  p.batch_stride = input.batch_stride;
  p.row_stride = input.row_stride;
  p.column_data = columns.data;
  p.column_width = columns.padded_columns;
  p.column_scales = tile_scales(columns, input.columns);
  int64_t width = input.columns;
  if (rows) {
    p.row_data = rows->data;
    p.row_width = width = rows->padded_columns;
    p.row_scales = tile_scales(*rows, input.rows);
  }
  p.rule = ScaleRule::of<kElement>(mode);
  p.aligned = reinterpret_cast<uintptr_t>(input.data) % 16 == 0 &&
              (input.rows == 1 || input.row_stride * kBytes % 16 == 0) &&
              (input.batch == 1 || input.batch_stride * kBytes % 16 == 0);
  // Tiles cover the padding of both directions; whole tiles of scales are no larger than a tile.
  const int64_t column_tiles = (width + kTile - 1) / kTile;
  const int64_t row_tiles = (columns.padded_columns + kTile - 1) / kTile;
  p.column_tiles = FastDivisor(static_cast<uint32_t>(column_tiles));
  p.row_tiles = FastDivisor(static_cast<uint32_t>(row_tiles));
  const auto kernel =
      rows ? tile_kernel<kInput, kElement, true> : tile_kernel<kInput, kElement, false>;
  return launch(kernel, input.batch * row_tiles * column_tiles, kTileThreads, device, p);
}

}  // namespace mxfp8::cuda
