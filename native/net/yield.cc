// Lets a rank's other threads have the core of the thread that polls the network.
//
// Realm polls UCX in a loop that never sleeps. Where a rank has fewer cores than threads that want
// to run, the kernel lets that loop use up its time slice of milliseconds, while whoever has work
// to do, often the very sender that the loop waits for, waits. So this library stands between the
// two: after some polls that found nothing, it offers the core to whoever is waiting for it. With
// nobody waiting, that costs a fraction of a microsecond.
//
// It defines a function of UCX by its own name, so it has to be loaded before Realm is, and with
// RTLD_GLOBAL (flexlegion/bindings/native.py).
#include <sched.h>

#include "ucp.h"

namespace {

using Progress = unsigned(void*);

constexpr int kPatience = 50;  // polls; some microseconds

}  // namespace

extern "C" __attribute__((visibility("default"))) unsigned ucp_worker_progress(void* worker) {
  static Progress* const progress = flexlegion::net::ucp_function<Progress>("ucp_worker_progress");
  thread_local int empty_polls = 0;
  const unsigned events = progress(worker);
  if (events > 0) {
    empty_polls = 0;
  } else if (++empty_polls >= kPatience) {
    sched_yield();
  }
  return events;
}
