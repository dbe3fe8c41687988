// Every kernel, for one instruction set: this file is compiled once for each.
#include "recurrence.h"

namespace stpn::STPN_ISA {

namespace {

template <class P, CellKind K> struct Job {
  const Shared<P, K>& shared;
  Gradients<P, K>* gradients;  // one per member, or null
  int members;                 // as many as really ran
};

template <class P, CellKind K> void work(void* context, int member, int members) {
  auto& job = *static_cast<Job<P, K>*>(context);
  if (member == 0) job.members = members;
  const idx B = job.shared.B, share = (B + members - 1) / members;
  const idx from = share * member < B ? share * member : B, to = from + share < B ? from + share : B;
  if (from >= to) return;
  Member<P, K> m(job.shared, job.gradients ? job.gradients + member : nullptr);
  if (job.gradients) m.backward(from, to);
  else m.forward(from, to);
}

int team_size(const Call& c) {
  const int64_t n = c.threads < c.B ? c.threads : c.B;
  return n < 1 ? 1 : n > 256 ? 256 : int(n);
}

template <class P, CellKind K> void forward(const Call& c) {
  const Shared<P, K> shared(c);
  Job<P, K> job{shared, nullptr, 1};
  run_team(team_size(c), work<P, K>, &job);
}

// Sums over the members of the team, in their order: the result does not depend on timing.

template <class P, CellKind K, class T>
void reduce(const Job<P, K>& job, int64_t to, idx rows, idx columns, idx stride, T* Gradients<P, K>::*which) {
  if (!to) return;
  T* out = at<T>(to);
  for (idx i = 0; i < rows; ++i)
    for (idx j = 0; j < columns; ++j) {
      T total = 0;
      for (int m = 0; m < job.members; ++m) total += (job.gradients[m].*which)[i * stride + j];
      out[i * columns + j] = total;
    }
}

// A slot of the synapses, whose entries may be shared by a row (column stride 0) or by all (both 0).
template <class P, CellKind K> void reduce_slot(const Job<P, K>& job, int64_t to, int which, int64_t sr, int64_t sc) {
  using T = typename P::T;
  if (!to) return;
  const auto& s = job.shared.s;
  T* out = at<T>(to);
  double shared = 0;
  for (idx i = 0; i < s.R; ++i) {
    for (idx j = 0; j < s.D; ++j) {
      T total = 0;
      for (int m = 0; m < job.members; ++m) total += job.gradients[m].synapses[slot_index<P>(s.Dp, i, j, which)];
      if (sc) out[i * s.D + j] = total;
      shared += double(total);
    }
    if (!sc) out[i * sr] = T(shared);
    if (sr) shared = 0;
  }
}

template <class P, CellKind K> void backward(const Call& c) {
  const Shared<P, K> shared(c);
  const int team = team_size(c);
  Gradients<P, K> gradients[256];
  Arena count;
  for (int m = 0; m < team; ++m) gradients[m].layout(count, shared);
  Arena arena{static_cast<char*>(scratch(2, count.used))};
  for (int m = 0; m < team; ++m) gradients[m].layout(arena, shared);
  Job<P, K> job{shared, gradients, 1};
  run_team(team, work<P, K>, &job);

  using G = Gradients<P, K>;
  const auto& s = shared.s;
  const idx H = shared.H;
  if constexpr (K == CellKind::kFastWeights) {
    reduce(job, c.dweight, H, H, shared.Hp, &G::w_h);
    reduce(job, c.dln_weight, 1, H, H, &G::ln_w);
    reduce(job, c.dln_bias, 1, H, H, &G::ln_b);
  } else {
    reduce_slot(job, c.dweight, kW, s.D, 1);
  }
  if constexpr (P::rates) {
    reduce_slot(job, c.dlambda, kLambda, c.lambda_sr, c.lambda_sc);
    reduce_slot(job, c.dgamma, kGamma, c.gamma_sr, c.gamma_sc);
  }
  if constexpr (P::alpha) reduce_slot(job, c.dalpha, kAlpha, s.D, 1);
  reduce(job, c.dbias, 1, s.R, s.R, &G::bias);
  if constexpr (K == CellKind::kModPlast) {
    reduce(job, c.dmod_v, 1, H, H, &G::v);
    reduce(job, c.dmod_d, 1, 1, 1, &G::d);
    reduce(job, c.deta, 1, 1, 1, &G::eta);
  }
}

template <bool BACKWARD, class P, CellKind K> void run(const Call& c) {
  if constexpr (BACKWARD) backward<P, K>(c);
  else forward<P, K>(c);
}

// Plans without a clamp or without power are compiled only where the experiments spend their time:
// elsewhere an infinite limit and weights of zero do the same. It keeps the build short.
template <class T, CellKind K> constexpr bool kEveryPlan = sizeof(T) == sizeof(float) && K != CellKind::kLstm;

// A backward pass runs as if there were no power where none has a gradient: a meter that only
// watches changes no bit of the gradients.
template <bool BACKWARD> bool wants_power(const Call& c) { return BACKWARD ? c.dpower : c.power_weight; }

template <bool BACKWARD, class T, CellKind K, int NORM> void choose_plain(const Call& c) {
  if constexpr (kEveryPlan<T, K>) {
    const bool clamped = c.clamp < __builtin_inf(), power = wants_power<BACKWARD>(c);
    if (!clamped && !power) return run<BACKWARD, Plan<T, NORM, false, false>, K>(c);
    if (!clamped) return run<BACKWARD, Plan<T, NORM, false, true>, K>(c);
    if (!power) return run<BACKWARD, Plan<T, NORM, true, false>, K>(c);
  }
  run<BACKWARD, Plan<T, NORM, true, true>, K>(c);
}

template <bool BACKWARD, class T, CellKind K> void choose_norm(const Call& c) {
  switch (c.norm) {
    case kNormPre: return choose_plain<BACKWARD, T, K, kNormPre>(c);
    case kNormPost: return choose_plain<BACKWARD, T, K, kNormPost>(c);
    default: return choose_plain<BACKWARD, T, K, kNormNone>(c);
  }
}

// ModPlast and Fast Weights: no norm, rates that are not trained.
template <bool BACKWARD, class T, CellKind K, bool CLAMP, bool ALPHA, bool OWN_PRE> void choose_power(const Call& c) {
  if constexpr (kEveryPlan<T, K>)
    if (!wants_power<BACKWARD>(c)) return run<BACKWARD, Plan<T, kNormNone, CLAMP, false, ALPHA, OWN_PRE, false>, K>(c);
  run<BACKWARD, Plan<T, kNormNone, CLAMP, true, ALPHA, OWN_PRE, false>, K>(c);
}

template <bool BACKWARD, class T> void choose(const Call& c) {
  switch (CellKind(c.cell)) {
    case CellKind::kPlain: return choose_norm<BACKWARD, T, CellKind::kPlain>(c);
    case CellKind::kLstm: return choose_norm<BACKWARD, T, CellKind::kLstm>(c);
    case CellKind::kModPlast: return choose_power<BACKWARD, T, CellKind::kModPlast, true, true, false>(c);
    case CellKind::kFastWeights: return choose_power<BACKWARD, T, CellKind::kFastWeights, false, false, true>(c);
  }
}

}  // namespace

extern const Kernels kernels;
#if defined(STPN_FLOAT_ONLY)
const Kernels kernels{STPN_ISA_NAME, choose<false, float>, choose<true, float>, nullptr, nullptr};
#else
const Kernels kernels{STPN_ISA_NAME, choose<false, float>, choose<true, float>, choose<false, double>, choose<true, double>};
#endif

}  // namespace stpn::STPN_ISA
