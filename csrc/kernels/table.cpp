// The table of an instruction set's kernels: by cell and norm.
#include "../cells/fast_weights.h"
#include "../cells/lstm.h"
#include "../cells/modplast.h"
#include "../cells/plain.h"
#include "../kernels.h"
#include "../side_by_side.h"
#include "../static_power.h"

namespace stpn::STPN_ISA {

namespace {

// body(cell, norm), with both as types; what does not exist is refused.
template <class Body> auto with_norm(int64_t norm, auto cell, Body body) {
  using C = typename decltype(cell)::type;
  if constexpr (C::norms) {
    if (norm == kNormPre) return body(cell, Constant<kNormPre>{});
    if (norm == kNormPost) return body(cell, Constant<kNormPost>{});
  }
  if (norm == kNormNone) return body(cell, Constant<kNormNone>{});
  invalid("norm: not a value of Norm that this cell has");
}

template <class Body> auto with_cell(int64_t cell, int64_t norm, Body body) {
  switch (CellKind(cell)) {
    case CellKind::kPlain: return with_norm(norm, Type<Plain>{}, body);
    case CellKind::kLstm: return with_norm(norm, Type<Lstm>{}, body);
    case CellKind::kModPlast: return with_norm(norm, Type<ModPlast>{}, body);
    case CellKind::kFastWeights: return with_norm(norm, Type<FastWeights>{}, body);
  }
  invalid("cell: not a value of Cell");
}

template <bool BACKWARD, class T> void choose(const Call& c) {
  if (c.B < 0 || c.T < 1 || c.I < 0 || c.H < 0)
    invalid("sizes: expected B, I and H from 0 on, T from 1 on");
  if (c.activation < 0 || c.activation > int64_t(Activation::kRelu))
    invalid("activation: not a value of Activation");
  with_cell(c.cell, c.norm, [&](auto cell, auto norm) {
    run<BACKWARD, T, typename decltype(cell)::type, decltype(norm)::value>(c);
  });
}

RecordSize record_size(CellKind cell, Norm norm, bool power) {
  return with_cell(int64_t(cell), norm, [&](auto cell_type, auto norm_value) {
    using C = typename decltype(cell_type)::type;
    using P = Plan<float, options<C>(decltype(norm_value)::value, false, false)>;
    const idx constant = record_layout<P, C>(0, power).size;
    return RecordSize{record_layout<P, C>(1, power).size - constant, constant};
  });
}

bool lies_side_by_side(const Call& c, bool backward) {
  return with_cell(c.cell, c.norm, [&](auto cell, auto) {
    return goes_across<float, typename decltype(cell)::type>(c, backward);
  });
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels{
    .name = STPN_ISA_NAME,
    .forward_float = choose<false, float>,
    .backward_float = choose<true, float>,
#if !defined(STPN_FLOAT_ONLY)
    .forward_double = choose<false, double>,
    .backward_double = choose<true, double>,
#endif
    .add_static_power_float = add_static_power<float>,
#if !defined(STPN_FLOAT_ONLY)
    .add_static_power_double = add_static_power<double>,
#endif
    .record_size = record_size,
    .lies_side_by_side = lies_side_by_side,
};

}  // namespace stpn::STPN_ISA
