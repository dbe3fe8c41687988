// One call on a team of threads: who takes which sequences, and the sums of their gradients.
#pragma once

#include "backward_pass.h"
#include "forward_pass.h"

namespace stpn::STPN_ISA {

constexpr int kMostThreads = 256;

template <class P, class C> struct Job {
  using T = Scalar<P>;
  const Shared<P, C>& shared;
  Gradients<P, C>* gradients = nullptr;  // one per group of members; null for a forward pass
  T* powers = nullptr;                   // (strips - 1, B, T)
  int strips = 1, groups = 1;  // strips per sequence; groups of members who share sequences
  bool failed = false;         // a member found no memory
};

STPN_INLINE idx threads_of(const Call& c) {
  return c.threads < 1 ? 1 : c.threads < kMostThreads ? c.threads : kMostThreads;
}
STPN_INLINE idx ceil_div(idx a, idx b) { return (a + b - 1) / b; }

// Rows of a feed-forward cell need nothing of each other: where there are more threads than
// sequences, each takes a strip of a sequence's rows. Strips of a recurrent cell would have to meet
// at every step, a microsecond apart: measured at 5000 steps of 27 x 127 synapses, two threads then
// took 4 to 19 ms forward where one takes 4.
template <class P, class C> int strips_per_sequence(const Shared<P, C>& shared, idx members) {
  const Call& c = shared.call;
  if (P::across || !C::strips || c.recurrent || c.dx || !shared.B || members < 2 * shared.B)
    return 1;
  const idx possible = members / shared.B, most = shared.rows / kLanes<Scalar<P>>;
  return int(most < 1 ? 1 : possible < most ? possible : most);
}

template <class P, class C> int team_size(const Shared<P, C>& shared) {
  const idx lanes = ceil_div(shared.B, P::wide), threads = threads_of(shared.call);
  const idx n = threads < lanes ? threads : lanes * strips_per_sequence(shared, threads);
  return n < 1 ? 1 : int(n);
}

template <class P, class C> void take_part(Job<P, C>& job, int member, int members) {
  Shared<P, C> view = job.shared;
  const int strips = strips_per_sequence(view, members), place = member % strips;
  const idx B = view.B, groups = members / strips, group = member / strips;
  const idx lanes = ceil_div(ceil_div(B, P::wide), groups), share = lanes * P::wide;
  if (member == 0) {
    job.strips = strips;
    job.groups = int(groups);
  }
  const idx from = share * group < B ? share * group : B, to = from + share < B ? from + share : B;
  if (group >= groups || from >= to) return;
  const idx first = view.rows * place / strips;
  if (strips > 1) {
    view.take_strip(first, view.rows * (place + 1) / strips);
    if (place > 0 && view.power) view.power = job.powers + (place - 1) * B * view.steps;
  }
  if (!job.gradients) return ForwardPass<P, C>(view, lanes).run(from, to);
  Gradients<P, C> gradients = job.gradients[group];
  if (strips > 1) gradients.take_strip(first, view.s.Dp);
  BackwardPass<P, C>(view, gradients, lanes).run(from, to);
}

// No exception may leave a thread of the team.
template <class P, class C> void work(void* context, int member, int members) {
  auto& job = *static_cast<Job<P, C>*>(context);
  try {
    take_part(job, member, members);
  } catch (...) {
    __atomic_store_n(&job.failed, true, __ATOMIC_RELAXED);
  }
  give_back(kOfMember);
}

template <class P, class C> void run_job(Job<P, C>& job, int team) {
  run_team(team, work<P, C>, &job);
  if (job.failed) out_of_memory();
}

template <class P, class C> void forward(const Call& c) {
  using T = Scalar<P>;
  const Shared<P, C> shared(c);
  const int team = team_size(shared);
  const idx size = shared.B * shared.steps;
  Job<P, C> job{shared};
  if (shared.power && team > shared.B)
    job.powers = static_cast<T*>(scratch(kOfSums, uint64_t(team * size) * sizeof(T)));
  run_job(job, team);
  if (shared.power)
    for (idx strip = 1; strip < job.strips; ++strip)
      for (idx k = 0; k < size; ++k) shared.power[k] += job.powers[(strip - 1) * size + k];
}

// Sums over the groups and across sequences, in their order: the result does not depend on timing.
template <class P, class C, class T>
T sum_of(const Job<P, C>& job, T* Gradients<P, C>::*which, idx index) {
  T total = 0;
  for (int m = 0; m < job.groups; ++m)
    for (idx k = 0; k < P::wide; ++k) total += (job.gradients[m].*which)[index + k];
  return total;
}

template <class P, class C, class T>
void reduce(const Job<P, C>& job, int64_t to, idx rows, idx columns, idx stride,
            T* Gradients<P, C>::*which) {
  if (!to) return;
  for (idx i = 0; i < rows; ++i)
    for (idx j = 0; j < columns; ++j)
      at<T>(to)[i * columns + j] = sum_of(job, which, i * stride + j * P::wide);
}

// A slot of the synapses, whose entries may be shared by a row (column stride 0) or by all (both
// 0).
template <class P, class C>
void reduce_slot(const Job<P, C>& job, int64_t to, int which, int64_t row_stride,
                 int64_t column_stride) {
  using T = Scalar<P>;
  if (!to) return;
  const auto& s = job.shared.s;
  T* out = at<T>(to);
  double shared = 0;
  for (idx i = 0; i < s.R; ++i) {
    for (idx j = 0; j < s.D; ++j) {
      const T total = sum_of(job, &Gradients<P, C>::synapses, gradient_index<P>(s.Dp, i, j, which));
      if (column_stride) out[i * s.D + j] = total;
      shared += double(total);
    }
    if (!column_stride) out[i * row_stride] = T(shared);
    if (row_stride) shared = 0;
  }
}

template <class P, class C> void backward(const Call& c) {
  const Shared<P, C> shared(c);
  const int team = team_size(shared);
  using G = Gradients<P, C>;
  G gradients[kMostThreads];
  Arena count;
  for (int m = 0; m < team; ++m) gradients[m].layout(count, shared);
  Arena arena{static_cast<char*>(scratch(kOfSums, count.used))};
  for (int m = 0; m < team; ++m) gradients[m].layout(arena, shared);
  Job<P, C> job{shared, gradients};
  run_job(job, team);

  const auto& s = shared.s;
  const idx H = shared.H;
  if constexpr (C::weight_apart) reduce(job, c.dweight, H, H, shared.Hp, &G::w_apart);
  else reduce_slot(job, c.dweight, kW, s.D, 1);
  if constexpr (P::rates) {
    reduce_slot(job, c.dlambda, kLambda, c.lambda_sr, c.lambda_sc);
    reduce_slot(job, c.dgamma, kGamma, c.gamma_sr, c.gamma_sc);
  }
  if constexpr (P::alpha) reduce_slot(job, c.dalpha, kAlpha<P>, s.D, 1);
  reduce(job, c.dbias, 1, s.R, s.R, &G::bias);
  reduce(job, c.dmod_v, 1, H, H, &G::v);
  reduce(job, c.dmod_d, 1, 1, 1, &G::d);
  reduce(job, c.deta, 1, 1, 1, &G::eta);
  reduce(job, c.dln_weight, 1, H, H, &G::ln_w);
  reduce(job, c.dln_bias, 1, H, H, &G::ln_b);
}

}  // namespace stpn::STPN_ISA
