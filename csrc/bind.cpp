// The binding: takes tensors, sizes and addresses from Python, releases the GIL, forwards to the chosen table.
//
// The structs of kernels.h arrive as dicts (fields.h). Where a function takes few arrays they arrive as integer addresses,
// because importing a Torch tensor costs 4 us and an address 0.1 us.
// Shapes, dtypes and contiguity are checked where the tensors come from: elman/kernels/native.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "crowd.h"
#include "fields.h"
#include "gated_layout.h"
#include "json.h"
#include "kernels.h"

namespace elman {

template <class S, class F>
void lengths_and_reset(S& s, F& f) {
  f("lengths", s.lengths);
  f("reset", s.reset);
}

template <class F>
void fields(Dims& s, F& f) {
  f("B", s.B), f("T", s.T), f("C", s.C);
}

template <class Real, class F>
void fields(ScanInputs<Real>& s, F& f) {
  f("n", s.n), f("a", s.a), f("b", s.b), f("h0", s.h0), lengths_and_reset(s, f);
}

template <class Real, class F>
void fields(ScanOutputs<Real>& s, F& f) {
  f("h", s.h), f("last", s.last);
}

template <class Real, class F>
void fields(ScanArriving<Real>& s, F& f) {
  f("h", s.h), f("gh", s.gh), f("glast", s.glast);
}

template <class Real, class F>
void fields(ScanGradients<Real>& s, F& f) {
  f("ga", s.ga), f("sum", s.sum), f("gb", s.gb), f("gh0", s.gh0);
}

template <class Real, class F>
void fields(SelectiveInputs<Real>& s, F& f) {
  f("n", s.n), f("N", s.N), f("every", s.every), f("x", s.x), f("delta", s.delta), f("A", s.A), f("B", s.B), f("C", s.C),
      f("h0", s.h0), lengths_and_reset(s, f);
}

template <class Real, class F>
void fields(SelectiveOutputs<Real>& s, F& f) {
  f("y", s.y), f("last", s.last), f("saved", s.saved);
}

template <class Real, class F>
void fields(SelectiveArriving<Real>& s, F& f) {
  f("saved", s.saved), f("gy", s.gy), f("glast", s.glast);
}

template <class Real, class F>
void fields(SelectiveGradients<Real>& s, F& f) {
  f("gx", s.gx), f("gdelta", s.gdelta), f("gA", s.gA), f("gB", s.gB), f("gC", s.gC), f("gh0", s.gh0);
}

template <class Real, class F>
void fields(BankInputs<Real>& s, F& f) {
  f("n", s.n), f("N", s.N), f("every", s.every), f("x", s.x), f("a", s.a), f("b", s.b), f("c", s.c), f("h0", s.h0),
      lengths_and_reset(s, f);
}

template <class Real, class F>
void fields(BankOutputs<Real>& s, F& f) {
  f("y", s.y), f("last", s.last), f("saved", s.saved);
}

template <class Real, class F>
void fields(BankArriving<Real>& s, F& f) {
  f("saved", s.saved), f("gy", s.gy), f("glast", s.glast);
}

template <class Real, class F>
void fields(BankGradients<Real>& s, F& f) {
  f("gx", s.gx), f("ga", s.ga), f("gb", s.gb), f("gc", s.gc), f("gh0", s.gh0);
}

template <class Real, class F>
void fields(ConvolutionInputs<Real>& s, F& f) {
  f("n", s.n), f("K", s.K), f("x", s.x), f("w", s.w), f("bias", s.bias), f("window", s.window), lengths_and_reset(s, f);
}

template <class Real, class F>
void fields(ConvolutionOutputs<Real>& s, F& f) {
  f("y", s.y), f("last", s.last);
}

template <class Real, class F>
void fields(ConvolutionArriving<Real>& s, F& f) {
  f("gy", s.gy), f("glast", s.glast);
}

template <class Real, class F>
void fields(ConvolutionGradients<Real>& s, F& f) {
  f("gx", s.gx), f("gwindow", s.gwindow), f("sums", s.sums);
}

template <class Real, class F>
void fields(GatedOptions<Real>& s, F& f) {
  f("peephole", s.peephole), f("P", s.P), f("gain", s.gain), f("gain_U", s.gain_U), f("gain_c", s.gain_c),
      f("bias_c", s.bias_c);
}

template <class Real, class F>
void fields(GatedWeights<Real>& s, F& f) {
  f("kind", s.kind), f("D", s.D), f("H", s.H), f("R", s.R), f("U", s.U), f("b", s.b), f("w", s.w), f("extra", s.extra),
      f("extra_size", s.extra_size), f("options", s.options);
}

template <class Real, class F>
void fields(GatedInputs<Real>& s, F& f) {
  f("weights", s.weights), f("B", s.B), f("T", s.T), f("every", s.every), f("x", s.x), f("h0", s.h0), f("c0", s.c0),
      lengths_and_reset(s, f);
}

template <class Real, class F>
void fields(GatedOutputs<Real>& s, F& f) {
  f("y", s.y), f("h", s.h), f("c", s.c), f("saved", s.saved), f("checkpoints", s.checkpoints);
}

template <class Real, class F>
void fields(GatedArriving<Real>& s, F& f) {
  f("y", s.y), f("saved", s.saved), f("checkpoints", s.checkpoints), f("gy", s.gy), f("gh", s.gh), f("gc", s.gc);
}

template <class Real, class F>
void fields(GatedGradients<Real>& s, F& f) {
  f("gx", s.gx), f("gU", s.gU), f("gb", s.gb), f("gw", s.gw), f("gextra", s.gextra), f("gh0", s.gh0), f("gc0", s.gc0),
      f("options", s.options);
}

template <class Real, class F>
void fields(AttendInputs<Real>& s, F& f) {
  f("B", s.B), f("T", s.T), f("S", s.S), f("A", s.A), f("M", s.M), f("query", s.query), f("keys", s.keys),
      f("values", s.values), f("v", s.v), f("lengths", s.lengths);
}

template <class Real, class F>
void fields(AttendOutputs<Real>& s, F& f) {
  f("context", s.context), f("weights", s.weights);
}

template <class Real, class F>
void fields(AttendArriving<Real>& s, F& f) {
  f("weights", s.weights), f("gcontext", s.gcontext), f("gweights", s.gweights);
}

template <class Real, class F>
void fields(AttendGradients<Real>& s, F& f) {
  f("gquery", s.gquery), f("gkeys", s.gkeys), f("gvalues", s.gvalues), f("gv", s.gv);
}

template <class Real, class F>
void fields(AttendedInputs<Real>& s, F& f) {
  f("weights", s.weights), f("B", s.B), f("T", s.T), f("u", s.u), f("h0", s.h0), f("c0", s.c0), f("y0", s.y0),
      lengths_and_reset(s, f), f("memory", s.memory), f("Q", s.Q), f("O", s.O), f("o", s.o);
}

template <class Real, class F>
void fields(AttendedOutputs<Real>& s, F& f) {
  f("h", s.h), f("context", s.context), f("y", s.y), f("query", s.query), f("weights", s.weights), f("last_h", s.last_h),
      f("last_c", s.last_c), f("last_y", s.last_y), f("saved", s.saved);
}

template <class Real, class F>
void fields(AttendedArriving<Real>& s, F& f) {
  f("h", s.h), f("y", s.y), f("query", s.query), f("weights", s.weights), f("saved", s.saved), f("gh", s.gh),
      f("gcontext", s.gcontext), f("gy", s.gy), f("glast_h", s.glast_h), f("glast_c", s.glast_c), f("glast_y", s.glast_y);
}

template <class Real, class F>
void fields(AttendedGradients<Real>& s, F& f) {
  f("gu", s.gu), f("gsum", s.gsum), f("gquery", s.gquery), f("gpre", s.gpre), f("gkeys", s.gkeys), f("gvalues", s.gvalues),
      f("gv", s.gv), f("gh0", s.gh0), f("gc0", s.gc0), f("gy0", s.gy0);
}

template <class Real, class F>
void fields(GatheredInputs<Real>& s, F& f) {
  f("N", s.N), f("levels", s.levels), f("M", s.M), f("A", s.A), f("H", s.H), f("P", s.P), f("F", s.F), f("u", s.u), f("w", s.w),
      f("b", s.b), f("h0", s.h0), f("c0", s.c0), f("level", s.level), f("before", s.before), f("first", s.first),
      f("source", s.source), f("group", s.group);
}

template <class Real, class F>
void fields(GatheredOutputs<Real>& s, F& f) {
  f("h", s.h), f("c", s.c), f("saved", s.saved), f("forgets", s.forgets);
}

template <class Real, class F>
void fields(GatheredArriving<Real>& s, F& f) {
  f("h", s.h), f("c", s.c), f("saved", s.saved), f("forgets", s.forgets);
}

template <class Real, class F>
void fields(GatheredGradients<Real>& s, F& f) {
  f("gu", s.gu), f("gsum", s.gsum), f("gforgets", s.gforgets), f("gh", s.gh), f("gc", s.gc);
}

template <class Real, class F>
void fields(HmmInputs<Real>& s, F& f) {
  f("B", s.B), f("T", s.T), f("K", s.K), f("x", s.x), f("start", s.start), f("transition", s.transition), f("state", s.state),
      lengths_and_reset(s, f);
}

template <class Real, class F>
void fields(HmmOutputs<Real>& s, F& f) {
  f("log_c", s.log_c), f("p", s.p), f("shift", s.shift), f("scale", s.scale), f("last", s.last), f("lost", s.lost);
}

template <class Real, class F>
void fields(HmmArriving<Real>& s, F& f) {
  f("p", s.p), f("shift", s.shift), f("scale", s.scale), f("glog", s.glog), f("gp", s.gp), f("glast", s.glast),
      f("lost", s.lost);
}

template <class Real, class F>
void fields(HmmGradients<Real>& s, F& f) {
  f("gx", s.gx), f("gstart", s.gstart), f("ga", s.ga), f("gstate", s.gstate);
}

template <class Real, class F>
void fields(ViterbiInputs<Real>& s, F& f) {
  f("B", s.B), f("T", s.T), f("K", s.K), f("x", s.x), f("start", s.start), f("transition", s.transition), f("stop", s.stop),
      lengths_and_reset(s, f);
}

template <class Real, class F>
void fields(ViterbiOutputs<Real>& s, F& f) {
  f("path", s.path), f("score", s.score);
}

template <class Real, class F>
void fields(NormInputs<Real>& s, F& f) {
  f("M", s.M), f("N", s.N), f("x", s.x), f("gain", s.gain), f("bias", s.bias), f("eps", s.eps), f("centred", s.centred);
}

template <class Real, class F>
void fields(NormOutputs<Real>& s, F& f) {
  f("y", s.y), f("mean", s.mean), f("scale", s.scale);
}

template <class Real, class F>
void fields(NormArriving<Real>& s, F& f) {
  f("mean", s.mean), f("scale", s.scale), f("gy", s.gy);
}

template <class Real, class F>
void fields(NormGradients<Real>& s, F& f) {
  f("gx", s.gx), f("ggain", s.ggain), f("gbias", s.gbias);
}

}  // namespace elman

namespace {

using namespace elman;
using Address = std::uintptr_t;

template <class Real>
Real* at(Address a) {
  return reinterpret_cast<Real*>(a);
}

// A length past the end would be read and written past the end.
void check_lengths(const int64_t* lengths, int64_t B, int64_t T) {
  for (int64_t i = 0; i < B; ++i)
    if (lengths[i] < 0 || lengths[i] > T)
      throw nb::value_error(("native kernel: lengths[" + std::to_string(i) + "] is " + std::to_string(lengths[i]) +
                             ", but must be in [0, " + std::to_string(T) + "], the number of time steps.")
                                .c_str());
}
void check_gather(int64_t N, int64_t levels, int64_t P, int64_t M, const int64_t* level, const int64_t* before,
                  const int64_t* first, const int64_t* source, const int64_t* group) {
  const auto wrong = [](const char* what, int64_t row) {
    throw nb::value_error(("native kernel: row " + std::to_string(row) + " of a gathered loop " + what).c_str());
  };
  if (level[0] < 0 || level[levels] != N) wrong("is in no level.", level[levels]);
  for (int64_t l = 0; l < levels; ++l)
    if (level[l + 1] < level[l]) wrong("is in two levels.", level[l + 1]);
  if (first && first[level[0]] != 0) wrong("is given and gathers.", 0);
  std::vector<bool> read(M, false);
  for (int64_t l = 0; l < levels; ++l) {
    for (int64_t n = level[l]; n < level[l + 1]; ++n) {
      const int64_t begin = first ? first[n] : n * P, end = first ? first[n + 1] : begin + P;
      if (end < begin) wrong("gathers less than nothing.", n);
      int64_t found = 0;
      for (int64_t e = begin; e < end; ++e) {
        if (before[e] < (first ? 0 : -1) || before[e] >= level[l])
          wrong("gathers from a row that is not in an earlier level.", n);
        if (group && before[e] >= 0 && group[before[e]] != group[n]) wrong("gathers from another group.", n);
        found += before[e] >= 0;
      }
      if ((found > 0) != (l > 0)) wrong("gathers something in the first level, or nothing in a later one.", n);
      if (group && (group[n] < 0 || (n > level[l] && group[n] < group[n - 1]))) wrong("is out of the order of the groups.", n);
      const int64_t m = source ? source[n] : n - level[0];
      if (m >= M || m < -1 || (m >= 0 && read[m])) wrong("reads a row of u that is not there, or that another one reads.", n);
      if (m >= 0) read[m] = true;
    }
  }
}
template <class Real> void check(const ScanInputs<Real>& in) { check_lengths(in.lengths, in.n.B, in.n.T); }
template <class Real> void check(const SelectiveInputs<Real>& in) { check_lengths(in.lengths, in.n.B, in.n.T); }
template <class Real> void check(const BankInputs<Real>& in) { check_lengths(in.lengths, in.n.B, in.n.T); }
template <class Real> void check(const ConvolutionInputs<Real>& in) { check_lengths(in.lengths, in.n.B, in.n.T); }
template <class Real> void check(const GatedInputs<Real>& in) { check_lengths(in.lengths, in.B, in.T); }
template <class Real> void check(const AttendInputs<Real>& in) { check_lengths(in.lengths, in.B, in.S); }
template <class Real> void check(const AttendedInputs<Real>& in) {
  check_lengths(in.lengths, in.B, in.T);
  check(in.memory);
}
// A row that is not there, or not computed yet, would be read.
template <class Real> void check(const GatheredInputs<Real>& in) {
  check_gather(in.N, in.levels, in.P, in.M, in.level, in.before, in.first, in.source, in.group);
}
template <class Real> void check(const HmmInputs<Real>& in) { check_lengths(in.lengths, in.B, in.T); }
template <class Real> void check(const ViterbiInputs<Real>& in) { check_lengths(in.lengths, in.B, in.T); }
template <class Real> void check(const NormInputs<Real>&) {}

template <class F>
void def(nb::module_& m, const std::string& name, F f) {
  m.def(name.c_str(), f, nb::call_guard<nb::gil_scoped_release>());
}

// A kernel on structs: its arguments are dicts of their fields, then the number of threads.
template <class Real, class Inputs, class Outputs>
void def_kernel(nb::module_& m, const std::string& name, void (*Table<Real>::*kernel)(const Inputs&, const Outputs&, int)) {
  m.def(name.c_str(), [kernel](nb::dict inputs, nb::dict outputs, int threads) {
    const Inputs in = from_dict<Inputs>(inputs);
    const Outputs out = from_dict<Outputs>(outputs);
    check(in);
    const nb::gil_scoped_release release;
    (kernels().of<Real>().*kernel)(in, out, threads);
  });
}
template <class Real, class Inputs, class Arriving, class Gradients>
void def_kernel(nb::module_& m, const std::string& name,
                void (*Table<Real>::*kernel)(const Inputs&, const Arriving&, const Gradients&, int)) {
  m.def(name.c_str(), [kernel](nb::dict inputs, nb::dict arriving, nb::dict gradients, int threads) {
    const Inputs in = from_dict<Inputs>(inputs);
    const Arriving from = from_dict<Arriving>(arriving);
    const Gradients to = from_dict<Gradients>(gradients);
    check(in);
    const nb::gil_scoped_release release;
    (kernels().of<Real>().*kernel)(in, from, to, threads);
  });
}

template <class Real, int axes>
using Array = nb::ndarray<Real, nb::ndim<axes>, nb::c_contig, nb::device::cpu>;
using RowNumbers = std::optional<Array<const int64_t, 1>>;

template <class Real>
void bind_stream(nb::module_& m, const std::string& suffix) {
  using P = Program<Real>;
  using S = Stream<Real>;
  nb::class_<P>(m, ("Program" + suffix).c_str())
      .def("slot", &P::slot)
      .def("state", &P::state)
      .def("constant", [](P& p, int64_t width, Address values) { return p.constant(width, at<Real>(values)); })
      .def("lookup", [](P& p, int64_t V, int64_t width, Address table) { return p.lookup(V, width, at<Real>(table)); })
      .def("linear", [](P& p, int x, int64_t N, Address w, Address b) { return p.linear(x, N, at<Real>(w), at<Real>(b)); })
      .def("gated", [](P& p, nb::dict weights, int x, int fed, Address U_fed, int h,
                       int c) { p.gated(from_dict<GatedWeights<Real>>(weights), x, fed, at<Real>(U_fed), h, c); })
      .def("attend",
           [](P& p, int query, int weights, nb::dict memory, int64_t each) {
             const auto given = from_dict<AttendInputs<Real>>(memory);
             check(given);
             return p.attend(query, weights, given, each);
           })
      .def("scan", &P::scan)
      .def("selective", [](P& p, int x, int delta, int64_t N, Address A, int B, int C,
                           int h) { return p.selective(x, delta, N, at<Real>(A), B, C, h); })
      .def("bank", [](P& p, int x, int64_t N, Address a, Address b, Address c,
                      int h) { return p.bank(x, N, at<Real>(a), at<Real>(b), at<Real>(c), h); })
      .def("filter", [](P& p, int x, Address transition, int state) { p.filter(x, at<Real>(transition), state); })
      .def("convolution", [](P& p, int x, int64_t K, Address w, Address bias,
                             int window) { return p.convolution(x, K, at<Real>(w), at<Real>(bias), window); })
      .def("map", &P::map)
      .def("combine", &P::combine)
      .def("choose", &P::choose)
      .def("gather", [](P& p, int x, Array<const int64_t, 1> columns) { return p.gather(x, columns.data(), columns.shape(0)); })
      .def("lags", [](P& p, int x, Array<const int64_t, 1> delays,
                      int past) { return p.lags(x, delays.data(), delays.shape(0), past); })
      .def("mean", &P::mean)
      .def("norm", [](P& p, bool centred, int x, Address gain, Address bias,
                      double eps) { return p.norm(centred, x, at<Real>(gain), at<Real>(bias), eps); })
      .def("copy", &P::copy)
      .def("cut", &P::cut)
      .def("student_t", &P::student_t)
      .def("finish", &P::finish)
      .def(
          "stream", [](P& p, int64_t B) { return p.stream(B).release(); }, nb::rv_policy::take_ownership,
          nb::keep_alive<0, 1>())
      .def("state_begin", &P::state_begin);
  m.def(("program" + suffix).c_str(), [] { return kernels().of<Real>().program(); }, nb::rv_policy::take_ownership);

  // How many rows are named, if the shapes fit.
  const auto checked = [](const S& s, const RowNumbers& rows, int64_t given, int64_t expected, const Array<Real, 2>& y) {
    const int64_t count = rows ? int64_t(rows->shape(0)) : s.rows();
    if (given != count || expected < 0 || int64_t(y.shape(0)) != count || int64_t(y.shape(1)) != s.output_width())
      throw nb::value_error("native stream: the arrays of a step do not have the shapes of the stream's input and output.");
    return count;
  };
  nb::class_<S>(m, ("Stream" + suffix).c_str())
      .def_prop_ro("state_row", &S::state_row)
      .def(
          "step",
          [checked](S& s, Array<const Real, 2> x, RowNumbers rows, Array<Real, 2> y, int threads) {
            const int64_t count = checked(s, rows, x.shape(0), int64_t(x.shape(1)) == s.input_width() ? 0 : -1, y);
            const nb::gil_scoped_release release;
            s.step(x.data(), rows ? rows->data() : nullptr, count, y.data(), threads);
          },
          nb::arg(), nb::arg().none(), nb::arg(), nb::arg())
      .def(
          "step_symbols",
          [checked](S& s, Array<const int64_t, 1> symbols, RowNumbers rows, Array<Real, 2> y, int threads) {
            const int64_t count = checked(s, rows, symbols.shape(0), 0, y);
            const nb::gil_scoped_release release;
            s.step_symbols(symbols.data(), rows ? rows->data() : nullptr, count, y.data(), threads);
          },
          nb::arg(), nb::arg().none(), nb::arg(), nb::arg())
      .def("carry",
           [](S& s, Array<const Real, 2> x, nb::bytes before, Array<Real, 2> after, Array<Real, 2> y, int threads) {
             const int64_t count = x.shape(0), row = s.state_row();
             if (int64_t(x.shape(1)) != s.input_width() || int64_t(before.size()) != count * row * int64_t(sizeof(Real)) ||
                 int64_t(after.shape(0)) != count || int64_t(after.shape(1)) != row || int64_t(y.shape(0)) != count ||
                 int64_t(y.shape(1)) != s.output_width())
               throw nb::value_error(
                   "native stream: the arrays of a step do not have the shapes of the stream's input, state and output.");
             const Real* given = reinterpret_cast<const Real*>(before.c_str());
             const nb::gil_scoped_release release;
             s.carry(x.data(), count, given, after.data(), y.data(), threads);
           })
      .def("paths",
           [](const S& s, Array<const Real, 3> x, Array<const int64_t, 2> draws, Array<double, 3> y, int threads) {
             const int64_t H = x.shape(1), paths = draws.shape(0);
             if (int64_t(x.shape(0)) != s.rows() || int64_t(x.shape(2)) != s.input_width() || paths % s.rows() != 0 ||
                 draws.shape(1) != 2 || int64_t(y.shape(0)) != paths || int64_t(y.shape(1)) != H ||
                 int64_t(y.shape(2)) != s.output_width())
               throw nb::value_error(
                   "native stream: the arrays of paths do not have the shapes of the stream's input and output.");
             const nb::gil_scoped_release release;
             s.paths(x.data(), H, draws.data(), paths / s.rows(), y.data(), threads);
           })
      .def("take", [](const S& s, Address rows, int64_t count, Address to) { s.take(at<int64_t>(rows), count, at<Real>(to)); })
      .def("put", [](S& s, Address rows, int64_t count, Address from) { s.put(at<int64_t>(rows), count, at<Real>(from)); })
      .def("reorder", [](S& s, Address parents) { s.reorder(at<int64_t>(parents)); });
}

template <class Real>
void bind(nb::module_& m, const std::string& suffix, const std::string& complex_suffix) {
  using Kernels = Table<Real>;
  def_kernel(m, "linear_scan" + suffix, &Kernels::linear_scan);
  def_kernel(m, "linear_scan_back" + suffix, &Kernels::linear_scan_back);
  def_kernel(m, "linear_scan" + complex_suffix, &Kernels::complex_scan);
  def_kernel(m, "linear_scan_back" + complex_suffix, &Kernels::complex_scan_back);
  def_kernel(m, "selective_scan" + suffix, &Kernels::selective_scan);
  def_kernel(m, "selective_scan_back" + suffix, &Kernels::selective_scan_back);
  def_kernel(m, "bank_scan" + suffix, &Kernels::bank_scan);
  def_kernel(m, "bank_scan_back" + suffix, &Kernels::bank_scan_back);
  def_kernel(m, "convolution" + suffix, &Kernels::convolution);
  def_kernel(m, "convolution_back" + suffix, &Kernels::convolution_back);
  def_kernel(m, "gated" + suffix, &Kernels::gated);
  def_kernel(m, "gated_back" + suffix, &Kernels::gated_back);
  def_kernel(m, "attend" + suffix, &Kernels::attend);
  def_kernel(m, "attend_back" + suffix, &Kernels::attend_back);
  def_kernel(m, "attended" + suffix, &Kernels::attended);
  def_kernel(m, "attended_back" + suffix, &Kernels::attended_back);
  def_kernel(m, "gathered" + suffix, &Kernels::gathered);
  def_kernel(m, "gathered_back" + suffix, &Kernels::gathered_back);
  def_kernel(m, "hmm_filter" + suffix, &Kernels::hmm_filter);
  def_kernel(m, "hmm_filter_back" + suffix, &Kernels::hmm_filter_back);
  def_kernel(m, "viterbi" + suffix, &Kernels::viterbi);
  def_kernel(m, "norm" + suffix, &Kernels::norm);
  def_kernel(m, "norm_back" + suffix, &Kernels::norm_back);

  def(m, "linear" + suffix, [](int64_t M, int64_t N, int64_t K, Address x, Address w, Address b, Address y, int threads) {
    kernels().of<Real>().linear(M, N, K, at<Real>(x), at<Real>(w), at<Real>(b), at<Real>(y), threads);
  });
  const auto elementwise = [&](const char* name, Elementwise<Real>* Kernels::* kernel) {
    def(m, name + suffix, [kernel](int64_t n, Address x, Address y, int threads) {
      (kernels().of<Real>().*kernel)(n, at<Real>(x), at<Real>(y), threads);
    });
  };
  elementwise("sigmoid", &Kernels::sigmoid);
  elementwise("tanh", &Kernels::tanh);
  elementwise("softplus", &Kernels::softplus);
  elementwise("silu", &Kernels::silu);
  elementwise("log", &Kernels::log);

  bind_stream<Real>(m, suffix);
}

// What a caller must know of the gated loops, from where they are defined: nobody writes it twice.
void bind_gated_facts(nb::module_& m) {
  nb::dict kinds;
  for (int i = 0; i < kernels().gated_kind_count; ++i) {
    const GatedKind& kind = kernels().gated_kinds[i];
    nb::dict facts;
    facts["number"] = kind.number;
    facts["gates"] = kind.gates;
    facts["saves"] = kind.saves;
    facts["states"] = kind.states;
    facts["matrix"] = kind.matrix;
    facts["attends"] = kind.attends;
    kinds[kind.name] = facts;
  }
  m.attr("GATED_KINDS") = kinds;
  m.def(
      "gated_layout",
      [](int kind, int64_t H, int64_t R, bool gain, bool gain_U, bool gain_c, int64_t itemsize) {
        if (kind < 0 || kind >= kernels().gated_kind_count)
          throw nb::value_error("native kernel: there is no such kind of gated cell.");
        const GatedLayout layout(kernels().gated_kinds[kind], H, R, gain, gain_U, gain_c, itemsize);
        return std::pair(layout.saved_row, layout.state_row);
      },
      "Numbers that a gated loop saves of a row and step, and numbers of a row's state at a checkpoint.");
}

}  // namespace

NB_MODULE(_native, m) {
  const char* wanted = std::getenv("ELMAN_ISA");
  choose(wanted ? wanted : "");
  m.def("teams_dissolved", &teams_dissolved, "How many teams of threads waited so long that one of them finished alone.");
  m.def("isa", [] { return std::string(isa()); }, "The instruction set in use.");
  m.def(
      "isas",
      [] {
        nb::list names;
        for (const char* const* n = isas(); *n; ++n) names.append(*n);
        return names;
      },
      "Every instruction set that this machine can run, slowest first.");
  m.def(
      "threaded",
      [] {
#ifdef _OPENMP
        return true;
#else
        return false;
#endif
      },
      "Whether the module was built with OpenMP.");
  bind_gated_facts(m);
  def(m, "prefer_huge_pages", [](Address begin, int64_t bytes) { prefer_huge_pages(at<void>(begin), bytes); });
  bind<float>(m, "_f32", "_c64");
  bind<double>(m, "_f64", "_c128");
  def(m, "reverse", [](int64_t B, int64_t T, int64_t bytes, Address x, Address lengths, Address y, int threads) {
    check_lengths(at<const int64_t>(lengths), B, T);
    kernels().reverse(B, T, bytes, at<const char>(x), at<const int64_t>(lengths), at<char>(y), threads);
  });
  m.attr("JSON_NUMBER") = json_number;
  def(m, "json_rows", [](int64_t n, int64_t H, Address y, Address text, Address ends) {
    json_rows(n, H, at<const float>(y), at<char>(text), at<int64_t>(ends));
  });
  def(m, "student_t", [](int64_t B, int64_t D, Address draws, Address df, Address t, int threads) {
    kernels().student_t(B, D, at<const int64_t>(draws), at<const double>(df), at<double>(t), threads);
  });
  def(m, "philox", [](int64_t B, int64_t n, int64_t first, Address draws, Address words, int threads) {
    kernels().philox(B, n, first, at<const int64_t>(draws), at<int64_t>(words), threads);
  });
}
