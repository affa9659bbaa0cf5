// The registry of leaf kernels and update kernels, and the reading of attributes.
//
// Static objects of each kernel's file register a factory by the operator type's name, so that an
// operator is added by adding a file. Kernels come out wrapped: what they throw is thrown again
// with the operator's name before it, and a user's mistake (std::invalid_argument) stays one.
#include "ops/kernel.h"

#include <charconv>
#include <map>
#include <stdexcept>

namespace flexlegion {
namespace {

// One registry a kind of device. Function-local, so that they exist before the first static
// RegisterKernel of any file.
template <typename Factory>
std::map<std::string, Factory>& registry_of(DeviceKind kind) {
  static std::map<std::string, Factory> registries[2];
  return registries[static_cast<int>(kind)];
}

template <typename Registry>
std::vector<std::string> names_of(const Registry& registry) {
  std::vector<std::string> names;
  for (const auto& entry : registry) names.push_back(entry.first);
  return names;
}

// The first thing that went wrong while libraries were loaded, for whoever starts the runtime to
// report.
std::string& mistake() {
  static std::string text;
  return text;
}

// An exception would end the process here, since libraries register while they are loaded.
template <typename Registry, typename Factory>
void add_to(Registry& registry, const std::string& name, Factory&& factory) {
  if (!registry.emplace(name, std::move(factory)).second) {
    mistake() = "two kernels are registered under the name '" + name + "'";
  }
}

// Runs `body`; whatever it throws comes out with the operator's name in front.
template <typename Body>
auto naming(const std::string& name, Body&& body) {
  try {
    return body();
  } catch (const std::invalid_argument& e) {
    throw std::invalid_argument(name + ": " + e.what());
  } catch (const std::exception& e) {
    throw std::runtime_error(name + ": " + e.what());
  }
}

// A kernel whose exceptions tell which operator threw. Everything else is passed on, also what a
// kernel says of itself.
class NamedKernel : public Kernel {
 public:
  NamedKernel(std::string name, std::unique_ptr<Kernel> kernel)
      : name_(std::move(name)), kernel_(std::move(kernel)) {}
  void forward(KernelTask& task) override {
    naming(name_, [&] { kernel_->forward(task); });
  }
  void backward(KernelTask& task) override {
    naming(name_, [&] { kernel_->backward(task); });
  }
  bool accumulates() const override { return kernel_->accumulates(); }
  bool shares_out() const override { return kernel_->shares_out(); }
  bool takes(DataType type) const override { return kernel_->takes(type); }
  bool repeats() const override { return kernel_->repeats(); }

 private:
  std::string name_;
  std::unique_ptr<Kernel> kernel_;
};

// An unknown name lists those that there are: most often it is a spelling.
template <typename Factory>
auto make_from(DeviceKind kind, const std::string& what, const std::string& name,
               const Attributes& attributes) {
  const auto& registry = registry_of<Factory>(kind);
  const auto found = registry.find(name);
  if (found != registry.end()) {
    return naming(name, [&] { return found->second(attributes); });
  }
  std::string message = "no kernel for " + what + " '" + name + "'" +
                        (kind == DeviceKind::gpu ? " on GPUs" : "") + "; there are:";
  for (const auto& entry : registry) message += " " + entry.first;
  throw std::invalid_argument(message);
}

// std::from_chars, unlike the stream operators, reads the same number whatever the locale.
template <typename Number>
Number parsed(const std::string& name, const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) {
    throw std::invalid_argument("attribute '" + name + "' is not a number: '" + text + "'");
  }
  return value;
}

}  // namespace

// A linear search: there are few attributes, and kernels read them once, when they are made.
const std::string& Attributes::text(const std::string& name) const {
  for (const auto& entry : entries_) {
    if (entry.first == name) return entry.second;
  }
  throw std::invalid_argument("attribute '" + name + "' is missing");
}

std::int64_t Attributes::integer(const std::string& name) const {
  return parsed<std::int64_t>(name, text(name));
}

std::int64_t Attributes::integer(const std::string& name, std::int64_t if_absent) const {
  const bool absent = std::none_of(entries_.begin(), entries_.end(),
                                   [&](const auto& entry) { return entry.first == name; });
  return absent ? if_absent : integer(name);
}

double Attributes::number(const std::string& name) const {
  return parsed<double>(name, text(name));
}

const std::string& registration_mistake() { return mistake(); }

RegisterKernel::RegisterKernel(const std::string& operator_type, KernelFactory factory,
                               DeviceKind kind) {
  add_to(registry_of<KernelFactory>(kind), operator_type, std::move(factory));
}

RegisterUpdateKernel::RegisterUpdateKernel(const std::string& optimizer,
                                           UpdateKernelFactory factory, DeviceKind kind) {
  add_to(registry_of<UpdateKernelFactory>(kind), optimizer, std::move(factory));
}

// The factory reads the attributes, so a bad attribute is noticed here, before any task runs.
std::unique_ptr<Kernel> make_kernel(const std::string& operator_type, const Attributes& attributes,
                                    DeviceKind kind) {
  return std::make_unique<NamedKernel>(
      operator_type, make_from<KernelFactory>(kind, "operator", operator_type, attributes));
}

std::unique_ptr<UpdateKernel> make_update_kernel(const std::string& optimizer,
                                                 const Attributes& attributes, DeviceKind kind) {
  return make_from<UpdateKernelFactory>(kind, "optimizer", optimizer, attributes);
}

std::vector<std::string> kernel_names(DeviceKind kind) {
  return names_of(registry_of<KernelFactory>(kind));
}
std::vector<std::string> update_kernel_names(DeviceKind kind) {
  return names_of(registry_of<UpdateKernelFactory>(kind));
}

}  // namespace flexlegion
