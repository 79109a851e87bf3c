// Produces or consumes numbered messages until standard input ends; README.md of the harness has the contract.
#include "newer.h"

#include <pulsar/c/message_id.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using Options = std::map<std::string, std::string>;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

constexpr int kKeys = 8;
constexpr int kUnreceiptedMax = 10'000;
constexpr auto kReceiptsWait = std::chrono::seconds(10);
constexpr auto kFlushPause = std::chrono::milliseconds(10);
constexpr int kReceiveMs = 50;

const std::map<std::string, pulsar_consumer_type> kTypes = {
    {"Exclusive", pulsar_ConsumerExclusive},
    {"Shared", pulsar_ConsumerShared},
    {"Failover", pulsar_ConsumerFailover},
    {"Key_Shared", pulsar_ConsumerKeyShared},
};

// CLOCK_MONOTONIC, as in the programs of the other languages.
long long nowNs() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// Events of several threads on their way to standard output. Receipts come in callbacks, which must not wait for a pipe.
class Lines {
   public:
    void add(const std::string &event, const std::string &fields, long long atNs = nowNs()) {
        const std::lock_guard<std::mutex> lock(changing_);
        waiting_ += R"({"event":")" + event + R"(",)" + fields + R"(,"at_ns":)" + std::to_string(atNs) + "}\n";
        isReady = isReady || event == "ready";
    }

    void flush() {
        const std::lock_guard<std::mutex> writing(writing_);
        std::string data;
        {
            const std::lock_guard<std::mutex> lock(changing_);
            data.swap(waiting_);
        }
        for (size_t done = 0; done < data.size();) {
            const auto more = write(STDOUT_FILENO, data.data() + done, data.size() - done);
            if (more < 0) _exit(1);  // Nobody reads any more.
            done += static_cast<size_t>(more);
        }
    }

    std::atomic<bool> isReady{false};

   private:
    std::mutex changing_, writing_;
    std::string waiting_;
};

Lines lines;
std::mutex ending;
std::condition_variable ended;
bool isOver = false;

std::string quoted(const std::string &text) { return '"' + text + '"'; }

std::vector<std::string> split(const std::string &text) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
}

std::string listed(const std::vector<std::string> &topics) {
    std::string text;
    for (const auto &topic : topics) text += (text.empty() ? "" : ",") + quoted(topic);
    return "[" + text + "]";
}

void need(pulsar_result result) {
    if (result != pulsar_result_Ok) throw std::runtime_error(pulsar_result_str(result));
}

// The messages without a receipt. Receipts come in the library's threads.
std::mutex counting;
std::condition_variable receipted;
int unreceipted = 0;

struct Sent {
    std::string fields;
    pulsar_message_t *message;
};

void settle(pulsar_result result, pulsar_message_id_t *id, void *context) {
    auto *sent = static_cast<Sent *>(context);
    if (result == pulsar_result_Ok) {
        lines.add("receipted", sent->fields);
    } else {
        lines.add("failed", sent->fields + R"(,"why":)" + quoted(pulsar_result_str(result)));
    }
    if (id != nullptr) pulsar_message_id_free(id);
    pulsar_message_free(sent->message);
    delete sent;
    const std::lock_guard<std::mutex> lock(counting);
    --unreceipted;
    receipted.notify_all();
}

// Sends by the clock until the end, then waits for the receipts that are missing.
void produce(pulsar_client_t *client, const Options &given) {
    const auto topics = split(given.at("topics"));
    const auto &name = given.at("name");
    const bool isBatched = given.count("batch") != 0;
    auto *settings = pulsar_producer_configuration_create();
    pulsar_producer_configuration_set_producer_name(settings, name.c_str());
    pulsar_producer_configuration_set_max_pending_messages(settings, kUnreceiptedMax);
    pulsar_producer_configuration_set_batching_enabled(settings, isBatched ? 1 : 0);
    if (isBatched) pulsar_producer_configuration_set_batching_max_messages(settings, std::stoul(given.at("batch")));
    std::vector<pulsar_producer_t *> producers(topics.size());
    for (size_t i = 0; i < topics.size(); ++i) {
        need(pulsar_client_create_producer(client, topics[i].c_str(), settings, &producers[i]));
    }
    lines.add("ready", R"("producer":)" + quoted(name) + R"(,"topics":)" + listed(topics));
    const nanoseconds interval(static_cast<long long>(1e9 / (std::stod(given.at("rate")) * topics.size())));
    const auto began = Clock::now();
    for (long long number = 0;; ++number) {
        std::unique_lock<std::mutex> lock(ending);
        if (ended.wait_until(lock, began + number * interval, [] { return isOver; })) break;
        lock.unlock();
        const auto turn = static_cast<size_t>(number) % topics.size();
        const auto n = number / static_cast<long long>(topics.size());
        const auto text = std::to_string(n), payload = name + ' ' + text;
        auto *message = pulsar_message_create();
        pulsar_message_set_content(message, payload.data(), payload.size());
        pulsar_message_set_sequence_id(message, n);
        if (!isBatched) pulsar_message_set_partition_key(message, (name + '/' + std::to_string(n % kKeys)).c_str());
        auto *sent = new Sent{R"("topic":)" + quoted(topics[turn]) + R"(,"producer":)" + quoted(name) + R"(,"n":)" + text, message};
        lines.add("sent", sent->fields);
        {
            const std::lock_guard<std::mutex> counted(counting);
            ++unreceipted;
        }
        pulsar_producer_send_async(producers[turn], message, settle, sent);
    }
    std::unique_lock<std::mutex> lock(counting);
    receipted.wait_for(lock, kReceiptsWait, [] { return unreceipted == 0; });
}

// Receives until the end.
void consume(pulsar_client_t *client, const Options &given) {
    const auto &name = given.at("name"), &subscription = given.at("subscription"), &type = given.at("type");
    auto *settings = pulsar_consumer_configuration_create();
    pulsar_consumer_configuration_set_consumer_type(settings, kTypes.at(type));
    pulsar_consumer_set_consumer_name(settings, name.c_str());
    pulsar_consumer_t *consumer = nullptr;
    std::string found = "null";
    if (given.count("pattern") != 0) {
        pulsar_consumer_configuration_set_regex_subscription_mode(settings, pulsar_consumer_regex_sub_mode_NonPersistentOnly);
        need(pulsar_client_subscribe_pattern(client, given.at("pattern").c_str(), subscription.c_str(), settings, &consumer));
    } else {
        const auto topics = split(given.at("topics"));
        std::vector<const char *> names;
        for (const auto &topic : topics) names.push_back(topic.c_str());
        // A list even for one topic: the library keeps the queue of a list when it reconnects.
        need(pulsar_client_subscribe_multi_topics(
            client, names.data(), static_cast<int>(names.size()), subscription.c_str(), settings, &consumer));
        found = listed(topics);
    }
    const auto who = R"("subscription":)" + quoted(subscription) + R"(,"consumer":)" + quoted(name);
    lines.add("ready", who + R"(,"type":)" + quoted(type) + R"(,"topics":)" + found);
    for (;;) {
        {
            const std::lock_guard<std::mutex> lock(ending);
            if (isOver) return;
        }
        pulsar_message_t *message = nullptr;
        const auto result = pulsar_consumer_receive_with_timeout(consumer, &message, kReceiveMs);
        if (result == pulsar_result_Timeout) continue;
        need(result);
        const auto atNs = nowNs();
        const std::string payload(static_cast<const char *>(pulsar_message_get_data(message)), pulsar_message_get_length(message));
        const auto space = payload.rfind(' ');
        lines.add("received", R"("topic":)" + quoted(pulsar_message_get_topic_name(message)) + ',' + who + R"(,"producer":)" +
                                  quoted(payload.substr(0, space)) + R"(,"n":)" + payload.substr(space + 1), atNs);
        pulsar_consumer_acknowledge_async(consumer, message, [](pulsar_result, void *) {}, nullptr);
        pulsar_message_free(message);
    }
}

void waitForTheEnd() {
    for (char buffer[4'096]; read(STDIN_FILENO, buffer, sizeof buffer) > 0;) {
    }
    if (!lines.isReady) {
        std::cerr << "error: told to end before it was ready" << std::endl;
        _exit(1);
    }
    const std::lock_guard<std::mutex> lock(ending);
    isOver = true;
    ended.notify_all();
}

bool isLogged(pulsar_logger_level_t level, void *) { return level >= pulsar_WARN; }

void log(pulsar_logger_level_t level, const char *file, int line, const char *message, void *) {
    if (isLogged(level, nullptr)) std::cerr << file << ':' << line << ' ' << message << std::endl;
}

}  // namespace

int main(int count, char **words) {
    int code = 0;
    std::thread(waitForTheEnd).detach();
    std::thread([] {
        for (;; lines.flush()) std::this_thread::sleep_for(kFlushPause);
    }).detach();
    try {
        Options given;
        for (int i = 2; i + 1 < count; i += 2) given[std::string(words[i]).substr(2)] = words[i + 1];
        auto *settings = pulsar_client_configuration_create();
        pulsar_client_configuration_set_logger_t(settings, {nullptr, isLogged, log});
        auto *client = pulsar_client_create(given.at("url").c_str(), settings);
        (std::string(words[1]) == "produce" ? produce : consume)(client, given);
    } catch (const std::exception &error) {
        std::cerr << "error: " << error.what() << std::endl;
        code = 1;
    }
    lines.flush();
    _exit(code);  // The library may wait for brokers that are gone: the process ends without it.
}
