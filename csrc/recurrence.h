// The way through time, forward and backward, of the lanes of one member of the team.
//
// The backward pass stores no F that the forward pass had: it goes through the sequence once more,
// keeping a checkpoint of F every so often, then takes the segments between checkpoints from the
// last to the first, each recomputed into memory that fits the cache.
#pragma once

#include "cells.h"

namespace stpn::STPN_ISA {

template <class P, CellKind K> class Member {
  using T = typename P::T;
  static constexpr bool kInner = K == CellKind::kModPlast || K == CellKind::kFastWeights;
  // Fast Weights updates at the start of a step, with the state it was given.
  static constexpr bool kUpdatesFirst = K == CellKind::kFastWeights;

  const Shared<P, K>& sh;
  const Call& c;
  const Synapses<T>& s;
  const idx width;                 // lanes in use
  idx every = 0, checkpoints = 0;  // of the backward pass
  Gradients<P, K> grads;
  Neurons<T> lanes[kGroup];
  Lane<T>* active[kGroup];

 public:
  // For at most `most` sequences; `gradients` is null for a forward pass.
  Member(const Shared<P, K>& shared, const Gradients<P, K>* gradients, idx most)
      : sh(shared), c(shared.call), s(shared.s), width(most < kGroup ? most : kGroup) {
    const bool backward = gradients;
    if (backward) grads = *gradients, plan_segments();
    Arena count;
    layout(count, backward);
    Arena arena{static_cast<char*>(scratch(1, count.used))};
    layout(arena, backward);
  }

  void forward(idx from, idx to) {
    for (idx b = from; b < to; b += kGroup) forward_group(b, to - b < kGroup ? to - b : kGroup);
  }

  void backward(idx from, idx to) {
    for (idx b = from; b < to; b += kGroup) backward_group(b, to - b < kGroup ? to - b : kGroup);
  }

 private:
  // A segment of every lane should stay in the memory that it is given, unless that would make the
  // checkpoints outgrow the segments. A short sequence is one segment.
  void plan_segments() {
    const idx step = s.R * s.Dp * idx(sizeof(T)) * width;
    idx root = 1;
    while (root * root < sh.T_) ++root;
    const idx few = root < 4 ? root : root / 4 < 4 ? 4 : root / 4;
    every = c.segment_bytes / step;
    if (every < few) every = few;
    if (every > sh.T_) every = sh.T_;
    checkpoints = (sh.T_ + every - 1) / every;
  }

  void layout(Arena& a, bool backward) {
    const idx n = s.R * s.Dp;
    for (idx k = 0; k < width; ++k) {
      Neurons<T>& lane = lanes[k];
      layout_lane<P, K>(a, lane, sh, every);
      lane.f_own = a.take_raw<T>(n);
      if (backward) {
        lane.dF = a.take_raw<T>(n);
        lane.checkpoints = a.take_raw<T>(n * checkpoints);
        lane.segment = a.take_raw<T>(n * every);
      }
    }
  }

  // Views of the call's arrays.
  const T* x(idx b, idx t) const { return at<T>(c.x) + b * c.x_sb + t * c.x_st; }
  T* y(idx b, idx t) const { return at<T>(c.y) + b * c.y_sb + t * c.y_st; }
  T* record(idx b, idx t) const { return c.saved ? at<T>(c.saved) + (b * sh.T_ + t) * c.saved_size : nullptr; }
  bool fresh(idx b, idx t) const { return c.reset && at<uint8_t>(c.reset)[b * c.reset_sb + t * c.reset_st]; }
  const T* initial(int64_t address, idx b, idx n) const { return address ? at<T>(address) + b * n : nullptr; }
  T* power(idx b, idx t) const { return sh.power ? sh.power + b * sh.T_ + t : nullptr; }
  // Of an array (B, rows, D), those of the strip.
  T* rows(int64_t address, idx b) const { return at<T>(address) + (b * sh.rows + sh.first) * s.D; }

  void start(Neurons<T>& lane, idx b) {
    lane.b = b;
    lane.len = c.lengths ? idx(at<int64_t>(c.lengths)[b]) : sh.T_;
    if (every) return;
    clear(lane.u, s.Dp), clear(lane.u_prev, s.Dp), clear(lane.pre_prev, s.Dp);
    for (idx i = 0; i < s.Rp; ++i) lane.eff[i] = T(1);
  }

  void load_hidden(Neurons<T>& lane, bool zero) {
    const T *h0 = initial(c.h0, lane.b, sh.H), *c0 = initial(c.c0, lane.b, sh.H);
    if (h0 && !zero) copy(lane.h, h0, sh.H); else clear(lane.h, sh.H);
    if (c0 && !zero) copy(lane.c, c0, sh.H); else clear(lane.c, sh.H);
  }

  // F_0 into padded rows.
  void load_f(T* to, idx b, bool zero) {
    if (!c.f0 || zero) return clear(to, s.R * s.Dp);
    const T* f0 = rows(c.f0, b);
    if (s.D == s.Dp) return copy(to, f0, s.R * s.D);
    for (idx i = 0; i < s.R; ++i) {
      copy(to + i * s.Dp, f0 + i * s.D, s.D);
      clear(to + i * s.Dp + s.D, s.Dp - s.D);
    }
  }

  void store_rows(T* to, const T* from) const {  // (R, Dp) -> (R, D)
    if (to == from) return;
    for (idx i = 0; i < s.R; ++i) copy(to + i * s.D, from + i * s.Dp, s.D);
  }

  void square(const T* u, T* u2, T* u_w) const {
    vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA {
      const V<T> v = load(u + d), weighted = load(sh.power_weight + d) * v;
      store(u2 + d, weighted * v);
      if (u_w) store(u_w + d, weighted);
    });
  }

  // The update that ends a sequence, into the caller's final state.
  void finish(Neurons<T>& lane) {
    T* out = rows(c.f_T, lane.b);
    if constexpr (kUpdatesFirst) return store_rows(out, lane.f_src);
    lane.f_dst = s.D == s.Dp ? out : lane.f_own;
    update_sweep<P>(s, lane);
    if constexpr (P::norm == kNormPost)
      for (idx i = 0; i < s.R; ++i)
        vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA {
          T* f = lane.f_dst + i * s.Dp + d;
          store(f, load(f) * lane.eff[i]);
        });
    store_rows(out, lane.f_dst);
  }

  void forward_group(idx b0, idx n) {
    idx longest = 0;
    for (idx k = 0; k < n; ++k) {
      Neurons<T>& lane = lanes[k];
      start(lane, b0 + k);
      if (lane.len > longest) longest = lane.len;
      const bool zero = fresh(lane.b, 0);
      load_hidden(lane, zero);
      lane.f_src = lane.f_dst = lane.f_own;
      if (c.f0 && !zero && s.D == s.Dp) lane.f_src = rows(c.f0, lane.b);
      else load_f(lane.f_own, lane.b, zero);
      if constexpr (kUpdatesFirst) {
        copy(lane.post, lane.h, sh.H), copy(lane.pre_prev, lane.h, sh.H);
        for (idx i = 0; i < s.R; ++i) lane.kept[i] = T(1);
      }
    }
    for (idx t = 0; t < longest; ++t) {
      int running = 0;
      for (idx k = 0; k < n; ++k) {
        Neurons<T>& lane = lanes[k];
        if (t >= lane.len) continue;
        active[running++] = &lane;
        if (t > 0 && fresh(lane.b, t)) {
          clear(lane.f_own, s.R * s.Dp);
          lane.f_src = lane.f_own;
          clear(lane.h, sh.H), clear(lane.c, sh.H), clear(lane.post, s.Rp);
          clear(lane.u_prev, s.Dp), clear(lane.pre_prev, s.Dp);
          for (idx i = 0; i < s.R; ++i) lane.kept[i] = T(1);
        }
        if constexpr (!kInner) copy(lane.u, x(lane.b, t), sh.I);
        if (sh.has_hidden && K != CellKind::kFastWeights) copy(lane.u + (kInner ? 0 : sh.I), lane.h, sh.H);
        Cell<P, K>::input(sh, lane, x(lane.b, t));
        if constexpr (P::power) square(lane.u, lane.u2, nullptr);
      }
      const bool updates = t > 0 || kUpdatesFirst;
      if (updates) forward_sweep<P, true>(s, active, running);
      else forward_sweep<P, false>(s, active, running);
      for (int k = 0; k < running; ++k) {
        Neurons<T>& lane = static_cast<Neurons<T>&>(*active[k]);
        if (updates) lane.f_src = lane.f_dst = lane.f_own;
        Cell<P, K>::settle(sh, lane, x(lane.b, t), record(lane.b, t), power(lane.b, t));
        copy(y(lane.b, t) + sh.first, lane.h + sh.first, sh.units);
        swap(lane.u, lane.u_prev);
        if (t + 1 == lane.len) {
          finish(lane);
          if (c.c_T) copy(at<T>(c.c_T) + lane.b * sh.H, lane.c, sh.H);
        }
      }
    }
    for (idx k = 0; k < n; ++k)
      for (idx t = lanes[k].len; t < sh.T_; ++t) {
        clear(y(lanes[k].b, t) + sh.first, sh.units);
        if (sh.power) *power(lanes[k].b, t) = 0;
      }
  }

  template <class A> static STPN_INLINE void swap(A& a, A& b) { A t = a; a = b; b = t; }

  const T* hidden_before(idx b, idx t) const {  // null: zero
    if (fresh(b, t)) return nullptr;
    return t > 0 ? y(b, t - 1) : initial(c.h0, b, sh.H);
  }

  // u of step t, as the forward pass had it.
  void rebuild_u(Neurons<T>& lane, idx t, T* u) {
    if constexpr (K == CellKind::kFastWeights) {
      copy(lane.p, record(lane.b, t) + sh.record.extra, sh.H);  // into memory of whole vectors
      Cell<P, K>::norm_tanh(sh, lane, lane.p, u);
    } else {
      if constexpr (!kInner) copy(u, x(lane.b, t), sh.I);
      if (!sh.has_hidden) return;
      const T* h = hidden_before(lane.b, t);
      T* to = u + (kInner ? 0 : sh.I);
      if (h) copy(to, h, sh.H); else clear(to, sh.H);
    }
  }

  // Blocks of the segment from t0 to t1: what each step used, and the step before them.
  void recall_block(Neurons<T>& lane, idx t0, idx t1) {
    for (idx t = t0 > 0 ? t0 - 1 : 0; t < t1; ++t) {
      const idx k = t - t0 + 1;
      rebuild_u(lane, t, lane.u_block + k * s.Dp);
      if constexpr (P::own_pre) copy(lane.pre_block + k * s.Dp, y(lane.b, t), sh.H);
      Cell<P, K>::recall(sh, record(lane.b, t), y(lane.b, t), lane.post_block + k * s.Rp, lane.kept_block + k * s.Rp,
                         lane.eff_block + k * s.Rp);
    }
  }

  // From F_t to F_{t+n} by the blocks of the segment from t0; steps that start afresh begin at zero.
  template <bool KEEP> void replay_block(Neurons<T>& lane, idx t0, idx t, idx n, const T* from, T* to) {
    const idx size = s.R * s.Dp;
    while (n > 0) {
      idx run = 1;  // up to the next fresh start
      while (run <= n && !fresh(lane.b, t + run)) ++run;
      --run;
      const idx k = t - t0 + 1;
      if (run > 0)
        replay<P, KEEP>(s, from, to, run, lane.pre_block + k * s.Dp, lane.post_block + k * s.Rp, lane.kept_block + k * s.Rp);
      if (KEEP) to += run * size;
      n -= run, t += run;
      if (n > 0) {
        clear(to, size);
        if (KEEP) to += size;
        --n, ++t;
      }
      from = KEEP ? to - size : to;
    }
  }

  void first_f(Neurons<T>& lane, T* to) {
    const bool zero = fresh(lane.b, 0);
    load_f(to, lane.b, zero);
    if constexpr (kUpdatesFirst) {
      load_hidden(lane, zero);
      copy(lane.post_block, lane.h, sh.H), copy(lane.pre_block, lane.h, sh.H);
      for (idx i = 0; i < s.R; ++i) lane.kept_block[i] = T(1);
      replay<P, false>(s, to, to, 1, lane.pre_block, lane.post_block, lane.kept_block);
    }
  }

  // F_t of the segment that starts at t0.
  const T* f_of(const Neurons<T>& lane, idx t0, idx t) const {
    const idx size = s.R * s.Dp;
    return t == t0 ? lane.checkpoints + t0 / every * size : lane.segment + (t - t0 - 1) * size;
  }

  // Point the lane at what step t used.
  void recall_step(Neurons<T>& lane, idx t0, idx t) {
    const idx k = t - t0 + 1;
    lane.record = record(lane.b, t);
    lane.u = lane.u_block + k * s.Dp, lane.u_prev = lane.u - s.Dp;
    lane.pre_prev = lane.pre_block + (k - 1) * s.Dp;
    lane.post = lane.post_block + k * s.Rp, lane.post_prev = lane.post - s.Rp;
    lane.kept = lane.kept_block + k * s.Rp, lane.kept_prev = lane.kept - s.Rp;
    lane.eff = lane.eff_block + k * s.Rp;
    if constexpr (P::power) square(lane.u, lane.u2, lane.u_w);
  }

  // dL/dF after the last step, from the gradient of the final state, and the sums of that step.
  void last_gradient(Neurons<T>& lane, idx t0) {
    clear(lane.s1, s.Rp), clear(lane.s2, s.Rp), clear(lane.dpre, s.Dp);
    if (!c.df_T) return clear(lane.dF, s.R * s.Dp);
    const T* df = rows(c.df_T, lane.b);
    for (idx i = 0; i < s.R; ++i) {
      copy(lane.dF + i * s.Dp, df + i * s.D, s.D);
      clear(lane.dF + i * s.Dp + s.D, s.Dp - s.D);
    }
    if constexpr (kUpdatesFirst) {
      // The final state is the F of the last step itself: the sweep of that step multiplies by decay.
      for (idx k = 0; k < s.R * s.Dp; ++k) lane.dF[k] /= T(c.decay);
      return;
    }
    // F_T as of a step after the last: "prev" is the last step.
    recall_step(lane, t0, lane.len);
    lane.eff = lane.c1;  // free until the sweep
    lane.post = lane.post_prev, lane.kept = lane.kept_prev;
    lane.f_src = f_of(lane, t0, lane.len - 1), lane.f_dst = lane.f_own;
    update_sweep<P>(s, lane);
    for (idx i = 0; i < s.R; ++i) {
      T *D = lane.dF + i * s.Dp, *f = lane.f_own + i * s.Dp;
      const V<T> limit = splat(s.clamp);
      V<T> dot{}, scale{}, eff = splat(T(1));
      if constexpr (P::norm == kNormPost) {
        vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA { dot += load(D + d) * load(f + d); });
        const T e = lane.eff[i];
        eff = splat(e);
        scale = splat(-e * e * e * sum(dot));
      }
      vectors<T>(s.Dp, [&](idx d) STPN_LAMBDA {
        V<T> grad = load(D + d);
        if constexpr (P::norm == kNormPost) {
          const idx row = i * s.Dp * kSlots<P>;
          const V<T> dm = scale * (load(slot<P>(s.parameters + row, d, kW)) + load(f + d));
          T* dw = slot<P>(grads.synapses + row, d, kW);
          store(dw, load(dw) + dm);
          grad = grad * eff + dm;
        }
        if constexpr (P::clamp) grad = abs(load(f + d)) < limit ? grad : V<T>{};
        store(D + d, grad);
      });
    }
    sums_sweep<P>(s, lane, lane.f_own);
  }

  void backward_group(idx b0, idx n) {
    const idx size = s.R * s.Dp;
    idx longest = 0;
    for (idx k = 0; k < n; ++k) {
      Neurons<T>& lane = lanes[k];
      start(lane, b0 + k);
      if (lane.len > longest) longest = lane.len;
      clear(lane.dh, sh.H), clear(lane.dc, sh.H), clear(lane.du, s.Dp), clear(lane.dpre, s.Dp);
      if (c.dc_T) copy(lane.dc, at<T>(c.dc_T) + lane.b * sh.H, sh.H);
      first_f(lane, lane.checkpoints);
      for (idx t0 = 0; t0 + every < lane.len; t0 += every) {
        recall_block(lane, t0, t0 + every);
        T* from = lane.checkpoints + t0 / every * size;
        replay_block<false>(lane, t0, t0, every, from, from + size);
      }
    }
    const idx du_from = c.dx || kInner ? 0 : sh.I / kLanes<T> * kLanes<T>;
    for (idx t0 = (longest - 1) / every * every; t0 >= 0; t0 -= every) {
      const idx t1 = t0 + every < longest ? t0 + every : longest;
      for (idx k = 0; k < n; ++k) {
        Neurons<T>& lane = lanes[k];
        if (t0 >= lane.len) continue;
        const idx end = t1 < lane.len ? t1 : lane.len;
        recall_block(lane, t0, end);
        replay_block<true>(lane, t0, t0, end - 1 - t0, f_of(lane, t0, t0), lane.segment);
      }
      for (idx t = t1 - 1; t >= t0; --t) {
        int running = 0;
        for (idx k = 0; k < n; ++k) {
          Neurons<T>& lane = lanes[k];
          if (t >= lane.len) continue;
          active[running++] = &lane;
          if (t == lane.len - 1) last_gradient(lane, t0);
          recall_step(lane, t0, t);
          lane.F = f_of(lane, t0, t);
          const bool first = t == 0 || fresh(lane.b, t);
          lane.masked = !first;
          if constexpr (K == CellKind::kLstm) load_cell_before(lane, t);
          if constexpr (K == CellKind::kFastWeights) load_hidden_before(lane, t);
          const T dpower = c.dpower ? at<T>(c.dpower)[lane.b * sh.T_ + t] : T(0);
          const T* dy = c.dy ? at<T>(c.dy) + lane.b * c.dy_sb + t * c.dy_st : nullptr;
          Cell<P, K>::unsettle(sh, lane, grads, dy, y(lane.b, t), dpower, !first);
          clear(lane.du, s.Dp);
        }
        if (t > 0) backward_sweep<P, true>(s, grads.synapses, active, running, du_from);
        else backward_sweep<P, false>(s, grads.synapses, active, running, du_from);
        for (int k = 0; k < running; ++k) propagate(static_cast<Neurons<T>&>(*active[k]), t);
      }
    }
    for (idx k = 0; k < n; ++k) store_initial_gradients(lanes[k]);
    if (c.dx)
      for (idx k = 0; k < n; ++k)
        for (idx t = lanes[k].len; t < sh.T_; ++t) clear(dx(lanes[k].b, t), kInner ? sh.H : sh.I);
  }

  T* dx(idx b, idx t) const { return c.dx ? at<T>(c.dx) + b * c.dx_sb + t * c.dx_st : nullptr; }

  void load_cell_before(Neurons<T>& lane, idx t) {
    const T* before = fresh(lane.b, t) ? nullptr
                      : t > 0          ? record(lane.b, t - 1) + sh.record.extra + 4 * sh.H
                                       : initial(c.c0, lane.b, sh.H);
    if (before) copy(lane.c, before, sh.H); else clear(lane.c, sh.H);
  }

  void load_hidden_before(Neurons<T>& lane, idx t) {
    const T* before = hidden_before(lane.b, t);
    if (before) copy(lane.h, before, sh.H); else clear(lane.h, sh.H);
  }

  // After the sweep of step t: gradients of its input, and what goes on to step t-1.
  void propagate(Neurons<T>& lane, idx t) {
    T* to = dx(lane.b, t);
    Cell<P, K>::propagate(sh, lane, grads, to, c.dpower ? at<T>(c.dpower)[lane.b * sh.T_ + t] : T(0));
    if constexpr (!kInner)
      if (to) copy(to, lane.du, sh.I);
    if (fresh(lane.b, t)) {
      clear(lane.dF, s.R * s.Dp), clear(lane.dh, sh.H), clear(lane.dc, sh.H);
      clear(lane.s1, s.Rp), clear(lane.s2, s.Rp), clear(lane.dpre, s.Dp);
      return;
    }
    if (sh.has_hidden) copy(lane.dh, lane.du + (kInner ? 0 : sh.I) + sh.first, sh.units);
  }

  void store_initial_gradients(Neurons<T>& lane) {
    const idx b = lane.b;
    if constexpr (kUpdatesFirst) {  // through the update that came before the first step
      load_hidden(lane, fresh(b, 0));
      for (idx i = 0; i < s.R; ++i)
        for (idx j = 0; j < s.D; ++j) {
          T& D = lane.dF[i * s.Dp + j];
          lane.dh[i] += T(c.rate) * D * lane.h[j];
          lane.dh[j] += T(c.rate) * D * lane.h[i];
          D *= T(c.decay);
        }
    }
    if (c.dh0) copy(at<T>(c.dh0) + b * sh.H + sh.first, lane.dh, sh.units);
    if (c.dc0) copy(at<T>(c.dc0) + b * sh.H, lane.dc, sh.H);
    if (c.df0) {
      T* to = rows(c.df0, b);
      for (idx i = 0; i < s.R; ++i) copy(to + i * s.D, lane.dF + i * s.Dp, s.D);
    }
  }
};

}  // namespace stpn::STPN_ISA
