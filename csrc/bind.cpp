// The binding: takes addresses and sizes from Python, releases the GIL, forwards to the chosen table.
//
// Arrays arrive as integer addresses, because importing a Torch tensor costs 4 us and an address 0.1 us.
// Shapes, dtypes and contiguity are checked where the addresses are taken: elman/kernels/native.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <string>

#include "kernels.h"

namespace nb = nanobind;
using namespace elman;

namespace {

using Address = std::uintptr_t;

template <class T>
T* at(Address a) {
  return reinterpret_cast<T*>(a);
}

template <class T>
Rows<T> rows(Address a, int64_t row, int64_t time) {
  return {at<const T>(a), row, time};
}

template <class T>
GatedOptions<T> options(Address peephole, Address P, Address gain, Address gain_U, Address gain_c, Address bias_c) {
  return {at<T>(peephole), at<T>(P), at<T>(gain), at<T>(gain_U), at<T>(gain_c), at<T>(bias_c)};
}

// A length past the end would be read and written past the end.
const int64_t* checked(Address lengths, int64_t B, int64_t N) {
  const int64_t* p = at<const int64_t>(lengths);
  for (int64_t i = 0; i < B; ++i)
    if (p[i] < 0 || p[i] > N)
      throw nb::value_error(("native kernel: lengths[" + std::to_string(i) + "] is " + std::to_string(p[i]) +
                             ", but must be in [0, " + std::to_string(N) + "], the number of time steps.").c_str());
  return p;
}

// The same names and argument order as in kernels.h, with the dtype as a suffix.
template <class F>
void def(nb::module_& m, const std::string& name, F f) {
  m.def(name.c_str(), f, nb::call_guard<nb::gil_scoped_release>());
}

template <class T>
void bind_scan(nb::module_& m, const std::string& suffix, LinearScan<T>* Table<T>::*scan,
               LinearScanBack<T>* Table<T>::*back) {
  def(m, "linear_scan" + suffix,
      [scan](int64_t B, int64_t N, int64_t C, Address a, int64_t a_row, int64_t a_time, Address b, int64_t b_row,
             int64_t b_time, Address h0, Address lengths, Address reset, Address h, Address last, int threads) {
        (kernels().of<T>().*scan)({B, N, C}, rows<T>(a, a_row, a_time), rows<T>(b, b_row, b_time), at<T>(h0),
                                  checked(lengths, B, N), at<bool>(reset), at<T>(h), at<T>(last), threads);
      });
  def(m, "linear_scan_back" + suffix,
      [back](int64_t B, int64_t N, int64_t C, Address a, int64_t a_row, int64_t a_time, Address h0, Address lengths,
             Address reset, Address h, Address gh, int64_t gh_row, int64_t gh_time, Address glast,
             Address ga, Address sum, Address gb, Address gh0, int threads) {
        (kernels().of<T>().*back)({B, N, C}, rows<T>(a, a_row, a_time), at<T>(h0), checked(lengths, B, N),
                                  at<bool>(reset), at<T>(h), rows<T>(gh, gh_row, gh_time), at<T>(glast), at<T>(ga),
                                  at<double>(sum), at<T>(gb), at<T>(gh0), threads);
      });
}

template <class T>
void bind_selective(nb::module_& m, const std::string& suffix) {
  def(m, "selective_scan" + suffix,
      [](int64_t B, int64_t N, int64_t C, int64_t states, int64_t every, Address x, int64_t x_row, int64_t x_time,
         Address delta, int64_t delta_row, int64_t delta_time, Address A, Address in, int64_t in_row, int64_t in_time,
         Address out, int64_t out_row, int64_t out_time, Address h0, Address lengths, Address reset, Address y,
         Address last, Address saved, int threads) {
        kernels().of<T>().selective_scan(
            {{B, N, C}, states, every, rows<T>(x, x_row, x_time), rows<T>(delta, delta_row, delta_time), at<T>(A),
             rows<T>(in, in_row, in_time), rows<T>(out, out_row, out_time), at<T>(h0), checked(lengths, B, N),
             at<bool>(reset)},
            at<T>(y), at<T>(last), at<T>(saved), threads);
      });
  def(m, "selective_scan_back" + suffix,
      [](int64_t B, int64_t N, int64_t C, int64_t states, int64_t every, Address x, int64_t x_row, int64_t x_time,
         Address delta, int64_t delta_row, int64_t delta_time, Address A, Address in, int64_t in_row, int64_t in_time,
         Address out, int64_t out_row, int64_t out_time, Address h0, Address lengths, Address reset, Address saved,
         Address gy, int64_t gy_row, int64_t gy_time, Address glast, Address gx, Address gdelta, Address gA, Address gB,
         Address gC, Address gh0, int threads) {
        kernels().of<T>().selective_scan_back(
            {{B, N, C}, states, every, rows<T>(x, x_row, x_time), rows<T>(delta, delta_row, delta_time), at<T>(A),
             rows<T>(in, in_row, in_time), rows<T>(out, out_row, out_time), at<T>(h0), checked(lengths, B, N),
             at<bool>(reset)},
            at<T>(saved), rows<T>(gy, gy_row, gy_time), at<T>(glast), at<T>(gx), at<T>(gdelta), at<double>(gA), at<T>(gB),
            at<T>(gC), at<T>(gh0), threads);
      });
}

template <class T>
void bind_bank(nb::module_& m, const std::string& suffix) {
  def(m, "bank_scan" + suffix,
      [](int64_t B, int64_t N, int64_t C, int64_t numbers, int64_t every, Address x, int64_t x_row, int64_t x_time, Address a,
         Address b, Address c, Address h0, Address lengths, Address reset, Address y, Address last, Address saved, int threads) {
        kernels().of<T>().bank_scan({{B, N, C}, numbers, every, rows<T>(x, x_row, x_time), at<T>(a), at<T>(b), at<T>(c),
                                     at<T>(h0), checked(lengths, B, N), at<bool>(reset)},
                                    {at<T>(y), at<T>(last), at<T>(saved)}, threads);
      });
  def(m, "bank_scan_back" + suffix,
      [](int64_t B, int64_t N, int64_t C, int64_t numbers, int64_t every, Address x, int64_t x_row, int64_t x_time, Address a,
         Address b, Address c, Address h0, Address lengths, Address reset, Address saved, Address gy, int64_t gy_row,
         int64_t gy_time, Address glast, Address gx, Address ga, Address gb, Address gc, Address gh0, int threads) {
        kernels().of<T>().bank_scan_back({{B, N, C}, numbers, every, rows<T>(x, x_row, x_time), at<T>(a), at<T>(b), at<T>(c),
                                          at<T>(h0), checked(lengths, B, N), at<bool>(reset)},
                                         {at<T>(saved), rows<T>(gy, gy_row, gy_time), at<T>(glast)},
                                         {at<T>(gx), at<double>(ga), at<double>(gb), at<double>(gc), at<T>(gh0)}, threads);
      });
}

template <class T>
void bind_convolution(nb::module_& m, const std::string& suffix) {
  def(m, "convolution" + suffix,
      [](int64_t B, int64_t N, int64_t C, int64_t K, Address x, int64_t x_row, int64_t x_time, Address w, Address bias,
         Address window, Address lengths, Address reset, Address y, Address last, int threads) {
        kernels().of<T>().convolution({{B, N, C}, K, rows<T>(x, x_row, x_time), at<T>(w), at<T>(bias), at<T>(window),
                                       checked(lengths, B, N), at<bool>(reset)},
                                      at<T>(y), at<T>(last), threads);
      });
  def(m, "convolution_back" + suffix,
      [](int64_t B, int64_t N, int64_t C, int64_t K, Address x, int64_t x_row, int64_t x_time, Address w, Address bias,
         Address window, Address lengths, Address reset, Address gy, int64_t gy_row, int64_t gy_time, Address glast,
         Address gx, Address gwindow, Address sums, int threads) {
        kernels().of<T>().convolution_back({{B, N, C}, K, rows<T>(x, x_row, x_time), at<T>(w), at<T>(bias),
                                            at<T>(window), checked(lengths, B, N), at<bool>(reset)},
                                           rows<T>(gy, gy_row, gy_time), at<T>(glast), at<T>(gx), at<T>(gwindow),
                                           at<double>(sums), threads);
      });
}

template <class T>
void bind(nb::module_& m, const std::string& suffix) {
  const auto def = [&](const char* name, auto f) { ::def(m, name + suffix, f); };

  def("linear", [](int64_t M, int64_t N, int64_t K, Address x, Address w, Address b, Address y, int threads) {
    kernels().of<T>().linear(M, N, K, at<T>(x), at<T>(w), at<T>(b), at<T>(y), threads);
  });

  def("gated", [](int kind, int64_t B, int64_t N, int64_t D, int64_t H, int64_t R, Address x, int64_t x_row, int64_t x_time, Address U,
                  Address b, Address w, Address extra, int64_t extra_size, Address peephole, Address P, Address gain,
                  Address gain_U, Address gain_c, Address bias_c, Address h0, Address c0, Address lengths, Address reset, Address y,
                  Address h, Address c, Address saved, int64_t saved_row, int64_t every, Address kept, int threads) {
    kernels().of<T>().gated(kind,
                            {B, N, D, H, R, rows<T>(x, x_row, x_time), at<T>(U), at<T>(b), at<T>(w), at<T>(extra),
                             extra_size, options<const T>(peephole, P, gain, gain_U, gain_c, bias_c), at<T>(h0), at<T>(c0),
                             checked(lengths, B, N), at<bool>(reset), at<T>(y), at<T>(h), at<T>(c), at<T>(saved), saved_row, every,
                             at<T>(kept)},
                            threads);
  });

  def("gated_back", [](int kind, int64_t B, int64_t N, int64_t D, int64_t H, int64_t R, Address x, int64_t x_row, int64_t x_time,
                       Address U, Address b, Address w, Address extra, int64_t extra_size, Address peephole, Address P, Address gain,
                       Address gain_U, Address gain_c, Address bias_c, Address h0, Address c0, Address lengths,
                       Address reset, Address y, Address saved, int64_t saved_row, int64_t every, Address kept, Address gy,
                       int64_t gy_row, int64_t gy_time, Address gh,
                       Address gc, Address gx, Address gU, Address gb, Address gw, Address gextra, Address gh0,
                       Address gc0, Address gpeephole, Address gP, Address ggain, Address ggain_U, Address ggain_c,
                       Address gbias_c, int threads) {
    kernels().of<T>().gated_back(kind,
                                 {B, N, D, H, R, rows<T>(x, x_row, x_time), at<T>(U), at<T>(b), at<T>(w), at<T>(extra), extra_size,
                                  options<const T>(peephole, P, gain, gain_U, gain_c, bias_c), at<T>(h0), at<T>(c0),
                                  checked(lengths, B, N), at<bool>(reset), at<T>(y), at<T>(saved), saved_row, every, at<T>(kept),
                                  rows<T>(gy, gy_row, gy_time), at<T>(gh), at<T>(gc), at<T>(gx), at<T>(gU), at<T>(gb),
                                  at<T>(gw), at<T>(gextra), at<T>(gh0), at<T>(gc0),
                                  options<T>(gpeephole, gP, ggain, ggain_U, ggain_c, gbias_c)},
                                 threads);
  });

  const auto elementwise = [&](const char* name, auto kernel) {
    def(name, [kernel](int64_t n, Address x, Address y, int threads) {
      (kernels().of<T>().*kernel)(n, at<T>(x), at<T>(y), threads);
    });
  };
  elementwise("sigmoid", &Table<T>::sigmoid);
  elementwise("tanh", &Table<T>::tanh);
  elementwise("softplus", &Table<T>::softplus);
  elementwise("silu", &Table<T>::silu);
  elementwise("log", &Table<T>::log);

  def("hmm_filter", [](int64_t B, int64_t N, int64_t K, Address x, Address start, Address transition, Address state,
                       Address lengths, Address reset, Address log_c, Address p, Address shift, Address scale, Address last,
                       int threads) {
    kernels().of<T>().hmm_filter(B, N, K, at<T>(x), at<T>(start), at<T>(transition), at<T>(state), checked(lengths, B, N),
                                 at<bool>(reset), at<T>(log_c), at<T>(p), at<T>(shift), at<T>(scale), at<T>(last), threads);
  });

  def("hmm_filter_back", [](int64_t B, int64_t N, int64_t K, Address x, Address transition, Address p, Address shift,
                            Address scale, Address lengths, Address reset, Address glog, Address gp, Address glast,
                            Address gx, Address gstart, Address ga, Address gstate, int threads) {
    kernels().of<T>().hmm_filter_back(B, N, K, at<T>(x), at<T>(transition), at<T>(p), at<T>(shift), at<T>(scale),
                                      checked(lengths, B, N), at<bool>(reset), at<T>(glog), at<T>(gp), at<T>(glast),
                                      at<T>(gx), at<T>(gstart), at<T>(ga), at<T>(gstate), threads);
  });

  def("viterbi", [](int64_t B, int64_t N, int64_t K, Address x, Address start, Address transition, Address lengths,
                    Address reset, Address path, Address score, int threads) {
    kernels().of<T>().viterbi(B, N, K, at<T>(x), at<T>(start), at<T>(transition), checked(lengths, B, N), at<bool>(reset),
                              at<int64_t>(path), at<T>(score), threads);
  });

  def("norm", [](int64_t M, int64_t N, Address x, Address gain, Address bias, double eps, bool centred, Address y,
                 Address mean, Address scale, int threads) {
    kernels().of<T>().norm(M, N, at<T>(x), at<T>(gain), at<T>(bias), T(eps), centred, at<T>(y), at<T>(mean), at<T>(scale),
                           threads);
  });

  def("norm_back", [](int64_t M, int64_t N, Address x, Address gain, Address mean, Address scale, Address gy, bool centred,
                      Address gx, Address ggain, Address gbias, int threads) {
    kernels().of<T>().norm_back(M, N, at<T>(x), at<T>(gain), at<T>(mean), at<T>(scale), at<T>(gy), centred, at<T>(gx),
                                at<T>(ggain), at<T>(gbias), threads);
  });

  using P = Program<T>;
  nb::class_<P>(m, ("Program" + suffix).c_str())
      .def("slot", &P::slot)
      .def("width", &P::width)
      .def("constant", [](P& p, int64_t width, Address values) { return p.constant(width, at<T>(values)); })
      .def("write", [](P& p, int slot, Address from) { p.write(slot, at<T>(from)); })
      .def("read", [](P& p, int slot, Address to) { p.read(slot, at<T>(to)); })
      .def("linear", [](P& p, int x, int64_t N, Address w, Address b) { return p.linear(x, N, at<T>(w), at<T>(b)); })
      .def("gated", [](P& p, int kind, int gates, int x, Address U, Address b, Address w, Address extra,
                       int64_t extra_size, Address peephole, Address P, Address gain, Address gain_U, Address gain_c,
                       Address bias_c, int h, int c) {
        p.gated(kind, gates, x, at<T>(U), at<T>(b), at<T>(w), at<T>(extra), extra_size,
                options<const T>(peephole, P, gain, gain_U, gain_c, bias_c), h, c);
      })
      .def("scan", &P::scan)
      .def("selective", [](P& p, int x, int delta, int64_t N, Address A, int B, int C, int h) {
        return p.selective(x, delta, N, at<T>(A), B, C, h);
      })
      .def("bank", [](P& p, int x, int64_t N, Address a, Address b, Address c, int h) {
        return p.bank(x, N, at<T>(a), at<T>(b), at<T>(c), h);
      })
      .def("convolution", [](P& p, int x, int64_t K, Address w, Address bias, int window) {
        return p.convolution(x, K, at<T>(w), at<T>(bias), window);
      })
      .def("map", &P::map)
      .def("combine", &P::combine)
      .def("norm", [](P& p, bool centred, int x, Address gain, Address bias, double eps) {
        return p.norm(centred, x, at<T>(gain), at<T>(bias), T(eps));
      })
      .def("copy", &P::copy)
      .def("lookup", [](P& p, int64_t V, int64_t width, Address table) { return p.lookup(V, width, at<T>(table)); })
      .def("step_symbols", [](P& p, int in, nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> symbols,
                              int out, nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu> y) {
        if (int64_t(symbols.shape(0)) != p.rows() || int64_t(y.shape(0)) != p.rows() || int64_t(y.shape(1)) != p.width(out))
          throw nb::value_error("native stream: the arrays of a step do not have the shapes of the stream's input and output.");
        const nb::gil_scoped_release release;
        p.run_symbols(in, symbols.data(), out, y.data());
      })
      .def("step", [](P& p, int in, nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu> x, int out,
                      nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu> y) {
        if (int64_t(x.shape(0)) != p.rows() || int64_t(x.shape(1)) != p.width(in) || int64_t(y.shape(0)) != p.rows() ||
            int64_t(y.shape(1)) != p.width(out))
          throw nb::value_error("native stream: the arrays of a step do not have the shapes of the stream's input and output.");
        const nb::gil_scoped_release release;
        p.run(in, x.data(), out, y.data());
      });
  m.def(("program" + suffix).c_str(), [](int64_t B) { return kernels().of<T>().program(B); }, nb::rv_policy::take_ownership);
}

}  // namespace

NB_MODULE(_native, m) {
  const char* wanted = std::getenv("ELMAN_ISA");
  choose(wanted ? wanted : "");
  m.def("isa", [] { return std::string(isa()); }, "The instruction set in use.");
  m.def("isas", [] {
    nb::list names;
    for (const char* const* n = isas(); *n; ++n) names.append(*n);
    return names;
  }, "Every instruction set that this machine can run, slowest first.");
  m.def("threaded", [] {
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
  }, "Whether the module was built with OpenMP.");
  def(m, "prefer_huge_pages", [](Address begin, int64_t bytes) { prefer_huge_pages(at<void>(begin), bytes); });
  bind_scan<float>(m, "_f32", &Table<float>::linear_scan, &Table<float>::linear_scan_back);
  bind_scan<double>(m, "_f64", &Table<double>::linear_scan, &Table<double>::linear_scan_back);
  bind_scan<float>(m, "_c64", &Table<float>::complex_scan, &Table<float>::complex_scan_back);
  bind_scan<double>(m, "_c128", &Table<double>::complex_scan, &Table<double>::complex_scan_back);
  bind_selective<float>(m, "_f32");
  bind_selective<double>(m, "_f64");
  bind_bank<float>(m, "_f32");
  bind_bank<double>(m, "_f64");
  bind_convolution<float>(m, "_f32");
  bind_convolution<double>(m, "_f64");
  bind<float>(m, "_f32");
  bind<double>(m, "_f64");
  def(m, "reverse", [](int64_t B, int64_t N, int64_t bytes, Address x, Address lengths, Address y, int threads) {
    kernels().reverse(B, N, bytes, at<const char>(x), checked(lengths, B, N), at<char>(y), threads);
  });
  def(m, "philox", [](int64_t B, int64_t n, int64_t first, Address draws, Address words, int threads) {
    kernels().philox(B, n, first, at<const int64_t>(draws), at<int64_t>(words), threads);
  });
}
