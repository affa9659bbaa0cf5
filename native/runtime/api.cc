// The C ABI of libflexlegion_rt.
#include <algorithm>
#include <memory>
#include <stdexcept>

#include "flexlegion_rt.h"
#include "plan/handles.h"
#include "runtime/machine.h"
#include "runtime/mapper.h"
#include "runtime/program.h"
#include "support/error.h"

namespace fl = flexlegion;

struct fl_program {
  fl::Program program;
};

namespace {

fl::Batch batch_of(int n_data, const int32_t* data, int n_rows, const int64_t* rows) {
  fl::Batch batch;
  batch.data.assign(data, data + n_data);
  batch.rows.assign(rows, rows + n_rows);
  return batch;
}

// For calls without a result: 0, or -1 and a message.
template <typename Body>
int status(Body&& body) {
  return fl::guarded(-1, [&] {
    body();
    return 0;
  });
}

}  // namespace

const char* fl_rt_last_error(void) { return fl::last_error().c_str(); }
int fl_rt_last_error_is_users(void) { return fl::last_error_is_users() ? 1 : 0; }

int fl_rt_start(void) {
  return status([] { fl::MachineState::start(); });
}

int fl_rt_ranks(void) {
  return fl::guarded(-1, [] { return fl::MachineState::get().ranks(); });
}

int fl_rt_rank(void) {
  return fl::guarded(-1, [] { return fl::MachineState::get().rank(); });
}

int fl_rt_devices(void) {
  return fl::guarded(-1, [] { return static_cast<int>(fl::MachineState::get().devices().size()); });
}

int fl_rt_device(int index, fl_device* out) {
  return status([&] {
    const fl::Device& device =
        fl::MachineState::get().devices().at(static_cast<std::size_t>(index));
    *out = {static_cast<int32_t>(device.kind), device.rank,
            device.memory.exists() ? static_cast<int64_t>(device.memory.capacity()) : 0};
  });
}

int fl_rt_count_copies(int on) {
  return status([&] {
    if (fl::MachineState::get().ranks() > 1) {
      throw std::invalid_argument("copies can be counted on one rank only");
    }
    fl::count_copies(on != 0);
  });
}

int64_t fl_rt_copied_bytes(void) { return fl::copied_bytes(); }

fl_program* fl_program_create(const fl_plan* plan, const char* optimizer, int n_attributes,
                              const char* const* attribute_names,
                              const char* const* attribute_values, uint64_t seed) {
  return fl::guarded(static_cast<fl_program*>(nullptr), [&] {
    fl::AttributeList attributes;
    for (int i = 0; i < n_attributes; ++i) {
      attributes.emplace_back(attribute_names[i], attribute_values[i]);
    }
    return new fl_program{{*plan, optimizer, fl::Attributes(attributes), seed}};
  });
}

void fl_program_destroy(fl_program* program) {
  status([&] { delete program; });
}

int fl_program_add_data(fl_program* program, int tensor, const void* base, int64_t rows) {
  return fl::guarded(-1, [&] { return program->program.add_data(tensor, base, rows); });
}

int fl_program_drop_data(fl_program* program) {
  return status([&] { program->program.drop_data(); });
}

int fl_program_stage(fl_program* program, int runs, int n_data, const int32_t* data, int n_rows,
                     const int64_t* rows) {
  return status([&] {
    program->program.stage(static_cast<unsigned>(runs), batch_of(n_data, data, n_rows, rows));
  });
}

int64_t fl_program_step(fl_program* program, int runs, int64_t step, int64_t valid_samples,
                        double learning_rate, int n_data, const int32_t* data, int n_rows,
                        const int64_t* rows) {
  return fl::guarded(std::int64_t{-1}, [&] {
    fl::RunState state;
    state.step = step;
    state.valid_samples = valid_samples;
    state.learning_rate = learning_rate;
    return program->program.step(static_cast<unsigned>(runs), state,
                                 batch_of(n_data, data, n_rows, rows));
  });
}

int fl_program_metrics(fl_program* program, int64_t ticket, fl_metrics* out) {
  return status([&] {
    const fl::Metrics m = program->program.metrics(ticket);
    *out = {m.loss, m.correct, m.squared_error, m.absolute_error, m.samples};
  });
}

int fl_program_write(fl_program* program, int tensor, int field, int state, const void* host) {
  return status(
      [&] { program->program.write(tensor, static_cast<fl::Field>(field), state, host); });
}

int fl_program_read(fl_program* program, int tensor, int field, int state, void* host) {
  return status([&] { program->program.read(tensor, static_cast<fl::Field>(field), state, host); });
}

int fl_program_wait(fl_program* program) {
  return status([&] { program->program.wait(); });
}

int fl_program_placed(fl_program* program, int launch, int32_t* devices) {
  return status([&] {
    const auto& placed = program->program.placed(launch);
    std::copy(placed.begin(), placed.end(), devices);
  });
}
