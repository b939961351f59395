// Causal attention of a few rows to many keys on a CPU, reading every key and every value once for all rows.
//
// Keys are cut into blocks that stay in the first-level cache while all rows use them; rows keep a running maximum and
// sum (online softmax, arXiv 1805.02867). The threads take shares of a head's keys, and the shares are merged by their
// log-sum-exp (Flash-Decoding). Only GCC's vector extensions are used, so it builds for any processor.
// Blocks and shares begin at fixed keys, and a key that a row does not see adds exactly 0 to its sums, so a row's result
// depends on its query and the keys and values that it sees alone: not on rows beside it, later keys, heads or threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

typedef float Vec __attribute__((vector_size(32)));
typedef float VecU __attribute__((vector_size(32), aligned(4), may_alias));  // at any float
typedef int32_t IVec __attribute__((vector_size(32)));

constexpr int W = 8;        // floats in a Vec
constexpr int BLOCK = 64;   // keys
constexpr int MAX_DIM = 256;
constexpr int TOGETHER = 6;  // rows that share a load of a value

inline Vec load(const float* p) { return *reinterpret_cast<const VecU*>(p); }
inline void store(float* p, Vec x) { *reinterpret_cast<VecU*>(p) = x; }
inline Vec all(float x) { return Vec{x, x, x, x, x, x, x, x}; }

// Sums of the elements of eight vectors, as one vector: halves of pairs change places and are added, three times.
inline Vec sums(const Vec* a) {
  const IVec low1 = {0, 8, 1, 9, 4, 12, 5, 13}, high1 = {2, 10, 3, 11, 6, 14, 7, 15};
  const IVec low2 = {0, 1, 8, 9, 4, 5, 12, 13}, high2 = {2, 3, 10, 11, 6, 7, 14, 15};
  const IVec low3 = {0, 1, 2, 3, 8, 9, 10, 11}, high3 = {4, 5, 6, 7, 12, 13, 14, 15};
  Vec b[4], c[2];
  for (int i = 0; i < 4; ++i)
    b[i] = __builtin_shuffle(a[2 * i], a[2 * i + 1], low1) + __builtin_shuffle(a[2 * i], a[2 * i + 1], high1);
  for (int i = 0; i < 2; ++i)
    c[i] = __builtin_shuffle(b[2 * i], b[2 * i + 1], low2) + __builtin_shuffle(b[2 * i], b[2 * i + 1], high2);
  return __builtin_shuffle(c[0], c[1], low3) + __builtin_shuffle(c[0], c[1], high3);
}

// The halves, then the quarters, then the neighbours of a vector, changed with each other.
inline Vec turned(Vec x, int step) {
  const IVec by4 = {4, 5, 6, 7, 0, 1, 2, 3}, by2 = {2, 3, 0, 1, 6, 7, 4, 5}, by1 = {1, 0, 3, 2, 5, 4, 7, 6};
  return __builtin_shuffle(x, step == 4 ? by4 : step == 2 ? by2 : by1);
}

inline float sum_of(Vec x) {
  for (int step = W / 2; step > 0; step /= 2) x += turned(x, step);
  return x[0];
}

inline float greatest_of(Vec x) {
  for (int step = W / 2; step > 0; step /= 2) {
    const Vec y = turned(x, step);
    x = x > y ? x : y;
  }
  return x[0];
}

// e^x for x <= 0, relative error about 1e-7; 0 below -87.
inline Vec exp_negative(Vec x) {
  const Vec least = all(-87.0f);
  const IVec vanishes = x < least;
  x = vanishes ? least : x;
  const Vec shift = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = (x * all(1.44269504f) + shift) - shift;
  Vec r = x - n * all(0.693359375f);  // ln 2 in two parts, the first exact in nine bits
  r = r + n * all(2.12194440e-4f);
  // Taylor series about 0 on |r| <= ln(2) / 2: the first term left out is below 6e-9.
  Vec y = all(1.0f / 5040.0f);
  y = y * r + all(1.0f / 720.0f);
  y = y * r + all(1.0f / 120.0f);
  y = y * r + all(1.0f / 24.0f);
  y = y * r + all(1.0f / 6.0f);
  y = y * r + all(0.5f);
  y = y * r + all(1.0f);
  y = y * r + all(1.0f);
  const IVec power = (__builtin_convertvector(n, IVec) + 127) << 23;
  Vec scale;
  std::memcpy(&scale, &power, sizeof scale);
  return vanishes ? all(0.0f) : y * scale;
}

inline Vec silu(Vec x) {
  const IVec negative = x < all(0.0f);
  const Vec e = exp_negative(negative ? x : -x);
  return x * (negative ? e : all(1.0f)) / (all(1.0f) + e);
}

// <q, k_j> for eight keys that lie `stride` floats apart.
inline Vec eight_scores(const float* q, const float* k, int64_t stride, int dim) {
  Vec acc[8];
  for (int j = 0; j < 8; ++j) acc[j] = all(0.0f);
  int d = 0;
  for (; d + W <= dim; d += W) {
    const Vec x = load(q + d);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) acc[j] += x * load(k + j * stride + d);
  }
  for (; d < dim; ++d)
    for (int j = 0; j < 8; ++j) acc[j][d % W] += q[d] * k[j * stride + d];
  return sums(acc);
}

// Asks for the next keys and values a few lines at a time, all the while that rows compute with the present ones: asked
// for all at once, they would fill the queue of outstanding loads and stop the computing.
class Ahead {
 public:
  Ahead(const float* k, const float* v, int64_t k_stride, int64_t v_stride, int num, int dim, int steps)
      : k_(k), v_(v), k_stride_(k_stride), v_stride_(v_stride), num_(num), dim_(dim) {
    const int lines = 2 * num * ((dim + LINE - 1) / LINE);
    each_ = (lines + steps - 1) / std::max(steps, 1);
  }
  inline void step() {
    for (int i = 0; i < each_ && row_ < 2 * num_; ++i) {
      const float* row = row_ % 2 ? v_ + row_ / 2 * v_stride_ : k_ + row_ / 2 * k_stride_;
      __builtin_prefetch(row + at_, 0, 2);
      at_ += LINE;
      if (at_ >= dim_) at_ = 0, ++row_;
    }
  }

 private:
  static constexpr int LINE = 16;  // floats
  const float *k_, *v_;
  int64_t k_stride_, v_stride_;
  int num_, dim_, each_, row_ = 0, at_ = 0;
};

// out[r][0..C*8) += sum_j weights[r][j] * v[j] for R rows.
template <int R, int C>
inline void add_values(float* out, int64_t out_stride, const float* weights, const float* v, int64_t stride, int num,
                       Ahead& ahead) {
  Vec acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = load(out + r * out_stride + c * W);
  for (int j = 0; j < num; ++j) {
    if (j % W == 0) ahead.step();
    Vec x[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) x[c] = load(v + j * stride + c * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec w = all(weights[r * BLOCK + j]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] += w * x[c];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(out + r * out_stride + c * W, acc[r][c]);
}

template <int R, int C>
inline void add_all_dims(float* out, const float* weights, const float* v, int64_t stride, int num, int dim,
                         Ahead& ahead) {
  int d = 0;
  for (; d + C * W <= dim; d += C * W) add_values<R, C>(out + d, dim, weights, v + d, stride, num, ahead);
  for (; d < dim; d += W) add_values<R, 1>(out + d, dim, weights, v + d, stride, num, ahead);
}

struct Task {
  const float *q, *k, *v;  // rows [rows, dim], keys and values [num_keys, dim] of one KV head
  int64_t k_stride, v_stride;
  int rows, num_new, dim;
  int64_t first, last, total;  // keys [first, last) of `total`; row r sees total - num_new + r % num_new and before
  int64_t share;               // keys of a share; `first` is where one begins
  float* parts;                // of its shares, one behind the other; see Part
};

// What the rows have of one share. Lies in rows * (dim + 2) floats.
struct Part {
  float *out, *top, *sum;  // [rows, dim] not yet divided by sum; the greatest score; the sum of exp(score - top)
  Part(float* at, int64_t rows, int64_t dim) : out(at), top(at + rows * dim), sum(top + rows) {}
};

void attend(const Task& task) {
  alignas(32) float weights[64 * BLOCK];  // of up to 64 rows
  alignas(32) float rest[W * MAX_DIM] = {};
  const int dim = task.dim, rows = task.rows;
  Part part(task.parts, rows, dim);
  for (int64_t start = task.first; start < task.last; start += BLOCK) {
    if ((start - task.first) % task.share == 0) {
      part = Part(task.parts + (start - task.first) / task.share * rows * (dim + 2), rows, dim);
      std::fill(part.out, part.top, 0.0f);
      std::fill(part.top, part.sum, -std::numeric_limits<float>::infinity());
      std::fill(part.sum, part.sum + rows, 0.0f);
    }
    const int num = int(std::min<int64_t>(BLOCK, task.last - start));
    const int padded = (num + W - 1) / W * W;
    const float* k = task.k + start * task.k_stride;
    const float* v = task.v + start * task.v_stride;
    const int next = int(std::min<int64_t>(BLOCK, task.last - start - num));
    Ahead ahead(k + BLOCK * task.k_stride, v + BLOCK * task.v_stride, task.k_stride, task.v_stride, next, dim,
                (rows + rows / TOGETHER * (dim / (2 * W)) + rows % TOGETHER * ((dim + 8 * W - 1) / (8 * W))) * (num / W));
    for (int j = num / W * W; j < num; ++j)  // the last keys, with zeros behind them: summed in the same order
      std::copy(k + j * task.k_stride, k + j * task.k_stride + dim, rest + j % W * dim);
    for (int r = 0; r < rows; ++r) {
      float* row = weights + r * BLOCK;
      const float* q = task.q + int64_t(r) * dim;
      int j = 0;
      for (; j + W <= num; j += W) {
        ahead.step();
        store(row + j, eight_scores(q, k + j * task.k_stride, task.k_stride, dim));
      }
      if (j < num) store(row + j, eight_scores(q, rest, dim, dim));
    }
    for (int r = 0; r < rows; ++r) {
      float* row = weights + r * BLOCK;
      const int64_t seen = task.total - task.num_new + r % task.num_new + 1 - start;  // keys of this block and on
      for (int j = int(std::max<int64_t>(0, std::min<int64_t>(seen, num))); j < padded; ++j)
        row[j] = -std::numeric_limits<float>::infinity();
      Vec best = load(row);
      for (int j = W; j < padded; j += W) {
        const Vec x = load(row + j);
        best = x > best ? x : best;
      }
      const float top = std::max(part.top[r], greatest_of(best));
      if (std::isinf(top)) {  // nothing seen yet: weights of 0
        std::fill(row, row + padded, 0.0f);
        continue;
      }
      if (top > part.top[r]) {
        const float shrink = std::exp(part.top[r] - top);
        float* out = part.out + int64_t(r) * dim;
        for (int d = 0; d < dim; d += W) store(out + d, load(out + d) * all(shrink));
        part.sum[r] *= shrink;
        part.top[r] = top;
      }
      Vec added = all(0.0f);
      for (int j = 0; j < padded; j += W) {
        const Vec x = exp_negative(load(row + j) - all(top));
        store(row + j, x);
        added += x;
      }
      part.sum[r] += sum_of(added);
    }
    int r = 0;
    for (; r + TOGETHER <= rows; r += TOGETHER)
      add_all_dims<TOGETHER, 2>(part.out + int64_t(r) * dim, weights + r * BLOCK, v, task.v_stride, num, dim, ahead);
    for (; r < rows; ++r)
      add_all_dims<1, 8>(part.out + int64_t(r) * dim, weights + r * BLOCK, v, task.v_stride, num, dim, ahead);
  }
}

}  // namespace

// q: [kv_heads, rows, dim] contiguous and scaled, rows = group * num_new with the new tokens fastest; k, v: [kv_heads,
// total, dim] with strides in floats; out: [kv_heads, rows, dim]; lse: [kv_heads, rows]. rows <= 64, dim a multiple of
// 8 up to 256. `share`: keys of a share, a multiple of 64. `pieces`: whole shares of a head that one thread works on;
// no result depends on it. `scratch`: kv_heads * ceil(total / share) * rows * (dim + 2).
extern "C" void small_rows_attention(
    const float* q, const float* k, const float* v, float* out, float* lse, float* scratch, int64_t kv_heads,
    int64_t rows, int64_t num_new, int64_t total, int64_t dim, int64_t k_head, int64_t k_row, int64_t v_head,
    int64_t v_row, int64_t share, int64_t pieces, int64_t threads) {
  const int64_t shares = (total + share - 1) / share, size = rows * (dim + 2);
#pragma omp parallel for schedule(dynamic, 1) num_threads(int(threads)) if (threads > 1)
  for (int64_t i = 0; i < kv_heads * pieces; ++i) {
    const int64_t head = i / pieces, piece = i % pieces, first = shares * piece / pieces;
    Task task;
    task.q = q + head * rows * dim;
    task.k = k + head * k_head;
    task.v = v + head * v_head;
    task.k_stride = k_row;
    task.v_stride = v_row;
    task.rows = int(rows);
    task.num_new = int(num_new);
    task.dim = int(dim);
    task.first = first * share;
    task.last = std::min(total, shares * (piece + 1) / pieces * share);
    task.total = total;
    task.share = share;
    task.parts = scratch + (head * shares + first) * size;
    attend(task);
  }
  for (int64_t head = 0; head < kv_heads; ++head)
    for (int64_t r = 0; r < rows; ++r) {
      float* parts = scratch + head * shares * size;
      float top = -std::numeric_limits<float>::infinity(), sum = 0.0f;
      for (int64_t s = 0; s < shares; ++s) top = std::max(top, Part(parts + s * size, rows, dim).top[r]);
      float* row = out + (head * rows + r) * dim;
      std::fill(row, row + dim, 0.0f);
      for (int64_t s = 0; s < shares; ++s) {
        const Part part(parts + s * size, rows, dim);
        if (std::isinf(part.top[r])) continue;  // the row sees none of its keys
        const float weight = std::exp(part.top[r] - top);
        sum += weight * part.sum[r];
        for (int64_t d = 0; d < dim; d += W) store(row + d, load(row + d) + all(weight) * load(part.out + r * dim + d));
      }
      for (int64_t d = 0; d < dim; d += W) store(row + d, load(row + d) * all(1.0f / sum));
      lse[head * rows + r] = top + std::log(sum);
    }
}

// out[r][o] = <x_r, w_o>: x [rows, in] and w [outs, in] contiguous, outs >= 8. Every weight is read once for all rows, and
// every sum is taken in the same order whatever the number of rows.
extern "C" void small_rows_linear(
    const float* x, const float* w, float* out, int64_t rows, int64_t in, int64_t outs, int64_t threads) {
  const int64_t tiles = (outs + W - 1) / W;
#pragma omp parallel for schedule(static) num_threads(int(threads)) if (threads > 1)
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t first = std::min(tile * W, outs - W);  // the last tile overlaps the one before
    const float* some = w + first * in;
    for (int64_t r = 0; r < rows; ++r) store(out + r * outs + first, eight_scores(x + r * in, some, in, int(in)));
  }
}

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * w: x and out [rows, dim] contiguous, w [dim].
extern "C" void small_rows_norm(
    const float* x, const float* w, float* out, int64_t rows, int64_t dim, float eps) {
  for (int64_t r = 0; r < rows; ++r, x += dim, out += dim) {
    Vec squares = all(0.0f);
    int64_t d = 0;
    for (; d + W <= dim; d += W) squares += load(x + d) * load(x + d);
    float sum = sum_of(squares);
    for (; d < dim; ++d) sum += x[d] * x[d];
    const float scale = 1.0f / std::sqrt(sum / float(dim) + eps);
    for (d = 0; d + W <= dim; d += W) store(out + d, load(x + d) * all(scale) * load(w + d));
    for (; d < dim; ++d) out[d] = x[d] * scale * w[d];
  }
}

// out[i] = x[i] / (1 + e^-x[i]), computed alike for every number, wherever it stands.
extern "C" void small_rows_silu(const float* x, float* out, int64_t num) {
  int64_t i = 0;
  for (; i + W <= num; i += W) store(out + i, silu(load(x + i)));
  if (i == num) return;
  float rest[W] = {};
  std::copy(x + i, x + num, rest);
  store(rest, silu(load(rest)));
  std::copy(rest, rest + num - i, out + i);
}
