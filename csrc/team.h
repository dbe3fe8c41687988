// Threads, their memory, and errors, which the kernels leave to a translation unit of their own.
#pragma once

#include <cstdint>

namespace stpn {

// Entry points of an OpenMP runtime that is loaded already (GNU's names, which LLVM's has too).
struct OpenMP {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*thread_num)() = nullptr;
  int (*num_threads)() = nullptr;
};

void use_openmp(const OpenMP& functions);

// Run body(context, thread, threads) on a team; returns when all are done.
void run_team(int threads, void (*body)(void*, int, int), void* context);

// Memory of the calling thread that later calls reuse; 64-byte aligned, contents arbitrary. Many
// megabytes of it get large pages: backward over rows of 2,656 synapses touches more memory than
// the TLB covers with small ones; on the Pong layer they take 38% off it. Results, which are new at
// each call, get none: where memory is fragmented, the system takes longer to make a large page
// than small ones cost (the maze's layer then took 370 ms in place of 280).
enum ScratchSlot : int {
  kOfCall,    // what a call shares with its team
  kOfMember,  // what a member of the team has to itself
  kOfSums,    // what members add up
  kScratchSlots,
};
void* scratch(ScratchSlot slot, uint64_t bytes);

// After a call: a slot of many megabytes goes back to the system.
void give_back(ScratchSlot slot);

// Raise MemoryError, RuntimeError and ValueError in Python.
[[noreturn]] void out_of_memory();
[[noreturn]] void other_instruction_set();
[[noreturn]] void invalid(const char* why);

}  // namespace stpn
