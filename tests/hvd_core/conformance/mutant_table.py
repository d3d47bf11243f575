"""Which case catches which fault: (fault of mutants/*.cc, the backend that is spoiled, the case that must fail).

Two ranks, --quick. The first ones run with every test run, those of SLOW with `make test-all`.
"""

FAST = """
changes_environment           shm        L0.load
flushes_denormals_when_loaded shm        L0.load
prints_when_loaded            shm        L0.load
changes_limit                 shm        L0.load
collective_flushes_denormals  shm        L3.process
half_a_group                  shm        L0.tables
query_overruns_struct         shm        L0.query
copy_ignores_bounds           shm        L1.bounds
event_query_always_done       fake_sync  L1.events
drops_last_element            shm        L2.allreduce
narrows_float64               shm        L2.narrowing
undeclared_and_wrong          eccl_stub  L2.allreduce
writes_past_end               shm        L2.broadcast
bits_differ_between_ranks     shm        L2.allreduce
ignores_stream                eccl_stub  L3.producer_consumer
uses_arguments_later          shm        L3.ownership
abort_does_nothing            shm        L4.abort_idle
leaks_descriptor              shm        L4.recreate
skips_what_is_agreed          shm        L2.agreed
window_keeps_its_input        shm        L2.windows
unannounced_thread            shm        L3.host_calls
create_handles_signal         shm        L3.process
dead_peer_is_internal         shm        L4.killed_rank
"""

SLOW = """
starts_thread                 shm        L0.load
changes_umask                 shm        L0.load
changes_cores                 shm        L0.load
create_flushes_denormals      shm        L3.process
handles_signal                shm        L0.load
lacks_required_slot           shm        L0.tables
short_table                   shm        L0.tables
wrong_name                    shm        L0.identity
both_completions              shm        L0.capabilities
undocumented_option           shm        L0.options
default_out_of_range          shm        L0.options
query_changes_its_mind        shm        L0.query
query_ignores_newer_fields    shm        L0.query
opens_any_device              shm        L1.open
opens_any_device              eccl_stub  L1.open
copy_ignores_offset           shm        L1.copy
copy_ignores_offset           eccl_stub  L1.copy
copy_ignores_bounds           eccl_stub  L1.bounds
batch_drops_last_item         shm        L1.batched_copy
batch_ignores_stride          shm        L1.batched_copy
batch_ignores_scale           shm        L1.convert
stream_sync_returns_early     fake_sync  L1.streams
stream_sync_returns_early     eccl_stub  L1.streams
event_starts_pending          fake_sync  L1.events
event_query_always_done       eccl_stub  L1.events
stream_wait_event_does_nothing eccl_stub L1.stream_wait_event
query_differs_by_rank         shm        L2.query
query_lies                    shm        L2.allreduce
query_lies                    shm        L2.send_recv
query_lies                    eccl_stub  L2.allreduce
drops_last_element            eccl_stub  L2.allreduce
narrows_int64                 shm        L2.allreduce
narrows_int64                 shm        L2.narrowing
ignores_root                  shm        L2.broadcast
ignores_root                  eccl_stub  L2.broadcast
ignores_prescale              shm        L2.scaling
ignores_prescale              eccl_stub  L2.scaling
ignores_postscale             shm        L2.scaling
factor_of_element_type        shm        L2.scaling
ignores_offset                shm        L2.allreduce
ignores_offset                eccl_stub  L2.allreduce
barrier_only                  shm        L2.allreduce
max_is_min                    shm        L2.allreduce
max_is_min                    eccl_stub  L2.allreduce
counts_own_twice              shm        L2.allreduce
changes_its_input             shm        L2.allreduce
req_wait_returns_early        shm        L2.allreduce
writes_before_beginning       shm        L2.broadcast
wrong_displacements           shm        L2.allgatherv
loses_nan                     shm        L2.special_values
loses_negative_zero           shm        L2.special_values
bool_is_not_0_or_1            shm        L2.bool
average_rounds_down           shm        L2.average
in_place_broken               shm        L2.in_place
in_place_broken               eccl_stub  L2.in_place
only_first_of_list            shm        L2.vectored
ignores_stream                eccl_stub  L3.two_streams
waits_in_enqueue              shm        L3.no_waiting
waits_in_enqueue              eccl_stub  L3.no_waiting
abort_does_nothing            shm        L4.abort
abort_does_nothing            eccl_stub  L4.abort
abort_blocks                  shm        L4.abort
async_error_always_well       shm        L4.async_error
async_error_always_well       eccl_stub  L4.async_error
ignores_deadline              shm        L4.deadline
ignores_deadline              shm        L4.killed_rank
create_ignores_deadline       shm        L4.create_deadline
create_turns_ranks_around     shm        L2.process_sets
create_turns_ranks_around     eccl_stub  L2.allgather
group_drops_second_call       eccl_stub  L2.groups
timeout_is_success            shm        L4.deadline
leaks_memory                  shm        L4.recreate
leaks_thread                  shm        L4.recreate
split_turns_ranks_around      shm        L4.split
split_gives_every_rank_one    shm        L4.split
leaves_store_keys             shm        L4.recreate
leaves_names                  shm        L4.recreate
leaves_mapped_name            shm        L4.recreate
leaks_descriptor              eccl_stub  L4.recreate
notifies_a_stranger           shm        L3.host_calls
phase_never_ends              eccl_stub  L3.host_calls
skips_what_is_agreed          eccl_stub  L2.agreed
register_changes_memory       shm        L2.registered
window_destroy_clears         shm        L2.windows
window_dies_with_its_comm     shm        L4.windows
waits_in_enqueue              eccl_stub  L5.asynchronous
syncs_before_enqueue          eccl_stub  L5.asynchronous
query_scores_below_zero       shm        L0.query
query_wants_odd_alignment     shm        L0.query
create_changes_variable       shm        L3.process
create_changes_folder         shm        L3.process
create_changes_locale         shm        L3.process
create_redirects_output       shm        L3.process
hangs_in_query                shm        L0.query
hangs_in_async_error          shm        L3.calls
hangs_in_create               shm        L3.calls
hangs_in_collective           shm        L3.calls
hangs_in_req_test             shm        L3.calls
hangs_in_req_wait             shm        L3.calls
hangs_in_req_free             shm        L3.calls
hangs_in_finalize             eccl_stub  L3.calls
hangs_in_abort                shm        L3.calls
hangs_in_destroy              shm        L3.calls
hangs_in_open                 eccl_stub  L1.open
hangs_in_mem_alloc            eccl_stub  L1.memory
hangs_in_stream_create        eccl_stub  L1.streams
hangs_in_id_create            eccl_stub  L3.calls
hangs_in_group_begin          eccl_stub  L3.calls
"""

# No faults: (what, the backend, a case that passes nevertheless).
SOUND = """
slow_in_each_call             shm        L3.calls
slow_in_each_call             tcp        L5.latency
is_newer                      shm        L0.tables
is_newer                      shm        L0.capabilities
is_newer                      shm        L0.options
is_newer                      shm        L0.query
"""

# Faults of a wheel: (fault, the case). test_conformance_wheels.py and test_conformance_versions.py make them.
WHEELS = """
wheel_imports_compiled_module     L0.import
wheel_changes_environment         L0.import
wheel_names_another_abi           L0.descriptor
wheel_names_a_missing_table       L0.descriptor
wheel_names_a_strange_device      L0.descriptor
wheel_and_library_differ_in_version L0.descriptor
probe_breaks_on_a_blank           L0.paths
probe_breaks_on_other_letters     L0.paths
probe_breaks_behind_a_link        L0.paths
probe_needs_its_current_folder    L0.paths
"""


def rows(text):
    """The rows of a table above."""
    return [tuple(line.split()) for line in text.splitlines() if line]
