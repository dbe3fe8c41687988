// Power of synapses that stay as they are: power[b, t] += sum_j cost_j x[b, t, j]^2, where cost_j
// is power_weight_j sum_i |w_ij|. For a model whose plastic kernel does not see its input.
#pragma once

#include "lane.h"

namespace stpn::STPN_ISA {

// Of a call: x (B, T, I), weight (H, I) with rows weight_sr apart, power_weight (I), power (B, T).
template <class T> void add_static_power(const Call& c) {
  constexpr idx L = kLanes<T>;
  T* cost = static_cast<T*>(scratch(kOfCall, uint64_t(c.I) * sizeof(T)));
  clear(cost, c.I);
  const T *w = at<T>(c.weight), *counted = at<T>(c.power_weight);
  for (idx i = 0; i < c.H; ++i)
    for (idx j = 0; j < c.I; ++j) {
      const T v = w[i * c.weight_sr + j];
      cost[j] += v < 0 ? -v : v;
    }
  for (idx j = 0; j < c.I; ++j) cost[j] *= counted[j];
  for (idx b = 0; b < c.B; ++b)
    for (idx t = 0; t < c.T; ++t) {
      const T* x = at<T>(c.x) + b * c.x_sb + t * c.x_st;
      V<T> sums{};
      T rest = 0;
      idx j = 0;
      for (; j + L <= c.I; j += L) sums += load(cost + j) * load(x + j) * load(x + j);
      for (; j < c.I; ++j) rest += cost[j] * x[j] * x[j];
      at<T>(c.power)[b * c.T + t] += sum(sums) + rest;
    }
}

}  // namespace stpn::STPN_ISA
