// Numbers of things, typed by what they number, and vectors that are indexed by these alone: what
// is known of each operator, say. A number of one thing cannot be taken for that of another.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace flexlegion {

// `What` is the name of the thing; it need not be a type that there is.
template <typename What>
struct Id {
  int value = -1;  // of none

  constexpr Id() = default;
  constexpr explicit Id(int number) : value(number) {}
  constexpr explicit Id(std::size_t number) : value(static_cast<int>(number)) {}

  constexpr bool none() const { return value < 0; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }

  friend constexpr bool operator==(Id a, Id b) { return a.value == b.value; }
  friend constexpr bool operator!=(Id a, Id b) { return a.value != b.value; }
  friend constexpr bool operator<(Id a, Id b) { return a.value < b.value; }
};

// The numbers from one to another, upwards or downwards, for loops.
template <typename I>
struct IdRange {
  struct Iterator {
    int at, step;
    I operator*() const { return I(at); }
    Iterator& operator++() {
      at += step;
      return *this;
    }
    bool operator!=(const Iterator& o) const { return at != o.at; }
  };
  int first, stop, step = 1;

  Iterator begin() const { return {first, step}; }
  Iterator end() const { return {stop, step}; }
  IdRange reversed() const { return {stop - step, first - step, -step}; }
};

template <typename I, typename T>
struct IdVector : std::vector<T> {
  using Items = std::vector<T>;
  using Items::Items;

  decltype(auto) operator[](I id) { return Items::operator[](id.index()); }
  decltype(auto) operator[](I id) const { return Items::operator[](id.index()); }

  bool has(I id) const { return id.index() < this->size(); }  // none is not among them, either
  IdRange<I> ids() const { return {0, static_cast<int>(this->size())}; }
  I add(T item) {
    this->push_back(std::move(item));
    return I(this->size() - 1);
  }
};

}  // namespace flexlegion
