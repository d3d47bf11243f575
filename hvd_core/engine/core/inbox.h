// What threads ask of the driver, in the order of their calls.
//
// A command may have to wait here until it can be taken:
//
//   deferred     a request whose data a front end still copies to host memory (begin(), give_up()), and the commands
//                that must not overtake it: a failure under its name, a join, changes of process sets
//   for a pair   a message between two ranks, until their process set exists (R17). All messages of two ranks go
//                through one set of these two, which they add at their first message; a set of two ranks carries its
//                own. A join waits until no message waits, because a rank that has joined announces nothing
//
// Such a request has its name, its handle and, without a name, its number from the time of the call on, so that ranks
// agree on them, and no caller is held up. Any thread may call, except where a function is marked.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/agreement/batch_item.h"
#include "engine/calls/process_sets.h"
#include "engine/calls/request.h"
#include "engine/watch/snapshot.h"

namespace hvd {

struct Command {
  enum Type { Submit, Poison, Wanted, Join, Leave, Abort, Asked, AskedForAll, Observe } type;
  calls::RequestRef request = nullptr;
  agreement::SetId set = 0;
  std::string name = {}, text = {};
  int32_t pair = -1;  // a message: the other rank, if these two have a set of their own
};

class Inbox {
 public:
  // The engine. Called with the inbox's mutex held.
  class Host {
   public:
    virtual calls::RequestRef new_request(agreement::SetId set, std::string name, calls::Call&& call) = 0;
    virtual void observe_submission(calls::Request& request) = 0;

   protected:
    ~Host() = default;
  };
  enum class Pushed { Taken, Duplicate, Closed };

  Inbox(int32_t rank, const calls::ProcessSets& sets, Host& host) : rank_(rank), sets_(sets), host_(host) {}

  // Duplicate: a submission whose name is in flight. It is refused, and still counts for the other ranks (R8). Closed:
  // `command` is as it was.
  Pushed push(Command& command);
  // As push() of a request's submission, but the request waits for its data. replace() puts `now` into its place, and
  // returns false if it waits no more.
  Pushed defer(const calls::RequestRef& request, int32_t pair);
  bool replace(const calls::RequestRef& deferred, Command now);
  bool filled() const noexcept { return filled_.load(); }

  // By the driver.
  void take(std::vector<Command>& to);
  // Before completion: the caller may use the name again at once.
  void free_name(const calls::Request& request) noexcept;
  void free_names(const std::vector<agreement::BatchItem>& items) noexcept;
  // The set for the messages with `other` begins at this point of the log.
  void open_pair(int32_t other, agreement::SetId set);
  // The messages that fail because `asked`, the request for their pair's set, was refused: this rank has joined.
  std::vector<calls::RequestRef> refuse_pair(const calls::RequestRef& asked);
  // The messages that were submitted to this set, which ends, and that wait for their pair.
  std::vector<calls::RequestRef> messages_of(agreement::SetId set);
  // The end: all requests that are here. Later commands are refused, but for questions of `hvd doctor`.
  std::vector<calls::RequestRef> close();

  // For reports: what waits here, each with whether it is deferred, and the last submissions.
  struct Waiting {
    std::vector<std::pair<calls::RequestRef, bool>> requests;
    watch::Submissions submissions;
  };
  Waiting waiting() const;

 private:
  struct Deferred {
    calls::RequestRef request;
    std::vector<Command> after;
    int32_t pair = -1;  // as in Command
  };
  struct Pair {
    calls::RequestRef asked;  // for the set
    std::optional<agreement::SetId> set;
    std::vector<Command> waiting;
  };

  // All with the mutex held.
  Pushed add(Command& command);
  void note(calls::Request& request);
  void put(Command command);
  bool waits_for_pair(Command& command);
  bool waits_for_deferred(Command& command);
  bool messages_wait() const;
  void release();

  const int32_t rank_;
  const calls::ProcessSets& sets_;
  Host& host_;
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::vector<Command> commands_;
  std::atomic<bool> filled_{false};
  calls::NamesInFlight names_;  // from submission to completion
  watch::Submissions submissions_;
  std::unordered_map<std::string, Deferred> deferred_;  // by Request::key()
  std::vector<Command> after_deferred_;                 // what waits for all of them
  std::map<int32_t, Pair> pairs_;                       // by the other rank
};

}  // namespace hvd
