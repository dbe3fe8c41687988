// Threads and their memory.
//
// A team runs on torch's own OpenMP pool where there is one: its threads are awake after torch's
// last operation and would otherwise spin on the cores that a second pool needs. OpenMP is not
// usable in a child of fork, so a child runs plain threads.
#include <pthread.h>
#include <sys/mman.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "team.h"

namespace stpn {

namespace {

OpenMP openmp;
bool forked = false;

struct Job {
  void (*body)(void*, int, int);
  void* context;
};

void openmp_entry(void* data) {
  const Job& job = *static_cast<Job*>(data);
  job.body(job.context, openmp.thread_num(), openmp.num_threads());
}

constexpr uint64_t kLargePage = uint64_t(2) << 20, kManyPages = 2 * kLargePage;

struct Memory {
  void* data = nullptr;
  uint64_t size = 0;
  ~Memory() { std::free(data); }
};

void want_large_pages(Memory& memory) {
#if defined(MADV_HUGEPAGE)
  if (memory.size >= kManyPages)
    madvise(memory.data, memory.size, MADV_HUGEPAGE);  // a refusal costs nothing but speed
#endif
}

}  // namespace

void use_openmp(const OpenMP& functions) {
  static const bool registered = pthread_atfork(nullptr, nullptr, [] { forked = true; }) == 0;
  openmp = registered ? functions : OpenMP{};
}

void run_team(int threads, void (*body)(void*, int, int), void* context) {
  if (threads <= 1) return body(context, 0, 1);
  Job job{body, context};
  if (openmp.parallel && !forked) return openmp.parallel(openmp_entry, &job, unsigned(threads), 0);
  std::vector<std::thread> others;
  int started = 1;
  try {
    others.reserve(size_t(threads));
    for (; started < threads; ++started) others.emplace_back(body, context, started, threads);
  } catch (const std::exception&) {
    // The system gives no more threads, or no memory for them: members need nothing of each other.
  }
  body(context, 0, threads);
  for (int k = started; k < threads; ++k) body(context, k, threads);
  for (auto& thread : others) thread.join();
}

void out_of_memory() { throw std::bad_alloc(); }

void other_instruction_set() {
  throw std::runtime_error(
      "a backward pass needs the instruction set of its forward pass, which was changed in "
      "between");
}

void invalid(const char* why) { throw std::invalid_argument(why); }

namespace {

// A call that needs more than this takes so long that new memory is nothing beside it.
constexpr uint64_t kKeptBytes = uint64_t(64) << 20;

Memory& memory_of(ScratchSlot slot) {
  thread_local Memory slots[kScratchSlots];
  return slots[slot];
}

}  // namespace

void give_back(ScratchSlot slot) {
  Memory& memory = memory_of(slot);
  if (memory.size <= kKeptBytes) return;
  std::free(memory.data);
  memory.data = nullptr;
  memory.size = 0;
}

void* scratch(ScratchSlot slot, uint64_t bytes) {
  Memory& memory = memory_of(slot);
  if (memory.size < bytes) {
    std::free(memory.data);
    const uint64_t page = bytes < kManyPages ? 4096 : kLargePage;
    memory.size = (bytes + page - 1) / page * page;
    memory.data = std::aligned_alloc(page, memory.size);
    if (!memory.data) {
      memory.size = 0;
      out_of_memory();
    }
    want_large_pages(memory);
  }
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(memory.data, memory.size);  // of the gaps that the last call left
#endif
  return memory.data;
}

}  // namespace stpn
