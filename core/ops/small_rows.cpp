// Causal attention to many keys on a CPU, reading every key and every value once for all rows; and products, norms and
// SiLU for passes of few rows. Made so that twelve rows cost what one row costs, which is the reading of the memory:
//
// - A block of 64 keys is turned over into the first-level cache, [dim, 64]. Scores are then outer products: one number
//   of a query times vectors of keys. No sums across a vector, and no load per multiplication: six rows with their sums
//   stay in registers and share every load of a key, and again every load of a value.
// - The next block is asked for a line at a time, spread over all of the computing with this one.
// - Rows keep a running maximum and sum (online softmax, arXiv 1805.02867). Threads take shares of a head's keys, or some
//   of its rows; shares are merged by their log-sum-exp (Flash-Decoding).
//
// Keys and values are float32, float16 or bfloat16, which are widened in registers (exactly); all sums are float32. The vector
// extensions of GCC and Clang serve every processor; only the widening of float16, and matrix units (amx_attention.h), have instructions that they do not reach.
// Blocks and shares begin at fixed keys, every sum is taken in one order, and a key that a row does not see adds exactly
// 0, so a row's result depends on its query and the keys and values that it sees alone: not on rows beside it, later
// keys, heads or threads.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __F16C__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of GCC's own header
#include <immintrin.h>
#endif
#ifdef __ARM_NEON
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))  // compilers find the loops too long
#ifdef __clang__
#define UNROLL(N) _Pragma("clang loop unroll(full)")
#define NOT_UNROLLED _Pragma("clang loop unroll(disable)")
#else
#define PRAGMA(TEXT) _Pragma(#TEXT)
#define UNROLL(N) PRAGMA(GCC unroll N)
#define NOT_UNROLLED UNROLL(1)
#endif
#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C"
#endif

namespace {

#include "thread_team.h"

typedef float Vec4 __attribute__((vector_size(16)));
typedef float Vec __attribute__((vector_size(32)));
typedef float Vec16 __attribute__((vector_size(64)));
typedef uint16_t Half;  // the bits of a float16
struct Scaled {  // a row of such has the float32 behind its numbers that each is times: as many as `SCALE` more
  int16_t number;
};
constexpr int SCALE = sizeof(float) / sizeof(Scaled);
template <class T> constexpr int width_of(int dim) { return dim + (std::is_same_v<T, Scaled> ? SCALE : 0); }
INLINE float scale_of(const Scaled* row, int dim) {
  float scale;
  std::memcpy(&scale, row + dim, sizeof scale);
  return scale;
}

template <class V> constexpr int lanes = sizeof(V) / sizeof(float);
template <class V> using Ints = decltype(V() < V());
template <int N> using Lanes = std::make_integer_sequence<int, N>;

// The widest vectors of the processor, and how many of them six rows can have for their sums: with as many loads and one
// number for all lanes beside them, that is 29 of 32 registers, or 15 of 16.
#if defined(__AVX512F__)
typedef Vec16 Wide;
constexpr int COLUMNS = 4;
#elif defined(__AVX__)
typedef Vec Wide;
constexpr int COLUMNS = 2;
#elif defined(__aarch64__)
typedef Vec4 Wide;
constexpr int COLUMNS = 4;
#else
typedef Vec4 Wide;
constexpr int COLUMNS = 2;
#endif

constexpr int W = lanes<Vec>;
constexpr int WIDE = lanes<Wide>;
constexpr int BLOCK = 64;        // keys
constexpr int MAX_DIM = 256;
constexpr int TOGETHER = 6;      // rows, at most, that share every load
// Additions to a sum between two requests for what comes next: with 16 registers a request takes as long as an addition;
// one for a whole sum asks for too much at once (12 rows over 32,768 float32 keys 10.9 ms instead of 8.4, AMD Zen 3).
constexpr int PACE = WIDE > 8 ? 1 : 8;
constexpr int MOST_TOGETHER = 192;  // rows of a task: their queries and sums stay in the second-level cache

// A sum waits for its last addition, so one or two rows have more sums at a time: as many columns as the registers hold.
template <int R> constexpr int columns = R == 1 ? std::max(COLUMNS, 8) : R == 2 ? std::max(COLUMNS, 4) : COLUMNS;

template <class V> INLINE V all(float x) { return x - V{}; }
inline Vec all(float x) { return all<Vec>(x); }
template <class V> INLINE void store(float* p, V x) { std::memcpy(p, &x, sizeof x); }

template <class V> INLINE V load(const float* p) {
  V x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline Vec load(const float* p) { return load<Vec>(p); }

// float16 to float32 by its bits: exponent and fraction move to their places. Numbers below the smallest normal one get
// its exponent, and lose what that adds: no step has a subnormal float32, which processors may take for zero.
template <class V> INLINE V widened(const Half* p) {
  typedef uint16_t Bits __attribute__((vector_size(sizeof(V) / 2)));
  Bits half;
  std::memcpy(&half, p, sizeof half);
  const Ints<V> bits = __builtin_convertvector(half, Ints<V>), magnitude = (bits & 0x7fff) << 13;
  const Ints<V> normal = magnitude + (112 << 23), small = magnitude + (113 << 23), least = Ints<V>{} + (113 << 23);
  V below, subtracted;
  std::memcpy(&below, &small, sizeof below);
  std::memcpy(&subtracted, &least, sizeof subtracted);
  below -= subtracted;
  Ints<V> result;
  std::memcpy(&result, &below, sizeof result);
  result = (magnitude < (1 << 23) ? result : normal) | (bits & 0x8000) << 16;
  V x;
  std::memcpy(&x, &result, sizeof x);
  return x;
}
#ifdef __F16C__
template <> INLINE Vec widened<Vec>(const Half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#endif
#ifdef __AVX512F__
template <> INLINE Vec16 widened<Vec16>(const Half* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
#endif
template <class V> INLINE V load(const Half* p) { return widened<V>(p); }

typedef struct { uint16_t bits; } Brain;  // a bfloat16

// Tiles that widen 16-bit values each for itself; more have it done once. Widening takes one or two instructions for these.
#ifdef __F16C__
template <class T> constexpr int AS_STORED = WIDE > 8 ? 1 : 4;
#else
template <class T> constexpr int AS_STORED = std::is_same_v<T, Brain> ? 4 : 1;
#endif

// bfloat16 to float32: its bits are the upper half.
template <class V> INLINE V load(const Brain* p) {
  typedef uint16_t Bits __attribute__((vector_size(sizeof(V) / 2)));
  Bits bits;
  std::memcpy(&bits, p, sizeof bits);
  const Ints<V> upper = __builtin_convertvector(bits, Ints<V>) << 16;
  V x;
  std::memcpy(&x, &upper, sizeof x);
  return x;
}
// A float32 rounded to the nearest bfloat16, ties to even.
INLINE uint32_t brain_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#ifdef __AVX512F__
template <> INLINE Vec16 load<Vec16>(const Brain* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
#endif

// Elements of two vectors by their numbers, those of y behind those of x.
template <int... I, class V> INLINE V shuffled(V x, V y) {
#ifdef __clang__
  return __builtin_shufflevector(x, y, I...);
#else
  return __builtin_shuffle(x, y, Ints<V>{I...});
#endif
}

// Elements L and L + step of a vector, for every L, changed with each other.
template <int STEP, class V, int... L> INLINE V turned(V x, std::integer_sequence<int, L...>) {
  return shuffled<(L ^ STEP)...>(x, x);
}

template <int STEP, class V, class Join> INLINE float joined(V x, Join join) {
  x = join(x, turned<STEP>(x, Lanes<lanes<V>>()));
  if constexpr (STEP > 1) return joined<STEP / 2>(x, join);
  return x[0];
}

template <class V> INLINE V greater(V x, V y) { return x > y ? x : y; }
#ifdef __AVX512F__
template <> INLINE Vec16 greater<Vec16>(Vec16 x, Vec16 y) { return _mm512_max_ps(x, y); }  // the same, in one step
#endif
template <class V> inline float sum_of(V x) {
  return joined<lanes<V> / 2>(x, [](V a, V b) { return a + b; });
}
// sum_of for eight vectors at once, to the same bits.
inline Vec sums_of(const Vec (&x)[8]) {
  Vec y[4], z[2];
UNROLL(4)
  for (int i = 0; i < 4; ++i)
    y[i] = shuffled<0, 1, 2, 3, 8, 9, 10, 11>(x[i], x[i + 4]) +
           shuffled<4, 5, 6, 7, 12, 13, 14, 15>(x[i], x[i + 4]);
UNROLL(2)
  for (int i = 0; i < 2; ++i)
    z[i] = shuffled<0, 1, 8, 9, 4, 5, 12, 13>(y[2 * i], y[2 * i + 1]) +
           shuffled<2, 3, 10, 11, 6, 7, 14, 15>(y[2 * i], y[2 * i + 1]);
  return shuffled<0, 2, 8, 10, 4, 6, 12, 14>(z[0], z[1]) +
         shuffled<1, 3, 9, 11, 5, 7, 13, 15>(z[0], z[1]);
}
template <class V> inline float greatest_of(V x) { return joined<lanes<V> / 2>(x, greater<V>); }

// e^x for x <= 0, relative error about 1e-7; 0 below -87.
template <class V> INLINE V exp_negative(V x) {
  const V least = all<V>(-87.0f);
  const Ints<V> vanishes = x < least;
  x = vanishes ? least : x;
  const V shift = all<V>(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const V n = (x * all<V>(1.44269504f) + shift) - shift;
  V r = x - n * all<V>(0.693359375f);  // ln 2 in two parts, the first exact in nine bits
  r = r + n * all<V>(2.12194440e-4f);
  // Taylor series about 0 on |r| <= ln(2) / 2: the first term left out is below 6e-9.
  V y = all<V>(1.0f / 5040.0f);
  y = y * r + all<V>(1.0f / 720.0f);
  y = y * r + all<V>(1.0f / 120.0f);
  y = y * r + all<V>(1.0f / 24.0f);
  y = y * r + all<V>(1.0f / 6.0f);
  y = y * r + all<V>(0.5f);
  y = y * r + all<V>(1.0f);
  y = y * r + all<V>(1.0f);
  const Ints<V> power = (__builtin_convertvector(n, Ints<V>) + 127) << 23;
  V scale;
  std::memcpy(&scale, &power, sizeof scale);
  return vanishes ? all<V>(0.0f) : y * scale;
}

// 2^x for x <= 0, relative error about 1e-7; 0 below -126.5.
template <class V> INLINE V power_of_two(V x) {
  const V least = all<V>(-127.0f), shift = all<V>(12582912.0f);
  x = greater(least, x);
  const V shifted = x + shift, r = x - (shifted - shift);
  V y = all<V>(1.53533505e-4f);  // fitted to 2^r on |r| <= 1/2, relative error 2e-9
  y = y * r + 1.33988750e-3f;
  y = y * r + 9.61843692e-3f;
  y = y * r + 5.55033237e-2f;
  y = y * r + 2.40226477e-1f;
  y = y * r + 6.93147182e-1f;
  y = y * r + 1.0f;
  Ints<V> power;
  std::memcpy(&power, &shifted, sizeof power);  // its last bits are the integer
  power = (power << 23) + (127 << 23);
  V scale;
  std::memcpy(&scale, &power, sizeof scale);
  return y * scale;
}

// cap * tanh(x / cap), for cap > 0; error below 2e-7 cap.
template <class V> INLINE V capped(V x, float cap) {
  const Ints<V> negative = x < all<V>(0.0f);
  const V e = power_of_two<V>((negative ? x : -x) * (2 * 1.44269504f / cap));
  const V y = (all<V>(1.0f) - e) / (all<V>(1.0f) + e) * cap;
  return negative ? -y : y;
}

inline Vec silu(Vec x) {
  const Ints<Vec> negative = x < all(0.0f);
  const Vec e = exp_negative(negative ? x : -x);
  return x * (negative ? e : all(1.0f)) / (all(1.0f) + e);
}

// Keys and values of one KV head, [total, dim].
template <class T> struct Rows {
  const T *k, *v;
  int64_t k_stride, v_stride;
  Rows from(int64_t key) const { return {k + key * k_stride, v + key * v_stride, k_stride, v_stride}; }
};

// Asks for the next keys and values a few lines of each at a time, all the while that the present ones are turned over and
// computed with: asked for all at once, or keys before values, they fill the queue of outstanding loads, and the computing
// stops (12 rows over 32,768 keys 18.8 ms instead of 13.1).
template <class T> class Ahead {
 public:
  Ahead(Rows<T> next, int num, int dim, int steps) : next_(next), left_(num), dim_(dim) {
    const int lines = num * ((dim + LINE - 1) / LINE);
    each_ = (lines + steps - 1) / steps;
  }
  INLINE void step() {
    for (int i = 0; i < each_ && left_ > 0; ++i) {
      __builtin_prefetch(next_.k + at_, 0, 2);
      __builtin_prefetch(next_.v + at_, 0, 2);
      at_ += LINE;
      if (at_ < dim_) continue;
      at_ = 0, --left_;
      next_ = next_.from(1);
    }
  }

 private:
  static constexpr int LINE = 64 / sizeof(T);
  Rows<T> next_;
  int left_, dim_, each_, at_ = 0;  // of a key and its value alike
};

// The off-diagonal quarters of a square of vectors change places; then those of the quarters, and so on.
template <int STEP, int... L> INLINE void turn_over(Wide* rows, std::integer_sequence<int, L...> order) {
UNROLL(16)
  for (int i = 0; i < WIDE; ++i) {
    if (i & STEP) continue;
    const Wide a = rows[i], b = rows[i + STEP];
    rows[i] = shuffled<(L & STEP ? WIDE + L - STEP : L)...>(a, b);
    rows[i + STEP] = shuffled<(L & STEP ? WIDE + L : L + STEP)...>(a, b);
  }
  if constexpr (STEP > 1) turn_over<STEP / 2>(rows, order);
}

// A square of as many vectors as they have numbers.
template <class V> INLINE void turn_square(V* rows) { turn_over<lanes<V> / 2>(rows, Lanes<lanes<V>>()); }
#if defined(__AVX__) && !defined(__AVX512F__)
// In three rounds of shuffles that are one instruction each: numbers, then pairs, then halves change places.
template <> INLINE void turn_square<Vec>(Vec* rows) {
  Vec a[8], b[8];
UNROLL(4)
  for (int i = 0; i < 8; i += 2) {
    a[i] = shuffled<0, 8, 1, 9, 4, 12, 5, 13>(rows[i], rows[i + 1]);
    a[i + 1] = shuffled<2, 10, 3, 11, 6, 14, 7, 15>(rows[i], rows[i + 1]);
  }
UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const int from = i / 2 * 4 + i % 2, to = i / 2 * 4 + i % 2 * 2;
    b[to] = shuffled<0, 1, 8, 9, 4, 5, 12, 13>(a[from], a[from + 2]);
    b[to + 1] = shuffled<2, 3, 10, 11, 6, 7, 14, 15>(a[from], a[from + 2]);
  }
UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    rows[i] = shuffled<0, 1, 2, 3, 8, 9, 10, 11>(b[i], b[i + 4]);
    rows[i + 4] = shuffled<4, 5, 6, 7, 12, 13, 14, 15>(b[i], b[i + 4]);
  }
}
#endif

template <class T> INLINE Wide load_some(const T* p, int num) {
  if (num >= WIDE) return load<Wide>(p);
  T some[WIDE] = {};
  std::copy(p, p + num, some);
  return load<Wide>(some);
}

// to[d][j] = k[j][d] for a block of keys; zeros for those beyond `num`. Takes turning_steps of the next block.
template <class T> constexpr int STEPS_OF_A_SQUARE = WIDE <= 8 ? 1 : 2 * sizeof(T) < WIDE ? 2 * sizeof(T) : WIDE;
template <class T> constexpr int turning_steps(int dim) {
  return STEPS_OF_A_SQUARE<T> * (BLOCK / WIDE) * ((dim + WIDE - 1) / WIDE);
}
// Not part of a loop, where too few registers would be left for its addresses.
template <class T>
__attribute__((noinline)) void turn_keys(const T* k, int64_t stride, int num, int dim, float* to, Ahead<T>& ahead) {
  if (WIDE <= 8 && num == BLOCK && dim % WIDE == 0) {  // without a question for every key
    for (int j = 0; j < BLOCK; j += WIDE, k += WIDE * stride)
      for (int d = 0; d < dim; d += WIDE) {
        const T *first = k + d, *second = first + WIDE / 2 * stride;
        ahead.step();
        Wide square[WIDE];
UNROLL(8)
        for (int i = 0; i < WIDE / 2; ++i) {
          square[i] = load<Wide>(first + i * stride);
          square[WIDE / 2 + i] = load<Wide>(second + i * stride);
        }
        turn_square(square);
UNROLL(8)
        for (int i = 0; i < WIDE; ++i) store(to + (d + i) * BLOCK + j, square[i]);
      }
    return;
  }
  for (int j = 0; j < BLOCK; j += WIDE)
    for (int d = 0; d < dim; d += WIDE) {
      Wide square[WIDE];
UNROLL(16)
      for (int i = 0; i < WIDE; ++i) {
        if (i % (WIDE / STEPS_OF_A_SQUARE<T>) == 0) ahead.step();
        square[i] = j + i < num ? load_some(k + (j + i) * stride + d, dim - d) : Wide{};
      }
      turn_square(square);
UNROLL(16)
      for (int i = 0; i < WIDE; ++i) store(to + (d + i) * BLOCK + j, square[i]);
    }
}

// Keeps a vector in its register: GCC 12 loads it again for each of three or four rows.
template <class V> INLINE void hold(V&) {}
#if defined(__AVX__) && !defined(__AVX512F__) && !defined(__clang__)
template <> INLINE void hold<Vec>(Vec& x) { asm("" : "+x"(x)); }
#endif

// sums[r][c] += numbers[r * ROW + i * STEP] * vectors[i][c] for R rows and every i. The order of a sum is that of i.
template <int ROW, int STEP, class V, int R, int C, class T, class Next>
INLINE void outer_products(V (&sums)[R][C], const float* numbers, const T* vectors, int64_t stride, int num,
                           Next& ahead) {
  for (int from = 0; from < num; from += PACE) {
    ahead.step();
    for (int i = std::min(PACE, num - from); i > 0; --i, numbers += STEP, vectors += stride) {
      V x[C];
UNROLL(8)
      for (int c = 0; c < C; ++c) {
        x[c] = load<V>(vectors + c * lanes<V>);
        if constexpr (R == 3 || R == 4) hold(x[c]);
      }
UNROLL(6)
      for (int r = 0; r < R; ++r) {
        const V number = all<V>(numbers[r * ROW]);
UNROLL(8)
        for (int c = 0; c < C; ++c) sums[r][c] += number * x[c];
      }
    }
  }
}

// scores[r][j] = <q_r, k_j> for the keys of a block that was turned over; q: [dim, R].
template <int R, class Next> INLINE void score(const float* q, const float* keys, float* scores, int dim, Next& ahead) {
  constexpr int C = std::min(columns<R>, BLOCK / WIDE);
  for (int j = 0; j < BLOCK; j += C * WIDE) {
    Wide sums[R][C] = {};
    outer_products<1, R>(sums, q, keys + j, BLOCK, dim, ahead);
UNROLL(6)
    for (int r = 0; r < R; ++r)
UNROLL(8)
      for (int c = 0; c < C; ++c) store(scores + r * BLOCK + j + c * WIDE, sums[r][c]);
  }
}

template <class V, int R, int C, class T, class Next>
INLINE void add_some(float* out, const float* weights, const T* v, int64_t stride, int num, int dim, Next& ahead) {
  V sums[R][C];
UNROLL(6)
  for (int r = 0; r < R; ++r)
UNROLL(8)
    for (int c = 0; c < C; ++c) sums[r][c] = load<V>(out + r * dim + c * lanes<V>);
  outer_products<BLOCK, 1>(sums, weights, v, stride, num, ahead);
UNROLL(6)
  for (int r = 0; r < R; ++r)
UNROLL(8)
    for (int c = 0; c < C; ++c) store(out + r * dim + c * lanes<V>, sums[r][c]);
}

// out[r] += sum_j weights[r][j] * v[j].
template <int R, class T, class Next>
INLINE void add_values(float* out, const float* weights, const T* v, int64_t stride, int num, int dim, Next& ahead) {
  int d = 0;
  for (; d + columns<R> * WIDE <= dim; d += columns<R> * WIDE)
    add_some<Wide, R, columns<R>>(out + d, weights, v + d, stride, num, dim, ahead);
  if constexpr (columns<R> > COLUMNS)
    for (; d + COLUMNS * WIDE <= dim; d += COLUMNS * WIDE)
      add_some<Wide, R, COLUMNS>(out + d, weights, v + d, stride, num, dim, ahead);
  for (; d + WIDE <= dim; d += WIDE) add_some<Wide, R, 1>(out + d, weights, v + d, stride, num, dim, ahead);
  for (; d < dim; d += W) add_some<Vec, R, 1>(out + d, weights, v + d, stride, num, dim, ahead);
}

// What some rows have of some keys. Lies in rows * (dim + 2) floats.
struct Part {
  float *out, *top, *sum;  // [rows, dim] not yet divided by sum; the greatest score; the sum of 2^(score - top)
  float* mass = nullptr;   // null, or [rows, chunks of a share]: that sum by chunks of keys
  Part(float* at, int64_t rows, int64_t dim) : out(at), top(at + rows * dim), sum(top + rows) {}
  void clear(int64_t rows) const {
    std::fill(out, top, 0.0f);
    std::fill(top, sum, -std::numeric_limits<float>::infinity());
    std::fill(sum, sum + rows, 0.0f);
  }
};

inline void scale(float* row, float by, int dim) {
  for (int d = 0; d < dim; d += W) store(row + d, load(row + d) * by);
}

// Scores of one row become weights, 2^(score - top), and what the row has so far follows a new top. Returns their sum.
INLINE Wide weigh(float* scores, int seen, float* out, float& top, float& shrunk, int dim) {
  for (int j = std::max(seen, 0); j < BLOCK; ++j) scores[j] = -std::numeric_limits<float>::infinity();
  Wide best = load<Wide>(scores);
  for (int j = WIDE; j < BLOCK; j += WIDE) best = greater(best, load<Wide>(scores + j));
  const float found = std::max(top, greatest_of(best));
  shrunk = 1.0f;
  if (found > top) {
    shrunk = std::exp2(top - found);  // 0 for the first keys
    scale(out, shrunk, dim);
    top = found;
  }
  Wide added = {};
  for (int j = 0; j < BLOCK; j += WIDE) {
    const Wide x = seen > 0 ? power_of_two<Wide>(load<Wide>(scores + j) - found) : Wide{};
    store(scores + j, x);
    added += x;
  }
  return added;
}

// How rows are multiplied with a block of keys that was turned over, and of values.
template <class V> struct Floats {
  const float *q, *turned;  // q: [dim, R] of each tile
  const V* v;
  int64_t stride;
  int num, dim;
  template <int R, class Next> INLINE void score(int r, float* scores, Next& ahead) const {
    ::score<R>(q + r * dim, turned, scores, dim, ahead);
  }
  template <int R, class Next> INLINE void add(float* out, const float* weights, Next& ahead) const {
    add_values<R>(out, weights, v, stride, num, dim, ahead);
  }
};

#include "word_attention.h"

// Some rows of a head, and the keys of one share at a time. WORDS: by products of integers, see word_attention.h.
template <class T, bool WORDS = false> class Task {
 public:
  const int rows, dim;

  // Scores are <q, k> * scale, soft-capped if `cap` is not 0. Row r of q [rows, dim] is number first + r of its head: it sees keys up to
  // total - num_new + (first + r) % num_new.
  Task(const float* q, float scale, float cap, Rows<T> keys, int64_t first, int64_t rows, int64_t num_new,
       int64_t total, int64_t dim, int64_t share, int64_t chunk)
      : rows(int(rows)),
        dim(int(dim)),
        cap_(cap),
        keys_(keys),
        q_(WORDS ? 0 : rows * dim),
        words_(WORDS ? rows * dim / 2 : 0),
        units_(WORDS ? rows : 0),
        seen_(rows),
        chunks_(chunk > 0 ? int(share / chunk) : 0),
        chunk_(int(chunk)),
        tops_(chunk > 0 ? rows * share / BLOCK : 0) {
    for (int t = 0; t < num_tiles(); ++t) {
      const int64_t tile = tile_begin(t), width = tile_begin(t + 1) - tile;
      for (int64_t r = tile; r < tile + width; ++r) {
#ifdef HAS_WORDS
        if constexpr (WORDS)
          units_[r] = words::pack_query<T>(q + r * dim, scale, int(dim),
                                           &words_[tile * dim / 2 + (r - tile) * (direct() ? dim / 2 : 1)],
                                           direct() ? 1 : width);
#endif
        if constexpr (!WORDS)
          for (int64_t d = 0; d < dim; ++d) q_[tile * dim + d * width + r - tile] = q[r * dim + d] * scale;
        seen_[r] = total - num_new + (first + r) % num_new + 1;
      }
    }
  }
  int64_t most_seen() const { return *std::max_element(seen_.begin(), seen_.end()); }
  void attend(int64_t start, int64_t end, const Part& part);
  void move(int64_t by) { keys_.k += by, keys_.v += by; }  // to other keys and values, so many numbers behind

 private:
  float cap_;
  Rows<T> keys_;
  std::vector<float> q_;  // rows that share loads lie beside each other: [dim, rows] of each tile
  std::vector<int32_t> words_;  // or these, and what 1 stands for in each row
  std::vector<float> units_;
  std::vector<int64_t> seen_;
  int chunks_, chunk_;       // chunks of a share, 0: masses are not asked for; keys of a chunk
  std::vector<float> tops_;  // [rows, blocks of a share]: what masses of a block are relative to

  // Tiles of rows that share loads, of nearly equal size: one of one row takes half the time of one of six.
  int num_tiles() const { return (rows + TOGETHER - 1) / TOGETHER; }
  bool direct() const { return std::is_same_v<T, Scaled> && num_tiles() == 1; }  // see words::Direct
  int tile_begin(int t) const { return rows * t / num_tiles(); }

  // Masses of a block's chunks, of one row's weights.
  void add_masses(const float* weights, int r, int block, const Part& part) {
    if (chunks_ == 0) return;
    tops_[r * (chunks_ * chunk_ / BLOCK) + block] = part.top[r];
    float* to = part.mass + int64_t(r) * chunks_ + block * BLOCK / chunk_;
    if (chunk_ == W && BLOCK == W * W) {
      Vec eight[W];
UNROLL(8)
      for (int c = 0; c < W; ++c) eight[c] = load(weights + c * W);
      store(to, sums_of(eight));
      return;
    }
    for (int c = 0; c < BLOCK / chunk_; ++c) {
      Vec sum = {};
      for (int j = c * chunk_; j < (c + 1) * chunk_; j += W) sum += load(weights + j);
      to[c] = sum_of(sum);
    }
  }
  void finish_masses(const Part& part) const;

  template <int R, class By>
  INLINE void tile(int r, int64_t start, int num, const By& by, const Part& part, Wide* sums, int block,
                   Ahead<T>& ahead) {
    alignas(64) float weights[TOGETHER * BLOCK];
    by.template score<R>(r, weights, ahead);
    if (cap_ > 0)
      for (int j = 0; j < R * BLOCK; j += WIDE) store(weights + j, capped(load<Wide>(weights + j), cap_));
    for (int i = 0; i < R; ++i) {
      const int sees = int(std::min<int64_t>(seen_[r + i] - start, num));
      float shrunk;
      const Wide added = weigh(weights + i * BLOCK, sees, part.out + (r + i) * dim, part.top[r + i], shrunk, dim);
      sums[r + i] = sums[r + i] * shrunk + added;
      if (sees > 0) add_masses(weights + i * BLOCK, r + i, block, part);
    }
    by.template add<R>(part.out + r * dim, weights, ahead);
  }

  template <class By>
  void tiles(int64_t start, int num, const By& by, const Part& part, Wide* sums, int block, Ahead<T> ahead) {
    for (int t = 0, num_tiles = this->num_tiles(); t < num_tiles; ++t) {
      const int r = tile_begin(t), some = tile_begin(t + 1) - r;
      if (*std::max_element(&seen_[r], &seen_[r] + some) <= start) continue;
      switch (some) {
        case 1: tile<1>(r, start, num, by, part, sums, block, ahead); break;
        case 2: tile<2>(r, start, num, by, part, sums, block, ahead); break;
        case 3: tile<3>(r, start, num, by, part, sums, block, ahead); break;
        case 4: tile<4>(r, start, num, by, part, sums, block, ahead); break;
        case 5: tile<5>(r, start, num, by, part, sums, block, ahead); break;
        default: tile<TOGETHER>(r, start, num, by, part, sums, block, ahead);
      }
    }
  }
};

// Masses of all blocks relative to the top of the share. Blocks that a row does not see have none.
template <class T, bool WORDS> void Task<T, WORDS>::finish_masses(const Part& part) const {
  if (chunks_ == 0) return;
  const int blocks = chunks_ * chunk_ / BLOCK, each = BLOCK / chunk_;
  for (int r = 0; r < rows; ++r)
    for (int b = 0; b < blocks; ++b) {
      const float top = tops_[r * blocks + b];
      if (top == part.top[r]) continue;
      const float by = std::isinf(top) ? 0.0f : std::exp2(top - part.top[r]);
      float* mass = part.mass + int64_t(r) * chunks_ + b * each;
      for (int c = 0; c < each; ++c) mass[c] *= by;
    }
}

template <class T, bool WORDS> void Task<T, WORDS>::attend(int64_t start, int64_t end, const Part& part) {
  Wide sums[MOST_TOGETHER] = {};
  part.clear(rows);
  std::fill(tops_.begin(), tops_.end(), -std::numeric_limits<float>::infinity());
  std::fill(part.mass, part.mass + int64_t(rows) * chunks_, 0.0f);
  const int across = WIDE * (rows == 1 ? columns<1> : rows == 2 ? columns<2> : COLUMNS);
  const int steps_of_a_tile = std::max(1, BLOCK / across) * ((dim + PACE - 1) / PACE) +
                              std::max(1, dim / across) * ((BLOCK + PACE - 1) / PACE);
  const int steps = WORDS ? 2 * BLOCK + num_tiles() * dim : turning_steps<T>(dim) + num_tiles() * steps_of_a_tile;
  const auto for_blocks = [&](const auto& compute) {
    for (int at = 0; start < end; start += BLOCK, ++at) {
      const int num = int(std::min<int64_t>(BLOCK, end - start));
      const int next = int(std::min<int64_t>(BLOCK, end - start - num));
      Ahead<T> ahead(keys_.from(start + num), next, width_of<T>(dim), steps);
      compute(keys_.from(start), num, at, ahead);
    }
  };
#ifdef HAS_WORDS
  if constexpr (WORDS) {
    words::Block words;
    for_blocks([&](const Rows<T>& block, int num, int at, Ahead<T>& ahead) {
      if constexpr (std::is_same_v<T, Scaled>)
        if (direct()) {
          const words::Direct by = {words_.data(), units_.data(), block, num, dim};
          tiles(start, num, by, part, sums, at, ahead);
          return;
        }
      words::pack(block, num, dim, words, ahead);
      tiles(start, num, words::Products{words_.data(), units_.data(), words, dim}, part, sums, at, ahead);
    });
  }
#endif
  if constexpr (!WORDS) {
    alignas(64) float turned[(MAX_DIM + WIDE) * BLOCK], wide[std::is_same_v<T, float> ? 1 : MAX_DIM * BLOCK];
    for_blocks([&](const Rows<T>& block, int num, int at, Ahead<T>& ahead) {
      turn_keys(block.k, block.k_stride, num, dim, turned, ahead);
      if (std::is_same_v<T, float> || num_tiles() <= AS_STORED<T>) {
        const Floats<T> by = {q_.data(), turned, block.v, block.v_stride, num, dim};
        tiles(start, num, by, part, sums, at, ahead);
        return;
      }
      for (int j = 0; j < num; ++j)  // widened once for all tiles
        for (int d = 0; d < dim; d += W) store(wide + j * dim + d, load<Vec>(block.v + j * block.v_stride + d));
      tiles(start, num, Floats<float>{q_.data(), turned, wide, dim, num, dim}, part, sums, at, ahead);
    });
  }
  for (int r = 0; r < rows; ++r) part.sum[r] = sum_of(sums[r]);
  finish_masses(part);
}

}  // namespace

#include "amx_attention.h"

namespace {

// `to` becomes what its rows have of both. The parts of a head are added in the order of their keys.
void add_part(const Part& to, const Part& part, int rows, int dim) {
  for (int r = 0; r < rows; ++r) {
    const float top = std::max(to.top[r], part.top[r]);
    if (std::isinf(top)) continue;  // the row sees none of these keys
    const float old = std::exp2(to.top[r] - top), weight = std::exp2(part.top[r] - top);
    to.top[r] = top;
    to.sum[r] = to.sum[r] * old + part.sum[r] * weight;
    for (int64_t d = int64_t(r) * dim; d < int64_t(r + 1) * dim; d += W)
      store(to.out + d, load(to.out + d) * old + load(part.out + d) * weight);
  }
}

void finish(const Part& part, int rows, int dim, float* out) {
  for (int r = 0; r < rows; ++r) {
    scale(part.out + int64_t(r) * dim, 1.0f / part.sum[r], dim);
    std::copy(part.out + int64_t(r) * dim, part.out + int64_t(r + 1) * dim, out + int64_t(r) * dim);
  }
}

}  // namespace

struct Sizes {
  double scale;
  int64_t kv_heads, rows, num_new, total, dim, k_head, k_row, v_head, v_row, share, pieces, groups, threads,
      unit,            // 1: matrix units compute (amx_attention.h); 2: integers, where there are such (word_attention.h)
      chunk, columns;  // keys of a chunk, 0: no votes; chunks of a row of votes, a multiple of those of a share
  double cap;          // soft cap of scores, 0: none
};

namespace {

constexpr double LOG2_E = 1.4426950408889634;

template <class Task, class T>
Task task_of(const Sizes& s, const float* q, const T* k, const T* v, int64_t head, int64_t group) {
  const int64_t first = s.rows * group / s.groups, last = s.rows * (group + 1) / s.groups;
  const Rows<T> keys = {k + head * s.k_head, v + head * s.v_head, s.k_row, s.v_row};
  const float scale = float(s.scale * LOG2_E), cap = float(s.cap * LOG2_E);  // of powers of two
  return {q + (head * s.rows + first) * s.dim, scale, cap, keys, first, last - first, s.num_new, s.total, s.dim,
          s.share, s.chunk};
}

constexpr int VOTERS = 4;  // tokens whose votes are added

// Memory for the masses of one head's rows, and the tops that they are relative to, share by share.
class Masses {
 public:
  // `memory` grows to what is needed, and stays for the next layer: allocating takes longer than filling.
  Masses(const Sizes& s, int64_t shares, std::vector<float>& memory)
      : chunks_(s.chunk > 0 ? s.share / s.chunk : 0),
        rows_(s.rows),
        memory_(memory),
        tops_(chunks_ > 0 ? shares * s.rows : 0) {
    if (memory.size() < size_t(shares * rows_ * chunks_)) memory.resize(shares * rows_ * chunks_);
  }
  void lend(Part& part, int64_t share) { part.mass = memory_.data() + share * rows_ * chunks_; }
  void keep(const Part& part, int64_t share) {
    if (chunks_ > 0) std::copy(part.top, part.top + rows_, tops_.data() + share * rows_);
  }
  // votes[token / VOTERS][chunk] += attention of the token's rows to the chunk.
  void tell(const Sizes& s, const Part& result, int64_t shares, float* votes) const {
    if (chunks_ == 0) return;
    const int64_t quartets = (s.num_new + VOTERS - 1) / VOTERS;
    std::fill(votes, votes + quartets * s.columns, 0.0f);
    for (int64_t r = 0; r < rows_; ++r) {
      float* to = votes + r % s.num_new / VOTERS * s.columns;
      for (int64_t n = 0; n < shares; ++n) {
        const float top = tops_[n * rows_ + r];
        if (std::isinf(top)) continue;
        const float by = std::exp2(top - result.top[r]) / result.sum[r];
        const float* mass = memory_.data() + (n * rows_ + r) * chunks_;
        for (int64_t c = 0; c < chunks_; ++c) to[n * chunks_ + c] += mass[c] * by;
      }
    }
  }

 private:
  int64_t chunks_, rows_;
  std::vector<float>& memory_;
  std::vector<float> tops_;
};

// What rows have of the keys before a share: [kv_heads, rows, dim + 2], a row's numbers of a Part beside each other.
struct Unfinished {
  int64_t from = 0;  // the first key that is still to come; a multiple of a share
  const float* before = nullptr;
  float* after = nullptr;  // instead of results
};

// Between a Part and the rows of Unfinished.
void put_down(const Part& part, int rows, int dim, float* to) {
  for (int r = 0; r < rows; ++r, to += dim + 2) {
    std::copy(part.out + int64_t(r) * dim, part.out + int64_t(r + 1) * dim, to);
    to[dim] = part.top[r], to[dim + 1] = part.sum[r];
  }
}
void take_up(const float* from, int rows, int dim, const Part& part) {
  for (int r = 0; r < rows; ++r, from += dim + 2) {
    std::copy(from, from + dim, part.out + int64_t(r) * dim);
    part.top[r] = from[dim], part.sum[r] = from[dim + 1];
  }
}

// Every task has some rows of a head and all of their keys; it merges share after share.
template <class Task, class T>
void attend_by_rows(const Sizes& s, const float* q, const T* k, const T* v, float* out, float* votes,
                    Unfinished un = {}) {
  const int64_t quartets = (s.num_new + VOTERS - 1) / VOTERS;
  parallel_for(s.threads, s.kv_heads * s.groups, [&](int64_t i) {
    const int64_t head = i / s.groups, group = i % s.groups, first = s.rows * group / s.groups;
    Task task = task_of<Task>(s, q, k, v, head, group);
    const int64_t size = task.rows * (s.dim + 2), most = task.most_seen();
    std::vector<float> memory(2 * size);
    const Part result(memory.data(), task.rows, s.dim);
    Part part(memory.data() + size, task.rows, s.dim);
    const int64_t shares = (most + s.share - 1) / s.share, row = (head * s.rows + first) * (s.dim + 2);
    static thread_local std::vector<float> kept;
    Masses masses(s, shares, kept);  // where they are asked for, the task has all rows of the head
    result.clear(task.rows);
    if (un.before != nullptr) take_up(un.before + row, task.rows, task.dim, result);
    for (int64_t n = un.from / s.share; n < shares; ++n) {
      masses.lend(part, n);
      task.attend(n * s.share, std::min((n + 1) * s.share, s.total), part);
      masses.keep(part, n);
      add_part(result, part, task.rows, task.dim);
    }
    if (un.after != nullptr) {
      put_down(result, task.rows, task.dim, un.after + row);
      return;
    }
    masses.tell(s, result, shares, votes + head * quartets * s.columns);
    finish(result, task.rows, task.dim, out + (head * s.rows + first) * s.dim);
  });
}

// Every task has all rows of a head and some shares of its keys; their parts are merged at the end.
template <class Task, class T>
void attend_by_keys(const Sizes& s, const float* q, const T* k, const T* v, float* out, float* votes) {
  const int64_t quartets = (s.num_new + VOTERS - 1) / VOTERS;
  const int64_t shares = (s.total + s.share - 1) / s.share, size = s.rows * (s.dim + 2);
  std::vector<float> memory(s.kv_heads * shares * size + size);
  std::vector<std::vector<float>> kept(s.kv_heads);
  std::vector<Masses> masses;
  for (auto& memory : kept) masses.emplace_back(s, shares, memory);
  parallel_for(s.threads, s.kv_heads * s.pieces, [&](int64_t i) {
    const int64_t head = i / s.pieces, piece = i % s.pieces;
    Task task = task_of<Task>(s, q, k, v, head, 0);
    for (int64_t n = shares * piece / s.pieces; n < shares * (piece + 1) / s.pieces; ++n) {
      Part part(memory.data() + (head * shares + n) * size, s.rows, s.dim);
      masses[head].lend(part, n);
      task.attend(n * s.share, std::min((n + 1) * s.share, s.total), part);
      masses[head].keep(part, n);
    }
  });
  const Part result(memory.data() + s.kv_heads * shares * size, s.rows, s.dim);
  for (int64_t head = 0; head < s.kv_heads; ++head) {
    result.clear(s.rows);
    for (int64_t n = 0; n < shares; ++n)
      add_part(result, Part(memory.data() + (head * shares + n) * size, s.rows, s.dim), int(s.rows), int(s.dim));
    masses[head].tell(s, result, shares, votes + head * quartets * s.columns);
    finish(result, int(s.rows), int(s.dim), out + head * s.rows * s.dim);
  }
}

template <class Task, class T>
void attend_with(const Sizes& s, const float* q, const T* k, const T* v, float* out, float* votes) {
  if (s.pieces > 1)
    attend_by_keys<Task>(s, q, k, v, out, votes);
  else
    attend_by_rows<Task>(s, q, k, v, out, votes);
}

// Calls with the way in which keys and values are multiplied here: the same for any number of rows.
template <class Task> struct As {
  typedef Task type;
};
template <class T, class Call> void with_task(const Sizes& s, const Call& call) {
#ifdef HAS_WORDS
  if constexpr (std::is_same_v<T, Scaled>) return call(As<Task<T, true>>());
  if constexpr (std::is_same_v<T, Half>)
    if (s.unit == 2 && words::takes(s.dim)) return call(As<Task<T, true>>());
#endif
  if constexpr (!std::is_same_v<T, Scaled>) {
#ifdef HAS_MATRICES
    if (s.unit == 1) return call(As<amx::Task<T>>());
#endif
    call(As<Task<T>>());
  }
}

// Calls with a number of the type of keys and values of a `kind`.
template <class Call> auto with_kind(int64_t kind, const Call& call) {
#ifdef HAS_WORDS
  if (kind == 3) return call(Scaled());
#endif
  return kind == 1 ? call(Half()) : kind == 2 ? call(Brain()) : call(0.0f);
}
template <class T> const T* as(const void* rows, T) { return static_cast<const T*>(rows); }

template <class T>
void attention(const Sizes& s, const float* q, const T* k, const T* v, float* out, float* votes) {
  with_task<T>(s, [&](auto as) { attend_with<typename decltype(as)::type>(s, q, k, v, out, votes); });
}

template <class T>
void attention_from(const Sizes& s, const float* q, const T* k, const T* v, float* out, Unfinished un) {
  with_task<T>(s, [&](auto as) { attend_by_rows<typename decltype(as)::type>(s, q, k, v, out, nullptr, un); });
}

}  // namespace

// q: [kv_heads, rows, dim] contiguous, rows = group * num_new with the new tokens fastest; k, v: [kv_heads, total, dim]
// with strides in numbers, of a `kind`: 0 float32, 1 float16, 2 bfloat16, 3 Scaled; out: [kv_heads, rows, dim]. dim a multiple of
// 8 up to 256.
// `share`: keys of a share, a multiple of 64. The work of a head is cut into `pieces` of its keys (then rows <= 192), or
// into `groups` of its rows, each of at most 192; no result depends on either. If `chunk` is not 0 (8, 16 or 32, and one
// group): votes [kv_heads, quartets of new tokens, columns], the attention of four tokens' rows to each chunk of keys.
EXPORT void small_rows_attention(const float* q, const void* k, const void* v, float* out, float* votes,
                                     const Sizes* sizes, int64_t kind) {
  with_kind(kind, [&](auto number) { attention(*sizes, q, as(k, number), as(v, number), out, votes); });
}

// Whether this processor has matrix units, and the system lets the process use them.
EXPORT int64_t small_rows_has_matrices() {
#ifdef HAS_MATRICES
  return amx::permitted();
#else
  return 0;
#endif
}

// The same in two steps, for rows that see the same first keys: without `before` what rows have of all keys, which they
// must all see (num_new 1), goes to `after`; then `before` is what they have of the first `from` keys. Results are the
// same to the last bit. `pieces` is 1, `from` a multiple of `share`; before and after: [kv_heads, rows, dim + 2].
EXPORT void small_rows_attention_from(const float* q, const void* k, const void* v, float* out, const Sizes* sizes,
                                          int64_t kind, int64_t from, const float* before, float* after) {
  const Unfinished un = {from, before, after};
  with_kind(kind, [&](auto number) { attention_from(*sizes, q, as(k, number), as(v, number), out, un); });
}

namespace {

// float32 to the type of keys and values, to the nearest, ties to even; for float16 num is a multiple of 8. Whether none was too large
// for 16 bits.
INLINE bool put(const float* from, float* to, int64_t num) {
  std::copy(from, from + num, to);
  return true;
}
INLINE bool put(const float* from, Half* to, int64_t num) {
  bool fits = true;
#ifdef __F16C__
  for (int64_t i = 0; i < num; i += W)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(load(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  for (int64_t i = 0; i < num; ++i) fits &= (to[i] & 0x7c00) != 0x7c00;
#else
  (void)from, (void)to, (void)num;  // small_rows_puts says no
#endif
  return fits;
}
INLINE bool put(const float* from, Brain* to, int64_t num) {
  constexpr uint32_t INFINITE = 0x7f80;
  uint32_t most = 0;  // of exponents; GCC takes vectors for this, but not for a bool
  for (int64_t i = 0; i < num; ++i) {
    const uint32_t bits = brain_bits(from[i]);
    to[i].bits = uint16_t(bits);
    most = std::max(most, bits & INFINITE);
  }
  return most != INFINITE;
}

#ifdef HAS_WORDS
// A whole row, so that its longest possible number is as long as it.
INLINE bool put(const float* from, Scaled* to, int64_t dim) {
  Wide squares = {};
  for (int64_t d = 0; d < dim; d += WIDE) squares += load<Wide>(from + d) * load<Wide>(from + d);
  const float length = std::sqrt(sum_of(squares)), by = length > 0 ? words::FULL / length : 0.0f;
  for (int64_t d = 0; d < dim; d += WIDE)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + d),
                        _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((__m512)(load<Wide>(from + d) * by))));
  const float scale = length / words::FULL;
  std::memcpy(to + dim, &scale, sizeof scale);
  return std::isfinite(length);
}
#endif

constexpr int64_t BLOCKS_OF_A_TASK = 8;

// The attention of every row to the chunks of every block, as a share of what the row gives the block.
struct Shares {
  void* to;        // [blocks, kv_heads, rows, total / chunk]
  bool as_brains;  // else float32
  float* lse;      // [blocks, kv_heads, rows], of each block
};

inline float lse_of(const Part& part, int r) { return float((part.top[r] + std::log2(part.sum[r])) / LOG2_E); }

// What some rows, from row `at` of all blocks' on, have of a block.
void tell(const Sizes& s, const Part& part, int rows, int64_t at, const Shares& shares) {
  if (s.chunk == 0) return;
  const int64_t chunks = s.total / s.chunk, padded = s.share / s.chunk;
  for (int r = 0; r < rows; ++r, ++at) {
    float* own = part.mass + r * padded;
    scale(own, 1.0f / part.sum[r], int(padded));
    if (shares.as_brains)
      put(own, static_cast<Brain*>(shares.to) + at * chunks, chunks);
    else
      put(own, static_cast<float*>(shares.to) + at * chunks, chunks);
    shares.lse[at] = lse_of(part, r);
  }
}

// Every task has some rows of a head and some blocks; their parts are merged in the order of the blocks.
template <class Task, class T>
void attend_to_blocks(const Sizes& s, const float* q, const T* blocks, int64_t num, float* out, float* lse,
                      const Shares& shares) {
  const int64_t apart = 2 * s.kv_heads * s.k_head, parts = (num + BLOCKS_OF_A_TASK - 1) / BLOCKS_OF_A_TASK;
  const int64_t rows_of_all = s.kv_heads * s.rows, row = s.dim + 2;
  const std::unique_ptr<float[]> memory(new float[parts * rows_of_all * row]);
  const auto part_of = [&](int64_t n, int64_t head, int64_t group) {
    const int64_t first = s.rows * group / s.groups, last = s.rows * (group + 1) / s.groups;
    return Part(memory.get() + (n * rows_of_all + head * s.rows + first) * row, last - first, s.dim);
  };
  parallel(s.threads, [&](Team& team) {
    std::vector<float> own(s.rows * row), masses(s.chunk > 0 ? s.rows * (s.share / s.chunk) : 0);
    team.each(parts * s.kv_heads * s.groups, [&](int64_t i) {
      const int64_t n = i / s.groups / s.kv_heads, head = i / s.groups % s.kv_heads, group = i % s.groups;
      const int64_t from = n * BLOCKS_OF_A_TASK, to = std::min(from + BLOCKS_OF_A_TASK, num);
      const T* k = blocks + from * apart;
      Task task = task_of<Task>(s, q, k, k + apart / 2, head, group);
      Part result = part_of(n, head, group), part(own.data(), task.rows, s.dim);
      result.mass = part.mass = masses.data();
      const int64_t first = head * s.rows + s.rows * group / s.groups;
      task.attend(0, s.total, result);
      tell(s, result, task.rows, from * rows_of_all + first, shares);
      for (int64_t b = from + 1; b < to; ++b) {
        task.move(apart);
        task.attend(0, s.total, part);
        tell(s, part, task.rows, b * rows_of_all + first, shares);
        add_part(result, part, task.rows, task.dim);
      }
    });
    team.each(s.kv_heads * s.groups, [&](int64_t i) {
      const int64_t head = i / s.groups, group = i % s.groups;
      const int64_t first = s.rows * group / s.groups, at = head * s.rows + first;
      const int rows = int(s.rows * (group + 1) / s.groups - first), dim = int(s.dim);
      const Part result = part_of(0, head, group);
      for (int64_t n = 1; n < parts; ++n) add_part(result, part_of(n, head, group), rows, dim);
      for (int r = 0; r < rows; ++r) lse[at + r] = lse_of(result, r);
      finish(result, rows, dim, out + at * dim);
    });
  });
}

template <class T>
void blocks(const Sizes& s, const float* q, const T* from, int64_t num, float* out, float* lse, const Shares& shares) {
  with_task<T>(s, [&](auto as) { attend_to_blocks<typename decltype(as)::type>(s, q, from, num, out, lse, shares); });
}

}  // namespace

// Attention of all rows to all keys of `num` contiguous blocks [2, kv_heads, total, dim], keys before values, with its
// log-sum-exp lse [kv_heads, rows]: one parallel step for all blocks. num_new 1; `pieces` and `columns` are not used.
// If `chunk` is not 0 (8, 16 or 32, and `total` a multiple of it): the rows' attention to the chunks of each block as a
// share of that to the block go `to` [num, kv_heads, rows, total / chunk], float32 or bfloat16, and its log-sum-exp to
// lses [num, kv_heads, rows]; then `share` is `total`, rounded up to a multiple of 512.
EXPORT void small_rows_blocks(const float* q, const void* from, int64_t num, float* out, float* lse,
                                  const Sizes* sizes, int64_t kind, void* to, float* lses, int64_t as_brains) {
  const Shares shares = {to, as_brains != 0, lses};
  with_kind(kind, [&](auto number) { blocks(*sizes, q, as(from, number), num, out, lse, shares); });
}

namespace {

// scores[r][j] = <q_r, k_j> for a block of keys that was turned over.
template <int R> void score_tile(const float* q, const float* turned, float* scores, int64_t row, int dim) {
  alignas(64) float found[R * BLOCK];
  Ahead<float> none({nullptr, nullptr, 0, 0}, 0, dim, 1);
  score<R>(q, turned, found, dim, none);
  for (int r = 0; r < R; ++r) std::copy(found + r * BLOCK, found + (r + 1) * BLOCK, scores + r * row);
}

// One head's votes: the softmax of every row's scores, summed over the rows.
void vote(const float* q, float scale, const float* keys, int64_t stride, int64_t rows, int64_t num, int64_t dim,
          float* out) {
  const int64_t padded = (num + BLOCK - 1) / BLOCK * BLOCK;
  alignas(64) float turned[(MAX_DIM + WIDE) * BLOCK];
  std::vector<float> tiles(rows * dim), scores(rows * padded), shares(padded);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t tile = r / TOGETHER * TOGETHER, width = std::min<int64_t>(TOGETHER, rows - tile);
    for (int64_t d = 0; d < dim; ++d) tiles[tile * dim + d * width + r - tile] = q[r * dim + d] * scale;
  }
  Ahead<float> none({nullptr, nullptr, 0, 0}, 0, int(dim), 1);
  for (int64_t start = 0; start < num; start += BLOCK) {
    turn_keys(keys + start * stride, stride, int(std::min<int64_t>(BLOCK, num - start)), int(dim), turned, none);
    for (int64_t r = 0; r < rows; r += TOGETHER) {
      const float* tile = tiles.data() + r * dim;
      float* to = scores.data() + r * padded + start;
      switch (std::min<int64_t>(TOGETHER, rows - r)) {
        case 1: score_tile<1>(tile, turned, to, padded, int(dim)); break;
        case 2: score_tile<2>(tile, turned, to, padded, int(dim)); break;
        case 3: score_tile<3>(tile, turned, to, padded, int(dim)); break;
        case 4: score_tile<4>(tile, turned, to, padded, int(dim)); break;
        case 5: score_tile<5>(tile, turned, to, padded, int(dim)); break;
        default: score_tile<TOGETHER>(tile, turned, to, padded, int(dim));
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* own = scores.data() + r * padded;
    std::fill(own + num, own + padded, -std::numeric_limits<float>::infinity());
    Wide best = load<Wide>(own);
    for (int64_t c = WIDE; c < padded; c += WIDE) best = greater(best, load<Wide>(own + c));
    const float top = greatest_of(best);
    double sum = 0.0;  // of many small numbers
    for (int64_t start = 0; start < padded; start += BLOCK) {
      Wide some = {};
      for (int64_t c = start; c < start + BLOCK; c += WIDE) {
        const Wide x = power_of_two<Wide>(load<Wide>(own + c) - top);  // 0 beyond num, or below 1e-38
        store(own + c, x);
        some += x;
      }
      sum += sum_of(some);
    }
    const Wide by = all<Wide>(float(1.0 / sum));
    for (int64_t c = 0; c < padded; c += WIDE) store(shares.data() + c, load<Wide>(shares.data() + c) + load<Wide>(own + c) * by);
  }
  std::copy(shares.data(), shares.data() + num, out);
}

}  // namespace

// out[h][c] = sum over rows r of softmax_c(<q_hr, k_hc> * scale): q [heads, rows, dim] contiguous, k [heads, num, dim]
// with strides in numbers, out [heads, num]. dim at most 256.
EXPORT void small_rows_votes(const float* q, const float* k, float* out, double scale, int64_t heads, int64_t rows,
                                 int64_t num, int64_t dim, int64_t k_head, int64_t k_row, int64_t threads) {
  parallel_for(threads, heads, [&](int64_t h) {
    vote(q + h * rows * dim, float(scale * 1.4426950408889634), k + h * k_head, k_row, rows, num, dim, out + h * num);
  });
}

// Copies n chunks of `bytes` each: chunk chunks[i] of head heads[i] into slot slots[i]. Heads lie from_head, to_head bytes
// apart, the chunks of a head one after the other.
EXPORT void small_rows_move(const char* from, char* to, const int64_t* heads, const int64_t* chunks,
                                const int64_t* slots, int64_t n, int64_t bytes, int64_t from_head, int64_t to_head,
                                int64_t threads) {
  const auto copy = [&](int64_t i) {
    std::memcpy(to + heads[i] * to_head + slots[i] * bytes, from + heads[i] * from_head + chunks[i] * bytes, bytes);
  };
  parallel_for(threads, n, copy, 16);
}

namespace {

#include "stored_blocks.h"

constexpr int PANEL = COLUMNS * WIDE;  // outputs whose weights lie beside each other
constexpr int DEPTH = 256;             // inputs that are summed one after the other; the sums of such parts are added
constexpr int WIDENED_FROM = 4 * TOGETHER;  // rows for which 16-bit weights are widened once, not with every six rows
constexpr int64_t ROWS_OF_A_TASK = 96;

// A linear layer: weights [panels][in][PANEL], those beyond `outs` zero; or cells of stored blocks.
struct Linear {
  const void* weights;
  const float* bias;  // or null
  int64_t in, outs, kind;  // of the weights: 0 float32, 1 float16, 2 bfloat16, from FIRST_KIND on stored blocks
  int64_t panels() const { return (outs + PANEL - 1) / PANEL; }
  bool is_stored() const { return kind >= stored::FIRST_KIND; }
};

thread_local bool rounds = true;  // whether rows are rounded to 8 bits for stored blocks

// Memory for so many rows of a width in 8 bits, until the next call by this thread; null: rows are not rounded.
stored::Piece* room_for(int64_t rows, int64_t width) {
  static thread_local std::vector<stored::Piece> memory;
  const size_t pieces = rows * width / stored::NUMBERS;
  if (memory.size() < pieces) memory.resize(pieces);
  return rounds ? memory.data() : nullptr;
}

// By all threads of a team: x [rows, width] in 8 bits.
INLINE void round_rows(Team& team, const float* x, int64_t rows, int64_t width, stored::Piece* to) {
  const auto round = [&](int64_t i) { stored::round_block(x + i * stored::NUMBERS, to[i]); };
  team.each(rows * width / stored::NUMBERS, round, 16);
}

struct Pair { uint32_t bits; };  // two bfloat16 numbers: an instruction adds both of their products to a sum

INLINE Wide every(float x) { return all<Wide>(x); }
template <class X> INLINE Wide plus_products(Wide sum, Wide x, Wide w) { return sum + x * w; }
#ifdef __AVX512BF16__
template <class V> INLINE V load(const Pair* p) {
  V x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
INLINE Wide every(Pair x) { return (Wide)_mm512_set1_epi32(int(x.bits)); }
template <> INLINE Wide plus_products<Pair>(Wide sum, Wide x, Wide w) {
  return (Wide)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
}
#endif

// out[r][c] (+)= <x_r, column c> over some inputs, for R rows and a panel.
template <int R, class X, class T>
INLINE void add_panel(const X* x, int64_t x_row, const T* weights, int num, float* out, int64_t out_row, int valid,
                      bool first) {
  Wide sums[R][COLUMNS] = {};
  for (int i = 0; i < num; ++i, weights += PANEL) {
    Wide w[COLUMNS];
UNROLL(4)
    for (int c = 0; c < COLUMNS; ++c) {
      w[c] = load<Wide>(weights + c * WIDE);
      if constexpr (R == 3 || R == 4) hold(w[c]);
    }
UNROLL(6)
    for (int r = 0; r < R; ++r) {
      const Wide number = every(x[r * x_row + i]);
UNROLL(4)
      for (int c = 0; c < COLUMNS; ++c) sums[r][c] = plus_products<X>(sums[r][c], number, w[c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    alignas(64) float some[PANEL] = {};
    float* to = valid == PANEL ? out + r * out_row : some;
    if (!first && to == some) std::copy(out + r * out_row, out + r * out_row + valid, some);
    for (int c = 0; c < COLUMNS; ++c)
      store(to + c * WIDE, first ? sums[r][c] : load<Wide>(to + c * WIDE) + sums[r][c]);
    if (to == some) std::copy(some, some + valid, out + r * out_row);
  }
}

template <class X, class T>
void add_rows(const X* x, int64_t x_row, const T* weights, int num, float* out, int64_t out_row, int64_t rows,
              int valid, bool first) {
  const int64_t tiles = (rows + TOGETHER - 1) / TOGETHER;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t r = rows * t / tiles, some = rows * (t + 1) / tiles - r;
    switch (some) {
      case 1: add_panel<1>(x, x_row, weights, num, out, out_row, valid, first); break;
      case 2: add_panel<2>(x, x_row, weights, num, out, out_row, valid, first); break;
      case 3: add_panel<3>(x, x_row, weights, num, out, out_row, valid, first); break;
      case 4: add_panel<4>(x, x_row, weights, num, out, out_row, valid, first); break;
      case 5: add_panel<5>(x, x_row, weights, num, out, out_row, valid, first); break;
      default: add_panel<TOGETHER>(x, x_row, weights, num, out, out_row, valid, first);
    }
    x += some * x_row, out += some * out_row;
  }
}

// Some inputs of a panel of stored blocks as float32, [num, PANEL].
template <class F> void widen_panel(const Linear& layer, int64_t panel, int64_t start, int64_t num, float* to) {
  constexpr int inputs = stored::cell_inputs<F>();
  for (int64_t first = panel * PANEL, c = 0; c < PANEL; c += stored::LANES) {
    if (first + c >= layer.outs) break;
    const int64_t row = (first + c) / stored::LANES * stored::lanes_bytes<F>(layer.in);
    const char* cell = static_cast<const char*>(layer.weights) + row + start / inputs * F::BYTES;
    for (int64_t i = 0; i < num; i += inputs, cell += F::BYTES) stored::widen_cell<F>(cell, to + i * PANEL + c, PANEL);
  }
}

INLINE void add_bias(const Linear& layer, int64_t first, int valid, float* out, int64_t rows) {
  if (layer.bias != nullptr)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t o = first; o < first + valid; ++o) out[r * layer.outs + o] += layer.bias[o];
}

template <class T>  // char: of stored blocks
void panel_product(const Linear& layer, const T* weights, int64_t panel, const float* x, float* out, int64_t rows) {
  const int64_t first = panel * PANEL;
  const int valid = int(std::min<int64_t>(PANEL, layer.outs - first));
  for (int64_t start = 0; start < layer.in; start += DEPTH) {
    const int num = int(std::min<int64_t>(DEPTH, layer.in - start));
    const T* some = weights + (panel * layer.in + start) * PANEL;
    if constexpr (std::is_same_v<T, char>) {
      alignas(64) float wide[DEPTH * PANEL] = {};
      stored::with_format(layer.kind, [&](auto f) { widen_panel<decltype(f)>(layer, panel, start, num, wide); });
      add_rows(x + start, layer.in, wide, num, out + first, layer.outs, rows, valid, start == 0);
    } else if (!std::is_same_v<T, float> && rows >= WIDENED_FROM) {
      alignas(64) float wide[DEPTH * PANEL];
      for (int i = 0; i < num * PANEL; i += WIDE) store(wide + i, load<Wide>(some + i));
      add_rows(x + start, layer.in, wide, num, out + first, layer.outs, rows, valid, start == 0);
    } else {
      add_rows(x + start, layer.in, some, num, out + first, layer.outs, rows, valid, start == 0);
    }
  }
  add_bias(layer, first, valid, out, rows);
}

#ifdef __AVX512BF16__
// One panel of weights that bfloat16 holds exactly, for rows of pairs; as many inputs are even.
template <class T>
void brain_panel(const Linear& layer, const T* weights, int64_t panel, const Pair* x, float* out, int64_t rows) {
  const int64_t first = panel * PANEL;
  const int valid = int(std::min<int64_t>(PANEL, layer.outs - first));
  alignas(64) Pair pairs[DEPTH / 2 * PANEL];
  for (int64_t start = 0; start < layer.in; start += DEPTH) {
    const int num = int(std::min<int64_t>(DEPTH, layer.in - start)) / 2;
    const T* some = weights + (panel * layer.in + start) * PANEL;
    for (int i = 0; i < num * PANEL; i += WIDE) {
      const T* low = some + i / PANEL * 2 * PANEL + i % PANEL;
      const __m512i upper = _mm512_set1_epi32(int(0xffff0000)), odd = (__m512i)load<Wide>(low + PANEL);
      const __m512i even = _mm512_srli_epi32((__m512i)load<Wide>(low), 16), both = _mm512_or_si512(even, _mm512_and_si512(odd, upper));
      std::memcpy(pairs + i, &both, sizeof both);
    }
    add_rows(x + start / 2, layer.in / 2, pairs, num, out + first, layer.outs, rows, valid, start == 0);
  }
  add_bias(layer, first, valid, out, rows);
}
#endif

template <class F>
void stored_panel(const Linear& layer, int64_t panel, const stored::Piece* x, float* out, int64_t rows) {
  for (int64_t first = panel * PANEL; first < std::min((panel + 1) * PANEL, layer.outs); first += stored::LANES) {
    const char* cells = static_cast<const char*>(layer.weights) + first / stored::LANES * stored::lanes_bytes<F>(layer.in);
    const int valid = int(std::min<int64_t>(stored::LANES, layer.outs - first));
    const float* bias = layer.bias == nullptr ? nullptr : layer.bias + first;
    stored::rows_of<F>(cells, layer.in / stored::NUMBERS, x, out + first, layer.outs, rows, valid, bias);
  }
}

// One panel of a layer: x [rows, in], out [rows, outs]. Every weight is read once for some six rows, and every sum is
// taken in the same order whatever the number of rows.
void panel_of(const Linear& layer, int64_t panel, const float* x, const stored::Piece* pieces, float* out,
              int64_t rows) {
  if (layer.is_stored() && pieces != nullptr)
    stored::with_format(layer.kind, [&](auto f) { stored_panel<decltype(f)>(layer, panel, pieces, out, rows); });
  else if (layer.is_stored())
    panel_product(layer, static_cast<const char*>(layer.weights), panel, x, out, rows);
  else if (layer.kind == 1)
    panel_product(layer, static_cast<const Half*>(layer.weights), panel, x, out, rows);
  else if (layer.kind == 2)
    panel_product(layer, static_cast<const Brain*>(layer.weights), panel, x, out, rows);
  else
    panel_product(layer, static_cast<const float*>(layer.weights), panel, x, out, rows);
}

// out = x / sqrt(mean(x^2) + eps) * w
INLINE void norm_row(const float* x, const float* w, float* out, int64_t dim, float eps) {
  Vec squares = all(0.0f);
  int64_t d = 0;
  for (; d + W <= dim; d += W) squares += load(x + d) * load(x + d);
  float sum = sum_of(squares);
  for (; d < dim; ++d) sum += x[d] * x[d];
  const float scale = 1.0f / std::sqrt(sum / float(dim) + eps);
  for (d = 0; d + W <= dim; d += W) store(out + d, load(x + d) * all(scale) * load(w + d));
  for (; d < dim; ++d) out[d] = x[d] * scale * w[d];
}

// out[i] = x[i] / (1 + e^-x[i]), computed alike for every number, wherever it stands.
INLINE void silu_row(const float* x, float* out, int64_t num) {
  int64_t i = 0;
  for (; i + W <= num; i += W) store(out + i, silu(load(x + i)));
  if (i == num) return;
  float rest[W] = {};
  std::copy(x + i, x + num, rest);
  store(rest, silu(load(rest)));
  std::copy(rest, rest + num - i, out + i);
}

}  // namespace

// The threads of which OpenMP runtime compute; all null, as at first: threads of our own.
EXPORT void small_rows_threads(const OpenMP* runtime) { openmp = *runtime; }

EXPORT int64_t small_rows_panel() { return PANEL; }

// out = layer(x): x [rows, in] and out [rows, outs] contiguous.
EXPORT void small_rows_product(const Linear* layer, const float* x, float* out, int64_t rows, int64_t threads) {
  const int64_t parts = (rows + ROWS_OF_A_TASK - 1) / ROWS_OF_A_TASK, panels = layer->panels(), in = layer->in;
  stored::Piece* const pieces = layer->is_stored() ? room_for(rows, in) : nullptr;
  parallel(threads, [&](Team& team) {
    if (pieces != nullptr) round_rows(team, x, rows, in, pieces);
    team.each(panels * parts, [&](int64_t i) {
      const int64_t part = i / panels, from = rows * part / parts, to = rows * (part + 1) / parts;
      const stored::Piece* own = pieces == nullptr ? nullptr : pieces + from * in / stored::NUMBERS;
      panel_of(*layer, i % panels, x + from * in, own, out + from * layer->outs, to - from);
    });
  });
}

// The same for weights of 16 bits that bfloat16 holds, and an even number of inputs, x rounded to bfloat16. Returns 0 where the processor has no
// such products; a call without a layer asks for that.
EXPORT int64_t small_rows_brain_product(const Linear* layer, const float* x, float* out, int64_t rows,
                                            int64_t threads) {
#ifdef __AVX512BF16__
  if (layer == nullptr) return 1;
  static thread_local std::vector<Pair> memory;
  const int64_t in = layer->in / 2, parts = (rows + ROWS_OF_A_TASK - 1) / ROWS_OF_A_TASK, panels = layer->panels();
  if (memory.size() < size_t(rows * in)) memory.resize(rows * in);
  Pair* const pairs = memory.data();
  parallel(threads, [&](Team& team) {
    team.each(rows, [&](int64_t r) {
      const float* from = x + r * layer->in;
      for (int64_t i = 0; i < in; ++i)
        pairs[r * in + i].bits = brain_bits(from[2 * i]) | brain_bits(from[2 * i + 1]) << 16;
    });
    team.each(panels * parts, [&](int64_t i) {
      const int64_t part = i / panels, start = rows * part / parts, end = rows * (part + 1) / parts;
      const Pair* own = pairs + start * in;
      float* to = out + start * layer->outs;
      if (layer->kind == 1)
        brain_panel(*layer, static_cast<const Half*>(layer->weights), i % panels, own, to, end - start);
      else
        brain_panel(*layer, static_cast<const Brain*>(layer->weights), i % panels, own, to, end - start);
    });
  });
  return 1;
#else
  (void)layer, (void)x, (void)out, (void)rows, (void)threads;
  return 0;
#endif
}

// Whether this thread's products round rows to 8 bits for stored blocks, as they do unless told otherwise.
EXPORT void small_rows_rounds(int64_t whether) { rounds = whether != 0; }

// A file's blocks of a kind [outs][in / numbers of a block] in cells; nothing is written where `to` is null. The bytes of all cells, 0: no such kind.
EXPORT int64_t small_rows_store(int64_t kind, const uint8_t* blocks, int64_t in, int64_t outs, char* to,
                                    int64_t threads) {
  if (kind < stored::FIRST_KIND || kind >= stored::FIRST_KIND + stored::KINDS) return 0;
  return stored::with_format(kind, [&](auto f) {
    typedef decltype(f) F;
    const int64_t cells = in / stored::cell_inputs<F>(), groups = (outs + stored::LANES - 1) / stored::LANES;
    constexpr int64_t each = stored::file_bytes<F>();
    if (to != nullptr) {
      parallel_for(threads, groups, [&](int64_t i) {
        char* own = to + i * cells * F::BYTES;
        std::memset(own, 0, cells * F::BYTES);
        stored::Plain plain;
        for (int64_t lane = 0; lane < std::min<int64_t>(stored::LANES, outs - i * stored::LANES); ++lane)
          for (int64_t cell = 0; cell < cells; ++cell) {
            stored::read_block<F>(blocks + ((i * stored::LANES + lane) * cells + cell) * each, plain);
            stored::write_lane<F>(plain, int(lane), own + cell * F::BYTES);
          }
      });
    }
    return groups * cells * F::BYTES;
  });
}

// Rows of the weights of a layer of stored blocks as float32: out [n, in], of outputs[n].
EXPORT void small_rows_widen(const Linear* layer, const int64_t* outputs, int64_t n, float* out, int64_t threads) {
  stored::with_format(layer->kind, [&](auto f) {
    typedef decltype(f) F;
    constexpr int inputs = stored::cell_inputs<F>();
    parallel_for(threads, n, [&](int64_t i) {
      const int64_t group = outputs[i] / stored::LANES, lane = outputs[i] % stored::LANES;
      const char* cell = static_cast<const char*>(layer->weights) + group * stored::lanes_bytes<F>(layer->in);
      for (int64_t start = 0; start < layer->in; start += inputs, cell += F::BYTES) {
        alignas(64) float all_lanes[inputs * stored::LANES];
        stored::widen_cell<F>(cell, all_lanes, stored::LANES);
        for (int j = 0; j < inputs; ++j) out[i * layer->in + start + j] = all_lanes[j * stored::LANES + lane];
      }
    });
  });
}

// A layer of a Llama-like decoder, and memory for its numbers between the steps.
struct Decoder {
  const float *norm, *norm_after, *q_norm, *k_norm;  // the last two or null: norms of every head
  Linear q, k, v, o, gate, up, down;
  int64_t heads, kv_heads, dim;
  float eps;
};

struct Scratch {  // at least `rows` times the widths of a layer's inputs and outputs
  float *x, *normed, *wide, *wider;  // x [rows, hidden]: the residual stream
};

namespace {

// Rotary position embedding (arXiv 2104.09864) of one head, its halves rotated together; dim a multiple of 8. One loop
// for all cases: of two products that are added, a compiler may fuse either one with the addition.
INLINE void rotate(const float* x, const float* cos, const float* sin, float* out, int64_t dim) {
  const int64_t half = dim / 2;
  for (int64_t d = 0; d < half; d += lanes<Vec4>) {
    const Vec4 low = load<Vec4>(x + d), high = load<Vec4>(x + d + half);
    store(out + d, low * load<Vec4>(cos + d) - high * load<Vec4>(sin + d));
    store(out + d + half, high * load<Vec4>(cos + d + half) + low * load<Vec4>(sin + d + half));
  }
}

// A row's heads from [heads, dim] to their places in [heads, rows, dim], normed and rotated where that is asked for.
INLINE void spread(const float* from, const float* norm, float eps, const float* cos, const float* sin, float* to,
                   int64_t heads, int64_t rows, int64_t row, int64_t dim) {
  float normed[MAX_DIM];
  for (int64_t h = 0; h < heads; ++h, from += dim) {
    float* place = to + (h * rows + row) * dim;
    const float* head = from;
    if (norm != nullptr) norm_row(head, norm, normed, dim, eps), head = normed;
    if (cos != nullptr)
      rotate(head, cos, sin, place, dim);
    else
      std::copy(head, head + dim, place);
  }
}

// What `num` layers with the same inputs compute, panel by panel over the threads of a team.
template <int N>
INLINE void products(Team& team, const Linear* const (&layers)[N], const float* x, stored::Piece* pieces,
                     float* const (&outs)[N], int64_t rows) {
  int64_t ends[N], total = 0;
  bool any = false;
  for (int n = 0; n < N; ++n) ends[n] = total += layers[n]->panels(), any |= layers[n]->is_stored();
  if (any && pieces != nullptr) round_rows(team, x, rows, layers[0]->in, pieces);
  team.each(total, [&](int64_t i) {
    int n = 0;
    while (i >= ends[n]) ++n;
    panel_of(*layers[n], i - (n > 0 ? ends[n - 1] : 0), x, pieces, outs[n], rows);
  });
}

}  // namespace

// The part of a pass between the attention of two layers: what follows attention in `done`, then what precedes it in
// `next`; either may be null. attended: [heads, rows, dim]; q [heads, rows, dim], k and v [kv_heads, rows, dim] are
// written; cos and sin [rows, dim].
EXPORT void small_rows_between(const Decoder* done, const Decoder* next, const Scratch* s, const float* attended,
                                   const float* cos, const float* sin, float* q, float* k, float* v, int64_t rows,
                                   int64_t threads) {
  const Decoder* const some = done != nullptr ? done : next;
  stored::Piece* const pieces = room_for(rows, std::max({some->o.in, some->q.in, some->down.in}));
  parallel(threads, [&](Team& team) {
    if (done != nullptr) {
      const int64_t in = done->o.in, hidden = done->o.outs, inner = done->gate.outs, dim = done->dim;
      team.each(rows * done->heads, [&](int64_t i) {
        const int64_t r = i / done->heads, h = i % done->heads;
        const float* from = attended + (h * rows + r) * dim;
        std::copy(from, from + dim, s->wide + r * in + h * dim);
      });
      products<1>(team, {&done->o}, s->wide, pieces, {s->normed}, rows);
      team.each(rows, [&](int64_t r) {
        float *x = s->x + r * hidden, *added = s->normed + r * hidden;
        for (int64_t d = 0; d < hidden; ++d) x[d] += added[d];
        norm_row(x, done->norm_after, added, hidden, done->eps);
      });
      products<2>(team, {&done->gate, &done->up}, s->normed, pieces, {s->wide, s->wider}, rows);
      team.each(rows, [&](int64_t r) {
        float *gate = s->wide + r * inner, *up = s->wider + r * inner;
        silu_row(gate, gate, inner);
        for (int64_t d = 0; d < inner; ++d) gate[d] *= up[d];
      });
      products<1>(team, {&done->down}, s->wide, pieces, {s->normed}, rows);
      team.each(rows, [&](int64_t r) {
        for (int64_t d = r * hidden; d < (r + 1) * hidden; ++d) s->x[d] += s->normed[d];
      });
    }
    if (next != nullptr) {
      const int64_t hidden = next->q.in, dim = next->dim;
      team.each(rows, [&](int64_t r) {
        norm_row(s->x + r * hidden, next->norm, s->normed + r * hidden, hidden, next->eps);
      });
      float* after_k = s->wider + rows * next->k.outs;
      products<3>(team, {&next->q, &next->k, &next->v}, s->normed, pieces, {s->wide, s->wider, after_k}, rows);
      team.each(rows, [&](int64_t r) {
        const float *c = cos + r * dim, *n = sin + r * dim;
        const int64_t heads = next->heads, kv = next->kv_heads;
        spread(s->wide + r * heads * dim, next->q_norm, next->eps, c, n, q, heads, rows, r, dim);
        spread(s->wider + r * kv * dim, next->k_norm, next->eps, c, n, k, kv, rows, r, dim);
        spread(after_k + r * kv * dim, nullptr, 0, nullptr, nullptr, v, kv, rows, r, dim);
      });
    }
  });
}

namespace {

// New keys or values [kv_heads, num_new, dim] to their rows behind those held.
template <class T> bool put_behind(const Sizes& z, const float* from, T* rows, int64_t head, int64_t row) {
  bool fits = true;
  for (int64_t h = 0; h < z.kv_heads; ++h)
    for (int64_t t = 0; t < z.num_new; ++t, from += z.dim)
      fits &= put(from, rows + h * head + (z.total - z.num_new + t) * row, z.dim);
  return fits;
}

}  // namespace

// Whether new rows of a `kind` of keys and values can be written here.
EXPORT int64_t small_rows_puts(int64_t kind) {
#if !defined(__F16C__)
  if (kind == 1) return 0;
#endif
#ifdef HAS_WORDS
  if (kind == 3) return 1;
#endif
  return kind < 3;
}

// Rows [num, dim] as integers with a scale, [num, dim + SCALE]; dim as `words::takes`. Returns 0 if a number is infinite.
EXPORT int64_t small_rows_scale(const float* from, int16_t* to, int64_t num, int64_t dim) {
  bool fits = true;
#ifdef HAS_WORDS
  for (int64_t i = 0; i < num; ++i)
    fits &= put(from + i * dim, reinterpret_cast<Scaled*>(to) + i * width_of<Scaled>(int(dim)), dim);
#else
  (void)from, (void)to, (void)num, (void)dim;  // small_rows_puts says no
#endif
  return fits;
}

struct Model {
  const Decoder* const* layers;
  int64_t num_layers;
  const float* norm;  // after the last layer
  const Linear* head;
  float eps;
};

// What a pass leaves by layer beside its rows. Token `start + t` is row t.
struct Beside {
  float* const* newest;    // queries, a ring [heads, num_newest, dim]; null: none are logged
  float* const* samples;   // [heads, num_samples, dim], of every `stride`th token; null: none
  float* const* votes;     // as of `small_rows_attention`; null: none are counted
  int64_t start, num_newest, num_samples, stride;
};

namespace {

// Log the queries q [heads, rows, dim] of a layer.
void log_queries(const Beside& b, int64_t layer, const float* q, int64_t heads, int64_t rows, int64_t dim) {
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t at = b.start; at < b.start + rows; ++at, q += dim) {
      std::copy(q, q + dim, b.newest[layer] + (h * b.num_newest + at % b.num_newest) * dim);
      if (b.samples != nullptr && at % b.stride == 0)
        std::copy(q, q + dim, b.samples[layer] + (h * b.num_samples + at / b.stride) * dim);
    }
}

}  // namespace

// A whole pass: Scratch's x holds the tokens' embeddings; k and v, by layer, [kv_heads, >= total, dim] of a `kind`, get
// the new rows behind those held. logits [keep, V] of the last tokens. q [heads, rows, dim], new_k and new_v
// [kv_heads, rows, dim] and attended, like q, are memory for numbers in between; other arguments as those of the parts.
// Returns 0 if a key or value was too large for its type.
EXPORT int64_t small_rows_pass(const Model* model, const Scratch* s, const Sizes* z, int64_t kind, void* const* k,
                                void* const* v, const float* cos, const float* sin, float* q, float* new_k,
                                float* new_v, float* attended, const Beside* beside, int64_t keep, float* logits) {
  const int64_t rows = z->num_new, hidden = model->head->in;
  const Decoder* done = nullptr;
  bool fits = true;
  for (int64_t n = 0; n < model->num_layers; ++n) {
    small_rows_between(done, model->layers[n], s, attended, cos, sin, q, new_k, new_v, rows, z->threads);
    with_kind(kind, [&](auto number) {
      typedef decltype(number)* Kept;
      fits &= put_behind(*z, new_k, static_cast<Kept>(k[n]), z->k_head, z->k_row);
      fits &= put_behind(*z, new_v, static_cast<Kept>(v[n]), z->v_head, z->v_row);
    });
    if (beside->newest != nullptr) log_queries(*beside, n, q, model->layers[n]->heads, rows, z->dim);
    small_rows_attention(q, k[n], v[n], attended, beside->votes != nullptr ? beside->votes[n] : nullptr, z, kind);
    done = model->layers[n];
  }
  small_rows_between(done, nullptr, s, attended, cos, sin, q, new_k, new_v, rows, z->threads);
  for (int64_t r = rows - keep; r < rows; ++r)
    norm_row(s->x + r * hidden, model->norm, s->normed + r * hidden, hidden, model->eps);
  small_rows_product(model->head, s->normed + (rows - keep) * hidden, logits, keep, z->threads);
  return fits;
}

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * w: x and out [rows, dim] contiguous, w [dim].
EXPORT void small_rows_norm(
    const float* x, const float* w, float* out, int64_t rows, int64_t dim, float eps) {
  for (int64_t r = 0; r < rows; ++r) norm_row(x + r * dim, w, out + r * dim, dim, eps);
}

EXPORT void small_rows_silu(const float* x, float* out, int64_t num) { silu_row(x, out, num); }
