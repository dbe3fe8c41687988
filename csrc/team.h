// Which threads a team runs on.
#pragma once

namespace stpn {

// Entry points of an OpenMP runtime that is loaded already (GNU's names, which LLVM's has too).
struct OpenMP {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*thread_num)() = nullptr;
  int (*num_threads)() = nullptr;
};

void use_openmp(const OpenMP& functions);

}  // namespace stpn
