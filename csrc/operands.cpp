// The way of tensors into a call. All that a kernel assumes of them is asked here, of the tensors
// as Python sees them; what is wrong with one is said there (stpn/ops/operands.py).
#include "operands.h"

#include <nanobind/stl/string.h>

#include <map>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace stpn {

namespace {

std::map<std::string, int64_t Call::*>& fields() {
  static std::map<std::string, int64_t Call::*> known;
  return known;
}

constexpr int kMostDimensions = 3;

struct Dimensions {
  int64_t size[kMostDimensions];
  int rank = -1;  // beyond what an operand has

  explicit Dimensions(nb::handle tuple) {
    const Py_ssize_t n = PyTuple_GET_SIZE(tuple.ptr());
    if (n > kMostDimensions) return;
    for (Py_ssize_t k = 0; k < n; ++k)
      size[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.ptr(), k));
    if (!PyErr_Occurred()) rank = int(n);
    PyErr_Clear();
  }
  int64_t count() const {
    int64_t n = 1;
    for (int k = 0; k < rank; ++k) n *= size[k];
    return n;
  }
  bool operator==(const Dimensions& other) const {
    bool same = rank == other.rank;
    for (int k = 0; same && k < rank; ++k) same = size[k] == other.size[k];
    return same;
  }
};

// What is asked of a tensor, with names that Python need not look up anew.
struct Names {
  nb::object shape, stride, dtype, layout, is_cpu, is_neg, resolve_neg, contiguous, data_ptr,
      storage, nbytes, offset;
  Names() {
    const std::pair<nb::object*, const char*> all[] = {{&shape, "shape"},
                                                       {&stride, "stride"},
                                                       {&dtype, "dtype"},
                                                       {&layout, "layout"},
                                                       {&is_cpu, "is_cpu"},
                                                       {&is_neg, "is_neg"},
                                                       {&resolve_neg, "resolve_neg"},
                                                       {&contiguous, "contiguous"},
                                                       {&data_ptr, "data_ptr"},
                                                       {&storage, "untyped_storage"},
                                                       {&nbytes, "nbytes"},
                                                       {&offset, "storage_offset"}};
    for (auto& [name, text] : all) *name = nb::steal(PyUnicode_InternFromString(text));
  }
};

const Names& names() {
  static const Names* known = new Names;  // outlives the interpreter
  return *known;
}

nb::object checked(PyObject* result) {
  if (!result) throw nb::python_error();
  return nb::steal(result);
}
nb::object get(nb::handle from, const nb::object& name) {
  return checked(PyObject_GetAttr(from.ptr(), name.ptr()));
}
nb::object ask(nb::handle from, const nb::object& name) {
  return checked(PyObject_CallMethodNoArgs(from.ptr(), name.ptr()));
}
int64_t number(const nb::object& value) {
  const long long n = PyLong_AsLongLong(value.ptr());
  if (n == -1 && PyErr_Occurred()) throw nb::python_error();
  return n;
}

enum Layout { kBlock, kSequence, kStart, kRate };

struct Entry {
  int layout;
  bool optional;
  nb::object dtype;  // None: that of the call
  int64_t Call::*address;
  int64_t Call::*first = nullptr;  // strides: of sequences and steps, or of rows and columns
  int64_t Call::*second = nullptr;
};

class Table {
 public:
  explicit Table(nb::object strided) : strided(std::move(strided)) {}

  void add(const std::string& field, int layout, bool optional, nb::object dtype) {
    Entry entry{layout, optional, std::move(dtype), fields().at(field)};
    std::string stem = field;
    if (stem.back() == '_') stem.pop_back();
    if (layout == kSequence)
      entry.first = fields().at(stem + "_sb"), entry.second = fields().at(stem + "_st");
    if (layout == kRate)
      entry.first = fields().at(stem + "_sr"), entry.second = fields().at(stem + "_sc");
    entries.push_back(std::move(entry));
  }

  // Returns None, or the copies that must outlive the call, or the place of a tensor that is wrong.
  nb::object fill(Call& call, nb::tuple tensors, nb::tuple shapes, nb::handle dtype) const {
    nb::object copies = nb::none();
    for (size_t k = 0; k < entries.size() && k < tensors.size(); ++k) {
      const nb::handle tensor = tensors[k];
      const bool right = tensor.is_none() ? entries[k].optional
                                          : put(call, entries[k], tensor, shapes[k], dtype, copies);
      if (!right) return nb::int_(k);
    }
    return copies;
  }

 private:
  nb::object strided;
  std::vector<Entry> entries;

  bool put(Call& call, const Entry& entry, nb::handle tensor, nb::handle shape, nb::handle of_call,
           nb::object& copies) const {
    const Names& n = names();
    const nb::handle dtype = entry.dtype.is_none() ? of_call : nb::handle(entry.dtype);
    if (!get(tensor, n.dtype).is(dtype) || get(tensor, n.is_cpu).ptr() != Py_True) return false;
    if (!get(tensor, n.layout).is(strided)) return false;
    const Dimensions expected(shape), actual(get(tensor, n.shape));
    if (expected.rank < 0 || actual.rank < 0) return false;
    int64_t first = 0, second = 0;
    if (entry.layout == kRate) {
      const bool all = actual == expected, rows = actual.rank == 2 && actual.size[1] == 1;
      if (!all && !(rows && (actual.size[0] == 1 || actual.size[0] == expected.size[0])))
        return false;
      first = all ? expected.size[1] : actual.size[0] == 1 ? 0 : 1, second = all;
    } else if (!(actual == expected)) {
      return false;
    }

    // Its memory, in elements: from `offset` to the last one that it reaches.
    const int64_t count = actual.count(), item = count ? number(get(tensor, n.nbytes)) / count : 1;
    const Dimensions strides(ask(tensor, n.stride));
    int64_t reach = count ? 1 : 0, expanded = count;
    bool contiguous = true;
    for (int64_t k = actual.rank - 1, step = 1; k >= 0; step *= actual.size[k--]) {
      if (count) reach += (actual.size[k] - 1) * strides.size[k];
      if (strides.size[k]) expanded = 0;
      if (strides.size[k] != step && actual.size[k] != 1) contiguous = false;
    }
    const int64_t offset = number(ask(tensor, n.offset));
    if ((offset + reach) * item > number(ask(ask(tensor, n.storage), n.nbytes))) return false;

    const bool negated = ask(tensor, n.is_neg).ptr() == Py_True;
    if (entry.layout == kStart && expanded && is_zero(number(ask(tensor, n.data_ptr)), item))
      return true;
    const bool rows = strides.rank == 2 || actual.size[2] == 1 || strides.size[2] == 1;
    const bool as_it_is = count == 0 || (entry.layout == kSequence ? rows : contiguous);
    nb::object copy;
    if (negated || !as_it_is) {
      copy = ask(negated ? ask(tensor, n.resolve_neg) : nb::borrow(tensor), n.contiguous);
      if (copies.is_none()) copies = nb::list();
      nb::cast<nb::list>(copies).append(copy);
    }
    const nb::handle used = copy.is_valid() ? nb::handle(copy) : tensor;
    if (entry.layout == kSequence) {
      const Dimensions of_used(ask(used, n.stride));
      first = of_used.size[0], second = of_used.size[1];
    }
    call.*entry.address = number(ask(used, n.data_ptr));
    if (entry.first) call.*entry.first = first, call.*entry.second = second;
    return true;
  }

  // One zero that is expanded, as layers start with, is as good as no state.
  static bool is_zero(int64_t address, int64_t item) {
    if (item == 8) return *reinterpret_cast<const double*>(address) == 0;
    return *reinterpret_cast<const float*>(address) == 0;
  }
};

}  // namespace

void remember(const std::string& name, int64_t Call::*field) { fields()[name] = field; }

void bind_operands(nb::module_& m) {
  nb::class_<Table>(
      m, "Table",
      "Where the tensors of a recurrence go in a call, and how they must lie in memory.")
      .def(nb::init<nb::object>())
      .def("add", &Table::add, nb::arg("field"), nb::arg("layout"), nb::arg("optional"),
           nb::arg("dtype").none())
      .def("fill", &Table::fill);
  nb::enum_<Layout>(m, "Layout", nb::is_arithmetic())
      .value("block", kBlock)
      .value("sequence", kSequence)
      .value("start", kStart)
      .value("rate", kRate);
}

}  // namespace stpn
