// Random input for the C ABI: graphs and machines, right or wrong, and what callers know of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flexlegion_core.h"

namespace fuzz {

// A random source. While `hostile`, every 30th number that passes `twisted` is replaced by one that
// hardly fits.
class Source {
 public:
  explicit Source(std::uint64_t seed) : engine_(seed) {}

  bool hostile = false;

  int upto(int last) { return static_cast<int>(engine_() % (static_cast<unsigned>(last) + 1)); }
  int between(int first, int last) { return first + upto(last - first); }
  bool chance(double p) { return static_cast<double>(engine_() >> 11) * 0x1p-53 < p; }
  std::uint64_t bits() { return engine_(); }

  template <typename Items>
  auto& one_of(Items& items) {
    return items[static_cast<std::size_t>(upto(static_cast<int>(items.size()) - 1))];
  }

  std::int64_t strange() {
    static const std::vector<std::int64_t> numbers = {
        -1,        0,         1,       2,          5,           7,
        64,        100,       65537,   1LL << 20,  1LL << 31,   -(1LL << 31),
        1LL << 40, 1LL << 62, -100,    1000000007, 10000000000, kLast64,
        kFirst64,  kLast32,   kFirst32};
    return one_of(numbers);
  }
  std::int64_t twisted(std::int64_t value) { return hostile && chance(0.03) ? strange() : value; }
  int twisted32(int value) {
    return hostile && chance(0.03) ? static_cast<int>(static_cast<std::uint32_t>(strange()))
                                   : value;
  }

 private:
  static constexpr std::int64_t kLast64 = std::numeric_limits<std::int64_t>::max();
  static constexpr std::int64_t kFirst64 = std::numeric_limits<std::int64_t>::min();
  static constexpr std::int64_t kLast32 = std::numeric_limits<std::int32_t>::max();
  static constexpr std::int64_t kFirst32 = std::numeric_limits<std::int32_t>::min();

  std::mt19937_64 engine_;
};

// What the caller of the ABI knows about a graph that it describes.
struct Op {
  std::vector<std::int64_t> shape;  // of its first output
  std::vector<std::int64_t> space;  // these, and what it reduces
  std::vector<int> kinds;           // of its space's dimensions
  bool parts = false;               // whether the last of them shares out partial values
  int operands = 0;
  bool is_loss = false;
};
struct GraphFacts {
  std::vector<std::vector<std::int64_t>> tensors;  // shapes
  std::vector<Op> ops;
};

class GraphMaker {
 public:
  explicit GraphMaker(Source& random) : random_(random) {}

  // A few operators in a row, each reading tensors of before, and a loss at the end.
  GraphFacts make() {
    const int inputs = random_.between(1, 2);
    for (int i = 0; i < inputs; ++i) readable_.push_back(tensor(shape(), FL_INPUT));
    const int ops = random_.between(1, 5);
    for (int i = 0; i < ops; ++i) add_operator(i + 1 == ops || random_.chance(0.1));
    return facts_;
  }

  // What `make` made; as long as the maker lives.
  fl_graph graph() const {
    return {0,
            0,
            0,
            1,
            static_cast<std::int32_t>(tensors_.size()),
            static_cast<std::int32_t>(operators_.size()),
            0,
            0,
            nullptr,
            tensors_.data(),
            operators_.data(),
            nullptr};
  }

 private:
  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> result;
    const int rank = random_.between(1, 3 + random_.upto(1) * 2);
    for (int d = 0; d < rank; ++d) result.push_back(random_.between(1, 7));
    if (random_.chance(0.03)) random_.one_of(result) = std::int64_t{1} << random_.between(10, 24);
    return result;
  }

  int tensor(const std::vector<std::int64_t>& shape, int kind) {
    std::vector<std::int64_t> its = shape;
    for (std::int64_t& extent : its) extent = random_.twisted(extent);
    its.resize(5, 1);
    const std::string& name = names_.emplace_back("tensor" + std::to_string(facts_.tensors.size()));
    const std::int32_t rank = random_.twisted32(static_cast<int>(shape.size())) % 1000;
    tensors_.push_back({name.c_str(), random_.twisted32(random_.upto(1)), random_.twisted32(kind),
                        kind == FL_WEIGHT ? random_.chance(0.9) : random_.chance(0.2), rank,
                        extents_.emplace_back(std::move(its)).data()});
    facts_.tensors.push_back(shape);
    return static_cast<int>(tensors_.size()) - 1;
  }

  void add_operator(bool is_loss) {
    Op op;
    op.is_loss = is_loss;
    op.shape = shape();
    std::vector<int> kinds;
    for (std::size_t d = 0; d < op.shape.size(); ++d) {
      kinds.push_back(d == 0 ? FL_SAMPLE : random_.between(FL_ATTRIBUTE, FL_NONE));
    }
    op.space = op.shape;
    std::vector<std::int64_t> reductions;
    if (random_.chance(0.4)) reductions = shape();
    while (op.shape.size() + reductions.size() > FL_MAX_SPACE) reductions.pop_back();
    for (std::int64_t& extent : reductions) {
      op.space.push_back(extent);
      kinds.push_back(random_.chance(0.9) ? FL_REDUCTION : FL_NONE);
      extent = random_.twisted(extent);
    }
    op.parts = op.space.size() < FL_MAX_SPACE && random_.chance(0.2);
    if (op.parts) {
      op.space.push_back(random_.between(1, 8));
      reductions.push_back(op.space.back());
      kinds.push_back(FL_PART);
    }
    op.kinds = kinds;
    for (int& kind : kinds) kind = random_.twisted32(kind);
    kinds.resize(8, 0);
    reductions.resize(FL_MAX_SPACE, 1);
    operands_.emplace_back();
    const int reads = random_.between(1, 3);
    for (int i = 0; i < reads; ++i) operand(op, random_.one_of(readable_), FL_ROLE_INPUT);
    const int uses = random_.upto(2);
    for (int i = 0; i < uses; ++i) {
      if (weights_.empty() || random_.chance(0.7)) weights_.push_back(tensor(shape(), FL_WEIGHT));
      operand(op, random_.one_of(weights_), FL_ROLE_WEIGHT);
    }
    const int output = tensor(op.shape, FL_ACTIVATION);
    operand(op, output, FL_ROLE_OUTPUT);
    readable_.push_back(output);
    if (random_.chance(0.15)) {
      const int second = tensor(shape(), FL_ACTIVATION);
      operand(op, second, FL_ROLE_OUTPUT);
      readable_.push_back(second);
    }
    static const char* const attribute_names[] = {"size"};
    static const char* const attribute_values[] = {"3"};
    const std::string& name = names_.emplace_back("op" + std::to_string(facts_.ops.size()));
    operators_.push_back({name.c_str(),
                          "any",
                          is_loss,
                          static_cast<std::int32_t>(op.space.size()),
                          static_cast<std::int32_t>(op.space.size() - op.shape.size()),
                          op.operands,
                          kinds_.emplace_back(std::move(kinds)).data(),
                          extents_.emplace_back(std::move(reductions)).data(),
                          operands_.back().data(),
                          {random_.upto(1), attribute_names, attribute_values}});
    facts_.ops.push_back(std::move(op));
  }

  void operand(Op& op, int tensor, int role) {
    const std::size_t rank = facts_.tensors[static_cast<std::size_t>(tensor)].size();
    // What is written is not along a reduction, but for a few.
    const bool reads = role != FL_ROLE_OUTPUT || random_.chance(0.02);
    const int dims = static_cast<int>(reads ? op.space.size() - op.parts : op.shape.size());
    const bool primary = role == FL_ROLE_OUTPUT && rank == op.shape.size();
    std::vector<fl_dim_map> map;
    for (std::size_t d = 0; d < rank; ++d) {
      fl_dim_map entry = {random_.between(-1, dims - 1), 1, 1, 0, 0, -1, 0};
      const int sort = random_.upto(9);
      if (primary && !random_.chance(0.02)) {
        entry.out_dim = static_cast<int>(d);
      } else if (sort < 2) {  // a window
        entry.num = random_.between(1, 2);
        entry.lo_offset = -random_.upto(2);
        entry.hi_offset = random_.between(-1, 2);
      } else if (sort == 2) {
        entry.num = random_.between(0, 3);
        entry.den = random_.between(1, 4);
      }
      if (role == FL_ROLE_WEIGHT && d == 0 && random_.chance(0.02)) entry.named_by = 0;
      entry.prefix = role != FL_ROLE_OUTPUT && random_.chance(0.1);
      map.push_back({random_.twisted32(entry.out_dim), random_.twisted(entry.num),
                     random_.twisted(entry.den), random_.twisted(entry.lo_offset),
                     random_.twisted(entry.hi_offset), random_.twisted32(entry.named_by),
                     random_.twisted32(entry.prefix)});
    }
    map.resize(5);
    // Once for all parts of the reductions.
    auto once = (1u << op.space.size()) - (1u << op.shape.size());
    bool saved = random_.chance(0.5), linear = false;
    int combine = random_.upto(FL_COMBINE_LOG_SUM_EXP);
    if (op.parts && !random_.chance(0.02)) {
      if (role == FL_ROLE_OUTPUT) {
        saved = false;
        combine = FL_COMBINE_SUM;
      }
      linear = role == FL_ROLE_INPUT && (op.operands == 0 || random_.chance(0.5));
      if (linear) once = 0;
    }
    operands_.back().push_back({random_.twisted32(tensor), random_.twisted32(role), saved,
                                random_.twisted32(combine), linear,
                                reads && random_.chance(0.1) ? once : 0u,
                                maps_.emplace_back(std::move(map)).data()});
    ++op.operands;
  }

  Source& random_;
  GraphFacts facts_;
  std::vector<int> readable_, weights_;
  std::vector<fl_tensor> tensors_;
  std::vector<fl_operator> operators_;
  // What these point to.
  std::deque<std::string> names_;
  std::deque<std::vector<std::int64_t>> extents_;
  std::deque<std::vector<std::int32_t>> kinds_;
  std::deque<std::vector<fl_operand>> operands_;
  std::deque<std::vector<fl_dim_map>> maps_;
};

// The arrays of a machine's routes: tables for nodes of up to two kinds, now and then in a ring.
struct Routes {
  std::vector<std::int32_t> node_of, place_of, kind_of, places, spans, tables, lengths, shape,
      turns, torus_links;
  std::vector<fl_hop> hops;
  int n_nodes, n_hops;

  // Links have numbers from 0 to `links - 1`, at least as many as there are nodes.
  Routes(Source& random, int links) {
    const int nodes = random.between(1, 3), kinds = random.between(1, std::min(nodes, 2));
    for (int kind = 0; kind < kinds; ++kind) places.push_back(random.between(1, 2));
    for (int node = 0; node < nodes; ++node) {
      const int kind = std::min(node, kinds - 1);
      kind_of.push_back(random.twisted32(kind));
      for (int place = 0; place < places[kind]; ++place) {
        node_of.push_back(random.twisted32(node));
        place_of.push_back(random.twisted32(place));
      }
    }
    if (random.chance(0.5)) spans.push_back(random.twisted32(random.between(1, 2)));
    const bool ring = nodes > 1 && random.chance(0.3);
    if (ring) {
      shape.push_back(random.twisted32(nodes));
      for (int a = 0; a < nodes; ++a) {
        for (int b = 0; b < nodes; ++b) turns.push_back(random.twisted32((b - a + nodes) % nodes));
        for (const int down : {0, 1}) {
          torus_links.push_back(random.twisted32((a * 2 + down) % links));
        }
      }
    }
    const int nearnesses = 3 + 2 * static_cast<int>(spans.size());
    for (int r = 0; r < kinds * kinds * nearnesses; ++r) {
      const int from = places[r / nearnesses / kinds], to = places[r / nearnesses % kinds];
      tables.push_back(random.twisted32(static_cast<int>(lengths.size())));
      for (int i = 0; i < from * to; ++i) {
        const bool same = r % nearnesses == 0 && i / to == i % to;
        const bool along = ring && r % nearnesses != 0;
        add_route(random, links - nodes + 1, same ? 0 : random.between(1, 3), along);
      }
    }
    n_nodes = random.hostile && random.chance(0.03) ? random.between(-1, nodes) : nodes;
    n_hops = static_cast<int>(hops.size());
    if (random.hostile && random.chance(0.03)) n_hops = random.between(-1, n_hops);
    for (int& count : places) count = random.twisted32(count);
  }

  void add_route(Source& random, int links, int length, bool ring) {
    lengths.push_back(random.twisted32(length));
    const int first = random.upto(links - 1);
    for (int h = 0; h < length; ++h) {
      const int of = random.chance(ring ? 0.3 : 0.0) ? FL_HOP_OF_TORUS
                     : random.chance(0.5)            ? FL_HOP_OF_SOURCE
                                                     : FL_HOP_OF_DESTINATION;
      hops.push_back({random.twisted32(of), random.twisted32((first + h) % links),
                      random.twisted32(random.upto(1)), random.twisted32(1)});
    }
  }

  fl_routes view() const {
    return {node_of.data(),
            place_of.data(),
            n_nodes,
            kind_of.data(),
            static_cast<int>(places.size()),
            places.data(),
            static_cast<int>(spans.size()),
            spans.data(),
            tables.data(),
            static_cast<int>(lengths.size()),
            lengths.data(),
            n_hops,
            hops.data(),
            static_cast<int>(shape.size()),
            shape.data(),
            turns.data(),
            torus_links.data()};
  }
};

// The arrays of a machine; as long as its numbers say, however wrong these are.
struct Machine {
  std::vector<std::int32_t> memory_of, kind_of;
  std::vector<std::int64_t> bandwidth, latency, capacity;
  std::vector<fl_rates> rates;
  int links, kinds = 1, memories = 1;
  Routes routes;

  explicit Machine(Source& random) : links(random.between(3, 8)), routes(random, links) {
    memories = static_cast<int>(routes.node_of.size());
    const int devices = memories + random.upto(2);
    kinds = random.between(1, std::min(devices, 2));
    for (int d = 0; d < devices; ++d) {
      memory_of.push_back(random.twisted32(d % memories));
      kind_of.push_back(random.twisted32(random.upto(kinds - 1)));
    }
    for (int kind = 0; kind < 6; ++kind) {  // as many as there may be
      const auto linear = [&random] {
        const int contention = random.chance(0.5) ? 0 : random.upto(1'500);
        return fl_linear{random.twisted(random.upto(9)), random.twisted(1'000'000'000),
                         random.twisted32(contention)};
      };
      const auto time = [&random](int most) { return random.twisted(random.upto(most)); };
      const fl_runtime runtime{time(3'000),
                               time(500),
                               time(200),
                               time(300),
                               time(1'000),
                               time(300),
                               random.twisted32(random.upto(4))};
      rates.push_back({runtime, linear(), linear(), linear()});
    }
    for (int l = 0; l < links; ++l) {
      const std::int64_t rate = std::int64_t{1} << random.between(0, 40);
      bandwidth.push_back(random.twisted(rate));
      latency.push_back(random.twisted(random.upto(20)));
    }
    for (int m = 0; m < memories; ++m) {
      capacity.push_back(random.twisted(random.chance(0.1) ? 1 << random.upto(14) : 1LL << 50));
    }
    n_devices = random.hostile && random.chance(0.03) ? random.between(-2, 0) : devices;
    n_links = random.hostile && random.chance(0.03) ? random.upto(links) : links;
    if (random.hostile && random.chance(0.02)) memories = random.between(-3, 0);
    kinds = random.twisted32(kinds);
  }

  int n_devices, n_links;

  fl_machine view() const {
    return {n_devices,    memory_of.data(), kind_of.data(),   kinds,
            rates.data(), n_links,          bandwidth.data(), latency.data(),
            memories,     capacity.data(),  routes.view()};
  }
};

}  // namespace fuzz
