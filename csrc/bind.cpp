// The binding: takes tensors, sizes and addresses from Python, releases the GIL, forwards to the chosen table.
//
// Structs arrive as dicts (from_dict.h). Where a function takes few arrays they arrive as integer addresses,
// because importing a Torch tensor costs 4 us and an address 0.1 us.
// Shapes, dtypes and contiguity are checked where the tensors come from: elman/kernels/native.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "checks.h"
#include "crowd.h"
#include "from_dict.h"
#include "gated_layout.h"
#include "json.h"
#include "kernels.h"
#include "tape.h"

namespace {

using namespace elman;
using Address = std::uintptr_t;

template <class Real>
Real* at(Address a) {
  return reinterpret_cast<Real*>(a);
}

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

template <class Real>
void def_kernel(nb::module_& m, const std::string& name, Linear<Real>* Table<Real>::* kernel) {
  def(m, name, [kernel](int64_t M, int64_t N, int64_t K, Address x, Address w, Address b, Address y, int threads) {
    (kernels().of<Real>().*kernel)(M, N, K, at<Real>(x), at<Real>(w), at<Real>(b), at<Real>(y), threads);
  });
}
template <class Real>
void def_kernel(nb::module_& m, const std::string& name, ChooseSymbols<Real>* Table<Real>::* kernel) {
  m.def(name.c_str(),
        [kernel](nb::dict choice, int64_t B, int64_t V, Address logits, Address seen, Address u, Address symbols) {
          const Choice how = from_dict<Choice>(choice);
          const nb::gil_scoped_release release;
          (kernels().of<Real>().*kernel)(how, B, V, at<Real>(logits), at<bool>(seen), at<double>(u), at<int64_t>(symbols));
        });
}
template <class Real>
void def_kernel(nb::module_& m, const std::string& name, Elementwise<Real>* Table<Real>::* kernel) {
  def(m, name, [kernel](int64_t n, Address x, Address y, int threads) {
    (kernels().of<Real>().*kernel)(n, at<Real>(x), at<Real>(y), threads);
  });
}

template <class Real, int axes>
using Array = nb::ndarray<Real, nb::ndim<axes>, nb::c_contig, nb::device::cpu>;

constexpr int64_t brief = 1 << 17;  // multiply-adds: some microseconds

template <class Real>
void bind_stream(nb::module_& m, const std::string& suffix) {
  using P = Program<Real>;
  using S = Stream<Real>;
  nb::class_<P> program(m, ("Program" + suffix).c_str());
  program.def("slot", &P::slot)
      .def("state", &P::state)
      .def("states_known", &P::states_known)
      .def("finish", &P::finish)
      .def(
          "stream", [](P& p, int64_t B) { return p.stream(B).release(); }, nb::rv_policy::take_ownership,
          nb::keep_alive<0, 1>())
      .def("state_begin", &P::state_begin);
#define ELMAN_OPERATION(Type, name)                          \
  program.def(#name, [](P& p, nb::dict fields) {             \
    const auto operation = from_dict<Type<Real>>(fields);    \
    check(operation);                                        \
    return kernels().of<Real>().append_##name(p, operation); \
  });
  ELMAN_OPERATIONS(ELMAN_OPERATION)
#undef ELMAN_OPERATION
  m.def(("program" + suffix).c_str(), [](Stored stored) { return kernels().of<Real>().program(stored); },
        nb::rv_policy::take_ownership);

  // A step of some rows, or of all if `rows` is None: run(x, rows, count, y), and y. A step of a few microseconds
  // keeps the GIL: releasing it would cost as much.
  const auto step = [](S& s, const auto& x, nb::handle rows, Outputs& outputs, const auto& run) {
    std::optional<ArrayView<const int64_t>> named;
    if (!rows.is_none()) named.emplace(rows, 1);
    const int64_t count = named ? named->rows() : s.rows();
    if (x.rows() != count) throw nb::value_error("native stream: a step has an input for each of its rows.");
    std::optional<ArrayView<Real>> to;
    nb::object y = outputs.next<Real>(count, s.output_width(), to);
    std::optional<nb::gil_scoped_release> release;
    if (count * s.work() > brief) release.emplace();
    run(x.data(), named ? named->data() : nullptr, count, to->data());
    release.reset();
    return y;
  };
  nb::class_<S>(m, ("Stream" + suffix).c_str())
      .def_prop_ro("state_row", &S::state_row)
      .def_prop_ro("divides", &S::divides)
      .def(
          "step",
          [step](S& s, nb::handle x, nb::handle rows, Outputs& outputs, int threads) {
            const ArrayView<const Real> given(x, 2);
            if (given.width() != s.input_width())
              throw nb::value_error("native stream: an input of a step is not as wide as the stream's.");
            return step(s, given, rows, outputs, [&](const Real* x, const int64_t* rows, int64_t count, Real* y) {
              s.step(x, rows, count, y, threads);
            });
          },
          nb::arg(), nb::arg().none(), nb::arg(), nb::arg())
      .def(
          "step_symbols",
          [step](S& s, nb::handle symbols, nb::handle rows, Outputs& outputs, int threads) {
            const ArrayView<const int64_t> given(symbols, 1);
            return step(s, given, rows, outputs, [&](const int64_t* symbols, const int64_t* rows, int64_t count, Real* y) {
              s.step_symbols(symbols, rows, count, y, threads);
            });
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
      .def("read",
           [](S& s, Array<const int64_t, 1> symbols, int64_t row, int threads) {
             const nb::gil_scoped_release release;
             s.read(symbols.data(), symbols.shape(0), row, threads);
           })
      .def("write",
           [](S& s, nb::dict choice, nb::dict pending, Array<const int64_t, 1> rows, Array<int64_t, 2> written, int64_t end,
              int threads) {
             const Choice how = from_dict<Choice>(choice);
             const Pending from = from_dict<Pending>(pending);
             if (written.shape(1) != rows.shape(0))
               throw nb::value_error("native stream: what is written has a column for each row.");
             const nb::gil_scoped_release release;
             return s.write(how, from, rows.data(), rows.shape(0), written.shape(0), end, written.data(), threads);
           })
      .def("take", [](const S& s, Address rows, int64_t count, Address to) { s.take(at<int64_t>(rows), count, at<Real>(to)); })
      .def("put", [](S& s, Address rows, int64_t count, Address from) { s.put(at<int64_t>(rows), count, at<Real>(from)); })
      .def("reorder", [](S& s, Address parents) { s.reorder(at<int64_t>(parents)); });
}

template <class Real>
void def_kernel(nb::module_& m, const std::string& name, NewProgram<Real>* Table<Real>::*) {
  bind_stream<Real>(m, name.substr(name.find('_')));
}

// Every kernel by its name and the suffix of a Torch dtype; a complex scan is a linear one of complex numbers.
template <class Real>
void bind(nb::module_& m, const std::string& suffix, const std::string& complex_suffix) {
  const auto bound = [&](const std::string& name) {
    return name.rfind("complex_", 0) == 0 ? "linear_" + name.substr(8) + complex_suffix : name + suffix;
  };
#define ELMAN_KERNEL(Type, name) def_kernel(m, bound(#name), &Table<Real>::name);
  ELMAN_KERNELS(ELMAN_KERNEL)
#undef ELMAN_KERNEL
}

// A tape from Python, instruction by instruction (kernels/native/tape); then run(addresses of the arrays that are given, of those
// that are made, threads), which is whether it came to its end.
void bind_tape(nb::module_& m) {
  nb::enum_<TapeCode> codes(m, "TapeCode");
#define ELMAN_CODE(name) codes.value(#name, TapeCode::name);
  ELMAN_TAPE_CODES(ELMAN_CODE)
#undef ELMAN_CODE
  nb::enum_<TapeType> types(m, "TapeType");
#define ELMAN_CODE(name) types.value(#name, TapeType::name);
  ELMAN_TAPE_TYPES(ELMAN_CODE)
#undef ELMAN_CODE
  m.attr("TAPE_AXES") = tape_axes;
  nb::class_<Tape>(m, "Tape")
      .def(nb::init<>())
      .def_rw("memory", &Tape::memory)
      .def_rw("given", &Tape::given)
      .def_rw("made", &Tape::made)
      .def("constant",  // its offset in bytes
           [](Tape& tape, nb::bytes bytes) {
             const size_t at = (tape.constants.size() + cache_line - 1) / cache_line * cache_line;
             tape.constants.resize(at + bytes.size());
             std::memcpy(tape.constants.data() + at, bytes.c_str(), bytes.size());
             return at;
           })
      .def("append",
           [](Tape& tape, TapeCode code, TapeType type, std::vector<int64_t> sizes, std::vector<int64_t> more,
              const std::vector<std::vector<int64_t>>& operands) {
             Tape::Instruction i{code, type, 1, std::move(sizes), std::move(more), {}};
             if (i.sizes.empty() || int64_t(i.sizes.size()) > tape_axes)
               throw nb::value_error("native tape: an instruction has 1 to 16 axes.");
             for (const int64_t size : i.sizes) i.count *= size;
             for (const std::vector<int64_t>& o : operands) {
               if (o.size() != 2 + i.sizes.size()) throw nb::value_error("native tape: an operand has a stride for each axis.");
               Tape::Operand operand{o[0], o[1], {o.begin() + 2, o.end()}, true};
               for (int64_t k = int64_t(i.sizes.size()) - 1, side = 1; k >= 0; side *= i.sizes[size_t(k--)])
                 operand.plain &= i.sizes[size_t(k)] == 1 || operand.strides[size_t(k)] == side;
               i.operands.push_back(std::move(operand));
             }
             tape.instructions.push_back(std::move(i));
           })
      .def("run", [](const Tape& tape, const std::vector<Address>& given, const std::vector<Address>& made, int threads) {
        if (int64_t(given.size()) != tape.given || int64_t(made.size()) != tape.made)
          throw nb::value_error("native tape: it was given other arrays than it was written down with.");
        const nb::gil_scoped_release release;
        return run_tape()(tape, reinterpret_cast<char* const*>(given.data()), reinterpret_cast<char* const*>(made.data()),
                          threads);
      });
}

// What a caller must know, from where it is defined: nobody writes it twice.
void bind_codes(nb::module_& m) {
  nb::enum_<Function> functions(m, "Function");
#define ELMAN_CODE(name) functions.value(#name, Function::name);
  ELMAN_FUNCTIONS(ELMAN_CODE)
#undef ELMAN_CODE
  nb::enum_<Combination> combinations(m, "Combination");
#define ELMAN_CODE(name) combinations.value(#name, Combination::name);
  ELMAN_COMBINATIONS(ELMAN_CODE)
#undef ELMAN_CODE
  nb::enum_<Stored> stored(m, "Stored");
#define ELMAN_CODE(name) stored.value(#name, Stored::name);
  ELMAN_STORED_AS(ELMAN_CODE)
#undef ELMAN_CODE
}

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
  nb::class_<Outputs>(m, "Outputs").def(nb::init<nb::object>());
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
  bind_codes(m);
  bind_gated_facts(m);
  bind_tape(m);
  def(m, "release_scratch", &release_scratch);
  m.def("scratch_kept", &scratch_kept, "Bytes that threads keep between calls.");
  m.attr("KEEPS_MEMORY") = keeps_memory();
  m.attr("ROW_GROUPS") = row_groups;
  def(m, "prefer_huge_pages", [](Address begin, int64_t bytes) { prefer_huge_pages(at<void>(begin), bytes); });
  bind<float>(m, "_f32", "_c64");
  bind<double>(m, "_f64", "_c128");
  def(m, "reverse", [](int64_t B, int64_t T, int64_t bytes, Address x, Address lengths, Address y, int threads) {
    check_lengths(at<const int64_t>(lengths), B, T);
    kernels().reverse(B, T, bytes, at<const char>(x), at<const int64_t>(lengths), at<char>(y), threads);
  });
  def(m, "digest", [](Address bytes, int64_t count) { return kernels().digest(at<const unsigned char>(bytes), count); });
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
