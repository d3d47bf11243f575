// Loading and handshake. See loader.h.
#include "engine/plugins/loader.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "engine/plugins/backend_call.h"
#include "engine/plugins/host_api.h"

namespace hvd::plugins {
namespace {

// The sizes of ABI 1.0. Later minors only make tables longer, so these never change.
constexpr size_t kMinBackend = offsetof(hvd_backend_api, info) + sizeof(void*);
constexpr size_t kMinDevice = offsetof(hvd_device_api, reduce_local) + sizeof(void*);
constexpr size_t kMinComm = offsetof(hvd_comm_api, mem_deregister) + sizeof(void*);
constexpr size_t kMinOption = offsetof(hvd_option, doc) + sizeof(void*);

// Far above any real table; a larger size means that the pointer is wrong.
constexpr size_t kAbsurd = 1u << 16;
constexpr uint64_t kAbsurdOptions = 4096;
constexpr size_t kNameLimit = 32;

enum class Need { kRequired, kOptional, kGroup };
#define HVD_NEED_REQUIRED Need::kRequired, ""
#define HVD_NEED_OPTIONAL Need::kOptional, ""
#define HVD_NEED_GROUP(g) Need::kGroup, #g

struct SlotRule {
  const char* table;
  const char* name;
  Need need;
  const char* group;
  size_t offset;
};

const SlotRule kRules[] = {
#define HVD_SLOT(table, name, since, need) {#table, #name, HVD_NEED_##need, offsetof(hvd_##table##_api, name)},
#include "hvd/backend_slots.inc"
};

[[noreturn]] void refuse(const std::string& name, const std::string& origin, const std::string& cause,
                         const std::string& fix =
                             "rebuild or reinstall the backend; its author finds the rules in "
                             "docs/backend-abi.md") {
  throw LoadError("horovod: backend '" + name + "' (" + origin + ") failed to load.\n  cause: " + cause +
                  "\n  fix: " + fix);
}

std::string our_version() { return std::to_string(HVD_ABI_MAJOR) + "." + std::to_string(HVD_ABI_MINOR); }

// Checks size and major of a struct's header before any other field is read.
void check_header(const void* table, size_t minimum, const char* what, const std::string& name,
                  const std::string& origin) {
  if (reinterpret_cast<uintptr_t>(table) % alignof(hvd_hdr) != 0) {
    refuse(name, origin,
           std::string("its ") + what + " is at an address that is no multiple of " + std::to_string(alignof(hvd_hdr)));
  }
  const auto* hdr = static_cast<const hvd_hdr*>(table);
  if (hdr->struct_size < minimum || hdr->struct_size > kAbsurd) {
    refuse(name, origin,
           std::string("its ") + what + " says it has " + std::to_string(hdr->struct_size) + " bytes; ABI " +
               std::to_string(HVD_ABI_MAJOR) + ".0 has " + std::to_string(minimum) + " and a later one more");
  }
  if (hdr->major != HVD_ABI_MAJOR) {
    refuse(name, origin,
           std::string("its ") + what + " is of backend ABI " + std::to_string(hdr->major) + "." +
               std::to_string(hdr->minor) + "; this hvd-core offers " + our_version());
  }
}

bool filled(const hvd_hdr* table, size_t offset) {
  if (table->struct_size < offset + sizeof(void*)) return false;
  return *reinterpret_cast<void* const*>(reinterpret_cast<const char*>(table) + offset) != nullptr;
}

void check_slots(const hvd_hdr* table, const std::string& which, const std::string& name, const std::string& origin) {
  std::map<std::string, std::pair<std::vector<std::string>, std::vector<std::string>>> groups;
  std::string missing;
  for (const SlotRule& rule : kRules) {
    if (which != rule.table) continue;
    const bool there = filled(table, rule.offset);
    if (rule.need == Need::kGroup) {
      (there ? groups[rule.group].first : groups[rule.group].second).push_back(rule.name);
    } else if (rule.need == Need::kRequired && !there) {
      missing += (missing.empty() ? "" : ", ") + std::string(rule.name);
    }
  }
  if (!missing.empty()) refuse(name, origin, "its " + which + " table lacks the required slot(s): " + missing);
  for (const auto& [group, slots] : groups) {
    if (slots.first.empty() || slots.second.empty()) continue;
    refuse(name, origin,
           "its " + which + " table has " + slots.first.front() + " without " + slots.second.front() +
               "; the slots of group '" + group + "' come all together or not at all");
  }
}

// Checks that the table has the slots that the declared capabilities need.
void check_caps(const hvd_comm_api* comm, const std::string& name, const std::string& origin) {
  const uint64_t caps = comm->caps;
  const bool stream = caps & HVD_CAP_STREAM;
  const bool request = caps & HVD_CAP_REQUEST;
  if (stream == request) {
    refuse(name, origin,
           std::string("it declares ") + (stream ? "both" : "neither of") +
               " HVD_CAP_STREAM and HVD_CAP_REQUEST; a communicator completes in exactly one way");
  }
  if (request && !comm->req_test) refuse(name, origin, "it declares HVD_CAP_REQUEST without the req_* slots");
  if ((caps & HVD_CAP_ABORT) && !comm->abort) refuse(name, origin, "it declares HVD_CAP_ABORT without the slot abort");
  if ((caps & (HVD_CAP_GROUP_SAME | HVD_CAP_GROUP_MIXED)) && !comm->group_begin) {
    refuse(name, origin, "it declares HVD_CAP_GROUP_* without the slots group_begin and group_end");
  }
  if (!(caps & (HVD_CAP_MEM_HOST | HVD_CAP_MEM_DEVICE))) {
    refuse(name, origin, "it declares neither HVD_CAP_MEM_HOST nor HVD_CAP_MEM_DEVICE, so it could serve no memory");
  }
  if ((caps & HVD_CAP_MEM_DEVICE) && (!comm->device_types || !*comm->device_types)) {
    refuse(name, origin, "it declares HVD_CAP_MEM_DEVICE but names no device_types");
  }
}

void check_name(const char* found, const std::string& name, const std::string& origin) {
  if (found == nullptr) refuse(name, origin, "its table has a NULL name");
  std::string text;
  for (size_t i = 0; i <= kNameLimit && found[i] != '\0'; ++i) {
    const char c = found[i];
    const bool good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    if (!good || i == kNameLimit) {
      refuse(name, origin, "its name is not 1 to " + std::to_string(kNameLimit) + " characters of a-z, 0-9, '_', '-'");
    }
    text += c;
  }
  if (text.empty()) refuse(name, origin, "its name is empty");
  if (text != name) refuse(name, origin, "the library says that it is backend '" + text + "'");
}

void check_options(const hvd_backend_api* api, const std::string& name, const std::string& origin) {
  if (api->option_count == 0) return;
  if (api->options == nullptr || api->option_count > kAbsurdOptions) {
    refuse(name, origin,
           "it declares " + std::to_string(api->option_count) + " options" +
               (api->options == nullptr ? " and a NULL list of them" : ""));
  }
  // The first element's size is the stride of the list: elements may be of a longer, newer struct.
  check_header(api->options, kMinOption, "option list", name, origin);
  const size_t stride = api->options[0].hdr.struct_size;
  for (uint64_t i = 0; i < api->option_count; ++i) {
    const auto* option = reinterpret_cast<const hvd_option*>(reinterpret_cast<const char*>(api->options) + i * stride);
    if (option->name == nullptr || *option->name == '\0') {
      refuse(name, origin, "option " + std::to_string(i) + " has no name");
    }
  }
}

}  // namespace

hvd_backend_entry_fn open_library(const std::string& path, const std::string& name) {
  const CallScope scope(Call::load, name);
  const FloatingPoint floating_point;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* cause = dlerror();
    refuse(
        name, path, cause ? cause : "dlopen gives no reason",
        "reinstall the wheel that the backend came with, and check that LD_LIBRARY_PATH names the libraries it needs");
  }
  const std::string symbol = "hvd_backend_entry_v" + std::to_string(HVD_ABI_MAJOR);
  if (void* entry = dlsym(library, symbol.c_str())) return reinterpret_cast<hvd_backend_entry_fn>(entry);
  for (int major = 1; major <= 32; ++major) {
    if (dlsym(library, ("hvd_backend_entry_v" + std::to_string(major)).c_str()) == nullptr) continue;
    throw LoadError("horovod: backend '" + name + "' needs backend ABI " + std::to_string(major) +
                    ".x; this hvd-core offers " + our_version() + ".  fix: " +
                    (major > HVD_ABI_MAJOR ? "install a newer hvd-core" : "install a newer release of the backend"));
  }
  refuse(name, path, "the library exports no " + symbol + ", so it is no backend",
         "check the path; build the backend with its entry function exported (visibility \"default\", extern \"C\")");
}

void check_tables(const hvd_backend_api* api, const std::string& name, const std::string& origin) {
  if (api == nullptr) refuse(name, origin, "its entry function reported success but gave no table");
  check_header(api, kMinBackend, "backend table", name, origin);
  check_slots(&api->hdr, "backend", name, origin);
  check_name(api->name, name, origin);
  if (api->tag == nullptr || *api->tag == '\0') refuse(name, origin, "its table has no tag");
  if (api->device == nullptr && api->comm == nullptr) {
    refuse(name, origin, "it has neither a device table nor a communicator table");
  }
  if (api->device != nullptr) {
    check_header(api->device, kMinDevice, "device table", name, origin);
    check_slots(&api->device->hdr, "device", name, origin);
    if (api->device->device_type == nullptr || *api->device->device_type == '\0') {
      refuse(name, origin, "its device table names no device_type");
    }
  }
  if (api->comm != nullptr) {
    check_header(api->comm, kMinComm, "comm table", name, origin);
    check_slots(&api->comm->hdr, "comm", name, origin);
    check_caps(api->comm, name, origin);
  }
  check_options(api, name, origin);
}

const hvd_backend_api* handshake(hvd_backend_entry_fn entry, const std::string& name, const std::string& origin) {
  if (entry == nullptr) refuse(name, origin, "its entry function is NULL");
  const hvd_host_api* host = make_host_api(name);
  const hvd_backend_api* api = nullptr;
  hvd_error error = empty_error();
  hvd_rc rc;
  try {
    const CallScope scope(Call::load, name);
    const FloatingPoint floating_point;
    rc = entry(host, &api, &error);
  } catch (const std::exception& e) {
    refuse(name, origin, std::string("its entry function threw a C++ exception: ") + e.what());
  } catch (...) {
    refuse(name, origin, "its entry function threw a C++ exception");
  }
  if (rc != HVD_OK) throw_backend_error(name, "load", rc, error);
  check_tables(api, name, origin);
  return api;
}

}  // namespace hvd::plugins
