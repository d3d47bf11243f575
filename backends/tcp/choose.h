// Which schedule serves a collective. A pure function of what all ranks know. See README.md for the reasons.
#pragma once

#include <memory>

#include "schedule.h"

namespace hvd::tcp {

class Schedules {
 public:
  Schedules();
  // The schedule for the collective; owned here and good for one operation at a time. *params: with the chunk for this
  // collective.
  Schedule& choose(const Collective& collective, ScheduleParams* params);

 private:
  std::unique_ptr<Schedule> exchange_, tree_, direct_, ring_, spread_;
};

// What there is to choose from; each file's header says how it works.
std::unique_ptr<Schedule> make_exchange();  // exchange.cc
std::unique_ptr<Schedule> make_tree();      // tree.cc
std::unique_ptr<Schedule> make_direct();    // direct.cc
std::unique_ptr<Schedule> make_ring();      // ring.cc
std::unique_ptr<Schedule> make_spread();    // spread.cc

}  // namespace hvd::tcp
