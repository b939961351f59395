// Threads of small_rows.cpp, which includes this: a team takes the tasks of one loop after the other.
//
// A thread begins with its own share of a loop's tasks, and then takes what others have not begun: fast cores do not wait
// for slow ones, and no result may depend on which thread has a task. The end of a loop is waited for by spinning: a pass
// has hundreds of loops, most of them a few microseconds long.
//
// Threads are those of the OpenMP runtime that torch has loaded, where it was handed over (openmp.py): waiting threads
// spin for milliseconds, so those of two pools would wait for each other's cores. Else there is a pool of our own.

constexpr int MOST_THREADS = 128;
constexpr int SPINS = 40000;   // before a waiting thread lets others run, 1 to 2 ms
constexpr int YIELDS = 2000;   // before an idle one of our own pool sleeps

INLINE void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins, then lets other threads run, until `done`.
template <class Done> INLINE void wait_for(const Done& done) {
  for (int i = 0; !done(); ++i) i < SPINS ? relax() : std::this_thread::yield();
}

typedef void (*Work)(void* what, int thread, int threads);
struct Job {
  Work work;
  void* what;
};

// Entry points of an OpenMP runtime; null: it has no such.
struct OpenMP {
  typedef struct {
    int32_t reserved, flags, more[2];
    const char* source;
  } Place;  // where a region stands in a program, as LLVM's runtime wants to be told
  void (*gomp_parallel)(void (*)(void*), void*, unsigned threads, unsigned flags);                 // GNU's
  void (*kmpc_fork)(const Place*, int32_t, void (*)(int32_t*, int32_t*, void*), ...);              // LLVM's and Intel's
  void (*kmpc_push)(const Place*, int32_t caller, int32_t threads);
  int32_t (*kmpc_caller)(const Place*);
  int (*thread)(), (*threads)();
};
OpenMP openmp = {};

// Threads that sleep while there is nothing to do, for the time of this process. One caller at a time has them.
class Pool {
 public:
  static Pool& own() {
    static Pool* const pool = new Pool;  // its threads end with the process
    return *pool;
  }
  // Runs a job in so many threads, or fewer: those that are to be had.
  void run(const Job& job, int threads) {
    const std::unique_lock<std::mutex> mine(callers_, std::try_to_lock);
    if (!mine.owns_lock()) return job.work(job.what, 0, 1);
    for (; workers_ < threads - 1; ++workers_) std::thread([this, number = workers_ + 1] { serve(number); }).detach();
    job_ = job;
    busy_ = threads - 1;
    order_ = (order_ / MOST_THREADS + 1) * MOST_THREADS + threads - 1;
    if (sleeping_ > 0) {
      { const std::lock_guard<std::mutex> lock(sleepers_); }
      wake_.notify_all();
    }
    job.work(job.what, 0, threads);
    wait_for([&] { return busy_ == 0; });
  }

 private:
  std::mutex callers_, sleepers_;
  std::condition_variable wake_;
  std::atomic<int> busy_{0}, sleeping_{0};
  std::atomic<uint64_t> order_{0};  // number of a job, and how many of the pool's threads it has
  Job job_{};
  int workers_ = 0;

  void serve(int number) {
    for (uint64_t seen = 0;;) {
      const auto come = [&] { return order_ != seen; };
      for (int i = 0; !come() && i < SPINS + YIELDS; ++i) i < SPINS ? relax() : std::this_thread::yield();
      if (!come()) {
        std::unique_lock<std::mutex> lock(sleepers_);
        ++sleeping_;
        wake_.wait(lock, come);
        --sleeping_;
      }
      seen = order_;
      if (number > int(seen % MOST_THREADS)) continue;  // not in this job, which may be over
      job_.work(job_.what, number, int(seen % MOST_THREADS) + 1);
      --busy_;
    }
  }
};

void run_in(int threads, Job job) {
  if (threads == 1) return job.work(job.what, 0, 1);
  if (openmp.gomp_parallel != nullptr) {
    const auto part = [](void* own) {
      const Job& job = *static_cast<Job*>(own);
      job.work(job.what, openmp.thread(), openmp.threads());
    };
    openmp.gomp_parallel(part, &job, threads, 0);
  } else if (openmp.kmpc_fork != nullptr) {
    static const OpenMP::Place place = {0, 2, {0, 0}, ";small_rows;;0;0;;"};
    const auto part = [](int32_t*, int32_t*, void* own) {
      const Job& job = *static_cast<Job*>(own);
      job.work(job.what, openmp.thread(), openmp.threads());
    };
    openmp.kmpc_push(&place, openmp.kmpc_caller(&place), threads);
    openmp.kmpc_fork(&place, 1, part, &job);
  } else {
    Pool::own().run(job, threads);
  }
}

// What the threads of a region share.
struct Shared {
  struct alignas(64) Count {
    std::atomic<int64_t> next;
  };
  std::atomic<int> arrived{0};
  std::atomic<unsigned> loops{0};
  Count shares[MOST_THREADS];  // tasks begun of each thread's share
  explicit Shared(int threads) {
    for (int t = 0; t < threads; ++t) shares[t].next.store(0, std::memory_order_relaxed);
  }
};

// One thread of a region, as it sees the others.
class Team {
 public:
  Team(Shared& shared, int thread, int threads) : shared_(shared), thread_(thread), threads_(threads) {}

  // f(i) for i from 0 to n, by all threads of the region, `grain` of them at a time; returns when all are done.
  template <class F> INLINE void each(int64_t n, const F& f, int64_t grain = 1) {
    const int64_t grains = (n + grain - 1) / grain, share = (grains + threads_ - 1) / threads_;
    for (int k = 0; k < threads_; ++k) {
      const int whose = thread_ + k < threads_ ? thread_ + k : thread_ + k - threads_;
      std::atomic<int64_t>& next = shared_.shares[whose].next;
      const int64_t first = whose * share, last = std::min(first + share, grains);
      while (first + next.load(std::memory_order_relaxed) < last) {
        const int64_t g = first + next.fetch_add(1, std::memory_order_relaxed);
        if (g >= last) break;
        for (int64_t i = g * grain, end = std::min(i + grain, n); i < end; ++i) f(i);
      }
    }
    wait();
  }

 private:
  Shared& shared_;
  const int thread_, threads_;

  void wait() {
    const unsigned loop = shared_.loops.load(std::memory_order_relaxed);
    if (shared_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_)
      return wait_for([&] { return shared_.loops.load(std::memory_order_acquire) != loop; });
    for (int t = 0; t < threads_; ++t) shared_.shares[t].next.store(0, std::memory_order_relaxed);
    shared_.arrived.store(0, std::memory_order_relaxed);
    shared_.loops.store(loop + 1, std::memory_order_release);
  }
};

// body(team) in each of so many threads.
template <class Body> void parallel(int64_t threads, const Body& body) {
  const int number = int(std::min<int64_t>(std::max<int64_t>(threads, 1), MOST_THREADS));
  Shared shared(number);
  struct Call {
    const Body& body;
    Shared& shared;
  } call = {body, shared};
  const auto work = [](void* what, int thread, int threads) {
    const Call& call = *static_cast<Call*>(what);
    Team team(call.shared, thread, threads);
    call.body(team);
  };
  run_in(number, {work, &call});
}

// f(i) for i from 0 to n, by so many threads.
template <class F> void parallel_for(int64_t threads, int64_t n, const F& f, int64_t grain = 1) {
  parallel(threads, [&](Team& team) { team.each(n, f, grain); });
}
