// Attention by products of 16-bit integers (AVX-512 VNNI), to keys and values kept as such (Scaled) or in float16: part of
// small_rows.cpp, which includes it.
//
// An instruction multiplies 32 pairs of 16-bit integers and adds them two by two in 32 bits: twice the products of a
// float32 instruction. Queries and keys become integers whose length (L2) is at most FULL, so that no sum of products
// leaves 32 bits (Cauchy-Schwarz: a query's may be twice as long); values ones of at most FULL; the weights that a row
// gives to a block's values, each times what its value was divided by, become integers whose sum is FULL. A score is off
// by about 1.4e-5 |q| |k|, which is what rounding the key to float16 has done. Sums of integers have no order: a row's
// result does not depend on the rows beside it.

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define HAS_WORDS

namespace words {

typedef int32_t Word;  // two 16-bit integers that are multiplied with the same two of another vector
typedef Word Words __attribute__((vector_size(64)));
constexpr float FULL = 32760;  // a little less than 16 bits hold
constexpr int PAIRED = 2 * WIDE;  // numbers of a vector of words
// Numbers i and i + APART of a key are a word of it, as they come out of memory: beside each other, or a vector of float32
// apart.
template <class T> constexpr int APART = std::is_same_v<T, Scaled> ? 1 : WIDE;

// What the words of one block are made of.
struct Block {
  alignas(64) Word keys[MAX_DIM / 2 * BLOCK], values[BLOCK / 2 * MAX_DIM];  // [pairs of dims, keys], [pairs of keys, dim]
  alignas(64) float key_units[BLOCK], value_units[BLOCK];                  // what 1 stands for
};

INLINE Words load_words(const Word* p) {
  Words x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// x * by, rounded, in the lower halves of the words; their upper halves are of no use.
INLINE __m512i rounded(Wide x, Wide by) { return (__m512i)(x * by + all<Wide>(12582912.0f)); }  // 1.5 * 2^23
INLINE Wide pair_of(__m512i low, __m512i high) {
  return (Wide)_mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
}
INLINE Words add_products(Words sums, Words x, Words y) {
  return (Words)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)x, (__m512i)y);
}
INLINE Words add_products(Words sums, Words x, Word pair) {
  return add_products(sums, x, (Words)_mm512_set1_epi32(pair));
}

// A query of [dim] becomes words as those of keys of a type, `step` apart. Returns their unit.
template <class T> float pack_query(const float* q, float scale, int dim, Word* to, int64_t step) {
  float squares = 0, most = 0;
  for (int d = 0; d < dim; ++d) squares += q[d] * q[d], most = std::max(most, std::fabs(q[d]));
  const float length = std::max(std::sqrt(squares) / 2, most), by = length > 0 ? FULL / length : 0.0f;
  for (int d = 0; d < dim / 2; ++d, to += step) {
    const float* x = q + d / WIDE * PAIRED + d % WIDE * (APART<T> == 1 ? 2 : 1);
    *to = Word(uint32_t(uint16_t(std::lrint(x[0] * by))) | uint32_t(std::lrint(x[APART<T>] * by)) << 16);
  }
  return length * scale / FULL;
}

// Row j of a block of `num`; zeros beyond.
template <class T> INLINE const T* row(const T* rows, int64_t stride, int j, int num) {
  static const T zeros[width_of<T>(MAX_DIM)] = {};
  return j < num ? rows + j * stride : zeros;
}

// FULL over the length of a key, or less.
template <int N> INLINE float by_length(const Wide (&key)[N]) {
  Wide squares = {};
UNROLL(16)
  for (int n = 0; n < N; ++n) squares += key[n] * key[n];
  const __m128 least = _mm_set_ss(1e-30f), sum = _mm_set_ss(sum_of(squares));
  return FULL * _mm_cvtss_f32(_mm_rsqrt14_ss(sum, _mm_max_ss(least, sum)));
}

// FULL over the greatest number of a value, or less.
template <int N> INLINE float by_greatest(const Half* value) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i most = _mm512_setzero_si512();
UNROLL(8)
  for (int n = 0; n < N; n += 2)
    most = _mm512_max_epu16(most, _mm512_and_si512(magnitude, _mm512_loadu_si512(value + n * WIDE)));
  const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
  const __m128i some = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i one = _mm_minpos_epu16(_mm_xor_si128(some, _mm_set1_epi32(-1)));
  const __m128 greatest = _mm_cvtph_ps(_mm_xor_si128(one, _mm_set1_epi32(-1)));
  return FULL * _mm_cvtss_f32(_mm_rcp14_ss(greatest, _mm_max_ss(_mm_set_ss(5e-8f), greatest)));
}

// Keys and values of N vectors, of a block; zeros for those from `num` on.
template <int N> void pack(const Rows<Half>& from, int num, Block& to, Ahead<Half>& ahead) {
  constexpr int DIM = N * WIDE;
  for (int j = 0; j < BLOCK; j += WIDE) {
    Wide squares[N / 2][WIDE];
    for (int i = 0; i < WIDE; ++i) {
      ahead.step();
      const Half* k = row(from.k, from.k_stride, j + i, num);
      Wide x[N];
UNROLL(16)
      for (int n = 0; n < N; ++n) x[n] = load<Wide>(k + n * WIDE);
      const Wide by = all<Wide>(to.key_units[j + i] = by_length(x));
UNROLL(8)
      for (int n = 0; n < N; n += 2) squares[n / 2][i] = pair_of(rounded(x[n], by), rounded(x[n + 1], by));
    }
UNROLL(8)
    for (int n = 0; n < N / 2; ++n) {
      Wide square[WIDE];
      ahead.step();
UNROLL(16)
      for (int i = 0; i < WIDE; ++i) square[i] = squares[n][i];
      turn_square(square);
UNROLL(16)
      for (int i = 0; i < WIDE; ++i) std::memcpy(to.keys + (n * WIDE + i) * BLOCK + j, &square[i], sizeof square[i]);
    }
  }
  for (int j = 0; j < BLOCK / 2; ++j) {
    ahead.step();
    const Half *low = row(from.v, from.v_stride, 2 * j, num), *high = row(from.v, from.v_stride, 2 * j + 1, num);
    const Wide by_low = all<Wide>(to.value_units[2 * j] = by_greatest<N>(low));
    const Wide by_high = all<Wide>(to.value_units[2 * j + 1] = by_greatest<N>(high));
    ahead.step();
UNROLL(16)
    for (int n = 0; n < N; ++n) {
      const Wide pairs = pair_of(rounded(load<Wide>(low + n * WIDE), by_low), rounded(load<Wide>(high + n * WIDE), by_high));
      std::memcpy(to.values + j * DIM + n * WIDE, &pairs, sizeof pairs);
    }
  }
  for (int j = 0; j < BLOCK; j += WIDE) {
    store(to.key_units + j, all<Wide>(1.0f) / load<Wide>(to.key_units + j));
    store(to.value_units + j, all<Wide>(1.0f) / load<Wide>(to.value_units + j));
  }
}

// The words of two values, beside each other: of the first sixteen numbers of each, and of the others.
INLINE void interleave(const Scaled* low, const Scaled* high, Words (&words)[2]) {
  const Words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const __m512i first = (__m512i)(lane * 0x10001 + (32 << 16)), second = (__m512i)(lane * 0x10001 + (48 << 16 | 16));
  const __m512i a = _mm512_loadu_si512(low), b = _mm512_loadu_si512(high);
  words[0] = (Words)_mm512_permutex2var_epi16(a, first, b);
  words[1] = (Words)_mm512_permutex2var_epi16(a, second, b);
}

// Words as they are kept: sixteen keys are turned over, two values interleaved.
inline void pack(const Rows<Scaled>& from, int num, int dim, Block& to, Ahead<Scaled>& ahead) {
  for (int j = 0; j < BLOCK; j += WIDE) {
    const Scaled* keys[WIDE];
    for (int i = 0; i < WIDE; ++i) {
      keys[i] = row(from.k, from.k_stride, j + i, num);
      to.key_units[j + i] = scale_of(keys[i], dim);
    }
    for (int n = 0; n < dim / PAIRED; ++n) {
      Wide square[WIDE];
UNROLL(16)
      for (int i = 0; i < WIDE; ++i) {
        if (i % 4 == 0) ahead.step();
        std::memcpy(&square[i], keys[i] + n * PAIRED, sizeof square[i]);
      }
      turn_square(square);
UNROLL(16)
      for (int i = 0; i < WIDE; ++i) std::memcpy(to.keys + (n * WIDE + i) * BLOCK + j, &square[i], sizeof square[i]);
    }
  }
  for (int j = 0; j < BLOCK / 2; ++j) {
    const Scaled *low = row(from.v, from.v_stride, 2 * j, num), *high = row(from.v, from.v_stride, 2 * j + 1, num);
    to.value_units[2 * j] = scale_of(low, dim), to.value_units[2 * j + 1] = scale_of(high, dim);
    for (int d = 0; d < dim; d += PAIRED) {
      ahead.step();
      Words words[2];
      interleave(low + d, high + d, words);
      std::memcpy(to.values + j * dim + d, words, sizeof words);
    }
  }
}

inline bool takes(int64_t dim) { return dim == 64 || dim == 96 || dim == 128 || dim == 256; }
inline void pack(const Rows<Half>& from, int num, int dim, Block& to, Ahead<Half>& ahead) {
  switch (dim) {
    case 64: return pack<4>(from, num, to, ahead);
    case 96: return pack<6>(from, num, to, ahead);
    case 128: return pack<8>(from, num, to, ahead);
    default: return pack<16>(from, num, to, ahead);
  }
}

// sums[r][c] += the products of a row's words with vectors of words.
template <int ROW, int STEP, int R, int C, class Next>
INLINE void add_all(Words (&sums)[R][C], const Word* pairs, const Word* vectors, int64_t stride, int num, Next& ahead) {
  for (; num > 0; --num, pairs += STEP, vectors += stride) {
    ahead.step();
    Words x[C];
UNROLL(4)
    for (int c = 0; c < C; ++c) x[c] = load_words(vectors + c * WIDE);
UNROLL(6)
    for (int r = 0; r < R; ++r)
UNROLL(4)
      for (int c = 0; c < C; ++c) sums[r][c] = add_products(sums[r][c], x[c], pairs[r * ROW]);
  }
}

// scores[r][j] = <q_r, k_j>; q: [pairs of dims, R], of these units.
template <int R, class Next>
INLINE void score(const Word* q, const float* units, const Block& block, float* scores, int dim, Next& ahead) {
  constexpr int C = BLOCK / WIDE;
  Words sums[R][C] = {};
  add_all<1, R>(sums, q, block.keys, BLOCK, dim / 2, ahead);
UNROLL(6)
  for (int r = 0; r < R; ++r)
UNROLL(4)
    for (int c = 0; c < C; ++c)
      store(scores + r * BLOCK + c * WIDE,
            __builtin_convertvector(sums[r][c], Wide) * (load<Wide>(block.key_units + c * WIDE) * units[r]));
}

template <int R, int C> INLINE void add_sums(const Words (&sums)[R][C], const float* units, float* out, int dim) {
UNROLL(6)
  for (int r = 0; r < R; ++r)
UNROLL(8)
    for (int c = 0; c < C; ++c) {
      float* to = out + r * dim + c * WIDE;
      store(to, load<Wide>(to) + __builtin_convertvector(sums[r][c], Wide) * units[r]);
    }
}

template <int R, int C, class Next>
INLINE void add_some(float* out, const Word* weights, const float* units, const Word* values, int dim, Next& ahead) {
  Words sums[R][C] = {};
  add_all<BLOCK / 2, 1>(sums, weights, values, dim, BLOCK / 2, ahead);
  add_sums(sums, units, out, dim);
}

// The weights that a row gives to a block's values as pairs, and what 1 stands for in them.
INLINE float pack_weights(const float* weights, const float* value_units, Word* to) {
  const Words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const __m512i lower = (__m512i)(lane * 0x40004 + (2 << 16));
  Wide x[BLOCK / WIDE], sum = {};
  for (int c = 0; c < BLOCK / WIDE; ++c) {
    x[c] = load<Wide>(weights + c * WIDE) * load<Wide>(value_units + c * WIDE);
    sum += x[c];
  }
  const float total = sum_of(sum), by = total > 0 ? FULL / total : 0.0f;
  for (int c = 0; c < BLOCK / WIDE; c += 2) {
    const __m512i a = rounded(x[c], all<Wide>(by)), b = rounded(x[c + 1], all<Wide>(by));
    _mm512_storeu_si512(to + c / 2 * WIDE, _mm512_permutex2var_epi16(a, lower, b));
  }
  return total / FULL;
}

// out[r] += sum_j weights[r][j] * v[j].
template <int R, class Next>
INLINE void add_values(float* out, const float* weights, const Block& block, int dim, Next& ahead) {
  alignas(64) Word words[R * BLOCK / 2];
  float units[R];
  for (int r = 0; r < R; ++r) units[r] = pack_weights(weights + r * BLOCK, block.value_units, words + r * BLOCK / 2);
  int d = 0;
  for (; d + 4 * WIDE <= dim; d += 4 * WIDE) add_some<R, 4>(out + d, words, units, block.values + d, dim, ahead);
  for (; d < dim; d += PAIRED) add_some<R, 2>(out + d, words, units, block.values + d, dim, ahead);
}

// How rows are multiplied with a block, as `Floats`.
struct Products {
  const Word* q;       // [pairs of dims, R] of each tile
  const float* units;  // of rows
  const Block& block;
  int dim;
  template <int R, class Next> INLINE void score(int r, float* scores, Next& ahead) const {
    words::score<R>(q + r * dim / 2, units + r, block, scores, dim, ahead);
  }
  template <int R, class Next> INLINE void add(float* out, const float* weights, Next& ahead) const {
    add_values<R>(out, weights, block, dim, ahead);
  }
};

// Lane l of the result is a sum of lanes of `a`, or of `b` where l has this bit.
template <int BIT, int... L> INLINE Words merged(Words a, Words b, std::integer_sequence<int, L...>) {
  const Wide x = (Wide)a, y = (Wide)b;
  return (Words)shuffled<(L & BIT ? WIDE + L : L)...>(x, y) +
         (Words)shuffled<(L & BIT ? WIDE + L - BIT : L + BIT)...>(x, y);
}

// Lane l of sums[r] has products of the words of q [R, N vectors] and of key j + l % (2 * BIT); of 16 keys, all of them.
template <int N, int BIT, int R>
INLINE void dot(Words (&sums)[R], const Word* q, const Rows<Scaled>& from, int j, int num) {
  if constexpr (BIT == 0) {
    const Scaled* key = row(from.k, from.k_stride, j, num);
    Words x[N];
UNROLL(8)
    for (int n = 0; n < N; ++n) std::memcpy(&x[n], key + n * PAIRED, sizeof x[n]);
UNROLL(3)
    for (int r = 0; r < R; ++r) {
      sums[r] = Words{};
UNROLL(8)
      for (int n = 0; n < N; ++n)
        sums[r] = add_products(sums[r], x[n], load_words(q + (r * N + n) * WIDE));
    }
  } else {
    Words upper[R];
    dot<N, BIT / 2>(sums, q, from, j, num);
    dot<N, BIT / 2>(upper, q, from, j + BIT, num);
UNROLL(3)
    for (int r = 0; r < R; ++r) sums[r] = merged<BIT>(sums[r], upper[r], Lanes<WIDE>());
  }
}

// How the rows of one tile are multiplied with keys and values where they lie, as `Products` does to the last bit: for so
// few, packing a block takes longer than what it saves.
struct Direct {
  const Word* q;  // [R, pairs of dims]
  const float* units;
  Rows<Scaled> rows;
  int num, dim;

  template <int R, class Next> INLINE void score(int, float* scores, Next&) const {
    constexpr int SOME = R < 4 ? R : (R + 1) / 2;  // as many as the registers hold
    score_some<SOME>(0, scores);
    if constexpr (R > SOME) score_some<R - SOME>(SOME, scores);
  }
  template <int R, class Next> INLINE void add(float* out, const float* weights, Next&) const {
    alignas(64) Word words[R * BLOCK / 2];
    alignas(64) float value_units[BLOCK];
    float totals[R];
    units_of(rows.v, rows.v_stride, 0, BLOCK, value_units);
    for (int r = 0; r < R; ++r) totals[r] = pack_weights(weights + r * BLOCK, value_units, words + r * BLOCK / 2);
    int d = 0;
    if constexpr (R < 4)
      for (; d + 8 * WIDE <= dim; d += 8 * WIDE) add_some<R, 8>(out + d, words, totals, d);
    for (; d + 4 * WIDE <= dim; d += 4 * WIDE) add_some<R, 4>(out + d, words, totals, d);
    for (; d < dim; d += PAIRED) add_some<R, 2>(out + d, words, totals, d);
  }

 private:
  void units_of(const Scaled* from, int64_t stride, int first, int end, float* to) const {
    for (int j = first; j < end; ++j) to[j] = scale_of(row(from, stride, j, num), dim);
  }
  template <int R> INLINE void score_some(int first, float* scores) const {
    switch (dim) {
      case 64: return score_by<2, R>(first, scores);
      case 96: return score_by<3, R>(first, scores);
      case 128: return score_by<4, R>(first, scores);
      default: return score_by<8, R>(first, scores);
    }
  }
  template <int N, int R> void score_by(int first, float* scores) const {
    alignas(64) float key_units[BLOCK];
    for (int j = 0; j < BLOCK; j += WIDE) {
      Words sums[R];
      dot<N, WIDE / 2>(sums, q + first * N * WIDE, rows, j, num);
      units_of(rows.k, rows.k_stride, j, j + WIDE, key_units);
UNROLL(3)
      for (int r = 0; r < R; ++r)
        store(scores + (first + r) * BLOCK + j,
              __builtin_convertvector(sums[r], Wide) * (load<Wide>(key_units + j) * units[first + r]));
    }
  }
  template <int R, int C> INLINE void add_some(float* out, const Word* words, const float* totals, int d) const {
    Words sums[R][C] = {};
    const Scaled* next = rows.v + BLOCK * rows.v_stride;  // there or not; keys that follow each other come by themselves
    for (int j = 0; j < (num + 1) / 2; ++j) {
      if (d == 0)
        for (const Scaled* stop = next + 2 * rows.v_stride; next < stop; next += PAIRED) __builtin_prefetch(next, 0, 2);
      const Scaled* low = row(rows.v, rows.v_stride, 2 * j, num) + d;
      const Scaled* high = row(rows.v, rows.v_stride, 2 * j + 1, num) + d;
UNROLL(4)
      for (int c = 0; c < C; c += 2) {
        Words x[2];
        interleave(low + c * WIDE, high + c * WIDE, x);
UNROLL(6)
        for (int r = 0; r < R; ++r) {
          sums[r][c] = add_products(sums[r][c], x[0], words[r * BLOCK / 2 + j]);
          sums[r][c + 1] = add_products(sums[r][c + 1], x[1], words[r * BLOCK / 2 + j]);
        }
      }
    }
    add_sums(sums, totals, out, dim);
  }
};

}  // namespace words
#endif
