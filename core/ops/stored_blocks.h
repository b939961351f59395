// Products with weights in the blocks of a GGUF file: 4, 5, 6 or 8 bits, with scales and minima to the last bit as stored.
//
// A weight is scale * (level - OFFSET) - least. Rows are rounded to 8 bits, each block of 32 numbers by its own largest
// one (as llama.cpp does), so that four products and their sum are one instruction; sums of a block are exact integers,
// and blocks are added in one order. A row's result therefore depends on no other row. Without rounding (the slow twin,
// and what a model is tried with) weights are widened to float32, which holds them exactly.
//
// Weights lie in cells of LANES outputs and one (super)block of inputs: levels' lower four bits, their upper bits, scales
// and minima of blocks in 8 bits, scales and minima of the whole in float16.

namespace stored {

constexpr int NUMBERS = 32;  // of a block
constexpr int TILE = 8;      // rows that share the levels of a block
constexpr int LANES = WIDE;
// Bytes between what is computed with and what is asked for. Of 8,960 x 1,536 in Q4_K four rows take 0.82 of the time
// without it and one row 1.2 (AMD EPYC with AVX-512, 2026-11-26; an Intel Xeon with AMX 0.95, 2026-11-28); one row 0.78, in
// Q6_K 0.55 (with AVX2, 2026-11-28).
constexpr int AHEAD = 4096;
template <int R> constexpr bool ASKS = R > 1 || LANES < 16;
typedef uint8_t Bytes __attribute__((vector_size(sizeof(Wide))));
typedef Ints<Wide> Words;

INLINE Bytes bytes_at(const char* p) {
  Bytes own;
  std::memcpy(&own, p, sizeof own);
  return own;
}

// Bits moved BY places down (up where it is negative) in pairs of bytes: a mask takes away what comes from the other byte.
template <int BY> INLINE Bytes moved(Bytes x) {
  typedef uint16_t Pairs __attribute__((vector_size(sizeof(Bytes))));
  if constexpr (BY > 0) return (Bytes)((Pairs)x >> BY);
  return (Bytes)((Pairs)x << (BY < 0 ? -BY : 0));
}

// LANES small numbers as float32.
INLINE Wide small_at(const char* p) {
#if defined(__AVX512F__)
  return (Wide)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return (Wide)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  typedef int8_t Small __attribute__((vector_size(LANES)));
  Small own;
  std::memcpy(&own, p, sizeof own);
  return __builtin_convertvector(own, Wide);
#endif
}

// 32 numbers of a row in 8 bits.
struct Piece {
  int8_t values[NUMBERS];
  float scale, sum;  // sum: of the rounded numbers
  int32_t halves[2];  // sums of values
};

// Kinds of weights: bits of a level, blocks that share a scale in float16, whether there are minima, how many scales a
// block has, and what is subtracted from levels.
template <int BITS_, int BLOCKS_, bool LEAST_, int SCALES_, int OFFSET_> struct Format {
  static constexpr int BITS = BITS_, BLOCKS = BLOCKS_, SCALES = SCALES_, OFFSET = OFFSET_;
  static constexpr bool LEAST = LEAST_, NESTED = BLOCKS > 1;
  static constexpr int PLANES = BITS == 8 ? 8 : 4, UPPER = BITS == 5 ? 1 : BITS == 6 ? 2 : 0;  // vectors of a block
  static constexpr int LEVEL_BYTES = PLANES * 4 * LANES, BLOCK_BYTES = LEVEL_BYTES + UPPER * 4 * LANES;
  static constexpr int SMALL_BYTES = NESTED ? (SCALES + LEAST) * LANES : 0;
  // In a cell: scales and minima of the whole, those of blocks, and each block's levels, first their lower bits
  static constexpr int HALVES_BYTES = (1 + LEAST) * 2 * LANES;
  static constexpr int SMALL_AT = NESTED ? (HALVES_BYTES + 63) / 64 * 64 : HALVES_BYTES;
  static constexpr int LEVELS_AT = SMALL_AT + BLOCKS * SMALL_BYTES, BYTES = LEVELS_AT + BLOCKS * BLOCK_BYTES;

  // The levels of a block: vector g has inputs 4 g to 4 g + 3 of every output.
  INLINE static void levels(const char* cell, int block, Bytes (&w)[8]) {
    constexpr int VECTOR = sizeof(Bytes);
    const char *own = cell + LEVELS_AT + block * BLOCK_BYTES, *upper = own + LEVEL_BYTES;
    if constexpr (BITS == 8) {
      for (int g = 0; g < 8; ++g) w[g] = bytes_at(own + g * VECTOR);
      return;
    }
UNROLL(4)
    for (int g = 0; g < 4; ++g) {
      const Bytes two = bytes_at(own + g * VECTOR);
      w[g] = two & 15, w[g + 4] = moved<4>(two) & 15;
    }
    if constexpr (UPPER == 1) {
      const Bytes plane = bytes_at(upper);
      w[0] |= moved<-4>(plane) & 16, w[1] |= moved<-3>(plane) & 16, w[2] |= moved<-2>(plane) & 16;
      w[3] |= moved<-1>(plane) & 16, w[4] |= plane & 16, w[5] |= moved<1>(plane) & 16;
      w[6] |= moved<2>(plane) & 16, w[7] |= moved<3>(plane) & 16;
    }
    if constexpr (UPPER == 2)
UNROLL(2)
      for (int g = 0; g < 8; g += 4) {
        const Bytes plane = bytes_at(upper + g / 4 * VECTOR);
        w[g] |= moved<-4>(plane) & 48, w[g + 1] |= moved<-2>(plane) & 48;
        w[g + 2] |= plane & 48, w[g + 3] |= moved<2>(plane) & 48;
      }
  }
  // Scales of the outputs of a cell for one half of a block, and their minima.
  INLINE static Wide scale(const char* cell, int block, int half) {
    const Wide whole = load<Wide>(reinterpret_cast<const Half*>(cell));
    if constexpr (!NESTED) return whole;
    return whole * small_at(cell + SMALL_AT + block * SMALL_BYTES + half % SCALES * LANES);
  }
  INLINE static Wide least(const char* cell, int block) {
    if constexpr (!LEAST) return Wide{};
    const Wide whole = load<Wide>(reinterpret_cast<const Half*>(cell) + LANES);
    if constexpr (!NESTED) return whole;
    return whole * small_at(cell + SMALL_AT + block * SMALL_BYTES + SCALES * LANES);
  }
};

typedef Format<4, 1, false, 1, 8> Q4_0;
typedef Format<4, 1, true, 1, 0> Q4_1;
typedef Format<5, 1, false, 1, 16> Q5_0;
typedef Format<5, 1, true, 1, 0> Q5_1;
typedef Format<8, 1, false, 1, 128> Q8_0;
typedef Format<4, 8, true, 1, 0> Q4_K;
typedef Format<5, 8, true, 1, 0> Q5_K;
typedef Format<6, 8, false, 2, 32> Q6_K;
constexpr int FIRST_KIND = 4, KINDS = 8;  // behind those of keys and values

// Calls with the format of a kind.
template <class Call> INLINE auto with_format(int64_t kind, const Call& call) {
  switch (kind - FIRST_KIND) {
    case 0: return call(Q4_0());
    case 1: return call(Q4_1());
    case 2: return call(Q5_0());
    case 3: return call(Q5_1());
    case 4: return call(Q8_0());
    case 5: return call(Q4_K());
    case 6: return call(Q5_K());
    default: return call(Q6_K());
  }
}

INLINE int32_t four_at(const int8_t* values, int group) {
  int32_t four;
  std::memcpy(&four, values + 4 * group, 4);
  return four;
}

// `block_sum`: a block's levels less OFFSET times numbers of a row, for vectors FIRST to LAST; sum: of those numbers.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__)) || !defined(__AVX2__)

// sums[lane] += w[4 lane + i] * four[i]; numbers of w up to 127, or 255 where WHOLE.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool WHOLE = true;
INLINE Words dot(Words sums, Bytes w, int32_t four) {
#ifdef __AVX512VNNI__
  return (Words)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(four));
#else
  return (Words)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)w, _mm256_set1_epi32(four));
#endif
}
#else
constexpr bool WHOLE = false;
INLINE Words dot(Words sums, Bytes w, int32_t four) {
#ifdef __ARM_FEATURE_DOTPROD
  return (Words)vdotq_s32((int32x4_t)sums, (int8x16_t)w, vreinterpretq_s8_s32(vdupq_n_s32(four)));
#else
  const Words words = (Words)w;
  for (int i = 0; i < 4; ++i) sums += (words >> 8 * i & 255) * int32_t(int8_t(four >> 8 * i));
  return sums;
#endif
}
#endif

template <int BITS> INLINE Words dot_of(Words sums, Bytes w, int32_t four) {
  if constexpr (BITS < 8 || WHOLE) return dot(sums, w, four);
  const Bytes half = w >> 1;
  return dot(dot(dot(sums, half, four), half, four), w & 1, four);
}

template <class F, int FIRST, int LAST> INLINE Words block_sum(const Bytes (&w)[8], const int8_t* values, int32_t sum) {
  Words some = Words{} - F::OFFSET * sum, others = {};
UNROLL(8)
  for (int g = FIRST; g < LAST; ++g) {
    if (g % 2)
      others = dot_of<F::BITS>(others, w[g], four_at(values, g));
    else
      some = dot_of<F::BITS>(some, w[g], four_at(values, g));
  }
  return some + others;
}

#else  // two products and their sum are one instruction, and as many of these sums as fit are added in 16 bits

typedef int16_t Pairs __attribute__((vector_size(sizeof(Bytes))));

INLINE Pairs pairs_of(Bytes w, int32_t four) {  // numbers of w up to 127
#ifdef __AVX512BW__
  return (Pairs)_mm512_maddubs_epi16((__m512i)w, _mm512_set1_epi32(four));
#else
  return (Pairs)_mm256_maddubs_epi16((__m256i)w, _mm256_set1_epi32(four));
#endif
}

INLINE Words joined(Pairs pairs, int16_t by) {  // sums of two, times a number
#ifdef __AVX512BW__
  return (Words)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(by));
#else
  return (Words)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(by));
#endif
}

template <class F, int FIRST, int LAST> INLINE Words block_sum(const Bytes (&w)[8], const int8_t* values, int32_t sum) {
  Words sums = Words{} - F::OFFSET * sum;
  if constexpr (F::BITS == 8) {
    Pairs lowest = {};  // of the lowest bits; twice the upper ones fill 16 bits
UNROLL(8)
    for (int g = FIRST; g < LAST; ++g) {
      sums += joined(pairs_of(w[g] >> 1, four_at(values, g)), 2);
      lowest += pairs_of(w[g] & 1, four_at(values, g));
    }
    return sums + joined(lowest, 1);
  } else {
    constexpr int MOST = std::min(LAST - FIRST, 32767 / (2 * 127 * ((1 << F::BITS) - 1)));  // vectors
    static_assert((LAST - FIRST) % MOST == 0);
UNROLL(8)
    for (int g = FIRST; g < LAST; g += MOST) {
      Pairs pairs = pairs_of(w[g], four_at(values, g));
UNROLL(8)
      for (int i = g + 1; i < g + MOST; ++i) pairs += pairs_of(w[i], four_at(values, i));
      sums += joined(pairs, 1);
    }
    return sums;
  }
}

#endif

// out[r][lane] = bias + <x_r, weights of a lane> for R rows of `blocks` pieces; the first `valid` lanes.
template <class F, int R>
void add_cells(const char* cells, int64_t blocks, const Piece* x, float* out, int64_t out_row, int valid,
               const float* bias) {
  Wide sums[R] = {};
  for (int64_t at = 0; at < blocks; cells += F::BYTES) {
NOT_UNROLLED
    for (int b = 0; b < F::BLOCKS; ++b, ++at) {
      if constexpr (ASKS<R>)
UNROLL(16)
        for (int line = 0; line < (F::BYTES / F::BLOCKS + 63) / 64; ++line)
          __builtin_prefetch(cells + AHEAD + F::BYTES / F::BLOCKS * b + 64 * line);
      Bytes w[8];
      F::levels(cells, b, w);
      const Wide scale = F::scale(cells, b, 0), upper = F::scale(cells, b, 1), least = F::least(cells, b);
UNROLL(8)
      for (int r = 0; r < R; ++r) {
        const Piece& piece = x[r * blocks + at];
        const auto add = [&](Words sum, Wide by) {
          sums[r] += __builtin_convertvector(sum, Wide) * (by * all<Wide>(piece.scale));
        };
        if constexpr (F::SCALES == 1) {
          add(block_sum<F, 0, 8>(w, piece.values, piece.halves[0] + piece.halves[1]), scale);
        } else {
          add(block_sum<F, 0, 4>(w, piece.values, piece.halves[0]), scale);
          add(block_sum<F, 4, 8>(w, piece.values, piece.halves[1]), upper);
        }
        if constexpr (F::LEAST) sums[r] -= least * all<Wide>(piece.sum);
      }
    }
  }
  alignas(64) float added[LANES] = {};
  if (bias != nullptr) std::copy(bias, bias + valid, added);
  for (int r = 0; r < R; ++r, out += out_row) {
    const Wide sum = sums[r] + load<Wide>(added);
    std::memcpy(out, &sum, valid * sizeof(float));
  }
}

template <class F>
void rows_of(const char* cells, int64_t blocks, const Piece* x, float* out, int64_t out_row, int64_t rows, int valid,
             const float* bias) {
  const int64_t tiles = (rows + TILE - 1) / TILE;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t some = rows * (t + 1) / tiles - rows * t / tiles;
    const auto run = [&](auto count) {
      add_cells<F, decltype(count)::value>(cells, blocks, x, out, out_row, valid, bias);
    };
    switch (some) {
      case 1: run(std::integral_constant<int, 1>()); break;
      case 2: run(std::integral_constant<int, 2>()); break;
      case 3: run(std::integral_constant<int, 3>()); break;
      case 4: run(std::integral_constant<int, 4>()); break;
      case 5: run(std::integral_constant<int, 5>()); break;
      case 6: run(std::integral_constant<int, 6>()); break;
      case 7: run(std::integral_constant<int, 7>()); break;
      default: run(std::integral_constant<int, TILE>());
    }
    x += some * blocks, out += some * out_row;
  }
}

// The nearest of 255 steps of a block's largest number. A number that is none makes the whole block none.
INLINE void round_block(const float* x, Piece& piece) {
  constexpr int STEPS = NUMBERS / LANES;
  Wide most = {}, none = {};
  for (int i = 0; i < STEPS; ++i) {
    const Wide own = load<Wide>(x + i * LANES);
    most = greater(most, own < Wide{} ? -own : own);
    none += own * all<Wide>(0.0f);
  }
  const float largest = greatest_of(most), by = largest > 1e-30f ? 127.0f / largest : 0.0f;
  Words sums[2] = {};
  for (int i = 0; i < STEPS; ++i) {
    const Wide shift = all<Wide>(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Wide whole = (load<Wide>(x + i * LANES) * all<Wide>(by) + shift) - shift;
    const Words levels = __builtin_convertvector(whole, Words);
    typedef int8_t Small __attribute__((vector_size(LANES)));
    const Small small = __builtin_convertvector(levels, Small);
    std::memcpy(piece.values + i * LANES, &small, LANES);
    sums[2 * i / STEPS] += levels;
  }
  for (int half = 0; half < 2; ++half) {
    piece.halves[half] = 0;
    for (int l = 0; l < LANES; ++l) piece.halves[half] += sums[half][l];
  }
  piece.scale = largest / 127.0f + sum_of(none);
  piece.sum = piece.scale * float(piece.halves[0] + piece.halves[1]);
}

// ---------- files' blocks, as ggml writes them

// One output's (super)block: levels, and the scales and minima of its blocks.
struct Plain {
  Half whole, least;
  uint8_t levels[8 * NUMBERS], scales[16], minima[8];
};

INLINE Half half_at(const uint8_t* p) {
  Half bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}

INLINE void nibbles(const uint8_t* from, int num, uint8_t* lower, uint8_t* upper) {
  for (int i = 0; i < num; ++i) lower[i] = from[i] & 15, upper[i] = from[i] >> 4;
}

// Bytes of a format's (super)block in a file.
template <class F> constexpr int file_bytes() {
  if (F::BITS == 6) return 210;
  if (F::NESTED) return F::BITS == 4 ? 144 : 176;
  return 2 + 2 * F::LEAST + (F::BITS == 5 ? 20 : 4 * F::BITS);
}

template <class F> INLINE void read_block(const uint8_t* p, Plain& plain) {
  plain.whole = half_at(p + (F::BITS == 6 ? 208 : 0));
  plain.least = F::LEAST ? half_at(p + 2) : Half(0);
  if constexpr (F::BITS == 6) {
    for (int half = 0; half < 2; ++half) {
      const uint8_t *low = p + 64 * half, *high = p + 128 + 32 * half;
      uint8_t* to = plain.levels + 128 * half;
      for (int i = 0; i < 32; ++i) {
        to[i] = (low[i] & 15) | (high[i] & 3) << 4;
        to[i + 32] = (low[i + 32] & 15) | (high[i] >> 2 & 3) << 4;
        to[i + 64] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
        to[i + 96] = low[i + 32] >> 4 | (high[i] >> 6) << 4;
      }
    }
    std::copy(p + 192, p + 208, plain.scales);
  } else if constexpr (F::NESTED) {
    const uint8_t *six = p + 4, *high = p + 16, *low = p + (F::BITS == 5 ? 48 : 16);
    for (int b = 0; b < 8; ++b) {  // 6 bits each in 12 bytes
      plain.scales[b] = b < 4 ? six[b] & 63 : (six[b + 4] & 15) | (six[b - 4] >> 6) << 4;
      plain.minima[b] = b < 4 ? six[b + 4] & 63 : six[b + 4] >> 4 | (six[b] >> 6) << 4;
    }
    for (int b = 0; b < 8; b += 2) {
      uint8_t* to = plain.levels + 32 * b;
      nibbles(low + 16 * b, 32, to, to + 32);
      if constexpr (F::BITS == 5)
        for (int i = 0; i < 32; ++i) to[i] |= (high[i] >> b & 1) << 4, to[i + 32] |= (high[i] >> (b + 1) & 1) << 4;
    }
  } else if constexpr (F::BITS == 8) {
    for (int i = 0; i < NUMBERS; ++i) plain.levels[i] = p[2 + i] ^ 128;  // signed in files
  } else {
    const uint8_t* high = p + 2 + 2 * F::LEAST;
    nibbles(high + (F::BITS == 5 ? 4 : 0), 16, plain.levels, plain.levels + 16);
    if constexpr (F::BITS == 5)
      for (int i = 0; i < NUMBERS; ++i) plain.levels[i] |= (high[i / 8] >> i % 8 & 1) << 4;
    if constexpr (F::LEAST) plain.least ^= 0x8000;  // files have what is added
  }
}

// One output's place in a cell.
template <class F> INLINE void write_lane(const Plain& plain, int lane, char* cell) {
  for (int b = 0; b < F::BLOCKS; ++b) {
    const uint8_t* levels = plain.levels + NUMBERS * b;
    char* to = cell + F::LEVELS_AT + b * F::BLOCK_BYTES + 4 * lane;
    if constexpr (F::BITS == 8) {
      for (int g = 0; g < 8; ++g) std::memcpy(to + 4 * LANES * g, levels + 4 * g, 4);
    } else {
      uint8_t pairs[16];
      for (int i = 0; i < 16; ++i) pairs[i] = (levels[i] & 15) | (levels[i + 16] & 15) << 4;
      for (int g = 0; g < 4; ++g) std::memcpy(to + 4 * LANES * g, pairs + 4 * g, 4);
    }
    for (int plane = 0; plane < F::UPPER; ++plane) {
      uint8_t four[4] = {};
      constexpr int each = F::UPPER == 2 ? 4 : 8;  // groups of four inputs in a plane
      for (int g = 0; g < each; ++g)
        for (int i = 0; i < 4; ++i) four[i] |= (levels[4 * (plane * each + g) + i] >> 4) << F::UPPER * g;
      std::memcpy(to + F::LEVEL_BYTES + 4 * LANES * plane, four, 4);
    }
    if constexpr (F::NESTED) {
      char* small = cell + F::SMALL_AT + b * F::SMALL_BYTES + lane;
      for (int half = 0; half < F::SCALES; ++half) small[half * LANES] = char(plain.scales[b * F::SCALES + half]);
      if constexpr (F::LEAST) small[F::SCALES * LANES] = char(plain.minima[b]);
    }
  }
  const Half halves[2] = {plain.whole, plain.least};
  for (int i = 0; i < 1 + F::LEAST; ++i)
    std::memcpy(cell + 2 * (i * LANES + lane), halves + i, sizeof(Half));
}

// A cell's weights as float32, [NUMBERS * BLOCKS][LANES] with `row` numbers from one input to the next.
template <class F> INLINE void widen_cell(const char* cell, float* to, int row) {
  for (int b = 0; b < F::BLOCKS; ++b) {
    Bytes w[8];
    F::levels(cell, b, w);
    const Wide least = F::least(cell, b);
    for (int i = 0; i < NUMBERS; ++i, to += row) {
      const Words levels = ((Words)w[i / 4] >> 8 * (i % 4) & 255) - F::OFFSET;
      store(to, __builtin_convertvector(levels, Wide) * F::scale(cell, b, i / 16) - least);
    }
  }
}

template <class F> constexpr int cell_inputs() { return F::BLOCKS * NUMBERS; }
template <class F> int64_t lanes_bytes(int64_t in) { return in / cell_inputs<F>() * F::BYTES; }

}  // namespace stored
