// Arrays of numpy by the buffer protocol, for calls that take a microsecond: it costs half of what an nb::ndarray does, and is
// part of the stable interface from Python 3.11 on.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <optional>
#include <type_traits>

namespace elman {

namespace nb = nanobind;

// The numbers of an array (rows, width), or (rows), which is contiguous.
template <class Number>
class ArrayView {
 public:
  ArrayView(nb::handle array, int axes) {
    const int flags = PyBUF_ND | PyBUF_FORMAT | (std::is_const_v<Number> ? 0 : PyBUF_WRITABLE);
    if (PyObject_GetBuffer(array.ptr(), &view_, flags) != 0) {
      PyErr_Clear();  // who called knows what was given
      throw nb::type_error("native stream: an array is not contiguous, or not an array.");
    }
    if (view_.ndim == axes && view_.itemsize == sizeof(Number) && std::strchr(formats(), view_.format[0]) && !view_.format[1])
      return;
    PyBuffer_Release(&view_);
    throw nb::type_error("native stream: an array has other numbers, or another number of axes, than the stream's.");
  }
  ~ArrayView() { PyBuffer_Release(&view_); }
  ArrayView(const ArrayView&) = delete;

  Number* data() const { return static_cast<Number*>(view_.buf); }
  int64_t rows() const { return view_.shape[0]; }
  int64_t width() const { return view_.ndim > 1 ? view_.shape[1] : 1; }

 private:
  // The letters of the type in a buffer's format; a number of 8 bytes may be called a long, or a long long.
  static constexpr const char* formats() {
    using Type = std::remove_const_t<Number>;
    return std::is_same_v<Type, float> ? "f" : std::is_same_v<Type, double> ? "d" : "lq";
  }

  Py_buffer view_;
};

// The arrays (rows, width) that steps give. The last two are used again once nobody else holds them: two, since who writes
// `y = step(x)` in a loop still holds the one of the step before. Large ones are not kept: numpy makes them as fast as it
// matters, and nobody would expect a stream to hold that memory.
class Outputs {
  static constexpr int64_t largest = 1 << 14;  // numbers

 public:
  explicit Outputs(nb::object dtype) : dtype_(std::move(dtype)), empty_(nb::module_::import_("numpy").attr("empty")) {}

  // The next one, and in `view` its numbers.
  template <class Real>
  nb::object next(int64_t rows, int64_t width, std::optional<ArrayView<Real>>& view) {
    for (nb::object& one : kept_)
      if (one.is_valid() && Py_REFCNT(one.ptr()) == 1 && fits(one, rows, width, view)) return one;
    nb::object made = empty_(nb::make_tuple(rows, width), dtype_);
    view.emplace(made, 2);
    if (rows * width > largest) return made;
    std::swap(kept_[0], kept_[1]);
    return kept_[0] = made;
  }

 private:
  // Who had it may have given it another shape, or made it read-only.
  template <class Real>
  static bool fits(const nb::object& array, int64_t rows, int64_t width, std::optional<ArrayView<Real>>& view) try {
    view.emplace(array, 2);
    return view->rows() == rows && view->width() == width;
  } catch (const nb::builtin_exception&) {
    return false;
  }

  nb::object dtype_, empty_, kept_[2];
};

}  // namespace elman
