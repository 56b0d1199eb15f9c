// Norms (and gradients) of a two-dimensional convolution's kernel for each contribution, without patches or copies of the
// batch: see conv2d.py for where they are used. Everything here has an equal in TensorFlow operations, which is the
// fallback and the oracle of the tests.
//
// A contribution's gradient is G[i, l, f] = sum over its examples and positions t of x[t at kernel row i][l] * d[t][f], where
// l runs over kernel columns and channels: in NHWC these are neighbours in memory, as are the f. A block of G stays in
// registers while t runs; both operands are read where they lie.

#include "conv_kernel.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tfdpbc {
namespace {

// Compiled several times (build.py), each with other instructions and another name for what it exports.
#ifndef TFDPBC_VARIANT
#define TFDPBC_VARIANT ConvGradientsGeneric
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 6, kVectors = 4;  // 24 of 32 registers hold sums
#else
constexpr int kLanes = 8, kRows = 4, kVectors = 2;  // 8 of 16
#endif
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));


int64_t PaddedFeatures(const Sizes& s) { return (s.features + kLanes - 1) / kLanes * kLanes; }

// Sums R x (V * kLanes) numbers of G over all positions of the contribution's examples.
template <int R, int V>
void Block(const Sizes& s, const float* x, const float* d, float* sums) {
  Lanes total[R][V] = {};
  const int64_t line = s.padded_width() * s.channels, width = PaddedFeatures(s);
  const int64_t step = s.stride_columns * s.channels;
  for (int64_t e = 0; e < s.examples; ++e) {
    for (int64_t r = 0; r < s.rows; ++r) {
      const float* a = x + (e * s.padded_height() + r * s.stride_rows) * line;
      const float* b = d + (e * s.rows + r) * s.columns * width;
      for (int64_t c = 0; c < s.columns; ++c, a += step, b += width) {
        Lanes row[V];
        for (int v = 0; v < V; ++v) row[v] = *reinterpret_cast<const Lanes*>(b + v * kLanes);
        for (int k = 0; k < R; ++k)
          for (int v = 0; v < V; ++v) total[k][v] += a[k] * row[v];
      }
    }
  }
  std::memcpy(sums, total, sizeof(total));
}

template <int V>
void Rows(int rows, const Sizes& s, const float* x, const float* d, float* sums) {
  switch (rows) {
    case 1: return Block<1, V>(s, x, d, sums);
    case 2: return Block<2, V>(s, x, d, sums);
    case 3: return Block<3, V>(s, x, d, sums);
    case 4: return Block<4, V>(s, x, d, sums);
#if defined(__AVX512F__)
    case 5: return Block<5, V>(s, x, d, sums);
    default: return Block<6, V>(s, x, d, sums);
#endif
  }
}

void Dispatch(int rows, int vectors, const Sizes& s, const float* x, const float* d, float* sums) {
  switch (vectors) {
    case 1: return Rows<1>(rows, s, x, d, sums);
    case 2: return Rows<2>(rows, s, x, d, sums);
#if defined(__AVX512F__)
    case 3: return Rows<3>(rows, s, x, d, sums);
    default: return Rows<4>(rows, s, x, d, sums);
#endif
  }
}

// Copies one contribution with zeros around it, so that the inner loops know no borders.
void Pad(const Sizes& s, const float* x, const float* d, std::vector<float>* xs, std::vector<float>* ds) {
  std::fill(xs->begin(), xs->end(), 0.f);
  std::fill(ds->begin(), ds->end(), 0.f);
  const int64_t line = s.padded_width() * s.channels;
  const int64_t last = std::min(s.padded_width() - s.left, s.width);
  for (int64_t e = 0; e < s.examples; ++e) {
    for (int64_t h = 0; h < s.height && h + s.top < s.padded_height(); ++h) {
      if (last > 0)
        std::memcpy(xs->data() + (e * s.padded_height() + h + s.top) * line + s.left * s.channels,
                    x + (e * s.height + h) * s.width * s.channels, last * s.channels * sizeof(float));
    }
  }
  const int64_t positions = s.examples * s.rows * s.columns;
  for (int64_t t = 0; t < positions; ++t)
    std::memcpy(ds->data() + t * PaddedFeatures(s), d + t * s.features, s.features * sizeof(float));
}

// The squared norm of one contribution; its gradient too where `gradient` is not null. The vectors are scratch.
float One(const Sizes& s, const float* x, const float* d, float* gradient, std::vector<float>* xs,
          std::vector<float>* ds) {
  Pad(s, x, d, xs, ds);
  const int64_t line = s.padded_width() * s.channels;
  alignas(64) float sums[kRows * kVectors * kLanes];
  double squares = 0;
  for (int64_t i = 0; i < s.kernel_rows; ++i) {
    for (int64_t f = 0; f < s.features; f += kVectors * kLanes) {
      const int vectors = std::min<int64_t>(kVectors, (PaddedFeatures(s) - f) / kLanes);
      const int64_t kept = std::min<int64_t>(s.features - f, vectors * kLanes);
      for (int64_t l = 0; l < s.run(); l += kRows) {
        const int rows = std::min<int64_t>(kRows, s.run() - l);
        Dispatch(rows, vectors, s, xs->data() + i * line + l, ds->data() + f, sums);
        for (int k = 0; k < rows; ++k) {
          const float* from = sums + k * vectors * kLanes;
          float part = 0;
          for (int64_t v = 0; v < kept; ++v) part += from[v] * from[v];
          squares += part;
          if (gradient != nullptr)
            std::memcpy(gradient + ((i * s.run() + l + k) * s.features + f), from, kept * sizeof(float));
        }
      }
    }
  }
  return static_cast<float>(squares);
}

}  // namespace

void TFDPBC_VARIANT(const Sizes& s, const float* x, const float* d, float* squares, float* gradients, int64_t begin,
                    int64_t end) {
  const int64_t positions = s.examples * s.rows * s.columns, numbers = s.kernel_rows * s.run() * s.features;
  std::vector<float> xs(s.examples * s.padded_height() * s.padded_width() * s.channels);
  std::vector<float> ds(positions * PaddedFeatures(s));
  for (int64_t h = begin; h < end; ++h) {
    squares[h] = One(s, x + h * s.examples * s.height * s.width * s.channels, d + h * positions * s.features,
                     gradients == nullptr ? nullptr : gradients + h * numbers, &xs, &ds);
  }
}

}  // namespace tfdpbc
