// Connections between ranks beside Legion's network: a few words of fixed size, over TCP.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace flexlegion {

// What a rank tells the others of itself; plain bytes, as Legion carries them.
struct Introduction {
  char host[64] = {};
  char addresses[8][46] = {};  // of its network interfaces; an empty one ends the list
  std::uint16_t port = 0;      // where it listens, if it does
  std::uint64_t token = 0;     // by which its listener and those who come to it know each other
  double limit = 0;            // seconds of silence after which a rank is lost; 0: none ever is
  char problem[256] = {};      // why ranks cannot watch each other
};

struct Word {  // without padding
  enum Kind : std::int64_t { hello, beat, failed, lost, end, finished, all_finished };
  Kind kind = beat;
  std::int32_t rank = 0;    // whom it is about
  std::int32_t status = 0;  // exit status; of lost: a Loss
  std::uint64_t token = 0;  // of hello
};

// A socket that is never waited for; closed with the object.
class Connection {
 public:
  Connection() = default;
  explicit Connection(int fd) : fd_(fd) {}
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;
  ~Connection();

  bool open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close();
  void close_for_writing() const;
  // What cannot be sent is dropped: then the other side does not read, and will be lost.
  void send(const Word& word) const;
  // The next whole word that has come. Closes itself where the other side did.
  std::optional<Word> receive();

 private:
  int fd_ = -1;
  std::array<char, sizeof(Word)> partial_{};
  std::size_t filled_ = 0;
};

// A socket on all interfaces, and what others have to know to come to it.
Connection listen(Introduction& me);
// The next connection that has come; closed if there is none.
Connection accept(const Connection& listener);
// To the listener of the introduction, by the first of its addresses where it answers; closed if
// none does within `seconds`.
Connection connect(const Introduction& to, int rank, double seconds);

// This host's name and addresses.
Introduction introduction();

}  // namespace flexlegion
