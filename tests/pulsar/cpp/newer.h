// What libpulsar 4.2 offers in C and the headers of 2.7 lack: what the programs of C++ and Node call.
#pragma once

#include <pulsar/c/client.h>
#include <pulsar/c/client_configuration.h>
#include <pulsar/c/consumer.h>
#include <pulsar/c/consumer_configuration.h>
#include <pulsar/c/message.h>
#include <pulsar/c/producer.h>
#include <pulsar/c/producer_configuration.h>
#include <pulsar/c/reader.h>
#include <pulsar/c/reader_configuration.h>

extern "C" {

typedef struct _pulsar_messages pulsar_messages_t;
typedef void (*pulsar_receive_callback)(pulsar_result, pulsar_message_t *, void *);
typedef void (*pulsar_batch_receive_callback)(pulsar_result, pulsar_messages_t *, void *);

typedef enum { pulsar_ConsumerFail, pulsar_ConsumerDiscard, pulsar_ConsumerConsume } pulsar_consumer_crypto_failure_action;
typedef enum { pulsar_ProducerFail, pulsar_ProducerSend } pulsar_producer_crypto_failure_action;
typedef enum {
    pulsar_consumer_regex_sub_mode_PersistentOnly,
    pulsar_consumer_regex_sub_mode_NonPersistentOnly,
    pulsar_consumer_regex_sub_mode_AllTopics
} pulsar_consumer_regex_subscription_mode;
typedef enum {
    pulsar_ProducerAccessModeShared,
    pulsar_ProducerAccessModeExclusive,
    pulsar_ProducerAccessModeWaitForExclusive,
    pulsar_ProducerAccessModeExclusiveWithFencing
} pulsar_producer_access_mode;

typedef struct pulsar_logger_t {
    void *ctx;
    bool (*is_enabled)(pulsar_logger_level_t, void *);
    pulsar_logger log;
} pulsar_logger_t;
typedef struct {
    int maxNumMessages;
    long maxNumBytes;
    long timeoutMs;
} pulsar_consumer_batch_receive_policy_t;
typedef struct {
    const char *dead_letter_topic;
    int max_redeliver_count;
    const char *initial_subscription_name;
} pulsar_consumer_config_dead_letter_policy_t;

pulsar_authentication_t *pulsar_authentication_basic_create(const char *, const char *);

pulsar_result pulsar_client_subscribe_multi_topics(
    pulsar_client_t *, const char **, int, const char *, const pulsar_consumer_configuration_t *, pulsar_consumer_t **);
pulsar_result pulsar_client_subscribe_pattern(
    pulsar_client_t *, const char *, const char *, const pulsar_consumer_configuration_t *, pulsar_consumer_t **);
void pulsar_client_configuration_set_logger_t(pulsar_client_configuration_t *, pulsar_logger_t);
void pulsar_client_configuration_set_listener_name(pulsar_client_configuration_t *, const char *);

void pulsar_consumer_receive_async(pulsar_consumer_t *, pulsar_receive_callback, void *);
void pulsar_consumer_batch_receive_async(pulsar_consumer_t *, pulsar_batch_receive_callback, void *);
void pulsar_consumer_seek_by_timestamp_async(pulsar_consumer_t *, uint64_t, pulsar_result_callback, void *);
int pulsar_consumer_is_connected(pulsar_consumer_t *);

void pulsar_consumer_configuration_set_default_crypto_key_reader(pulsar_consumer_configuration_t *, const char *, const char *);
void pulsar_consumer_configuration_set_crypto_failure_action(
    pulsar_consumer_configuration_t *, pulsar_consumer_crypto_failure_action);
void pulsar_consumer_configuration_set_max_pending_chunked_message(pulsar_consumer_configuration_t *, int);
void pulsar_consumer_configuration_set_auto_ack_oldest_chunked_message_on_queue_full(pulsar_consumer_configuration_t *, int);
void pulsar_consumer_configuration_set_batch_index_ack_enabled(pulsar_consumer_configuration_t *, int);
void pulsar_consumer_configuration_set_regex_subscription_mode(
    pulsar_consumer_configuration_t *, pulsar_consumer_regex_subscription_mode);
int pulsar_consumer_configuration_set_batch_receive_policy(
    pulsar_consumer_configuration_t *, const pulsar_consumer_batch_receive_policy_t *);
void pulsar_consumer_configuration_set_dlq_policy(
    pulsar_consumer_configuration_t *, const pulsar_consumer_config_dead_letter_policy_t *);

void pulsar_message_copy(const pulsar_message_t *, pulsar_message_t *);
size_t pulsar_messages_size(pulsar_messages_t *);
pulsar_message_t *pulsar_messages_get(pulsar_messages_t *, size_t);
void pulsar_messages_free(pulsar_messages_t *);

int pulsar_producer_is_connected(pulsar_producer_t *);
void pulsar_producer_configuration_set_default_crypto_key_reader(pulsar_producer_configuration_t *, const char *, const char *);
void pulsar_producer_configuration_set_crypto_failure_action(
    pulsar_producer_configuration_t *, pulsar_producer_crypto_failure_action);
void pulsar_producer_configuration_set_encryption_key(pulsar_producer_configuration_t *, const char *);
void pulsar_producer_configuration_set_chunking_enabled(pulsar_producer_configuration_t *, int);
void pulsar_producer_configuration_set_access_mode(pulsar_producer_configuration_t *, pulsar_producer_access_mode);

void pulsar_reader_seek_async(pulsar_reader_t *, pulsar_message_id_t *, pulsar_result_callback, void *);
void pulsar_reader_seek_by_timestamp_async(pulsar_reader_t *, uint64_t, pulsar_result_callback, void *);
int pulsar_reader_is_connected(pulsar_reader_t *);
void pulsar_reader_configuration_set_default_crypto_key_reader(pulsar_reader_configuration_t *, const char *, const char *);
void pulsar_reader_configuration_set_crypto_failure_action(
    pulsar_reader_configuration_t *, pulsar_consumer_crypto_failure_action);

}
