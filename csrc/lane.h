// What a member of the team works on: typed views of a call, and the memory of its lanes.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "cell.h"
#include "synapse.h"
#include "team.h"

namespace stpn::STPN_ISA {

// Lanes that go through time together and share each row's parameters.
template <class P> constexpr int kGroup = P::across ? 1 : 4;

// Elements of an array of n entries in a lane.
template <class P> STPN_INLINE idx room(idx n) {
  return P::across ? n * P::wide : padded<Scalar<P>>(n);
}

template <class T> T* at(int64_t address) { return reinterpret_cast<T*>(address); }

template <class T> STPN_INLINE void copy(T* to, const T* from, idx n) {
  __builtin_memcpy(to, from, size_t(n) * sizeof(T));
}
template <class T> STPN_INLINE void clear(T* p, idx n) {
  __builtin_memset(p, 0, size_t(n) * sizeof(T));
}
template <class T> STPN_INLINE void fill(T* p, idx n, T value) {
  for (idx i = 0; i < n; ++i) p[i] = value;
}
template <class A> STPN_INLINE void swap(A& a, A& b) {
  const A t = a;
  a = b;
  b = t;
}

// AddressSanitizer is to see every array of an arena, not the arena as one: no man's land between.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kGap = 64;
STPN_INLINE void forbid(char* from, uint64_t bytes) { ASAN_POISON_MEMORY_REGION(from, bytes); }
#else
constexpr uint64_t kGap = 0;
STPN_INLINE void forbid(char*, uint64_t) {}
#endif

// Hands out zeroed arrays; with no memory behind it, it only counts.
struct Arena {
  char* base = nullptr;
  uint64_t used = 0;
  template <class T> T* take(idx n) {
    T* p = take_raw<T>(n);
    if (p) clear(p, n);
    return p;
  }
  // Large arrays that are always written before they are read.
  template <class T> T* take_raw(idx n) {
    const uint64_t bytes = uint64_t(n) * sizeof(T), room = (bytes + 63) / 64 * 64 + kGap;
    char* p = base ? base + used : nullptr;
    if (p) forbid(p + bytes, room - bytes);
    used += room;
    return reinterpret_cast<T*>(p);
  }
};

template <class T> struct Lane : SweepLane<T> {  // with the state of its neurons
  T *h, *c;                                      // (Hp) present hidden and cell state
  T* z;                       // (Rp + lanes) pre-activations, or gradients of them
  T* act;                     // (Rp + lanes) activations of rows
  T *dh, *dc;                 // (Hp) carried back from the step after
  T *p, *q;                   // (Hp) Fast Weights' pre-activations; q: also tanh(c) of gates
  T* dp;                      // (Hp) gradient of an inner cell's input
  T *x_own, *y_own, *dy_own;  // (Hp) across: inputs of an inner cell, outputs and their gradients
  T* f_own;                   // (R, Dp)
  const T* record;            // saved values of the present step

  // Of the segment of the backward pass that starts at step t0. Row k of a block belongs to step
  // t0 - 1 + k: a step needs the one before it, and the final state is the step after the last.
  T* checkpoints;                          // (count, R, Dp) F at the start of each segment
  T* segment;                              // (every, R, Dp) F of the steps after its start
  T* u_block;                              // (every + 2, Dp)
  T* pre_block;                            // the same block, unless the update's pre is not u
  T *post_block, *kept_block, *eff_block;  // (every + 2, Rp)
};

// Offsets inside the record that the forward pass saves of one step of a lane.
struct Record {
  idx n = 0, a = 0, eff = 0, fu = 0, fg = 0, gp = 0, fp = 0, extra = 0, size = 0;

  idx take(idx values) {
    const idx offset = size;
    size += values;
    return offset;
  }
};

// Of H units; `wide` sequences side by side have each value as many times. What power needs is
// there if the call has power, whatever the plan.
template <class P, class C> Record record_layout(idx H, bool power) {
  const idx rows = C::rows * H * P::wide;
  Record r;
  if (P::norm != kNormNone) {
    r.n = r.take(rows);
    r.a = r.take(rows);
  }
  if (P::norm == kNormPost) {
    r.eff = r.take(rows);
    r.fu = r.take(rows);
    r.fg = r.take(rows);
  }
  r.extra = r.take((C::saved_per_unit * H + C::saved_per_step) * P::wide);
  if (power && P::norm != kNormNone) {
    r.gp = r.take(rows);
    if (P::norm == kNormPost) r.fp = r.take(rows);
  }
  return r;
}

// Typed view of a call with its parameters laid out for the sweeps; shared by the team.
//
// A strip is the same view of some rows of a plain feed-forward cell, numbered from zero: their
// synapses, biases and records, and their place in the hidden state.
template <class P, class C> struct Shared {
  using T = Scalar<P>;
  const Call& call;
  idx B, steps, I, H, Hp;
  idx Hn, Rn;            // hidden values, and values of rows, of a lane
  idx rows;              // of all strips
  idx first = 0, units;  // the strip's place in the hidden values
  Synapses<T> s;
  T* power;                // (B, T) of the call, or of the strip
  T *bias, *power_weight;  // (Rp), (Dp)
  T* v;                    // (Hp) ModPlast
  T *ln_w, *ln_b;          // (Hp) Fast Weights
  T *w_apart,
      *w_abs;  // (H, Hp / wide), (Hp) a weight that is not the synapses', and its column sums
  T d = 0, eta = 0;
  Record record;
  bool has_hidden;     // u holds the hidden state
  bool associate_new;  // and the update associates with that after the step

  explicit Shared(const Call& c)
      : call(c), B(c.B), steps(c.T), I(c.I), H(c.H), Hp(room<P>(c.H)), Hn(c.H * P::wide) {
    s.R = C::rows * H;
    s.D = columns<C>(c);
    s.Dp = room<P>(s.D);
    s.Rp = room<P>(s.R);
    Rn = s.R * P::wide;
    s.clamp = T(c.clamp);
    s.lambda = T(C::lambda(c));
    s.gamma = T(C::gamma(c));
    rows = s.R;
    units = Hn;
    power = at<T>(c.power);
    has_hidden = C::inner || c.recurrent;
    associate_new = P::rates && has_hidden && c.associate_new;
    record = record_layout<P, C>(H, c.power_weight);
    Arena count;
    layout(count);
    Arena arena{static_cast<char*>(scratch(kOfCall, count.used))};
    layout(arena);
    put_parameters();
  }

  void take_strip(idx from, idx to) {
    first = from;
    units = Rn = to - from;
    s.R = to - from;
    s.Rp = padded<T>(to - from);
    s.parameters += from * s.Dp * kSlots<P>;
    if constexpr (P::norm == kNormPost) s.squares += from;
    bias += from;
    idx* of_rows[] = {&record.n,  &record.a,  &record.eff, &record.fu,
                      &record.fg, &record.gp, &record.fp};
    for (idx* offset : of_rows) *offset += from;
  }

 private:
  T *parameters, *squares;

  T& entry(idx i, idx j, int which) { return parameters[parameter_index<P>(s.Dp, i, j, which)]; }

  void layout(Arena& a) {
    s.parameters = parameters = a.take<T>(s.R * (s.Dp / P::wide) * kSlots<P>);
    s.squares = squares = a.take<T>(P::norm == kNormPost ? s.R : 0);
    bias = a.take<T>(s.Rp + kLanes<T>);  // read in whole vectors, wherever a strip begins
    power_weight = a.take<T>(s.Dp);
    v = a.take<T>(Hp);
    ln_w = a.take<T>(Hp);
    ln_b = a.take<T>(Hp);
    w_apart = a.take<T>(C::weight_apart ? H * (Hp / P::wide) : 0);
    w_abs = a.take<T>(Hp);
  }

  // One value per entry into as many as the lane has sequences; nothing where there is no array.
  void repeat(T* to, int64_t address, idx n) {
    if (!address) return;
    for (idx i = 0; i < n; ++i)
      for (idx k = 0; k < P::wide; ++k) to[i * P::wide + k] = at<T>(address)[i];
  }

  void put_parameters() {
    if constexpr (C::weight_apart) put_weight_apart();
    else put_synapses();
    repeat(bias, call.bias, s.R);
    repeat(power_weight, call.power_weight, s.D);
    repeat(ln_w, call.ln_weight, H);
    repeat(ln_b, call.ln_bias, H);
    repeat(v, call.mod_v, H);
    if (call.mod_v) d = *at<T>(call.mod_d);
    if (call.eta) eta = *at<T>(call.eta);
  }

  void put_synapses() {
    const T* w = at<T>(call.weight);
    [[maybe_unused]] const T *lambda = at<T>(call.lambda), *gamma = at<T>(call.gamma);
    for (idx i = 0; i < s.R; ++i) {
      double square = 0;
      for (idx j = 0; j < s.D; ++j) {
        entry(i, j, kW) = w[i * s.D + j];
        square += double(w[i * s.D + j]) * double(w[i * s.D + j]);
        if constexpr (P::rates) {
          entry(i, j, kLambda) = lambda[i * call.lambda_sr + j * call.lambda_sc];
          entry(i, j, kGamma) = gamma[i * call.gamma_sr + j * call.gamma_sc];
        }
        if constexpr (P::alpha) entry(i, j, kAlpha<P>) = at<T>(call.alpha)[i * s.D + j];
      }
      if constexpr (P::norm == kNormPost) squares[i] = T(square);
    }
  }

  void put_weight_apart() {
    const T* w = at<T>(call.weight);
    for (idx i = 0; i < H; ++i) {
      copy(w_apart + i * (Hp / P::wide), w + i * H, H);
      for (idx j = 0; j < Hn; ++j) {
        const T value = w[i * H + j / P::wide];
        w_abs[j] += value < 0 ? -value : value;
      }
    }
  }
};

// Gradients that a member of the team adds up over its lanes; across, for each sequence by itself.
template <class P, class C> struct Gradients {
  using T = Scalar<P>;
  T* synapses;         // (R, Dp / lanes, slots, lanes)
  T* bias;             // (Rp)
  T *v, *ln_w, *ln_b;  // (Hp)
  T* w_apart;          // (H, Hp)
  T *d, *eta;          // (wide)

  void layout(Arena& a, const Shared<P, C>& sh) {
    synapses = a.take<T>(sh.s.R * sh.s.Dp * kSlots<P>);
    bias = a.take<T>(sh.s.Rp);
    v = a.take<T>(sh.Hp);
    ln_w = a.take<T>(sh.Hp);
    ln_b = a.take<T>(sh.Hp);
    w_apart = a.take<T>(C::weight_apart ? sh.H * sh.Hp : 0);
    d = a.take<T>(P::wide);
    eta = a.take<T>(P::wide);
  }

  void take_strip(idx from, idx Dp) {
    synapses += from * Dp * kSlots<P>;
    bias += from;
  }
};

// `every` is 0 for a forward pass.
template <class P, class C>
void layout_lane(Arena& a, Lane<Scalar<P>>& lane, const Shared<P, C>& sh, idx every) {
  using T = Scalar<P>;
  const idx Dp = sh.s.Dp, Rp = sh.s.Rp, Hp = sh.Hp, spare = kLanes<T>;
  T** of_synapses[] = {&lane.u,  &lane.u_prev, &lane.u2,      &lane.u_w,
                       &lane.du, &lane.dpre,   &lane.pre_prev};
  for (T** p : of_synapses) *p = a.take<T>(Dp);
  T** of_rows[] = {&lane.post, &lane.kept, &lane.eff, &lane.gu, &lane.gg,
                   &lane.gp,   &lane.fu,   &lane.fg,  &lane.fp, &lane.c1,
                   &lane.c2,   &lane.c3,   &lane.c4,  &lane.s1, &lane.s2};
  for (T** p : of_rows) *p = a.take<T>(Rp);
  T** of_units[] = {&lane.h, &lane.c,  &lane.dh,    &lane.dc,    &lane.p,
                    &lane.q, &lane.dp, &lane.x_own, &lane.y_own, &lane.dy_own};
  for (T** p : of_units) *p = a.take<T>(Hp + spare);
  lane.z = a.take<T>(Rp + spare);
  lane.act = a.take<T>(Rp + spare);
  if (every) {
    lane.u_block = a.take<T>((every + 2) * Dp);
    const bool apart = P::own_pre || sh.associate_new;
    lane.pre_block = apart ? a.take<T>((every + 2) * Dp) : lane.u_block;
    T** blocks[] = {&lane.post_block, &lane.kept_block, &lane.eff_block};
    for (T** p : blocks) *p = a.take<T>((every + 2) * Rp);
  }
}

}  // namespace stpn::STPN_ISA
