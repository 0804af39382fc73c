// The structs of kernels.h from Python dicts, by the names of their fields. For bind.cpp.
//
// `fields(struct, f)` in bind.cpp lists the fields of a struct: f(name, field). A dict must have exactly these, in any order;
// in the order of the list it is read fastest, about 10 ns a field. A number is a number; an array is a Torch tensor or None;
// a Rows is a tuple (tensor, stride over rows, stride over time) or None; a struct is a dict or None.
// Dtypes, shapes and contiguity are checked where the tensors come from: elman/kernels/native.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "kernels.h"

namespace elman {

namespace nb = nanobind;

class FieldReader {
 public:
  FieldReader(PyObject* dict, std::vector<PyObject*>& names) : dict_(dict), names_(names) {
    if (!PyDict_Check(dict)) throw nb::type_error("native kernel: its arguments are dicts of named fields.");
  }

  template <class Field>
  void operator()(const char* name, Field& field) {
    read(next(name), field);
  }

  void end() const {
    if (PyDict_Size(dict_) == Py_ssize_t(number_)) return;
    const std::string given = nb::cast<std::string>(nb::str(nb::steal(PyDict_Keys(dict_))));
    throw nb::type_error(
        ("native kernel: " + given + " were given, but some of them are not fields of its arguments.").c_str());
  }

 private:
  PyObject* next(const char* name) {
    if (number_ == names_.size()) names_.push_back(PyUnicode_InternFromString(name));
    PyObject *expected = names_[number_++], *key, *value;
    if (PyDict_Next(dict_, &position_, &key, &value) && key == expected) return value;
    value = PyDict_GetItemWithError(dict_, expected);
    if (!value) throw nb::type_error((std::string("native kernel: the field `") + name + "` is missing.").c_str());
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
    const nb::object address = nb::steal(PyObject_CallMethodNoArgs(value, data_ptr));
    if (!address.is_valid()) nb::raise_python_error();
    field = static_cast<Real*>(PyLong_AsVoidPtr(address.ptr()));
  }

  template <class Real>
  static void read(PyObject* value, Rows<Real>& field) {
    field = {nullptr, 0, 0};
    if (value == Py_None) return;
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 3)
      throw nb::type_error("native kernel: (tensor, stride, stride) is needed.");
    read(PyTuple_GET_ITEM(value, 0), field.data);
    field.row = integer(PyTuple_GET_ITEM(value, 1));
    field.time = integer(PyTuple_GET_ITEM(value, 2));
  }

  template <class Struct>
  static void read(PyObject* value, Struct& s);

  PyObject* dict_;
  std::vector<PyObject*>& names_;
  size_t number_ = 0;
  Py_ssize_t position_ = 0;
};

template <class Struct>
void FieldReader::read(PyObject* value, Struct& s) {
  s = Struct{};
  if (value == Py_None) return;
  static std::vector<PyObject*> names;  // interned, of this struct; guarded by the GIL
  FieldReader reader(value, names);
  fields(s, reader);
  reader.end();
}

template <class Struct>
Struct from_dict(nb::handle dict) {
  Struct s{};
  static std::vector<PyObject*> names;
  FieldReader reader(dict.ptr(), names);
  fields(s, reader);
  reader.end();
  return s;
}

}  // namespace elman
