// What a program's steps work on: slots, and where they lie for the rows that are being stepped.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "buffers.h"

namespace elman::ELMAN_NS {

constexpr int64_t largest_table = 1 << 22;  // numbers that a program may remember of its symbols

// What a slot is, and where it begins: among the arrays of a workspace, in a row's state, among the constants. A slot of some
// columns of another has its home and begins `offset` numbers further.
enum class Home { workspace, state, constant };
struct Slot {
  Home home;
  int64_t width, stride, begin, offset = 0;
};

// Where the slots of the rows that are being stepped lie, and the symbols that they read.
template <class Real>
struct Workspace {
  struct Place {
    Real* begin;
    int64_t stride;
  };
  std::vector<Place> places;
  Buffer<Real> arrays, gathered;
  int64_t rows = 0;  // that are being stepped
  const int64_t* symbols = nullptr;
  const int64_t* draws = nullptr;  // (rows, 2): the seed of each, and how often it has drawn; null where nothing is drawn
  const int64_t* named =
      nullptr;  // the numbers of these rows in the stream; null where they follow one another from `first` on
  int64_t first = 0;
  bool backwards = false;  // from one step to the next: what is still in the cache of large weights then comes first

  int64_t number(int64_t row) const { return named ? named[row] : first + row; }

  Real* at(int slot, int64_t row) const { return places[slot].begin + row * places[slot].stride; }
};

// What a product makes of each symbol: a line of N numbers, made when the symbol first comes and copied from then on.
template <class Real>
class Remembered {
 public:
  using Make = std::function<void(int64_t symbol, Real* line)>;
  Remembered(int64_t V, int64_t N, Make make)
      : N_(N), table_(allocate<Real>(V * N)), known_(std::make_unique<std::atomic<bool>[]>(V)), make_(std::move(make)) {
    for (int64_t v = 0; v < V; ++v) known_[v] = false;
  }

  const Real* line(int64_t symbol) const { return table_.get() + symbol * N_; }

  // Before several threads read them; several streams may come at once.
  void learn(const int64_t* symbols, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t symbol = symbols[i];
      if (known_[symbol].load(std::memory_order_acquire)) continue;
      const std::lock_guard<std::mutex> lock(mutex_);
      if (known_[symbol].load(std::memory_order_relaxed)) continue;
      make_(symbol, table_.get() + symbol * N_);
      known_[symbol].store(true, std::memory_order_release);
    }
  }

 private:
  int64_t N_;
  Buffer<Real> table_;
  std::unique_ptr<std::atomic<bool>[]> known_;
  Make make_;
  std::mutex mutex_;
};

}  // namespace elman::ELMAN_NS
