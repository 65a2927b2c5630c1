// Which part of which matrix a warp works on, for the kernels that go along the rows.
#pragma once

#include "device.cuh"

namespace mxfp8::cuda {

struct UnitParameters {
  int64_t rows, columns;             // of one matrix, in elements
  int64_t batch_stride, row_stride;  // of the strided side, in elements
  int64_t scale_stride;              // scale bytes of one matrix
  uint32_t blocks;                   // of 32 elements in a row of the dense side
  uint32_t padded_columns;           // scales in a row of the scale storage
  uint32_t units, groups;
  uint32_t pairing;  // 1: neighbouring units complete 32-byte runs of scales
  FastDivisor column_units, groups_divisor;
  ScaleLayout layout;
  bool aligned;  // chunks of the strided side may be loaded as vectors
};

struct Unit {
  UnitShape shape;
  uint32_t batch;
  bool whole;  // no access of any lane crosses an edge, and loads may be vectors
};

template <int kUnroll>
__device__ __forceinline__ Unit locate(const UnitParameters& p, uint32_t index) {
  const uint32_t pair = index >> p.pairing;
  const uint32_t row_unit = p.column_units.quotient(pair);
  const uint32_t column_unit = pair - row_unit * p.column_units.divisor;
  uint32_t group = row_unit << p.pairing | (index & p.pairing);
  Unit unit;
  unit.batch = p.groups_divisor.quotient(group);
  group -= unit.batch * p.groups;
  unit.shape = unit_shape<kUnroll>(p.layout, group, column_unit);
  const int64_t last_row = unit.shape.row + int64_t{unit.shape.row_step} * (kUnroll - 1);
  const int64_t end_block = int64_t{unit.shape.column} + unit.shape.column_step * (kUnroll - 1) + 8;
  unit.whole = p.aligned && last_row < p.rows && end_block * kBlockSize <= p.columns;
  return unit;
}

// Host side. `flat` problems are one row of blocks.
inline UnitParameters unit_parameters(const View& view, int64_t padded_columns, ScaleLayout layout,
                                      int unroll, int element_bytes, int vector_bytes) {
  UnitParameters p{};
  p.rows = view.rows;
  p.columns = view.columns;
  p.batch_stride = view.batch_stride;
  p.row_stride = view.row_stride;
  p.blocks = static_cast<uint32_t>(padded_columns / kBlockSize);
  p.padded_columns = static_cast<uint32_t>(round_up(p.blocks, tile_columns(layout)));
  const int64_t padded_rows = round_up(view.rows, tile_rows(layout));
  p.scale_stride = padded_rows * p.padded_columns;
  const bool linear = layout == ScaleLayout::kLinear;
  p.pairing = linear ? 0 : 1;
  const int64_t groups = linear ? padded_rows : padded_rows / unroll;
  const int64_t column_units =
      (p.padded_columns + (linear ? 8 * unroll : 8) - 1) / (linear ? 8 * unroll : 8);
  const int64_t units = view.batch * groups * column_units;
  const bool fits = units < (int64_t{1} << 31) && padded_rows < (int64_t{1} << 31);
  p.units = fits ? static_cast<uint32_t>(units) : 0;
  p.groups = static_cast<uint32_t>(groups);
  p.column_units = FastDivisor(static_cast<uint32_t>(column_units));
  p.groups_divisor = FastDivisor(p.groups);
  p.layout = layout;
  const auto misaligned = [&](int64_t elements) {
    return elements * element_bytes % vector_bytes != 0;
  };
  p.aligned = reinterpret_cast<uintptr_t>(view.data) % vector_bytes == 0 &&
              !(view.rows > 1 && misaligned(view.row_stride)) &&
              !(view.batch > 1 && misaligned(view.batch_stride));
  return p;
}

// A dense linear problem without padding is one row of blocks, whatever its shape.
inline View flattened(const View& view, int64_t padded_columns, ScaleLayout layout) {
  const bool dense = view.columns == padded_columns &&
                     (view.rows == 1 || view.row_stride == view.columns) &&
                     (view.batch == 1 || view.batch_stride == view.rows * view.columns);
  if (!dense || layout != ScaleLayout::kLinear) return view;
  const int64_t elements = view.batch * view.rows * view.columns;
  return {view.data, 1, 1, elements, elements, elements};
}

// Enough threads for the whole GPU come first, then loads in flight for each of them.
inline int choose_unroll(int64_t elements, int processors) {
  if (tuning().unroll) return tuning().unroll;
  const int64_t threads = int64_t{processors} * 1024 * kChunk;
  return elements >= 4 * threads ? 4 : elements >= 2 * threads ? 2 : 1;
}

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), int64_t blocks, int threads, const Device& device,
                   Arguments... arguments) {
  if (blocks <= 0 || blocks >= (int64_t{1} << 31)) return cudaErrorInvalidConfiguration;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.stream = device.stream;
  config.attrs = &attribute;
  const bool overlap = device.overlaps_launches && tuning().overlap != 0;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class Parameters>
cudaError_t launch_units(void (*kernel)(Parameters), const Parameters& parameters,
                         const UnitParameters& units, const Device& device,
                         int preferred_threads = 0) {
  if (units.units == 0) return cudaErrorInvalidConfiguration;
  int threads = tuning().threads ? tuning().threads : preferred_threads;
  if (threads == 0)
    threads = int64_t{units.units} * 32 < int64_t{device.processors} * 1024 ? 128 : 256;
  const int64_t warps = threads / 32;
  return launch(kernel, (units.units + warps - 1) / warps, threads, device, parameters);
}

}  // namespace mxfp8::cuda
