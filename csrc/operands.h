// How the tensors of a call get into it.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "call.h"

namespace stpn {

// Fields of a call that hold an address or a stride, by name.
void remember(const std::string& name, int64_t Call::*field);
inline void remember(const std::string&, double Call::*) {}

void bind_operands(nanobind::module_& m);

}  // namespace stpn
