// Attention through the matrix units of recent Intel processors (AMX): part of small_rows.cpp, which includes it.
//
// A matrix unit multiplies bfloat16 and adds in float32. A float32 is the sum of three bfloat16, and a float16 of two,
// exactly; so a product of a float32 and a float16 is that of their parts, less the smallest, which is below the
// rounding of float32. (Henry, Tang and Heinecke, arXiv 1904.06376.) Sixteen rows cost what one costs: in decoding, the
// reading of the memory.
//
// A block's scores are computed with keys as rows and sixteen queries as columns, so no key is turned over, and a step of
// the softmax is that of sixteen queries at once. Weights are then turned over, values taken as they lie. Every sum is
// taken in one order whatever stands beside it, as in the rest of small_rows.cpp. A tile is loaded as seldom as possible:
// that takes as long as multiplying it, and neither runs beside the computing of vectors (measured on two cores of an
// Intel Xeon: 4 products 17 ns, 128 multiplications of vectors 17 ns, both in turns 35 ns).

#if defined(__AMX_BF16__) && defined(__AVX512BW__) && defined(__linux__)
#define HAS_MATRICES
#include <sys/syscall.h>
#include <unistd.h>

namespace amx {

typedef uint32_t Word;  // two bfloat16: a pair of numbers that are multiplied with the same pair of another tile
constexpr int SIDE = 16;             // rows of a tile, words of a row
constexpr int TILE = SIDE * SIDE;    // words
constexpr int PARTS = 3;             // bfloat16 of a float32
constexpr int QUERIES = SIDE;        // that are computed together
constexpr int DEEP = 2 * SIDE;       // numbers that a multiplication of tiles sums over
constexpr int ACROSS = 4;            // tiles of sums at a time; three are those of a float32's parts, one is left
constexpr float LEAST = -1e30f;      // greatest score of no keys

template <class T> constexpr int PARTS_OF = std::is_same_v<T, Brain> ? 1 : std::is_same_v<T, Half> ? 2 : PARTS;

// Memory that begins at a cache line.
template <class X> class Lines {
 public:
  explicit Lines(size_t num) : memory_(num * sizeof(X) + 64) {
    at_ = reinterpret_cast<X*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
  }
  X* at(size_t i) const { return at_ + i; }

 private:
  std::vector<char> memory_;
  X* at_;
};

// The palette: eight tiles of sixteen rows of 64 bytes.
inline void configure() {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } palette;
  for (int i = 0; i < 8; ++i) palette.bytes[i] = 64, palette.rows[i] = SIDE;
  asm volatile("" : : "r"(&palette) : "memory");  // all of it is in memory: the compiler knows only of its first word
  _tile_loadconfig(&palette);
}

// Whether the system lets this process use the matrix units.
inline bool permitted() {
  constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of arch_prctl(2)
  return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

// What was stored is in memory: the compiler does not know that loading a tile reads it.
INLINE void settle() { asm volatile("" ::: "memory"); }

// The first P bfloat16 of two vectors: words whose lower halves are of x and upper halves of y, each part `stride` words
// behind the one before. Parts are cut off, not rounded: what is left has at most as many bits less.
template <int P> INLINE void split(Wide x, Wide y, Word* to, int64_t stride) {
  const __m512i upper = _mm512_set1_epi32(int32_t(0xffff0000));
UNROLL(3)
  for (int p = 0; p < P; ++p, to += stride) {
    const __m512i a = _mm512_castps_si512(x), b = _mm512_castps_si512(y);
    _mm512_store_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b));
    if (p + 1 == P) break;
    x -= _mm512_castsi512_ps(_mm512_and_si512(a, upper));
    y -= _mm512_castsi512_ps(_mm512_and_si512(b, upper));
  }
}

// Tile T of the sums += tile 7 times the parts of a float32 in tiles 4 to 6, or the other way round, for part P of the
// other number: pairs of parts whose product matters, in the same order for any number of parts.
#define BY_PARTS(T, P, PRODUCT)            \
  if ((P) == 0) { PRODUCT(T, 6); }         \
  if ((P) <= 1) { PRODUCT(T, 5); }         \
  PRODUCT(T, 4)
#define KEYS_BY(T, F) _tile_dpbf16ps(T, 7, F)
#define BY_VALUES(T, F) _tile_dpbf16ps(T, F, 7)
#define LOAD_SUMS(FROM, STEP)           \
  _tile_loadd(0, FROM, 64);             \
  _tile_loadd(1, (FROM) + (STEP), 64);  \
  _tile_loadd(2, (FROM) + 2 * (STEP), 64); \
  _tile_loadd(3, (FROM) + 3 * (STEP), 64)
#define STORE_SUMS(TO)                  \
  _tile_stored(0, TO, 64);              \
  _tile_stored(1, (TO) + TILE, 64);     \
  _tile_stored(2, (TO) + 2 * TILE, 64); \
  _tile_stored(3, (TO) + 3 * TILE, 64)
#define LOAD_PARTS(FROM, STEP)          \
  _tile_loadd(4, FROM, 64);             \
  _tile_loadd(5, (FROM) + (STEP), 64);  \
  _tile_loadd(6, (FROM) + 2 * (STEP), 64)

// As `Ahead`, for steps that take different times: it asks for a key's and a value's line for every so many nanoseconds.
template <class T> class Asking {
 public:
  // `nanoseconds`: what the steps of a block take together, about.
  Asking(Rows<T> next, int num, int dim, int nanoseconds)
      : next_(next), left_(num * ((dim + LINE - 1) / LINE)), dim_(dim), each_(left_ * UNIT / nanoseconds + 1) {}
  INLINE void step(int nanoseconds) {
    for (due_ += nanoseconds * each_; due_ >= UNIT && left_ > 0; due_ -= UNIT, --left_) {
      __builtin_prefetch(next_.k + at_, 0, 2);
      __builtin_prefetch(next_.v + at_, 0, 2);
      at_ += LINE;
      if (at_ < dim_) continue;
      at_ = 0;
      next_ = next_.from(1);
    }
  }

 private:
  static constexpr int LINE = 64 / sizeof(T), UNIT = 1024;
  Rows<T> next_;
  int left_, dim_, each_, due_ = 0, at_ = 0;  // lines; numbers; parts of a line
};
// What steps take on an Intel Xeon at 3.7 GHz.
constexpr int SPLIT_ROW = 4, PACK_ROW = 2, BY_PARTS_OF_A_TILE = 15, SOME_WEIGHTS = 10, TURN = 20, SPLIT_WEIGHTS = 6;

// Some rows of a head in groups of sixteen, and the keys of one share at a time: as `Task`.
template <class T> class Task {
 public:
  const int rows, dim;

  Task(const float* q, float scale, float cap, Rows<T> keys, int64_t first, int64_t rows, int64_t num_new,
       int64_t total, int64_t dim, int64_t share, int64_t chunk)
      : rows(int(rows)),
        dim(int(dim)),
        cap_(cap),
        keys_(keys),
        chunks_(chunk > 0 ? int(share / chunk) : 0),
        chunk_(int(chunk)),
        steps_(int(dim + DEEP - 1) / DEEP),
        across_(int(dim + ACROSS * SIDE - 1) / (ACROSS * SIDE) * ACROSS),
        groups_(int(rows + QUERIES - 1) / QUERIES),
        fills_(dim % DEEP == 0 && dim == across_ * SIDE),
        seen_(groups_ * QUERIES),
        states_(groups_),
        q_(size_t(groups_) * PARTS * steps_ * TILE),
        k_(size_t(SPLIT) * KEY_TILES * steps_ * TILE),
        v_(size_t(SPLIT) * DEPTH * across_ * TILE),
        weights_(size_t(PARTS) * DEPTH * TILE),
        scores_(ACROSS * TILE),
        out_(size_t(groups_) * across_ * TILE),
        masses_(size_t(groups_) * chunks_ * QUERIES),
        tops_(chunk > 0 ? size_t(groups_) * share / KEYS : 0) {
    configure();
    for (int64_t r = 0; r < rows; ++r) seen_[r] = int32_t(total - num_new + (first + r) % num_new + 1);
    for (int g = 0; g < groups_; ++g) split_queries(q + g * QUERIES * dim, scale, g);
  }
  ~Task() { _tile_release(); }
  Task(const Task&) = delete;

  int64_t most_seen() const { return *std::max_element(seen_.begin(), seen_.end()); }
  void attend(int64_t start, int64_t end, const Part& part);
  void move(int64_t by) { keys_.k += by, keys_.v += by; }

 private:
  static constexpr int SPLIT = PARTS_OF<T>;
  static constexpr bool AS_IT_LIES = SPLIT == 1;           // keys are tiles as they are: pairs are neighbours
  static constexpr int KEY_TILES = AS_IT_LIES ? 4 : 2;     // with parts to add, two tiles are sums of the small ones
  static constexpr int KEYS = KEY_TILES * SIDE;            // of a block: its parts stay in the first-level cache
  static constexpr int DEPTH = KEYS / DEEP;
  static_assert(WIDE == SIDE, "a vector is a row of a tile");

  float cap_;
  Rows<T> keys_;
  int chunks_, chunk_;           // chunks of a share, 0: masses are not asked for; keys of a chunk
  int steps_, across_, groups_;  // products over a key; tiles over a value; rows in groups
  bool fills_;                   // whether the dimensions fill their tiles
  std::vector<int32_t> seen_;    // by row; 0 of those that fill up the last group
  struct State {                 // of a group's rows
    Wide top, sum;
  };
  std::vector<State> states_;
  Lines<Word> q_;        // tiles of pairs of dimensions by queries: [groups][PARTS][steps]
  Lines<Word> k_;        // of keys by pairs of dimensions: [SPLIT][steps][KEY_TILES]; or rows of keys
  Lines<Word> v_;        // of pairs of keys by dimensions: [SPLIT][DEPTH][across]
  Lines<Word> weights_;  // of queries by pairs of keys: [PARTS][DEPTH]; those of missing queries are never used
  Lines<float> scores_;  // of keys by queries: [ACROSS]
  Lines<float> out_;     // of queries by dimensions: [groups][across]
  Lines<float> masses_;  // [groups][chunks][QUERIES], relative to
  std::vector<Wide> tops_;  // [groups][blocks of a share]

  int rows_of(int g) const { return std::min(QUERIES, rows - g * QUERIES); }
  int least_seen(int g) const { return *std::min_element(&seen_[g * QUERIES], &seen_[g * QUERIES] + rows_of(g)); }
  int most_seen(int g) const { return *std::max_element(&seen_[g * QUERIES], &seen_[g * QUERIES] + rows_of(g)); }
  Word* queries(int g) const { return q_.at(size_t(g) * PARTS * steps_ * TILE); }
  float* out(int g) const { return out_.at(size_t(g) * across_ * TILE); }

  void split_queries(const float* q, float scale, int g) const;
  template <bool WHOLE> void split_keys(int64_t start, int num, Asking<T>& asking) const;
  template <bool WHOLE> void split_values(int64_t start, int num, Asking<T>& asking) const;
  void score(int g, const Word* keys, int64_t bytes, Asking<T>& asking) const;
  Wide tops(int g, int64_t start) const;
  void weigh(int g, Wide top, int block, Asking<T>& asking);
  void finish_masses(const Part& part) const;
  void add_values(int g, Asking<T>& asking) const;
  void tell(int r, float* to) const;
};

template <class T> void Task<T>::split_queries(const float* q, float scale, int g) const {
  const int num = rows_of(g);
  for (int s = 0; s < steps_; ++s)
    for (int i = 0; i < SIDE; ++i) {
      Wide x = {}, y = {};  // of sixteen queries: the dimensions that are a pair
      const int d = s * DEEP + (AS_IT_LIES ? 2 * i : i), other = d + (AS_IT_LIES ? 1 : SIDE);
      for (int r = 0; r < num; ++r) {
        if (d < dim) x[r] = q[r * dim + d] * scale;
        if (other < dim) y[r] = q[r * dim + other] * scale;
      }
      split<PARTS>(x, y, queries(g) + s * TILE + i * SIDE, int64_t(steps_) * TILE);
    }
}

// WHOLE: all of a vector's numbers are there; else only `left`, or none.
template <bool WHOLE, class T> INLINE Wide some_of(const T* row, int left) {
  return WHOLE ? load<Wide>(row) : left > 0 ? load_some(row, left) : Wide{};
}

// 32 bfloat16 as they lie.
template <bool WHOLE, class T> INLINE __m512i pairs_of(const T* row, int left) {
  if (WHOLE || left >= DEEP) return _mm512_loadu_si512(row);
  T some[DEEP] = {};
  if (left > 0) std::copy(row, row + left, some);
  return _mm512_loadu_si512(some);
}

// Keys beyond `num` are zeros. WHOLE: there are none, and the dimensions fill their tiles.
template <class T> template <bool WHOLE> void Task<T>::split_keys(int64_t start, int num, Asking<T>& asking) const {
  const int64_t part = int64_t(steps_) * KEY_TILES * TILE;
  const T* row = keys_.from(start).k;
  if (AS_IT_LIES && WHOLE) return;  // copied only if some are missing
  for (int j = 0; j < KEYS; ++j, row += keys_.k_stride) {
    asking.step(SPLIT_ROW);
    if constexpr (AS_IT_LIES) {
      T* to = reinterpret_cast<T*>(k_.at(j * steps_ * SIDE));
      std::fill(to, to + steps_ * DEEP, T{});
      if (j < num) std::copy(row, row + dim, to);
    } else {
      Word* to = k_.at(j * SIDE);
      for (int d = 0; d < steps_ * DEEP; d += DEEP, to += KEY_TILES * TILE) {
        const int left = j < num ? dim - d : 0;
        split<SPLIT>(some_of<WHOLE>(row + d, left), some_of<WHOLE>(row + d + SIDE, left - SIDE), to, part);
      }
    }
  }
}

// Pairs of keys are sixteen apart.
template <class T> template <bool WHOLE> void Task<T>::split_values(int64_t start, int num, Asking<T>& asking) const {
  const int64_t part = int64_t(DEPTH) * across_ * TILE;
  for (int u = 0; u < DEPTH; ++u)
    for (int i = 0; i < SIDE; ++i) {
      const int j = u * DEEP + i, left = j < num ? dim : 0, left_there = j + SIDE < num ? dim : 0;
      const T *row = keys_.from(start + j).v, *other = row + SIDE * keys_.v_stride;
      asking.step(AS_IT_LIES ? PACK_ROW : 2 * SPLIT_ROW);
      Word* to = v_.at((u * across_ * SIDE + i) * SIDE);
      if constexpr (AS_IT_LIES) {
        for (int d = 0; d < across_ * SIDE; d += DEEP, to += 2 * TILE) {
          const __m512i x = pairs_of<WHOLE>(row + d, left - d), y = pairs_of<WHOLE>(other + d, left_there - d);
          _mm512_store_si512(to, _mm512_unpacklo_epi16(x, y));
          _mm512_store_si512(to + TILE, _mm512_unpackhi_epi16(x, y));
        }
      } else {
        for (int d = 0; d < across_ * SIDE; d += SIDE, to += TILE)
          split<SPLIT>(some_of<WHOLE>(row + d, left - d), some_of<WHOLE>(other + d, left_there - d), to, part);
      }
    }
}

// Scores of a group: tiles of keys by queries, those of the small parts behind them. Rows of keys are `bytes` apart.
template <class T> void Task<T>::score(int g, const Word* keys, int64_t bytes, Asking<T>& asking) const {
  settle();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int s = 0; s < steps_; ++s) {
    LOAD_PARTS(queries(g) + s * TILE, steps_ * TILE);
    if constexpr (AS_IT_LIES) {
      const char* at = reinterpret_cast<const char*>(keys + s * SIDE);
      _tile_loadd(7, at, bytes);
      BY_PARTS(0, 0, KEYS_BY);
      asking.step(BY_PARTS_OF_A_TILE);
      _tile_loadd(7, at + SIDE * bytes, bytes);
      BY_PARTS(1, 0, KEYS_BY);
      asking.step(BY_PARTS_OF_A_TILE);
      _tile_loadd(7, at + 2 * SIDE * bytes, bytes);
      BY_PARTS(2, 0, KEYS_BY);
      asking.step(BY_PARTS_OF_A_TILE);
      _tile_loadd(7, at + 3 * SIDE * bytes, bytes);
      BY_PARTS(3, 0, KEYS_BY);
      asking.step(BY_PARTS_OF_A_TILE);
    } else {
      const Word* at = keys + s * KEY_TILES * TILE;
      _tile_loadd(7, at, 64);
      BY_PARTS(0, 0, KEYS_BY);
      asking.step(BY_PARTS_OF_A_TILE);
      _tile_loadd(7, at + TILE, 64);
      BY_PARTS(1, 0, KEYS_BY);
      asking.step(BY_PARTS_OF_A_TILE);
      for (int p = 1; p < SPLIT; ++p) {
        at += steps_ * KEY_TILES * TILE;
        _tile_loadd(7, at, 64);
        BY_PARTS(2, p, KEYS_BY);
        asking.step(BY_PARTS_OF_A_TILE);
        _tile_loadd(7, at + TILE, 64);
        BY_PARTS(3, p, KEYS_BY);
        asking.step(BY_PARTS_OF_A_TILE);
      }
    }
  }
  STORE_SUMS(scores_.at(0));
}

// The greatest score of every row so far. Scores are added up; those that a row does not see become -inf.
template <class T> Wide Task<T>::tops(int g, int64_t start) const {
  const bool all_seen = least_seen(g) >= start + KEYS;
  Ints<Wide> seen;
  std::memcpy(&seen, &seen_[g * QUERIES], sizeof seen);
  seen -= int32_t(start);
  const Wide before = states_[g].top;
  Wide best[4] = {before, before, before, before};
  for (int j = 0; j < KEYS; j += 4) {
UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      float* at = scores_.at((j + i) * QUERIES);
      Wide score = load<Wide>(at);
      if (!AS_IT_LIES) score += load<Wide>(at + KEYS * QUERIES);
      if (cap_ > 0) score = capped(score, cap_);
      if (!all_seen) score = seen > j + i ? score : all<Wide>(-std::numeric_limits<float>::infinity());
      if (!AS_IT_LIES || !all_seen || cap_ > 0) store(at, score);
      best[i] = greater(best[i], score);
    }
  }
  return greater(greater(best[0], best[1]), greater(best[2], best[3]));
}

// Scores become weights, 2^(score - top), turned over and split. What the rows have so far follows a new top.
template <class T> void Task<T>::weigh(int g, Wide top, int block, Asking<T>& asking) {
  State& state = states_[g];
  Wide added[4] = {}, mass = {};
  float* masses = masses_.at((size_t(g) * chunks_ + (chunks_ > 0 ? block * KEYS / chunk_ : 0)) * QUERIES);
  for (int j = 0; j < KEYS; j += 4) {
    asking.step(SOME_WEIGHTS);
UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      float* at = scores_.at((j + i) * QUERIES);
      const Wide weight = power_of_two<Wide>(load<Wide>(at) - top);
      store(at, weight);
      added[i] += weight;
      if (chunks_ > 0) mass += weight;
    }
    if (chunks_ > 0 && (j + 4) % chunk_ == 0) store(masses + j / chunk_ * QUERIES, mass), mass = Wide{};
  }
  if (chunks_ > 0) tops_[g * (chunks_ * chunk_ / KEYS) + block] = top;
  for (int j = 0; j < KEYS; j += SIDE) {
    Wide square[SIDE];
UNROLL(16)
    for (int i = 0; i < SIDE; ++i) square[i] = load<Wide>(scores_.at((j + i) * QUERIES));
    turn_over<SIDE / 2>(square, Lanes<SIDE>());
    asking.step(TURN);
UNROLL(16)
    for (int i = 0; i < SIDE; ++i) store(scores_.at((j + i) * QUERIES), square[i]);
  }
  const Wide shrunk = power_of_two<Wide>(state.top - top);
  alignas(64) float by[SIDE];
  store(by, shrunk);
  const int num = rows_of(g);
  for (int r = 0; r < num; ++r) {
    if (by[r] != 1.0f)
      for (int t = 0; t < across_; ++t) {
        float* row = out(g) + t * TILE + r * SIDE;
        store(row, load<Wide>(row) * by[r]);
      }
    asking.step(SPLIT_WEIGHTS);
    for (int u = 0; u < DEPTH; ++u) {
      const float* row = scores_.at(u * 2 * TILE + r * SIDE);
      split<PARTS>(load<Wide>(row), load<Wide>(row + TILE), weights_.at(u * TILE + r * SIDE), DEPTH * TILE);
    }
  }
  state.sum = state.sum * shrunk + ((added[0] + added[1]) + (added[2] + added[3]));
  state.top = top;
}

// Masses of all blocks relative to the top of the share, turned over. Blocks that a group does not see have none.
template <class T> void Task<T>::finish_masses(const Part& part) const {
  const int blocks = chunks_ * chunk_ / KEYS;
  for (int g = 0; g < groups_; ++g)
    for (int c = 0; c < chunks_; c += SIDE) {
      Wide square[SIDE];
      for (int i = 0; i < SIDE; ++i) {
        const Wide by = power_of_two<Wide>(tops_[g * blocks + (c + i) * chunk_ / KEYS] - states_[g].top);
        square[i] = load<Wide>(masses_.at((size_t(g) * chunks_ + c + i) * QUERIES)) * by;
      }
      turn_over<SIDE / 2>(square, Lanes<SIDE>());
      for (int r = 0; r < rows_of(g); ++r) store(part.mass + int64_t(g * QUERIES + r) * chunks_ + c, square[r]);
    }
}

// What the rows have += weights times values.
template <class T> void Task<T>::add_values(int g, Asking<T>& asking) const {
  settle();
  for (int t = 0; t < across_; t += ACROSS) {
    float* sums = out(g) + t * TILE;
    LOAD_SUMS(sums, TILE);
    for (int u = 0; u < DEPTH; ++u) {
      LOAD_PARTS(weights_.at(u * TILE), DEPTH * TILE);
      for (int p = SPLIT - 1; p >= 0; --p) {
        const Word* values = v_.at(((p * DEPTH + u) * across_ + t) * TILE);
        _tile_loadd(7, values, 64);
        BY_PARTS(0, p, BY_VALUES);
        asking.step(BY_PARTS_OF_A_TILE);
        _tile_loadd(7, values + TILE, 64);
        BY_PARTS(1, p, BY_VALUES);
        asking.step(BY_PARTS_OF_A_TILE);
        _tile_loadd(7, values + 2 * TILE, 64);
        BY_PARTS(2, p, BY_VALUES);
        asking.step(BY_PARTS_OF_A_TILE);
        _tile_loadd(7, values + 3 * TILE, 64);
        BY_PARTS(3, p, BY_VALUES);
        asking.step(BY_PARTS_OF_A_TILE);
      }
    }
    STORE_SUMS(sums);
  }
}

// A row of tiles. As they lie, pairs of values came from two vectors of 32 in turns of four.
template <class T> void Task<T>::tell(int r, float* to) const {
  const float* own = out(r / QUERIES) + r % QUERIES * SIDE;
  if (!AS_IT_LIES) {
    for (int d = 0; d < dim; ++d) to[d] = own[d / SIDE * TILE + d % SIDE];
    return;
  }
  for (int d = 0; d < dim; d += 4)
    store(to + d, load<Vec4>(own + (d / DEEP * 2 + d / 4 % 2) * TILE + d % DEEP / 8 * 4));
}

template <class T> void Task<T>::attend(int64_t start, int64_t end, const Part& part) {
  std::fill(states_.begin(), states_.end(), State{all<Wide>(LEAST), Wide{}});
  std::fill(out_.at(0), out_.at(size_t(groups_) * across_ * TILE), 0.0f);
  std::fill(weights_.at(0), weights_.at(PARTS * DEPTH * TILE), 0);
  std::fill(masses_.at(0), masses_.at(size_t(groups_) * chunks_ * QUERIES), 0.0f);
  std::fill(tops_.begin(), tops_.end(), all<Wide>(LEAST));
  int block = 0;
  end = std::min(end, most_seen());
  // The next block is asked for all the while that the first two groups of rows are computed with
  const int products = (AS_IT_LIES ? KEY_TILES : KEY_TILES * SPLIT) * steps_ + SPLIT * DEPTH * across_;
  const int group = products * BY_PARTS_OF_A_TILE + KEYS / 4 * SOME_WEIGHTS + KEY_TILES * TURN;
  const int nanoseconds = (AS_IT_LIES ? 0 : KEYS * SPLIT_ROW) + KEYS / 2 * (AS_IT_LIES ? PACK_ROW : 2 * SPLIT_ROW) +
                          std::min(groups_, 2) * group + std::min(rows, 2 * QUERIES) * SPLIT_WEIGHTS;
  for (; start < end; start += KEYS, ++block) {
    const int num = int(std::min<int64_t>(KEYS, end - start));
    const bool whole = fills_ && num == KEYS, lies = AS_IT_LIES && whole;
    const int next = int(std::min<int64_t>(KEYS, end - start - num));
    Asking<T> asking(keys_.from(start + num), next, dim, nanoseconds);
    whole ? split_keys<true>(start, num, asking) : split_keys<false>(start, num, asking);
    whole ? split_values<true>(start, num, asking) : split_values<false>(start, num, asking);
    const Word* keys = lies ? reinterpret_cast<const Word*>(keys_.from(start).k) : k_.at(0);
    const int64_t bytes = lies ? keys_.k_stride * sizeof(T) : AS_IT_LIES ? steps_ * 64 : 64;
    for (int g = 0; g < groups_; ++g) {
      if (most_seen(g) <= start) continue;
      score(g, keys, bytes, asking);
      weigh(g, tops(g, start), block, asking);
      add_values(g, asking);
    }
  }
  finish_masses(part);
  for (int r = 0; r < rows; ++r) {
    const State& state = states_[r / QUERIES];
    const float top = state.top[r % QUERIES];
    part.top[r] = top > LEAST ? top : -std::numeric_limits<float>::infinity();
    part.sum[r] = top > LEAST ? state.sum[r % QUERIES] : 0.0f;
    tell(r, part.out + int64_t(r) * dim);
  }
}

}  // namespace amx
#endif
