// The structs of the kernels from Python dicts, by the names of their fields (fields.h). For bind.cpp.
//
// A dict must have exactly the fields of the struct, in any order; in that of the struct it is read fastest, about 10 ns a field.
// A number is a number, a code is a member of its enum; an array is a Torch tensor or None; a Rows is a tuple (tensor, stride
// over rows, stride over time) or None; a struct is a dict or None.
// Dtypes, shapes and contiguity are checked where the tensors come from: elman/kernels/native.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "fields.h"

namespace elman {

namespace nb = nanobind;

template <class Struct>
void read_struct(PyObject* dict, Struct& s);

class FieldReader {
 public:
  // `names` are those of the struct, interned; empty before its first dict.
  FieldReader(PyObject* dict, std::vector<PyObject*>& names) : dict_(dict), names_(names) {
    if (!PyDict_Check(dict)) throw nb::type_error("native kernel: its arguments are dicts of named fields.");
  }

  template <class... Fields>
  void operator()(const char* list, Fields&... fields) {
    if (names_.empty()) intern(list);
    (read(next(), fields), ...);
    if (PyDict_Size(dict_) == Py_ssize_t(number_)) return;
    const std::string given = nb::cast<std::string>(nb::str(nb::steal(PyDict_Keys(dict_))));
    throw nb::type_error(
        ("native kernel: " + given + " were given, but some of them are not fields of its arguments.").c_str());
  }

 private:
  // "a, b" -> "a" and "b"
  void intern(const char* list) {
    for (const char* end; *list; list = *end ? end + 2 : end) {
      end = std::strchr(list, ',');
      if (!end) end = list + std::strlen(list);
      names_.push_back(PyUnicode_InternFromString(std::string(list, end).c_str()));
    }
  }

  PyObject* next() {
    PyObject *expected = names_[number_++], *key, *value;
    if (PyDict_Next(dict_, &position_, &key, &value) && key == expected) return value;
    value = PyDict_GetItemWithError(dict_, expected);
    if (!value)
      throw nb::type_error(
          ("native kernel: the field `" + nb::cast<std::string>(nb::handle(expected)) + "` is missing.").c_str());
    return value;
  }

  static int64_t integer(PyObject* value) {
    const int64_t number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) nb::raise_python_error();
    return number;
  }
  static void read(PyObject* value, int64_t& field) { field = integer(value); }
  static void read(PyObject* value, int& field) { field = int(integer(value)); }
  static void read(PyObject* value, bool& field) { field = integer(value) != 0; }
  static void read(PyObject* value, double& field) { field = nb::cast<double>(nb::handle(value)); }

  template <class Real>
  static void read(PyObject* value, Real*& field) {
    field = nullptr;
    if (value == Py_None) return;
    static PyObject* const data_ptr = PyUnicode_InternFromString("data_ptr");
    const nb::object address = nb::steal(PyObject_CallMethodObjArgs(value, data_ptr, nullptr));
    if (!address.is_valid()) nb::raise_python_error();
    field = static_cast<Real*>(PyLong_AsVoidPtr(address.ptr()));
  }

  template <class Real>
  static void read(PyObject* value, Rows<Real>& field) {
    field = {nullptr, 0, 0};
    if (value == Py_None) return;
    if (!PyTuple_Check(value) || PyTuple_Size(value) != 3)
      throw nb::type_error("native kernel: (tensor, stride, stride) is needed.");
    read(PyTuple_GetItem(value, 0), field.data);
    field.row = integer(PyTuple_GetItem(value, 1));
    field.time = integer(PyTuple_GetItem(value, 2));
  }

  template <class Struct>
  static void read(PyObject* value, Struct& s) {
    if constexpr (std::is_enum_v<Struct>) s = nb::cast<Struct>(nb::handle(value));
    else if (value == Py_None) s = Struct{};
    else read_struct(value, s);
  }

  PyObject* dict_;
  std::vector<PyObject*>& names_;
  size_t number_ = 0;
  Py_ssize_t position_ = 0;
};

template <class Struct>
void read_struct(PyObject* dict, Struct& s) {
  static std::vector<PyObject*> names;  // guarded by the GIL
  FieldReader reader(dict, names);
  s.fields(reader);
}

template <class Struct>
Struct from_dict(nb::handle dict) {
  Struct s{};
  read_struct(dict.ptr(), s);
  return s;
}

}  // namespace elman
