// Attention by products of 16-bit integers (AVX-512 VNNI), to keys and values kept as such (Scaled) or in float16: part of
// small_rows.cpp, which includes it.
//
// An instruction multiplies 32 pairs of 16-bit integers and adds them two by two in 32 bits: twice the products of a
// float32 instruction. Queries and keys become integers whose length (L2) is at most FULL, so that no sum of products
// leaves 32 bits (Cauchy-Schwarz: a query's may be twice as long); values ones of at most FULL; the weights that a row gives to a block's values, each times what its
// value was divided by, become integers whose sum is FULL. A score is off by about 1.4e-5 |q| |k|, which is what rounding
// the key to float16 has done. Sums of integers have no order: a row's result does not depend on the rows beside it.

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define HAS_WORDS

namespace words {

typedef int32_t Word;  // two 16-bit integers that are multiplied with the same two of another vector
typedef Word Words __attribute__((vector_size(64)));
constexpr float FULL = 32760;  // a little less than 16 bits hold
constexpr int PAIRED = 2 * WIDE;  // numbers of a vector of words
// Numbers i and i + APART of a vector are a word of a key, as they come out of memory: beside each other, or a vector of float32 apart.
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
INLINE Words add_products(Words sums, Words x, Word pair) {
  return (Words)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)x, _mm512_set1_epi32(pair));
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
  static const Half zeros[MAX_DIM] = {};
  constexpr int DIM = N * WIDE;
  for (int j = 0; j < BLOCK; j += WIDE) {
    Wide squares[N / 2][WIDE];
    for (int i = 0; i < WIDE; ++i) {
      ahead.step();
      const Half* k = j + i < num ? from.k + (j + i) * from.k_stride : zeros;
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
    const int at = j / WIDE * PAIRED + j % WIDE, other = at + WIDE;
    const Half *low = at < num ? from.v + at * from.v_stride : zeros;
    const Half *high = other < num ? from.v + other * from.v_stride : zeros;
    const Wide by_low = all<Wide>(to.value_units[at] = by_greatest<N>(low));
    const Wide by_high = all<Wide>(to.value_units[other] = by_greatest<N>(high));
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

// Words as they are kept: sixteen keys are turned over, two values interleaved.
inline void pack(const Rows<Scaled>& from, int num, int dim, Block& to, Ahead<Scaled>& ahead) {
  static const Scaled zeros[width_of<Scaled>(MAX_DIM)] = {};
  for (int j = 0; j < BLOCK; j += WIDE) {
    const Scaled* keys[WIDE];
    for (int i = 0; i < WIDE; ++i) {
      keys[i] = j + i < num ? from.k + (j + i) * from.k_stride : zeros;
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
  const Words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const __m512i first = (__m512i)(lane * 0x10001 + (32 << 16)), second = (__m512i)(lane * 0x10001 + (48 << 16 | 16));
  for (int j = 0; j < BLOCK / 2; ++j) {
    const int at = j / WIDE * PAIRED + j % WIDE, other = at + WIDE;
    const Scaled *low = at < num ? from.v + at * from.v_stride : zeros;
    const Scaled *high = other < num ? from.v + other * from.v_stride : zeros;
    to.value_units[at] = scale_of(low, dim), to.value_units[other] = scale_of(high, dim);
    for (int d = 0; d < dim; d += PAIRED) {
      ahead.step();
      const __m512i a = _mm512_loadu_si512(low + d), b = _mm512_loadu_si512(high + d);
      _mm512_store_si512(to.values + j * dim + d, _mm512_permutex2var_epi16(a, first, b));
      _mm512_store_si512(to.values + j * dim + d + WIDE, _mm512_permutex2var_epi16(a, second, b));
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

template <int R, int C, class Next>
INLINE void add_some(float* out, const Word* weights, const float* units, const Word* values, int dim, Next& ahead) {
  Words sums[R][C] = {};
  add_all<BLOCK / 2, 1>(sums, weights, values, dim, BLOCK / 2, ahead);
UNROLL(6)
  for (int r = 0; r < R; ++r)
UNROLL(4)
    for (int c = 0; c < C; ++c) {
      float* to = out + r * dim + c * WIDE;
      store(to, load<Wide>(to) + __builtin_convertvector(sums[r][c], Wide) * units[r]);
    }
}

// out[r] += sum_j weights[r][j] * v[j].
template <int R, class Next>
INLINE void add_values(float* out, const float* weights, const Block& block, int dim, Next& ahead) {
  alignas(64) Word words[R * BLOCK / 2];
  float units[R];
  for (int r = 0; r < R; ++r) {
    Wide x[BLOCK / WIDE], sum = {};
    for (int c = 0; c < BLOCK / WIDE; ++c) {
      x[c] = load<Wide>(weights + r * BLOCK + c * WIDE) * load<Wide>(block.value_units + c * WIDE);
      sum += x[c];
    }
    const float total = sum_of(sum), by = total > 0 ? FULL / total : 0.0f;
    units[r] = total / FULL;
    for (int c = 0; c < BLOCK / WIDE; c += 2) {
      const Wide pairs = pair_of(rounded(x[c], all<Wide>(by)), rounded(x[c + 1], all<Wide>(by)));
      std::memcpy(words + r * BLOCK / 2 + c / 2 * WIDE, &pairs, sizeof pairs);
    }
  }
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

}  // namespace words
#endif
