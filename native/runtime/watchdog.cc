// The watchdog's thread: a loop that waits for words, beats, and requests of other threads, until
// the process ends (watchdog.h says what ranks do for each other).
//
// Each turn of the loop: wait for a socket, a request or the next beat; take requests (this rank
// fails, finishes, or was terminated); as the hub, take ranks that call; hear what came; settle
// what follows; beat, if it is time.
//
// Ends that a rank can come to:
// - finished: it says so and waits until the hub has heard it of all.
// - failed: it tells the hub, which gives the others a moment to fail by the same mistake, then
//   names the first and has all go with its status.
// - lost: whoever notices (the hub, of a rank; any rank, of the hub) says it in one sentence and
//   ends. If the hub is lost, ranks take turns, so that one speaks.
//
// The thread blocks all signals and takes no lock that Python or Legion might hold. It ends the
// process by _exit(): Legion's shutdown would wait for ranks that are gone.
#include "runtime/watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/all_gather.h"
#include "runtime/machine.h"
#include "runtime/wire.h"
#include "support/error.h"

namespace flexlegion {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kLimitVariable = "FLEXLEGION_HEARTBEAT";
constexpr double kLimit = 30.0;        // seconds of silence after which a rank is lost
constexpr int kBeats = 30;             // within the limit
constexpr double kReachable = 0.6;     // share of the limit within which a rank finds the hub
constexpr milliseconds kGrace{500};    // for the others to fail as well; mpirun kills after 1 s
constexpr milliseconds kAnswer{2000};  // that a rank which fails waits for the hub
constexpr milliseconds kLinger{1000};  // that the hub waits for the others to end before it does
// Between the ranks that would speak of a lost hub: for mpirun to end those that come later, which
// it begins once the first has ended.
constexpr milliseconds kTurn{1000};
constexpr milliseconds kLastTurn{10000};

enum Loss : std::int32_t { closed, silent };
enum class Course { running, failed, finished };

struct Peer {
  explicit Peer(int its_rank) : rank(its_rank) {}
  int rank;
  Connection connection;
  Course course = Course::running;
  int beats_missed = 0;
};

// For poll(): rounded up, since rounded down it would return just before the time, again and again.
int milliseconds_until(Clock::time_point time) {
  const auto left = std::chrono::ceil<milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(0, left));
}

class Watchdog {
 public:
  Watchdog(int rank, std::vector<Introduction> ranks, Connection connection);
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void fail(int status);  // ends the process
  void finish();          // returns when all have finished
  void terminated();      // called by a signal's handler

 private:
  // Rank 0 hears all others, and they hear only it: n - 1 connections instead of n (n - 1) / 2.
  bool hub() const { return rank_ == 0; }
  void run();
  void wait(Clock::time_point until);
  void take_callers();
  void take_requests();
  void hear(Peer& peer);
  void heed(Peer& peer, const Word& word);
  void note_failure(int rank, int status);
  void settle();
  void beat();
  void tell_all(const Word& word);
  [[noreturn]] void give_up(const Peer& peer, Loss loss);
  void await_turn();
  void release();
  void linger();
  void end(int status);
  void hush() const;
  void say(int rank, const std::string& what) const;

  const int rank_;
  const std::vector<Introduction> ranks_;
  const milliseconds interval_;
  const int wake_;
  const int errors_;  // standard error, also after `hush`
  const pid_t process_;
  std::thread thread_;

  // What other threads ask for.
  std::atomic<int> failing_{0};  // a status
  std::atomic<bool> terminated_{false}, finishing_{false};

  // The thread's own.
  Connection listener_;              // the hub's
  std::vector<Connection> callers_;  // that have not said yet who they are
  std::vector<Peer> peers_;          // of the hub, all others; of the others, the hub
  Course course_ = Course::running;
  int status_ = 0;                              // with which this rank fails
  std::optional<std::pair<int, int>> failure_;  // the first rank that failed, and its status
  Clock::time_point deadline_ = Clock::time_point::max();  // for what follows from a failure
  bool all_finished_ = false, done_ = false;
};

Watchdog* watchdog = nullptr;  // lives as long as the process

Watchdog::Watchdog(int rank, std::vector<Introduction> ranks, Connection connection)
    : rank_(rank),
      ranks_(std::move(ranks)),
      interval_(static_cast<int>(1000 * ranks_.front().limit / kBeats)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      errors_(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)),
      process_(getpid()) {
  if (hub()) {
    listener_ = std::move(connection);
    for (int other = 1; other < static_cast<int>(ranks_.size()); ++other) {
      peers_.emplace_back(other);
    }
  } else {
    peers_.emplace_back(0);
    peers_.front().connection = std::move(connection);
  }
}

// The caller never comes back: it might hold a lock, or be inside Legion.
void Watchdog::fail(int status) {
  if (getpid() != process_) return;  // a fork of it
  failing_ = status;
  eventfd_write(wake_, 1);
  for (;;) pause();  // until the thread ends the process
}

// Ends the thread. No rank's process may go before all have finished, or its peers would think it
// lost.
void Watchdog::finish() {
  if (getpid() != process_) return;  // a fork of it
  finishing_ = true;
  eventfd_write(wake_, 1);
  thread_.join();
}

// In a signal's handler: an atomic and a write, which are safe there.
void Watchdog::terminated() {
  terminated_ = true;
  eventfd_write(wake_, 1);
}

void Watchdog::run() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  Clock::time_point next = Clock::now();
  while (!done_) {
    wait(std::min(next, deadline_));
    take_requests();
    take_callers();
    for (Peer& peer : peers_) hear(peer);
    settle();
    if (Clock::now() >= next) {
      beat();
      next = Clock::now() + interval_;
    }
  }
}

// The event descriptor is one of those waited for, so that a request of another thread wakes this
// one.
void Watchdog::wait(Clock::time_point until) {
  std::vector<pollfd> all{{wake_, POLLIN, 0}};
  const auto add = [&](const Connection& connection) {
    if (connection.open()) all.push_back({connection.fd(), POLLIN, 0});
  };
  add(listener_);
  for (const Connection& caller : callers_) add(caller);
  for (const Peer& peer : peers_) add(peer.connection);
  poll(all.data(), all.size(), milliseconds_until(until));
}

void Watchdog::take_requests() {
  eventfd_t ignored;
  eventfd_read(wake_, &ignored);
  // The first failure counts. What fails later on the way down says nothing new.
  if (course_ == Course::failed) return;
  const int status = terminated_ ? 128 + SIGTERM : failing_.load();
  if (status != 0) {
    course_ = Course::failed;
    status_ = status;
    hush();
    if (hub()) {
      note_failure(0, status);
    } else {
      tell_all({Word::failed, rank_, status, 0});
      deadline_ = Clock::now() + kAnswer;
    }
  } else if (finishing_ && course_ == Course::running) {
    course_ = Course::finished;
    if (!hub()) tell_all({Word::finished, rank_, 0, 0});
  }
}

// A rank is taken at its word only if it knows the token, which Legion carried to all ranks.
void Watchdog::take_callers() {
  if (!hub()) return;
  for (Connection came = accept(listener_); came.open(); came = accept(listener_)) {
    callers_.push_back(std::move(came));
  }
  const Introduction& me = ranks_.front();
  for (Connection& caller : callers_) {
    const std::optional<Word> word = caller.receive();
    if (!word) continue;
    const bool known = word->kind == Word::hello && word->token == me.token && word->rank > 0 &&
                       word->rank < static_cast<int>(ranks_.size());
    if (known) {
      caller.send({Word::hello, 0, 0, me.token});
      Peer& peer = peers_[static_cast<std::size_t>(word->rank - 1)];
      peer.connection = std::move(caller);
      peer.beats_missed = 0;
    }
    caller.close();
  }
  callers_.erase(std::remove_if(callers_.begin(), callers_.end(),
                                [](const Connection& caller) { return !caller.open(); }),
                 callers_.end());
}

// A connection that closes before its rank has finished or failed means that the process is gone.
void Watchdog::hear(Peer& peer) {
  if (!peer.connection.open()) return;
  while (const std::optional<Word> word = peer.connection.receive()) {
    peer.beats_missed = 0;
    heed(peer, *word);
  }
  if (peer.connection.open() || done_) return;
  if (all_finished_) {
    done_ = done_ || !hub();
  } else if (peer.course == Course::running) {
    give_up(peer, closed);
  }
}

void Watchdog::heed(Peer& peer, const Word& word) {
  switch (word.kind) {
    case Word::failed:
      peer.course = Course::failed;
      note_failure(peer.rank, word.status);
      break;
    case Word::finished:
      peer.course = Course::finished;
      break;
    case Word::all_finished:
      all_finished_ = done_ = true;
      break;
    case Word::end:
      end(word.status);
      break;
    case Word::lost:  // they may be right about this rank, too, if it was stopped for long
      end(kLostStatus);
      break;
    case Word::hello:
    case Word::beat:
      break;
  }
}

// The first failure is the cause, as a rule: others fail because a peer is gone.
void Watchdog::note_failure(int rank, int status) {
  if (failure_) return;
  failure_ = {rank, status};
  deadline_ = Clock::now() + kGrace;
}

// The hub decides for all; the others wait for its word, and not longer than their deadline.
void Watchdog::settle() {
  if (!hub()) {
    if (Clock::now() >= deadline_) end(status_);
    return;
  }
  const auto none = [this](Course course) {
    return course_ != course && std::none_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
             return peer.course == course;
           });
  };
  if (failure_) {
    if (none(Course::running)) {
      release();
    } else if (Clock::now() >= deadline_) {
      // Of its own failure the first rank has said all, and nobody asks which rank it was.
      if (failure_->first != rank_) {
        say(failure_->first, "ended with status " + std::to_string(failure_->second));
      }
      release();
    }
  } else if (none(Course::running)) {
    if (!std::exchange(all_finished_, true)) tell_all({Word::all_finished, 0, 0, 0});
    // Until their processes are gone, for nobody would notice if one of them came no further.
    done_ = std::none_of(peers_.begin(), peers_.end(),
                         [](const Peer& peer) { return peer.connection.open(); });
  }
}

// Silence is counted in this rank's own beats. If all ranks were stopped for a while, none beat,
// and none is taken for lost.
void Watchdog::beat() {
  tell_all({Word::beat, rank_, 0, 0});
  for (Peer& peer : peers_) {
    const bool expected = peer.connection.open() || peer.course == Course::running;
    if (expected && ++peer.beats_missed > kBeats) give_up(peer, silent);
  }
}

// Closed connections take nothing, so nobody has to ask which are open.
void Watchdog::tell_all(const Word& word) {
  for (const Peer& peer : peers_) peer.connection.send(word);
}

void Watchdog::give_up(const Peer& peer, Loss loss) {
  if (!hub()) await_turn();
  const double limit = ranks_.front().limit;
  say(peer.rank, loss == closed ? "is lost: it crashed, was killed, or ran out of memory"
                                : "is lost: nothing was heard of it for " +
                                      std::to_string(std::lround(limit)) + " s");
  hush();
  tell_all({Word::lost, peer.rank, loss, 0});
  linger();
  _exit(kLostStatus);
}

// One rank speaks of a lost hub for all: rank 1 at once, the others in turn, unless they are ended
// before. Ranks may notice it one beat apart, so a turn is longer by a beat.
void Watchdog::await_turn() {
  const Clock::time_point until =
      Clock::now() + std::min(kLastTurn, (rank_ - 1) * (interval_ + kTurn));
  while (!terminated_ && Clock::now() < until) {
    pollfd wake{wake_, POLLIN, 0};
    poll(&wake, 1, milliseconds_until(until));
  }
  if (terminated_ && rank_ > 1) end(kLostStatus);
}

// The hub ends all ranks, with the status of the first that failed.
void Watchdog::release() {
  tell_all({Word::end, failure_->first, failure_->second, 0});
  linger();
  end(failure_->second);
}

// The hub waits until the others have read what they were told last and are gone; at most kLinger.
void Watchdog::linger() {
  if (!hub()) return;
  const Clock::time_point until = Clock::now() + kLinger;
  for (const Peer& peer : peers_) peer.connection.close_for_writing();
  const auto open = [](const Peer& peer) { return peer.connection.open(); };
  while (std::any_of(peers_.begin(), peers_.end(), open) && Clock::now() < until) {
    wait(until);
    for (Peer& peer : peers_) {
      while (peer.connection.receive()) {
      }
    }
  }
}

// What the hub decided for all; those that failed keep their own status.
void Watchdog::end(int status) {
  if (course_ == Course::finished) {
    done_ = true;
    return;
  }
  if (terminated_) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGTERM);
    std::signal(SIGTERM, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    std::raise(SIGTERM);
  }
  _exit(course_ == Course::failed ? status_ : status);
}

// Silences a process that is to end and has said why. Its other threads may still be in a transfer
// to a rank that is gone, of which UCX and Realm would print errors and a backtrace.
void Watchdog::hush() const {
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(nowhere, STDERR_FILENO);
  close(nowhere);
  static std::atomic<int> status{0};
  status = course_ == Course::failed ? status_ : kLostStatus;
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    std::signal(fault, [](int) { _exit(status); });
  }
}

void Watchdog::say(int rank, const std::string& what) const {
  const std::string host = ranks_[static_cast<std::size_t>(rank)].host;
  const std::string sentence =
      "error: rank " + std::to_string(rank) + " (on " + host + ") " + what + "; all ranks end\n";
  (void)!write(errors_, sentence.data(), sentence.size());
}

// Read by rank 0 alone: one limit for all.
double limit_from_environment() {
  const char* text = std::getenv(kLimitVariable);
  if (text == nullptr) return kLimit;
  char* end = nullptr;
  const double limit = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(limit == 0 || (limit >= 1 && limit <= 1e6))) {
    throw std::runtime_error(
        std::string(kLimitVariable) + " is '" + text +
        "', but has to be seconds of silence after which a rank is lost, 1 to " +
        "1000000, or 0 for none");
  }
  return limit;
}

// Without a handler of the user's, mpirun's request to end is answered by the watchdog: it may come
// because of a lost rank, of which nobody has said a word yet.
void answer_termination() {
  struct sigaction action {};
  if (sigaction(SIGTERM, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = [](int) { watchdog->terminated(); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

void watch_ranks() {
  const int rank = MachineState::get().rank();
  if (watchdog != nullptr || MachineState::get().ranks() == 1) return;
  Introduction me = introduction();
  Connection connection;
  if (rank == 0) {
    try {
      me.limit = limit_from_environment();
      connection = listen(me);
    } catch (const std::exception& e) {  // for all ranks: the others wait for this one's word
      std::strncpy(me.problem, e.what(), sizeof me.problem - 1);
    }
  }
  const auto* bytes = reinterpret_cast<const char*>(&me);
  std::vector<Introduction> ranks;
  for (const std::vector<char>& part : all_gather({bytes, bytes + sizeof me})) {
    std::memcpy(static_cast<void*>(&ranks.emplace_back()), part.data(), sizeof me);
  }
  const Introduction& hub = ranks.front();
  if (hub.problem[0] != '\0') throw UserMistake(hub.problem);
  if (hub.limit == 0) return;
  if (rank != 0) {
    connection = connect(hub, rank, kReachable * hub.limit);
    if (!connection.open()) {
      throw UserMistake("rank " + std::to_string(rank) + " (on " + me.host +
                        ") cannot reach rank 0 (on " + hub.host + ") by TCP, port " +
                        std::to_string(hub.port) +
                        ", by which ranks watch each other; let it, or " + "set " + kLimitVariable +
                        "=0 to go without");
    }
  }
  watchdog = new Watchdog(rank, std::move(ranks), std::move(connection));
  watchdog->start();
  answer_termination();
  // After Legion, which Python shuts down before the process comes to this.
  on_exit([](int status, void*) { status == 0 ? watchdog->finish() : watchdog->fail(status); },
          nullptr);
}

void end_all_ranks(int status) {
  if (watchdog != nullptr) watchdog->fail(status);
  _exit(status);
}

}  // namespace flexlegion
