// TCP connections between ranks: sockets that never block, words of fixed size (wire.h).
//
// A word may come in pieces, so a connection keeps what it has of one until it is whole. Sending
// never waits: a word that does not fit the socket's buffer is dropped, for the peer that does not
// read for so long will be lost anyway. Nagle's delay is off, for words are small and should not
// wait for each other.
//
// A rank is found by trying each address of the hub in turn, the loopback first, until one answers
// with the token.
#include "runtime/wire.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace flexlegion {

namespace {

constexpr int kTryMs = 1000;  // for one address to answer
constexpr int kFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

// Whether a socket can be read or written within that time.
bool ready(int fd, short events, int milliseconds) {
  pollfd one{fd, events, 0};
  return poll(&one, 1, milliseconds) == 1;
}

void without_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// A socket on a free port of all interfaces, or closed.
Connection bound(int family) {
  Connection connection(socket(family, kFlags, 0));
  if (!connection.open()) return {};
  const int off = 0;
  if (family == AF_INET6) {
    setsockopt(connection.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family);
  const socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (bind(connection.fd(), reinterpret_cast<sockaddr*>(&any), size) != 0) return {};
  return connection;
}

// A socket that is connected to that address, or closed. connect() does not block: it begins,
// poll() waits until the socket can be written, and SO_ERROR tells how it ended. So an address that
// nothing answers costs kTryMs, not minutes.
Connection reach(const char* address, std::uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  if (getaddrinfo(address, std::to_string(port).c_str(), &hints, &found) != 0) return {};
  Connection connection(socket(found->ai_family, kFlags, 0));
  const int begun =
      connection.open() ? ::connect(connection.fd(), found->ai_addr, found->ai_addrlen) : -1;
  const bool under_way = begun == 0 || (connection.open() && errno == EINPROGRESS);
  freeaddrinfo(found);
  int error = 0;
  socklen_t size = sizeof error;
  if (!under_way || !ready(connection.fd(), POLLOUT, kTryMs) ||
      getsockopt(connection.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
    return {};
  }
  without_delay(connection.fd());
  return connection;
}

// The same address may be another host's, or another program's: so both sides show the token.
bool greeted(Connection& connection, int rank, std::uint64_t token) {
  connection.send({Word::hello, rank, 0, token});
  if (!ready(connection.fd(), POLLIN, kTryMs)) return false;
  const std::optional<Word> answer = connection.receive();
  return answer && answer->kind == Word::hello && answer->token == token;
}

}  // namespace

Connection::Connection(Connection&& other) noexcept { *this = std::move(other); }

// A swap: what this connection had is closed by `other`.
Connection& Connection::operator=(Connection&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(partial_, other.partial_);
  std::swap(filled_, other.filled_);
  return *this;
}

Connection::~Connection() { close(); }

void Connection::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

// The other side then reads the end after the last word, and this side can still read.
void Connection::close_for_writing() const { shutdown(fd_, SHUT_WR); }

void Connection::send(const Word& word) const {
  if (open()) (void)!::send(fd_, &word, sizeof word, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Closed by the other side, or broken: both end the connection.
std::optional<Word> Connection::receive() {
  while (open()) {
    const ssize_t got =
        recv(fd_, partial_.data() + filled_, partial_.size() - filled_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (got <= 0) {
      close();
      return std::nullopt;
    }
    // TCP is a stream of bytes: a word may come in parts, and the rest of it later.
    filled_ += static_cast<std::size_t>(got);
    if (filled_ < partial_.size()) continue;
    filled_ = 0;
    Word word;
    std::memcpy(&word, partial_.data(), sizeof word);
    return word;
  }
  return std::nullopt;
}

// Any free port will do: Legion carries the introduction to all ranks.
Connection listen(Introduction& me) {
  Connection listener = bound(AF_INET6);            // which takes IPv4 as well
  if (!listener.open()) listener = bound(AF_INET);  // a system without IPv6
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (!listener.open() || ::listen(listener.fd(), SOMAXCONN) != 0 ||
      getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error(std::string("no TCP port can be had: ") + std::strerror(errno));
  }
  me.port =
      ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                          : reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (getrandom(&me.token, sizeof me.token, 0) != sizeof me.token) {
    throw std::runtime_error("the system has no random numbers");
  }
  return listener;
}

// A rank that calls, or a closed connection if none does.
Connection accept(const Connection& listener) {
  Connection came(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (came.open()) without_delay(came.fd());
  return came;
}

Connection connect(const Introduction& to, int rank, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    std::vector<const char*> addresses{"127.0.0.1"};  // most often the same host, where it has any
    for (const auto& address : to.addresses) {
      if (address[0] != '\0') addresses.push_back(address);
    }
    for (const char* address : addresses) {
      Connection connection = reach(address, to.port);
      if (connection.open() && greeted(connection, rank, to.token)) return connection;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (Clock::now() < deadline);
  return {};
}

// Under which addresses other hosts may find this rank: those of all interfaces that are up.
Introduction introduction() {
  Introduction me;
  gethostname(me.host, sizeof me.host - 1);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return me;
  std::size_t count = 0;
  for (const ifaddrs* each = all; each != nullptr && count < std::size(me.addresses);
       each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0 ||
        (each->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    const int family = each->ifa_addr->sa_family;
    const void* number = nullptr;
    if (family == AF_INET) {
      number = &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
    } else if (family == AF_INET6) {
      const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr;
      if (!IN6_IS_ADDR_LINKLOCAL(&six)) number = &six;  // those mean nothing without an interface
    }
    // As text: addresses of both families then have one form.
    if (number != nullptr &&
        inet_ntop(family, number, me.addresses[count], sizeof me.addresses[count]) != nullptr) {
      ++count;
    }
  }
  freeifaddrs(all);
  return me;
}

}  // namespace flexlegion
