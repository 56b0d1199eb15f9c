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

// A block of G is up to kVectors vectors wide, and as many rows high as registers can hold: enough sums that none waits.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kVectors = 4, kSums = 24;  // of 32 registers
#else
constexpr int kLanes = 8, kVectors = 2, kSums = 10;  // of 16
#endif
constexpr int Height(int vectors) { return kSums / vectors; }
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

template <int R, int V>
void Rows(int rows, const Sizes& s, const float* x, const float* d, float* sums) {
  if (rows == R) return Block<R, V>(s, x, d, sums);
  if constexpr (R > 1) Rows<R - 1, V>(rows, s, x, d, sums);
}

template <int V>
void Dispatch(int rows, int vectors, const Sizes& s, const float* x, const float* d, float* sums) {
  if (vectors == V) return Rows<Height(V), V>(rows, s, x, d, sums);
  if constexpr (V > 1) Dispatch<V - 1>(rows, vectors, s, x, d, sums);
}

// Copies one contribution with zeros around it, so that the inner loops know no borders. Returns where d lies then: in its
// own place if whole vectors hold its features.
const float* Pad(const Sizes& s, const float* x, const float* d, std::vector<float>* xs, std::vector<float>* ds) {
  std::fill(xs->begin(), xs->end(), 0.f);
  const int64_t line = s.padded_width() * s.channels;
  const int64_t last = std::min(s.padded_width() - s.left, s.width);
  for (int64_t e = 0; e < s.examples; ++e) {
    for (int64_t h = 0; h < s.height && h + s.top < s.padded_height(); ++h) {
      if (last > 0)
        std::memcpy(xs->data() + (e * s.padded_height() + h + s.top) * line + s.left * s.channels,
                    x + (e * s.height + h) * s.width * s.channels, last * s.channels * sizeof(float));
    }
  }
  if (s.features == PaddedFeatures(s)) return d;
  std::fill(ds->begin(), ds->end(), 0.f);
  for (int64_t t = 0; t < s.examples * s.rows * s.columns; ++t)
    std::memcpy(ds->data() + t * PaddedFeatures(s), d + t * s.features, s.features * sizeof(float));
  return ds->data();
}

// The gradient of what is added to the output: d summed over positions.
void Bias(const Sizes& s, const float* d, float* bias) {
  const int64_t positions = s.examples * s.rows * s.columns, width = PaddedFeatures(s);
  for (int64_t f = 0; f < width; f += kLanes) {
    Lanes total[4] = {};  // several, so that none waits; also sums of fewer terms, which round less
    int64_t t = 0;
    for (; t + 4 <= positions; t += 4)
      for (int k = 0; k < 4; ++k) total[k] += *reinterpret_cast<const Lanes*>(d + (t + k) * width + f);
    for (; t < positions; ++t) total[0] += *reinterpret_cast<const Lanes*>(d + t * width + f);
    total[0] = (total[0] + total[1]) + (total[2] + total[3]);
    std::memcpy(bias + f, total, std::min<int64_t>(kLanes, s.features - f) * sizeof(float));
  }
}

// Lanes beyond the last feature hold zeros (or, where x is not finite, something that is not finite, as the others do).
double Squares(const float* sums, int vectors) {
  Lanes total = {};
  for (int v = 0; v < vectors; ++v) {
    const Lanes part = reinterpret_cast<const Lanes*>(sums)[v];
    total += part * part;
  }
  double sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += total[i];
  return sum;
}

// The squared norm of one contribution; its gradient too where `gradient` is not null. The vectors are scratch.
float One(const Sizes& s, const float* x, const float* d, float* bias, float* gradient, std::vector<float>* xs,
          std::vector<float>* ds) {
  d = Pad(s, x, d, xs, ds);
  Bias(s, d, bias);
  const int64_t line = s.padded_width() * s.channels;
  alignas(64) float sums[kSums * kLanes];
  double squares = 0;
  for (int64_t i = 0; i < s.kernel_rows; ++i) {
    for (int64_t f = 0; f < s.features; f += kVectors * kLanes) {
      const int vectors = std::min<int64_t>(kVectors, (PaddedFeatures(s) - f) / kLanes);
      const int64_t kept = std::min<int64_t>(s.features - f, vectors * kLanes);
      for (int64_t l = 0; l < s.run(); l += Height(vectors)) {
        const int rows = std::min<int64_t>(Height(vectors), s.run() - l);
        Dispatch<kVectors>(rows, vectors, s, xs->data() + i * line + l, d + f, sums);
        squares += Squares(sums, rows * vectors);
        if (gradient == nullptr) continue;
        for (int k = 0; k < rows; ++k)
          std::memcpy(gradient + ((i * s.run() + l + k) * s.features + f), sums + k * vectors * kLanes,
                      kept * sizeof(float));
      }
    }
  }
  return static_cast<float>(squares);
}

}  // namespace

void TFDPBC_VARIANT(const Sizes& s, const float* x, const float* d, float* squares, float* biases, float* gradients,
                    int64_t begin, int64_t end) {
  const int64_t positions = s.examples * s.rows * s.columns, numbers = s.kernel_rows * s.run() * s.features;
  std::vector<float> xs(s.examples * s.padded_height() * s.padded_width() * s.channels);
  std::vector<float> ds(s.features == PaddedFeatures(s) ? 0 : positions * PaddedFeatures(s));
  for (int64_t h = begin; h < end; ++h) {
    squares[h] = One(s, x + h * s.examples * s.height * s.width * s.channels, d + h * positions * s.features,
                     biases + h * s.features, gradients == nullptr ? nullptr : gradients + h * numbers, &xs, &ds);
  }
}

}  // namespace tfdpbc
