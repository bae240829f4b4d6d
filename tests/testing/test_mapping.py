"""The mapping in process: batches, retries, splits, lanes, shards, age, and a checkpoint that is lost."""

from random import Random

import pytest

from streamfold.errors import SettingsError
from streamfold.testing import (
    BucketTwin,
    Died,
    MappingSettings,
    MappingTwin,
    QueueTwin,
    TableTwin,
    Throttled,
    TwinError,
)
from streamfold.testing.mapping import INVOCATIONS_MAX
from tests.testing.streams import Function, Part, Stream, names, records, sequence, stream_of

DAY = 24 * 60 * 60


def mapping(stream, function, *, destination=None, timeout_seconds=60, random=None, **settings):
    return MappingTwin(
        stream,
        function,
        MappingSettings(**settings),
        destination=destination,
        timeout_seconds=timeout_seconds,
        random=random,
    )


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        {"batch_size": 0},
        {"batch_size": 10_001},
        {"window_seconds": 301},
        {"parallelization_factor": 0},
        {"parallelization_factor": 11},
        {"retries_max": -2},
        {"retries_max": 10_001},
        {"age_seconds_max": 59},
        {"age_seconds_max": 604_801},
        {"batch_size": True},
        {"batch_size": "100"},
    ],
)
def test_a_setting_beyond_lambdas_limits_is_refused_with_its_value(setting):
    ((name, value),) = setting.items()
    with pytest.raises(SettingsError, match=rf"{name}={value!r} does not fit: expected"):
        MappingSettings(**setting)


def test_a_starting_position_by_time_is_refused():
    with pytest.raises(SettingsError, match=r"AT_TIMESTAMP.*TRIM_HORIZON or LATEST"):
        MappingSettings(starting_position="AT_TIMESTAMP")


def test_lambdas_defaults_are_a_hundred_records_and_retries_until_they_expire():
    defaults = MappingSettings()
    assert (defaults.batch_size, defaults.retries_max, defaults.age_seconds_max) == (100, -1, -1)


@pytest.mark.parametrize("seconds", [0, 901])
def test_a_timeout_beyond_lambdas_limits_is_refused(seconds):
    with pytest.raises(SettingsError, match=f"timeout_seconds={seconds} does not fit"):
        mapping(stream_of("a"), Function(), timeout_seconds=seconds)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_records_come_in_order_and_in_batches_of_the_size_set():
    function = Function()
    mapping(stream_of(*"abcde"), function, batch_size=2).run()
    assert function.events == ["ab", "cd", "e"]


def test_an_event_holds_records_and_nothing_else():
    stream, seen = stream_of("a"), []
    mapping(stream, lambda event, context: seen.append(event)).run()
    assert seen == [{"Records": stream.shards[0].records}]


def test_numbers_of_different_length_keep_their_order():
    stream = stream_of(*"abc")
    for record, number in zip(stream.shards[0].records, ("9" * 21, "1" + "0" * 21, "2" + "0" * 21), strict=True):
        record["dynamodb"]["SequenceNumber"] = number
    function = Function("b", report=True)
    mapping(stream, function, report_item_failures=True, retries_max=0).run()
    assert function.events == ["abc", "bc"]


def test_what_a_function_changes_in_its_event_is_not_in_the_next():
    seen = []

    def careless(event, context):
        seen.append(len(event["Records"]))
        event["Records"].clear()
        raise LookupError

    mapping(stream_of(*"ab"), careless, retries_max=1).run()
    assert seen == [2, 2]


def test_a_batch_holds_no_more_than_six_megabytes():
    stream, function = stream_of(*"abcde"), Function()
    for record in stream.shards[0].records:
        record["dynamodb"]["NewImage"]["text"] = {"S": "ä" * 1_000_000}  # two million bytes
    mapping(stream, function).run()
    assert function.events == ["abc", "de"]


def test_a_window_lets_a_batch_wait_for_more_records():
    stream, function = stream_of("a"), Function()
    twin = mapping(stream, function, window_seconds=30)
    started = stream.clock.now
    twin.step()
    assert stream.clock.now == started + 30


def test_a_full_batch_does_not_wait_for_its_window():
    stream, function = stream_of(*"ab"), Function()
    started = stream.clock.now
    mapping(stream, function, window_seconds=30, batch_size=2).step()
    assert (stream.clock.now, function.events) == (started, ["ab"])


def test_records_written_after_the_mapping_caught_up_are_read():
    stream, function = stream_of("a"), Function()
    twin = mapping(stream, function)
    twin.run()
    assert twin.caught_up
    stream.shards[0].records += records("a", "b", source=later_source())
    assert not twin.caught_up
    twin.run()
    assert function.events == ["a", "ab"]


def later_source():
    from tests.helpers.source import Source

    source = Source()
    source.sequence *= 10
    return source


def test_latest_leaves_out_what_was_there_and_reads_what_comes():
    stream, function = stream_of("a"), Function()
    twin = mapping(stream, function, starting_position="LATEST")
    stream.shards[0].records += records("b", source=later_source())
    twin.run()
    assert function.events == ["b"]


def test_latest_reads_shards_that_open_later_from_their_beginning():
    stream, function = stream_of("a"), Function()
    twin = mapping(stream, function, starting_position="LATEST")
    stream.shards[0].closed = True
    stream.shards.append(Part("shard-2", "shard-1", records=records("b", source=later_source())))
    twin.run()
    assert function.events == ["b"]


# --- a function that fails -------------------------------------------------------------------------------------------


def test_an_error_brings_the_whole_batch_again_as_often_as_it_may_be_retried():
    function = Function("b")
    made = mapping(stream_of(*"abc"), function, retries_max=2).run()
    assert function.events == ["abc", "abc", "abc"]
    assert [(one.outcome, one.then, one.attempt) for one in made] == [
        ("error", "again", 1),
        ("error", "again", 2),
        ("error", "discarded", 3),
    ]


def test_retries_of_an_unchanged_batch_have_one_request_id():
    function = Function("b")
    mapping(stream_of(*"abc"), function, retries_max=2, batch_size=2).run()
    assert len(set(function.requests[:3])) == 1
    assert function.requests[3] != function.requests[0]


def test_later_batches_wait_while_one_is_retried():
    function = Function("a")
    mapping(stream_of(*"abc"), function, retries_max=1, batch_size=1).run()
    assert function.events == ["a", "a", "b", "c"]


def test_retries_wait_longer_each_time_and_move_the_clock():
    stream = stream_of("a")
    started = stream.clock.now
    mapping(stream, Function("a"), retries_max=3).run()
    assert stream.clock.now == pytest.approx(started + 0.2 + 0.4 + 0.8)


@pytest.mark.parametrize("error", [LookupError, SystemExit, Died])
def test_however_a_function_ends_it_is_an_error(error):
    def function(event, context):
        raise error

    (made,) = mapping(stream_of("a"), function, retries_max=0).run()
    assert (made.outcome, type(made.error)) == ("error", error)


def test_an_interrupt_by_the_user_is_passed_on():
    def function(event, context):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mapping(stream_of("a"), function).run()


def test_a_response_that_is_no_json_is_an_error():
    (made,) = mapping(stream_of("a"), lambda event, context: {1, 2}, retries_max=0).run()
    assert (made.outcome, type(made.error)) == ("error", TypeError)


def test_a_function_that_takes_too_long_has_failed_whatever_it_returns():
    stream = stream_of(*"ab")

    def slow(event, context):
        assert context.get_remaining_time_in_millis() == 3000
        stream.clock.advance(4)
        assert context.get_remaining_time_in_millis() == 0
        return {"batchItemFailures": []}

    (made,) = mapping(stream, slow, timeout_seconds=3, retries_max=0).run()
    assert (made.outcome, made.then) == ("timeout", "discarded")


def test_the_context_names_the_function():
    seen = []
    mapping(stream_of("a"), lambda event, context: seen.append(context)).run()
    assert seen[0].function_name == "function"
    assert seen[0].invoked_function_arn == "arn:aws:lambda:us-east-1:123456789012:function:function"


def test_a_throttled_invocation_spends_no_retry():
    left = [Throttled(), Throttled(), LookupError()]

    def function(event, context):
        if left:
            raise left.pop(0)

    made = mapping(stream_of("a"), function, retries_max=1).run()
    assert [one.outcome for one in made] == ["throttled", "throttled", "error", "success"]


def test_with_the_defaults_a_poison_record_blocks_its_shard_for_a_day():
    stream, function = stream_of(*"ab"), Function("a")
    twin = mapping(stream, function, batch_size=1)
    stream.shards[0].records[1]["dynamodb"]["ApproximateCreationDateTime"] += 7200
    started = stream.clock.now
    twin.run()
    assert function.events[-1] == "b"
    assert set(function.events[:-1]) == {"a"}
    assert DAY <= stream.clock.now - started < DAY + 120
    assert (twin.expired, twin.discarded) == (1, [])


def test_a_run_ends_at_its_bound_and_says_that_it_has_not_caught_up():
    twin = mapping(stream_of("a"), Function("a"))
    assert len(twin.run(invocations_max=5)) == 5
    assert not twin.caught_up
    assert INVOCATIONS_MAX >= 1440  # a day of retries, a minute apart


# --- partial responses -----------------------------------------------------------------------------------------------


def answering(response):
    """A function that gives this response, made of the event's sequence numbers."""

    def function(event, context):
        return response([sequence(record) for record in event["Records"]])

    return function


def first_outcome(response, **settings):
    return mapping(stream_of(*"abc"), answering(response), **settings).step().outcome


@pytest.mark.parametrize(
    "response",
    [[], None, {}, "", {"batchItemFailures": []}, {"batchItemFailures": None}, {"batchItemFailure": [{"x": 1}]}],
)
def test_a_response_that_lists_nothing_is_a_complete_success(response):
    assert first_outcome(lambda numbers: response, report_item_failures=True) == "success"


@pytest.mark.parametrize(
    "entry", [{"itemIdentifier": ""}, {"itemIdentifier": None}, {"itemIdentifer": "1"}, {"itemIdentifier": "1"}, "text"]
)
def test_an_identifier_that_names_no_record_of_the_batch_fails_all_of_it(entry):
    def response(numbers):
        return {"batchItemFailures": [{"itemIdentifier": numbers[2]}, entry]}

    assert first_outcome(response, report_item_failures=True) == "failure"


@pytest.mark.parametrize("response", [["a"], "text", 7, {"batchItemFailures": "text"}])
def test_a_response_of_another_form_fails_the_batch(response):
    assert first_outcome(lambda numbers: response, report_item_failures=True) == "failure"


def test_responses_are_not_read_unless_the_mapping_says_so():
    def response(numbers):
        return {"batchItemFailures": [{"itemIdentifier": numbers[0]}]}

    assert first_outcome(response) == "success"


def test_the_lowest_number_is_the_checkpoint_and_all_from_it_on_come_again():
    function = Function("cb", report=True)
    mapping(stream_of(*"abcd"), function, report_item_failures=True, retries_max=0).run()
    assert function.events == ["abcd", "bcd"]


def test_the_rest_of_a_batch_is_a_new_request_with_all_of_its_retries():
    function = Function("b", report=True)
    made = mapping(stream_of(*"abc"), function, report_item_failures=True, retries_max=3).run()
    assert function.events == ["abc", *["bc"] * 4]  # b ran five times
    assert len(set(function.requests)) == 2
    assert [one.outcome for one in made] == ["partial", *["failure"] * 4]
    assert [one.then for one in made] == ["rest", "again", "again", "again", "discarded"]


def test_the_whole_rest_is_lost_when_its_retries_are_spent():
    queue, function = QueueTwin(), Function("2", report=True)
    twin = mapping(stream_of(*"1234"), function, destination=queue, report_item_failures=True, retries_max=1)
    twin.run()
    assert function.events == ["1234", "234", "234"]
    assert names(twin.discarded[0].records) == "234"


# --- splitting -------------------------------------------------------------------------------------------------------


def test_an_error_halves_the_batch_and_the_left_half_is_finished_first():
    function = Function("2")
    twin = mapping(stream_of(*"1234"), function, bisect=True, retries_max=1)
    twin.run()
    assert function.events == ["1234", "12", "1", "2", "2", "34"]
    assert [names(lost.records) for lost in twin.discarded] == ["2"]


def test_report_and_bisect_together_lose_the_poison_record_alone():
    function = Function("2", report=True)
    twin = mapping(stream_of(*"1234"), function, bisect=True, report_item_failures=True, retries_max=1)
    twin.run()
    assert function.events == ["1234", "234", "2", "2", "34"]
    assert [names(lost.records) for lost in twin.discarded] == ["2"]


def test_splitting_spends_no_retry():
    function = Function("3")
    mapping(stream_of(*"1234"), function, bisect=True, retries_max=0).run()
    assert function.events == ["1234", "12", "34", "3", "4"]


def test_a_batch_is_halved_also_where_responses_are_read():
    function = Function("1")
    mapping(stream_of(*"12"), function, bisect=True, report_item_failures=True, retries_max=0).run()
    assert function.events == ["12", "1", "2"]


# --- lanes and shards ------------------------------------------------------------------------------------------------


def test_an_item_keeps_its_order_however_many_lanes_there_are():
    seen = {name: [] for name in "abcdefgh"}

    def function(event, context):
        for record in event["Records"]:
            seen[names([record])].append(int(record["dynamodb"]["NewImage"]["number"]["N"]))

    mapping(stream_of(*"abcdefgh" * 10), function, random=Random(1), parallelization_factor=10, batch_size=2).run()
    assert seen == {name: list(range(place, 80, 8)) for place, name in enumerate("abcdefgh")}


def test_items_of_one_shard_run_in_several_lanes():
    made = mapping(stream_of(*"abcdefgh"), Function(), parallelization_factor=10).run()
    assert len({one.lane for one in made}) == len(made) > 1


def test_lanes_are_drawn_at_random_where_a_random_is_given():
    orders = set()
    for seed in range(10):
        function = Function()
        mapping(stream_of(*"abcdefgh"), function, random=Random(seed), parallelization_factor=10).run()
        orders.add(tuple(function.events))
    assert len(orders) > 1


def test_a_lane_that_waits_for_its_retry_lets_the_others_go_on():
    function = Function("a")
    mapping(stream_of(*"abcdefgh"), function, parallelization_factor=10, retries_max=1).run()
    first, again = (place for place, event in enumerate(function.events) if "a" in event)
    assert again > first + 1


def test_a_shard_is_read_after_its_parent_is_through():
    parent = Part("parent", closed=True, records=records(*"ab"))
    child = Part("child", "parent", records=records("c", source=later_source()))
    function = Function("a")
    mapping(Stream([child, parent]), function, batch_size=1, retries_max=1).run()
    assert function.events == ["a", "a", "b", "c"]


def test_items_of_a_table_whose_shards_split_keep_their_order():
    table, seen = TableTwin(shards=2), {}
    for number in range(40):
        if number == 20:
            table.stream.split(table.stream.shards[0].id)
        table.put({"PK": f"ITEM#{number % 7}", "SK": "METADATA", "number": number})

    def function(event, context):
        for record in event["Records"]:
            seen.setdefault(names([record]), []).append(int(record["dynamodb"]["NewImage"]["number"]["N"]))

    made = mapping(table.stream, function, random=Random(1), batch_size=3, parallelization_factor=2).run()
    assert len({one.shard_id for one in made}) == 4
    assert seen == {str(item): list(range(item, 40, 7)) for item in range(7)}


def test_records_that_were_trimmed_before_they_were_read_are_passed_over():
    table, function = TableTwin(), Function()
    twin = mapping(table.stream, function)
    table.put({"PK": "ITEM#a", "SK": "METADATA"})
    table.clock.advance(DAY + 1)
    table.put({"PK": "ITEM#b", "SK": "METADATA"})
    table.stream.trim()
    twin.run()
    assert function.events == ["b"]


def test_a_shard_whose_parent_was_trimmed_is_read():
    function = Function()
    mapping(Stream([Part("child", "gone", records=records("c"))]), function).run()
    assert function.events == ["c"]


def test_shards_without_kinship_take_turns():
    first, second = Part("one", records=records(*"aa")), Part("two", records=records(*"bb"))
    function = Function()
    made = mapping(Stream([first, second]), function, batch_size=1).run()
    assert [one.shard_id for one in made] == ["one", "two", "one", "two"]


# --- age -------------------------------------------------------------------------------------------------------------


def test_records_over_the_age_limit_go_to_the_destination_unseen():
    stream, queue, function = stream_of(*"ab"), QueueTwin(), Function()
    twin = mapping(stream, function, destination=queue, age_seconds_max=60)
    stream.clock.advance(61)
    twin.run()
    assert function.events == []
    assert [lost.condition for lost in twin.discarded] == ["RecordAgeExceeded"]
    assert "responseContext" not in queue.documents()[0]
    assert queue.documents()[0]["requestContext"]["approximateInvokeCount"] == 1


def test_only_the_records_that_are_too_old_are_given_up():
    stream, function = stream_of(*"ab"), Function()
    stream.shards[0].records[1]["dynamodb"]["ApproximateCreationDateTime"] += 60
    stream.clock.advance(61)
    twin = mapping(stream, function, age_seconds_max=60)
    twin.run()
    assert function.events == ["b"]
    assert names(twin.discarded[0].records) == "a"


def test_retries_end_at_the_age_limit():
    stream, function = stream_of("a"), Function("a")
    twin = mapping(stream, function, age_seconds_max=60)
    twin.run()
    assert twin.discarded[0].condition == "RecordAgeExceeded"
    assert len(function.events) == 9  # 0.2 seconds, doubled eight times, are 51


def test_a_record_older_than_a_day_is_no_longer_in_the_stream():
    stream, function = stream_of(*"ab"), Function()
    stream.shards[0].records[1]["dynamodb"]["ApproximateCreationDateTime"] += 1
    stream.clock.advance(DAY)
    twin = mapping(stream, function)
    twin.run()
    assert (function.events, twin.expired) == (["b"], 1)


def test_an_age_limit_beyond_a_day_is_the_streams_own():
    stream, function = stream_of("a"), Function("a")
    twin = mapping(stream, function, age_seconds_max=604_800)
    twin.run()
    assert (twin.expired, twin.discarded) == (1, [])


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_lost_checkpoint_brings_everything_again():
    function = Function()
    twin = mapping(stream_of(*"abc"), function, batch_size=2)
    twin.run()
    twin.rewind()
    twin.run()
    assert function.events == ["ab", "c", "ab", "c"]


def test_a_rewind_to_a_number_brings_the_records_from_it_on():
    stream, function = stream_of(*"abc"), Function()
    twin = mapping(stream, function)
    twin.run()
    twin.rewind("shard-1", sequence(stream.shards[0].records[1]))
    twin.run()
    assert function.events == ["abc", "bc"]


def test_a_rewind_never_skips_records():
    stream, function = stream_of(*"abc"), Function()
    twin = mapping(stream, function, batch_size=1)
    twin.step()
    twin.rewind("shard-1", 10**30)
    twin.run()
    assert function.events == ["a", "b", "c"]


@pytest.mark.parametrize("poison", ["", "b"])
def test_a_checkpoint_lost_during_an_invocation_outlives_its_answer(poison):
    function = Function(poison)

    def losing(event, context):
        if not function.events:
            twin.rewind()
        return function(event, context)

    twin = mapping(stream_of(*"ab"), losing, retries_max=0)
    assert [one.then for one in twin.run()] == ["again", "discarded" if poison else "done"]
    assert function.events == ["ab", "ab"]


def test_a_rewind_of_an_unknown_shard_is_refused_with_the_known():
    with pytest.raises(TwinError, match=r"Shard 'shard-9' is not read: expected one of shard-1\."):
        mapping(stream_of("a"), Function()).rewind("shard-9")


def test_a_disabled_mapping_does_nothing_and_goes_on_where_it_was():
    function = Function()
    twin = mapping(stream_of(*"abc"), function, batch_size=1)
    twin.step()
    twin.disable()
    assert twin.step() is None
    twin.enable()
    twin.run()
    assert function.events == ["a", "b", "c"]


def test_what_other_lanes_finished_beyond_the_checkpoint_comes_again_after_the_mapping_was_disabled():
    function = Function()
    twin = mapping(stream_of(*"abcdefgh"), function, parallelization_factor=10, random=Random(3))
    made = [twin.step(), twin.step()]
    twin.disable()
    twin.enable()
    twin.run()
    again = "".join(function.events[len(made) :])
    assert set("abcdefgh") == set("".join(function.events))
    assert set(again) & set("".join(function.events[: len(made)]))


def test_a_batch_in_flight_is_delivered_anew_after_the_mapping_was_disabled():
    function = Function("b")
    twin = mapping(stream_of(*"ab"), function, batch_size=1, retries_max=1)
    twin.step()
    twin.step()
    twin.disable()
    twin.enable()
    twin.run()
    assert function.events == ["a", "b", "b", "b"]
    assert len(set(function.requests[1:])) == 2


# --- counts ----------------------------------------------------------------------------------------------------------


def test_records_are_counted_by_lambdas_own_names():
    twin = mapping(
        stream_of(*"abc"),
        Function("b"),
        destination=QueueTwin(),
        bisect=True,
        retries_max=0,
        filters=('{"dynamodb": {"Keys": {"PK": {"S": ["ITEM#a", "ITEM#b"]}}}}',),
    )
    twin.run()
    assert twin.metrics == {
        "PolledEventCount": 3,
        "FilteredOutEventCount": 1,
        "InvokedEventCount": 4,
        "FailedInvokeEventCount": 3,
        "OnFailureDestinationDeliveredEventCount": 1,
    }


def test_without_a_destination_discarded_records_are_dropped():
    twin = mapping(stream_of(*"ab"), Function("b"), retries_max=0)
    twin.run()
    assert twin.metrics["DroppedEventCount"] == 2


def test_a_destination_that_fails_loses_the_batch_and_is_counted():
    bucket = BucketTwin(denied=True)
    twin = mapping(stream_of(*"ab"), Function("b"), destination=bucket, retries_max=0)
    twin.run()
    bucket.denied = False
    twin.run()
    assert (bucket.objects, twin.discarded[0].delivered) == ({}, False)
    assert (twin.metrics["DroppedEventCount"], twin.metrics["DestinationDeliveryFailures"]) == (2, 1)


def test_filtered_records_are_passed_over_and_do_not_come_again():
    function = Function()
    twin = mapping(stream_of(*"abab"), function, filters=('{"dynamodb":{"Keys":{"PK":{"S":["ITEM#b"]}}}}',))
    twin.run()
    assert (function.events, twin.caught_up) == (["bb"], True)


def test_records_of_a_closed_shard_that_are_all_filtered_let_its_child_be_read():
    parent = Part("parent", closed=True, records=records(*"ab"))
    child = Part("child", "parent", records=records("c", source=later_source()))
    function = Function()
    twin = mapping(Stream([parent, child]), function, filters=('{"dynamodb":{"Keys":{"PK":{"S":["ITEM#c"]}}}}',))
    twin.run()
    assert function.events == ["c"]
