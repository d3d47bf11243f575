// Cards and the table; see rendezvous.h.
#include "rendezvous.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "shared.h"

namespace hvd::tcp {
namespace {

constexpr uint64_t kVersion = 0x3130307063744856;  // "VHtcp001"
constexpr const char* kTableKey = "tcp/table";

struct TableHead {
  uint64_t version;
  uint32_t size, ready;  // ready 0: `reason` says why there will be no communicator
  unsigned char secret[32];
  SharedSettings settings;
  char reason[512];
};

std::string card_key(int32_t rank) { return "tcp/card/" + std::to_string(rank); }

int32_t world_rank(const hvd_comm_args& args, int32_t r) { return args.ranks != nullptr ? args.ranks[r] : r; }

hvd_rc publish(const hvd_comm_args& args, TableHead* head, const std::vector<Card>& cards, hvd_error* err) {
  std::vector<char> table(sizeof *head + cards.size() * sizeof(Card));
  std::memcpy(table.data(), head, sizeof *head);
  if (!cards.empty()) std::memcpy(table.data() + sizeof *head, cards.data(), cards.size() * sizeof(Card));
  return host()->store_set(args.store, kTableKey, table.data(), table.size(), err);
}

hvd_rc collect(const hvd_comm_args& args, const Card& mine, int64_t deadline_ns, Directory* directory, hvd_error* err) {
  directory->cards.assign(static_cast<size_t>(args.size), Card{});
  directory->cards[0] = mine;
  if (mine.count == 0) return fail(err, HVD_E_UNAVAILABLE, 0, "%s", mine.reason);
  for (int32_t r = 1; r < args.size; ++r) {
    Card& card = directory->cards[static_cast<size_t>(r)];
    uint64_t n = sizeof card;
    const hvd_rc rc = host()->store_get(args.store, card_key(r).c_str(), &card, &n, deadline_ns, err);
    if (rc == HVD_E_TIMEOUT) return fail(err, rc, 0, "rank %d did not tell its address in time", world_rank(args, r));
    if (rc != HVD_OK) return rc;
    host()->store_del(args.store, card_key(r).c_str(), nullptr);
    if (n != sizeof card || card.count > kMaxEndpoints) {
      return fail(err, HVD_E_REMOTE, 0,
                  "rank %d left a card of %llu bytes instead of %zu: other version of this backend",
                  world_rank(args, r), (unsigned long long)n, sizeof card);
    }
    card.reason[sizeof card.reason - 1] = '\0';
    if (card.count == 0) return fail(err, HVD_E_REMOTE, 0, "rank %d: %s", world_rank(args, r), card.reason);
  }
  directory->settings = shared_settings();
  if (getrandom(directory->secret.data(), directory->secret.size(), 0) != 32) {
    return fail(err, HVD_E_UNAVAILABLE, 0, "the system gives no random numbers for the communicator's secret");
  }
  return HVD_OK;
}

hvd_rc meet_as_first(const hvd_comm_args& args, const Card& mine, int64_t deadline_ns, Directory* directory,
                     hvd_error* err) {
  hvd_error problem = {};
  problem.hdr.struct_size = sizeof problem;
  TableHead head = {};
  head.version = kVersion;
  head.size = static_cast<uint32_t>(args.size);
  const hvd_rc rc = collect(args, mine, deadline_ns, directory, &problem);
  if (rc != HVD_OK) {
    // The others wait for the table; tell them rather than let them run into their deadline.
    head.reason[std::string_view(problem.text).copy(head.reason, sizeof head.reason - 1)] = '\0';
    publish(args, &head, {}, nullptr);
    return fail(err, rc, problem.flags, "%s", problem.text);
  }
  head.ready = 1;
  head.settings = directory->settings;
  std::copy(directory->secret.begin(), directory->secret.end(), head.secret);
  return publish(args, &head, directory->cards, err);
}

hvd_rc meet_as_other(const hvd_comm_args& args, const Card& mine, int64_t deadline_ns, Directory* directory,
                     hvd_error* err) {
  const std::string key = card_key(args.rank);
  hvd_rc rc = host()->store_set(args.store, key.c_str(), &mine, sizeof mine, err);
  if (rc != HVD_OK) return rc;
  if (mine.count == 0) return fail(err, HVD_E_UNAVAILABLE, 0, "%s", mine.reason);
  TableHead head = {};
  std::vector<char> table(sizeof head + static_cast<size_t>(args.size) * sizeof(Card));
  uint64_t n = table.size();
  rc = host()->store_get(args.store, kTableKey, table.data(), &n, deadline_ns, err);
  if (rc == HVD_E_TIMEOUT) {
    host()->store_del(args.store, key.c_str(), nullptr);
    return fail(err, rc, 0, "rank %d did not publish all ranks' addresses in time; it, or one it waited for, is late",
                world_rank(args, 0));
  }
  if (rc != HVD_OK) return rc;
  if (n >= sizeof head) std::memcpy(&head, table.data(), sizeof head);
  if (n < sizeof head || head.version != kVersion || head.size != static_cast<uint32_t>(args.size)) {
    return fail(err, HVD_E_REMOTE, 0,
                "rank %d's table of addresses has another form (%llu bytes): the ranks run different versions of this "
                "backend, or disagree about the communicator's size",
                world_rank(args, 0), (unsigned long long)n);
  }
  if (head.ready == 0) {
    head.reason[sizeof head.reason - 1] = '\0';
    return fail(err, HVD_E_REMOTE, 0, "rank %d gave up: %s", world_rank(args, 0), head.reason);
  }
  if (n != table.size()) return fail(err, HVD_E_REMOTE, 0, "rank %d's table is incomplete", world_rank(args, 0));
  directory->cards.resize(static_cast<size_t>(args.size));
  std::memcpy(directory->cards.data(), table.data() + sizeof head, directory->cards.size() * sizeof(Card));
  std::copy(head.secret, head.secret + 32, directory->secret.begin());
  directory->settings = head.settings;
  return HVD_OK;
}

}  // namespace

hvd_rc meet(const hvd_comm_args& args, const Card& mine, int64_t deadline_ns, Directory* directory, hvd_error* err) {
  if (args.rank == 0) return meet_as_first(args, mine, deadline_ns, directory, err);
  return meet_as_other(args, mine, deadline_ns, directory, err);
}

void forget(const hvd_comm_args& args) { host()->store_del(args.store, kTableKey, nullptr); }

}  // namespace hvd::tcp
