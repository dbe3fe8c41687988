// One call of a recurrence: sizes, options and pointers, as plain values.
//
// Pointers are addresses of float or double arrays (by `is_double`), 0 where an argument is absent:
// an absent initial state is zero, an absent gradient is not wanted or zero. Sizes: B batch, T time
// steps, I inputs, H hidden units, R rows of synapses, D synapses per row. Strides count elements;
// the last dimension is contiguous.
#pragma once

#include <cstdint>

namespace stpn {

enum class CellKind : int64_t { kPlain, kLstm, kModPlast, kFastWeights };
// How rows are normalised: not at all, G in the forward pass and F by the same norm, or F after its
// update.
enum Norm : int64_t { kNormNone, kNormPre, kNormPost };
enum class Activation : int64_t { kTanh, kSigmoid, kRelu };

struct Call {
  int64_t cell = 0, norm = 0, activation = 0, recurrent = 0, is_double = 0,
          threads = 1;        // as the enums
  int64_t associate_new = 0;  // updates associate with [x ; h], not [x ; h_prev]
  double clamp = 0;           // infinite: none

  int64_t B = 0, T = 0, I = 0, H = 0;
  int64_t segment_bytes = 0;  // that the F of a segment of the backward pass may take

  // Inputs.
  int64_t x = 0, x_sb = 0, x_st = 0;  // (B, T, I); for ModPlast and Fast Weights p (B, T, H)
  int64_t h0 = 0, c0 = 0, f0 = 0;     // (B, H), (B, H), (B, R, D)
  int64_t weight = 0, bias = 0;       // (R, D), (R)
  int64_t weight_sr = 0;              // stride of a row, where power is static
  int64_t lambda = 0, lambda_sr = 0, lambda_sc = 0;  // strides of row and column, 0 where shared
  int64_t gamma = 0, gamma_sr = 0, gamma_sc = 0;
  int64_t reset = 0, reset_sb = 0, reset_st = 0;     // (B, T) bytes
  int64_t lengths = 0;                               // (B) int64
  int64_t power_weight = 0;                          // (D)
  int64_t alpha = 0, mod_v = 0, mod_d = 0, eta = 0;  // ModPlast: (H, H), (H), (), ()
  int64_t ln_weight = 0, ln_bias = 0;                // Fast Weights: (H)
  double decay = 0, rate = 0, ln_eps = 0;

  // Forward results.
  int64_t y = 0, y_sb = 0, y_st = 0;  // (B, T, H)
  int64_t f_T = 0, c_T = 0;           // (B, R, D), (B, H)
  int64_t power = 0;                  // (B, T)
  int64_t saved = 0,
          saved_size =
              0;  // (1 + B T, saved_size): a heading, and what the backward pass needs of each step

  // Gradients of the results, then of the inputs.
  int64_t dy = 0, dy_sb = 0, dy_st = 0;
  int64_t df_T = 0, dc_T = 0, dpower = 0;
  int64_t dx = 0, dx_sb = 0, dx_st = 0;
  int64_t dh0 = 0, dc0 = 0, df0 = 0;
  int64_t dweight = 0, dbias = 0, dlambda = 0, dgamma = 0;
  int64_t dalpha = 0, dmod_v = 0, dmod_d = 0, deta = 0, dln_weight = 0, dln_bias = 0;
};

// Values that the forward pass saves of one step of one sequence: per_unit * H + constant.
struct RecordSize {
  int64_t per_unit, constant;
};

// One instruction set's kernels; null where another set's serve as well.
struct Kernels {
  const char* name;
  void (*forward_float)(const Call&);
  void (*backward_float)(const Call&);
  void (*forward_double)(const Call&) = nullptr;
  void (*backward_double)(const Call&) = nullptr;
  void (*add_static_power_float)(const Call&);
  void (*add_static_power_double)(const Call&) = nullptr;
  RecordSize (*record_size)(CellKind cell, Norm norm, bool power);
  bool (*lies_side_by_side)(const Call&, bool backward);  // in single precision
};

}  // namespace stpn
