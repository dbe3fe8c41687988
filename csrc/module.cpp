// The Python module: calls in, the best instruction set's kernels out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "call.h"
#include "operands.h"
#include "team.h"

namespace nb = nanobind;

namespace stpn {

#define STPN_DECLARE(isa)       \
  namespace isa {               \
  extern const Kernels kernels; \
  }
STPN_DECLARE(baseline)
#if defined(STPN_AVX2)
STPN_DECLARE(avx2)
#endif
#if defined(STPN_AVX512)
STPN_DECLARE(avx512)
#endif

namespace {

// Usable here, best first.
std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> found;
#if defined(STPN_AVX512)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("fma"))
    found.push_back(&avx512::kernels);
#endif
#if defined(STPN_AVX2)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    found.push_back(&avx2::kernels);
#endif
  found.push_back(&baseline::kernels);
  return found;
}

const Kernels* chosen = usable().front();

// What a call of the calling thread took (call.h).
struct Tidy {
  ~Tidy() {
    give_back(kOfCall);
    give_back(kOfSums);
  }
};

// The kernels of a call in single precision. Sequences side by side run on AVX2 also where there is
// AVX-512: measured on an EPYC of Zen 4, STPNr of the maze and of associative retrieval take 10%
// and 19% less time than with AVX-512 along rows, Fast Weights half. With AVX-512 side by side, the
// maze takes as long as along, and the build 26 seconds more.
const Kernels& in_float(const Call& c, [[maybe_unused]] bool backward) {
#if defined(STPN_AVX512) && defined(STPN_AVX2)
  if (chosen == &avx512::kernels && avx2::kernels.lies_side_by_side(c, backward))
    return avx2::kernels;
#endif
  return *chosen;
}

const Kernels& in_double() { return chosen->forward_double ? *chosen : baseline::kernels; }

void forward(const Call& c) {
  const Tidy tidy;
  if (c.is_double) in_double().forward_double(c);
  else in_float(c, false).forward_float(c);
}

void backward(const Call& c) {
  const Tidy tidy;
  if (c.is_double) in_double().backward_double(c);
  else in_float(c, true).backward_float(c);
}

void add_static_power(const Call& c) {
  const Tidy tidy;
  if (c.is_double) in_double().add_static_power_double(c);
  else chosen->add_static_power_float(c);
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Kernels* k : usable()) names.emplace_back(k->name);
  return names;
}

void use_instruction_set(const std::string& name) {
  for (const Kernels* k : usable())
    if (name == k->name) {
      chosen = k;
      return;
    }
  throw nb::value_error(("this machine cannot run the instruction set '" + name + "'").c_str());
}

}  // namespace
}  // namespace stpn

NB_MODULE(_native, m) {
  using namespace nb::literals;
  using stpn::Call;
  nb::set_leak_warnings(false);  // objects that outlive the interpreter are no concern of a user
  auto call = nb::class_<Call>(m, "Call").def(nb::init<>());
  const auto field = [&](const char* name, auto member) {
    call.def_rw(name, member);
    stpn::remember(name, member);
  };
  // clang-format off
#define FIELD(name) field(#name, &Call::name)
  FIELD(cell); FIELD(norm); FIELD(activation); FIELD(recurrent); FIELD(is_double); FIELD(threads); FIELD(clamp);
  FIELD(associate_new);
  FIELD(B); FIELD(T); FIELD(I); FIELD(H); FIELD(segment_bytes);
  FIELD(x); FIELD(x_sb); FIELD(x_st); FIELD(h0); FIELD(c0); FIELD(f0); FIELD(weight); FIELD(bias);
  FIELD(gamma); FIELD(gamma_sr); FIELD(gamma_sc);
  field("lambda_", &Call::lambda);
  FIELD(lambda_sr); FIELD(lambda_sc);
  FIELD(reset); FIELD(reset_sb); FIELD(reset_st); FIELD(lengths); FIELD(power_weight);
  FIELD(alpha); FIELD(mod_v); FIELD(mod_d); FIELD(eta); FIELD(ln_weight); FIELD(ln_bias);
  FIELD(decay); FIELD(rate); FIELD(ln_eps);
  FIELD(y); FIELD(y_sb); FIELD(y_st); FIELD(f_T); FIELD(c_T); FIELD(power); FIELD(saved); FIELD(saved_size);
  FIELD(dy); FIELD(dy_sb); FIELD(dy_st); FIELD(df_T); FIELD(dc_T); FIELD(dpower);
  FIELD(dx); FIELD(dx_sb); FIELD(dx_st); FIELD(dh0); FIELD(dc0); FIELD(df0); FIELD(dweight); FIELD(dbias);
  FIELD(dlambda); FIELD(dgamma); FIELD(dalpha); FIELD(dmod_v); FIELD(dmod_d); FIELD(deta);
  FIELD(dln_weight); FIELD(dln_bias);
#undef FIELD
  // clang-format on
  stpn::bind_operands(m);

  using stpn::CellKind;
  nb::enum_<CellKind>(m, "Cell", nb::is_arithmetic())
      .value("plain", CellKind::kPlain)
      .value("lstm", CellKind::kLstm)
      .value("modplast", CellKind::kModPlast)
      .value("fast_weights", CellKind::kFastWeights);
  nb::enum_<stpn::Norm>(m, "Norm", nb::is_arithmetic())
      .value("none", stpn::kNormNone)
      .value("pre", stpn::kNormPre)
      .value("post", stpn::kNormPost);
  using stpn::Activation;
  nb::enum_<Activation>(m, "Activation", nb::is_arithmetic())
      .value("tanh", Activation::kTanh)
      .value("sigmoid", Activation::kSigmoid)
      .value("relu", Activation::kRelu);

  m.def(
      "record_size",
      [](int64_t cell, int64_t norm, bool power, bool) {
        const auto size = stpn::chosen->record_size(CellKind(cell), stpn::Norm(norm), power);
        return std::pair{size.per_unit, size.constant};
      },
      "cell"_a, "norm"_a, "power"_a, "is_double"_a,
      "Values saved of one step of a sequence, as (a, b) of a * H + b.");
  m.def("forward", stpn::forward, nb::call_guard<nb::gil_scoped_release>());
  m.def("backward", stpn::backward, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "add_static_power",
      [](int64_t power, int64_t x, int64_t x_sb, int64_t x_st, int64_t weight, int64_t weight_sr,
         int64_t power_weight, int64_t B, int64_t T, int64_t I, int64_t H, bool is_double) {
        Call c;
        c.power = power;
        c.x = x;
        c.x_sb = x_sb;
        c.x_st = x_st;
        c.weight = weight;
        c.weight_sr = weight_sr;
        c.power_weight = power_weight;
        c.B = B;
        c.T = T;
        c.I = I;
        c.H = H;
        c.is_double = is_double;
        stpn::add_static_power(c);
      },
      nb::call_guard<nb::gil_scoped_release>(),
      "By addresses, strides and sizes: less to say than a Call.");
  m.def("instruction_sets", stpn::instruction_sets, "What this machine can run, best first.");
  m.def("instruction_set", [] { return std::string(stpn::chosen->name); });
  m.def("use_instruction_set", stpn::use_instruction_set);
  m.def(
      "use_openmp",
      [](uintptr_t parallel, uintptr_t thread_num, uintptr_t num_threads) {
        stpn::OpenMP f;
        f.parallel = reinterpret_cast<decltype(f.parallel)>(parallel);
        f.thread_num = reinterpret_cast<decltype(f.thread_num)>(thread_num);
        f.num_threads = reinterpret_cast<decltype(f.num_threads)>(num_threads);
        stpn::use_openmp(f);
      },
      "Run on the threads of a loaded OpenMP runtime, by the addresses of its entry points.");
}
