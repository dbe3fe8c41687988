// Every kernel, for one instruction set: this file is compiled once for each.
#include "recurrence.h"
#include "static_power.h"

namespace stpn::STPN_ISA {

namespace {

template <class P, CellKind K> struct Job {
  using T = typename P::T;
  const Shared<P, K>& shared;
  Gradients<P, K>* gradients = nullptr;  // one per group of members; null for a forward pass
  T* powers = nullptr;                   // (strips - 1, B, T)
  int strips = 1, groups = 1;            // strips per sequence; groups of members who share sequences
  bool failed = false;                   // a member found no memory
};

// Rows of a feed-forward cell need nothing of each other: where there are more threads than
// sequences, each takes a strip of a sequence's rows. Strips of a recurrent cell would have to meet
// at every step, a microsecond apart: measured at 5000 steps of 27 x 127 synapses, two threads then
// took 4 to 19 ms forward where one takes 4.
template <class P, CellKind K> int strips_per_sequence(const Shared<P, K>& shared, idx members) {
  const Call& c = shared.call;
  if (P::across || K != CellKind::kPlain || c.recurrent || c.dx || !shared.B || members < 2 * shared.B) return 1;
  const idx possible = members / shared.B, most = shared.rows / kLanes<typename P::T>;
  return int(most < 1 ? 1 : possible < most ? possible : most);
}

STPN_INLINE idx threads_of(const Call& c) { return c.threads < 1 ? 1 : c.threads < 256 ? c.threads : 256; }
STPN_INLINE idx ceil_div(idx a, idx b) { return (a + b - 1) / b; }

template <class P, CellKind K> int team_size(const Shared<P, K>& shared) {
  const idx lanes = ceil_div(shared.B, P::wide), threads = threads_of(shared.call);
  const idx n = threads < lanes ? threads : lanes * strips_per_sequence(shared, threads);
  return n < 1 ? 1 : int(n);
}

template <class P, CellKind K> void take_part(Job<P, K>& job, int member, int members) {
  Shared<P, K> view = job.shared;
  const int strips = strips_per_sequence(view, members), place = member % strips;
  const idx B = view.B, groups = members / strips, group = member / strips;
  const idx lanes = ceil_div(ceil_div(B, P::wide), groups), share = lanes * P::wide;
  if (member == 0) job.strips = strips, job.groups = int(groups);
  const idx from = share * group < B ? share * group : B, to = from + share < B ? from + share : B;
  if (group >= groups || from >= to) return;
  Gradients<P, K> gradients;
  if (job.gradients) gradients = job.gradients[group];
  if (strips > 1) {
    const idx first = view.rows * place / strips;
    view.take_strip(first, view.rows * (place + 1) / strips);
    if (job.gradients) gradients.take_strip(first, view.s.Dp);
    if (place > 0 && view.power) view.power = job.powers + (place - 1) * B * view.T_;
  }
  Member<P, K> m(view, job.gradients ? &gradients : nullptr, lanes);
  if (job.gradients) m.backward(from, to);
  else m.forward(from, to);
}

// No exception may leave a thread of the team.
template <class P, CellKind K> void work(void* context, int member, int members) {
  auto& job = *static_cast<Job<P, K>*>(context);
  try {
    take_part(job, member, members);
  } catch (...) {
    __atomic_store_n(&job.failed, true, __ATOMIC_RELAXED);
  }
  give_back(1);
}

template <class P, CellKind K> void run_job(Job<P, K>& job, int team) {
  run_team(team, work<P, K>, &job);
  if (job.failed) out_of_memory();
}

template <class P, CellKind K> void forward(const Call& c) {
  using T = typename P::T;
  const Shared<P, K> shared(c);
  const int team = team_size(shared);
  const idx size = shared.B * shared.T_;
  Job<P, K> job{shared};
  if (shared.power && team > shared.B) job.powers = static_cast<T*>(scratch(2, uint64_t(team * size) * sizeof(T)));
  run_job(job, team);
  if (shared.power)
    for (idx strip = 1; strip < job.strips; ++strip)
      for (idx k = 0; k < size; ++k) shared.power[k] += job.powers[(strip - 1) * size + k];
}

// Sums over the groups and across sequences, in their order: the result does not depend on timing.
template <class P, CellKind K, class T> T sum_of(const Job<P, K>& job, T* Gradients<P, K>::*which, idx index) {
  T total = 0;
  for (int m = 0; m < job.groups; ++m)
    for (idx k = 0; k < P::wide; ++k) total += (job.gradients[m].*which)[index + k];
  return total;
}

template <class P, CellKind K, class T>
void reduce(const Job<P, K>& job, int64_t to, idx rows, idx columns, idx stride, T* Gradients<P, K>::*which) {
  if (!to) return;
  for (idx i = 0; i < rows; ++i)
    for (idx j = 0; j < columns; ++j) at<T>(to)[i * columns + j] = sum_of(job, which, i * stride + j * P::wide);
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
      const T total = sum_of(job, &Gradients<P, K>::synapses, gradient_index<P>(s.Dp, i, j, which));
      if (sc) out[i * s.D + j] = total;
      shared += double(total);
    }
    if (!sc) out[i * sr] = T(shared);
    if (sr) shared = 0;
  }
}

template <class P, CellKind K> void backward(const Call& c) {
  const Shared<P, K> shared(c);
  const int team = team_size(shared);
  Gradients<P, K> gradients[256];
  Arena count;
  for (int m = 0; m < team; ++m) gradients[m].layout(count, shared);
  Arena arena{static_cast<char*>(scratch(2, count.used))};
  for (int m = 0; m < team; ++m) gradients[m].layout(arena, shared);
  Job<P, K> job{shared, gradients};
  run_job(job, team);

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
  if constexpr (P::alpha) reduce_slot(job, c.dalpha, kAlpha<P>, s.D, 1);
  reduce(job, c.dbias, 1, s.R, s.R, &G::bias);
  if constexpr (K == CellKind::kModPlast) {
    reduce(job, c.dmod_v, 1, H, H, &G::v);
    reduce(job, c.dmod_d, 1, 1, 1, &G::d);
    reduce(job, c.deta, 1, 1, 1, &G::eta);
  }
}

// A sequence of a lane across takes about `kAcross` of the time of a lane of its own, if F of all of
// the lane still fits a cache. A short one does not repay the way of its F into the lane and back.
constexpr double kAcross = 0.75;
constexpr idx kAcrossBytes = idx(1) << 20, kAcrossSteps = 8;

// Compiled only where it was measured, and where the sanitizers look; everywhere else along does as well.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kTriedAcross = true;
#else
constexpr bool kTriedAcross = kVectorBytes == 32;
#endif
template <CellKind K> constexpr bool kHasAcross = kTriedAcross && K != CellKind::kLstm;

// A reset of one sequence across is an update that makes zero of zeros, which takes rates that are
// finite.
template <class P> bool resets_across(const Call& c, idx R, idx D) {
  using T = typename P::T;
  if (!P::rates || !c.reset) return true;
  T rest = 0;
  const idx of_lambda = (c.lambda_sr ? R : 1) * (c.lambda_sc ? D : 1), of_gamma = (c.gamma_sr ? R : 1) * (c.gamma_sc ? D : 1);
  for (idx k = 0; k < of_lambda; ++k) rest += at<T>(c.lambda)[k] * T(0);
  for (idx k = 0; k < of_gamma; ++k) rest += at<T>(c.gamma)[k] * T(0);
  return rest == T(0);
}

template <bool BACKWARD, class P, CellKind K> bool goes_across(const Call& c) {
  using T = typename P::T;
  constexpr idx L = kLanes<T>;
  const bool possible = c.B % L == 0 && !c.lengths;
  if (BACKWARD && c.saved) return *at<T>(c.saved) == T(L) && possible;  // as the forward pass, by its heading
  const idx threads = threads_of(c);
  const idx D = K == CellKind::kModPlast || K == CellKind::kFastWeights ? c.H : c.I + (c.recurrent ? c.H : 0);
  const double along = double(ceil_div(c.B, threads)), across = kAcross * double(L * ceil_div(c.B / L, threads));
  const bool fits = c.H * D * idx(sizeof(T)) * L <= kAcrossBytes;
  return c.B && possible && c.T >= kAcrossSteps && fits && across < along && resets_across<P>(c, c.H, D);
}

template <bool BACKWARD, class P, CellKind K> void run_as(const Call& c) {
  using T = typename P::T;
  T* heading = at<T>(c.saved);
  if constexpr (BACKWARD) {
    if (heading && *heading != T(P::wide)) other_instruction_set();
    backward<P, K>(c);
  } else {
    if (heading) clear(heading, c.saved_size), *heading = T(P::wide);
    forward<P, K>(c);
  }
}

template <bool BACKWARD, class P, CellKind K> void run(const Call& c) {
  constexpr idx rows = K == CellKind::kLstm ? 4 : 1;
  if (c.saved && c.saved_size < record_layout<P, K>(rows * c.H, c.H).size)
    invalid("saved: too small for the records of this call");
  if constexpr (kHasAcross<K>)
    if (goes_across<BACKWARD, P, K>(c)) return run_as<BACKWARD, typename P::Across, K>(c);
  run_as<BACKWARD, P, K>(c);
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
    if (!clamped && !power) return run<BACKWARD, Plan<T, false, NORM, false, false>, K>(c);
    if (!clamped) return run<BACKWARD, Plan<T, false, NORM, false, true>, K>(c);
    if (!power) return run<BACKWARD, Plan<T, false, NORM, true, false>, K>(c);
  }
  run<BACKWARD, Plan<T, false, NORM, true, true>, K>(c);
}

template <bool BACKWARD, class T, CellKind K> void choose_norm(const Call& c) {
  switch (c.norm) {
    case kNormPre: return choose_plain<BACKWARD, T, K, kNormPre>(c);
    case kNormPost: return choose_plain<BACKWARD, T, K, kNormPost>(c);
    case kNormNone: return choose_plain<BACKWARD, T, K, kNormNone>(c);
  }
  invalid("norm: not a value of Norm");
}

// ModPlast and Fast Weights: no norm, rates that are not trained.
template <bool BACKWARD, class T, CellKind K, bool CLAMP, bool ALPHA, bool OWN_PRE> void choose_power(const Call& c) {
  if (c.norm != kNormNone) invalid("norm: this cell has none");
  if constexpr (kEveryPlan<T, K>)
    if (!wants_power<BACKWARD>(c)) return run<BACKWARD, Plan<T, false, kNormNone, CLAMP, false, ALPHA, OWN_PRE, false>, K>(c);
  run<BACKWARD, Plan<T, false, kNormNone, CLAMP, true, ALPHA, OWN_PRE, false>, K>(c);
}

template <bool BACKWARD, class T> void choose(const Call& c) {
  if (c.B < 0 || c.T < 1 || c.I < 0 || c.H < 0) invalid("sizes: expected B, I and H from 0 on, T from 1 on");
  if (c.activation < 0 || c.activation > int64_t(Activation::kRelu)) invalid("activation: not a value of Activation");
  switch (CellKind(c.cell)) {
    case CellKind::kPlain: return choose_norm<BACKWARD, T, CellKind::kPlain>(c);
    case CellKind::kLstm: return choose_norm<BACKWARD, T, CellKind::kLstm>(c);
    case CellKind::kModPlast: return choose_power<BACKWARD, T, CellKind::kModPlast, true, true, false>(c);
    case CellKind::kFastWeights: return choose_power<BACKWARD, T, CellKind::kFastWeights, false, false, true>(c);
  }
  invalid("cell: not a value of Cell");
}

template <class T, CellKind K, int NORM> RecordSize size_of(bool power) {
  constexpr idx rows = K == CellKind::kLstm ? 4 : 1;
  using With = Plan<T, false, NORM, true, true>;
  using Without = Plan<T, false, NORM, true, false>;
  const bool with = power || !kEveryPlan<T, K>;
  const idx none = with ? record_layout<With, K>(0, 0).size : record_layout<Without, K>(0, 0).size;
  const idx one = with ? record_layout<With, K>(rows, 1).size : record_layout<Without, K>(rows, 1).size;
  return {one - none, none};
}

template <class T, CellKind K> RecordSize size_of(Norm norm, bool power) {
  switch (norm) {
    case kNormPre: return size_of<T, K, kNormPre>(power);
    case kNormPost: return size_of<T, K, kNormPost>(power);
    case kNormNone: return size_of<T, K, kNormNone>(power);
  }
  invalid("norm: not a value of Norm");
}

template <class T> RecordSize size_of(CellKind cell, Norm norm, bool power) {
  switch (cell) {
    case CellKind::kPlain: return size_of<T, CellKind::kPlain>(norm, power);
    case CellKind::kLstm: return size_of<T, CellKind::kLstm>(norm, power);
    case CellKind::kModPlast: return size_of<T, CellKind::kModPlast>(norm, power);
    case CellKind::kFastWeights: return size_of<T, CellKind::kFastWeights>(norm, power);
  }
  invalid("cell: not a value of Cell");
}

RecordSize record_size(CellKind cell, Norm norm, bool power, bool is_double) {
  return is_double ? size_of<double>(cell, norm, power) : size_of<float>(cell, norm, power);
}

}  // namespace

extern const Kernels kernels;
#if defined(STPN_FLOAT_ONLY)
const Kernels kernels{STPN_ISA_NAME, choose<false, float>, choose<true, float>, nullptr, nullptr, add_static_power<float>, nullptr, record_size};
#else
const Kernels kernels{STPN_ISA_NAME,         choose<false, float>,    choose<true, float>,     choose<false, double>,
                      choose<true, double>, add_static_power<float>, add_static_power<double>, record_size};
#endif

}  // namespace stpn::STPN_ISA
