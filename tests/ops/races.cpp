// For ThreadSanitizer: several callers at once, each with a team of threads, on inputs that they
// share. Every cell, with and without a norm, power and resets. Ends with the number of calls, or
// with an error if two callers got different numbers.
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "call.h"

namespace stpn::baseline {
extern const Kernels kernels;
}

using namespace stpn;
using stpn::baseline::kernels;
using Values = std::vector<float>;

constexpr int kCallers = 3, kThreads = 4;
constexpr int64_t T = 9, I = 3, H = 9;

Values draw(int64_t n) {
  static std::mt19937 generator(0);
  std::normal_distribution<float> normal(0, 0.3f);
  Values v(n);
  for (float& x : v) x = normal(generator);
  return v;
}

int64_t address(const Values& v) { return reinterpret_cast<int64_t>(v.data()); }

// Inputs of one case, and the results of one caller; all arrays of float.
struct Case {
  Call call;
  int64_t B, R, D;
  std::vector<Values> inputs, results;

  int64_t input(int64_t n) { return address(inputs.emplace_back(draw(n))); }
  int64_t result(int64_t n) { return address(results.emplace_back(Values(n, -1.f))); }

  Case(int64_t sequences, CellKind cell, Norm norm, bool recurrent, bool power) : B(sequences) {
    inputs.reserve(32);
    const bool inner = cell == CellKind::kModPlast || cell == CellKind::kFastWeights;
    R = cell == CellKind::kLstm ? 4 * H : H;
    D = inner ? H : I + (recurrent ? H : 0);
    Call& c = call;
    c.cell = int64_t(cell), c.norm = norm, c.recurrent = recurrent, c.threads = kThreads;
    c.clamp = cell == CellKind::kFastWeights ? __builtin_inf() : 0.5;
    c.B = B, c.T = T, c.I = inner ? H : I, c.H = H;
    c.segment_bytes = 3 * R * 12 * int64_t(sizeof(float));  // several segments
    c.x = input(B * T * c.I), c.x_sb = T * c.I, c.x_st = c.I;
    c.h0 = input(B * H), c.f0 = input(B * R * D), c.weight = input(R * D);
    if (cell == CellKind::kLstm) c.c0 = input(B * H);
    if (!inner) {
      c.bias = input(R), c.lambda = input(R * D), c.gamma = input(R * D);
      c.lambda_sr = c.gamma_sr = D, c.lambda_sc = c.gamma_sc = 1;
    }
    if (cell == CellKind::kModPlast) c.alpha = input(H * H), c.mod_v = input(H), c.mod_d = input(1);
    if (cell == CellKind::kFastWeights) {
      c.ln_weight = input(H), c.ln_bias = input(H), c.decay = 0.9, c.rate = 0.5, c.ln_eps = 1e-5;
    }
    if (power) c.power_weight = input(D), c.dpower = input(B * T);
    c.dy = input(B * T * H), c.dy_sb = T * H, c.dy_st = H, c.df_T = input(B * R * D);
  }

  void run() {
    results.reserve(32);
    Call& c = call;
    const auto cell = CellKind(c.cell);
    const RecordSize size = kernels.record_size(cell, Norm(c.norm), c.power_weight);
    c.y = result(B * T * H), c.y_sb = T * H, c.y_st = H, c.f_T = result(B * R * D);
    if (cell == CellKind::kLstm) c.c_T = result(B * H), c.dc0 = result(B * H);
    if (c.power_weight) c.power = result(B * T);
    c.saved_size = size.per_unit * H + size.constant;
    if (c.saved_size) c.saved = result((1 + B * T) * c.saved_size);
    kernels.forward_float(c);
    c.dh0 = result(B * H), c.df0 = result(B * R * D), c.dweight = result(R * D);
    if (c.recurrent) c.dx = result(B * T * c.I), c.dx_sb = T * c.I, c.dx_st = c.I;
    if (c.bias) c.dbias = result(R), c.dlambda = result(R * D), c.dgamma = result(R * D);
    if (c.alpha) c.dalpha = result(H * H), c.dmod_v = result(H), c.dmod_d = result(1);
    if (c.ln_weight) c.dln_weight = result(H), c.dln_bias = result(H);
    kernels.backward_float(c);
  }
};

int main() {
  int calls = 0;
  const auto race = [&](int64_t sequences, CellKind cell, Norm norm, bool recurrent, bool power) {
    const Case shared(sequences, cell, norm, recurrent, power);
    Case callers[kCallers] = {shared, shared,
                              shared};  // their calls point to the inputs of `shared`
    std::vector<std::thread> threads;
    for (Case& c : callers) threads.emplace_back([&c] { c.run(); });
    for (auto& thread : threads) thread.join();
    for (const Case& c : callers) {
      if (c.results != callers[0].results) {
        std::puts("two callers got different numbers");
        std::exit(1);
      }
      calls += 2;
    }
  };
  for (bool power : {false, true}) {
    for (Norm norm : {kNormNone, kNormPre, kNormPost}) {
      race(1, CellKind::kPlain, norm, false, power);  // its rows in strips
      race(6, CellKind::kPlain, norm, false, power);
      race(6, CellKind::kPlain, norm, true, power);
      race(6, CellKind::kLstm, norm, true, power);
    }
    race(6, CellKind::kModPlast, kNormNone, true, power);
    race(6, CellKind::kFastWeights, kNormNone, true, power);
  }
  std::printf("calls %d\n", calls);
}
