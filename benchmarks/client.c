/* The load of the benchmarks: one program, sent in the same way against every broker.
 *
 *   client produce    librdkafka; records as fast as they are taken; ends when all are acknowledged
 *   client consume    librdkafka; from offset 0 of every partition until the records are there
 *   client roundtrip  librdkafka; one record at a time, from produce() until consume() returns it
 *   client transactions  librdkafka; a transactional producer on each of N threads; a transaction
 *                     is one record to every partition and the commit
 *   client visible    librdkafka; from the end of a commit until a read_committed consumer has the
 *                     transaction's record
 *   client rawtrip    plain sockets; a Fetch frame that waits, then a Produce frame, then its answer:
 *                     what roundtrip does without librdkafka's threads
 *   client frames     plain sockets; one request frame from a file, over and over, on N
 *                     connections with one request in flight on each; answers are counted and
 *                     dropped in the kernel, so that the client costs next to nothing.  With
 *                     `--leader HOST:PORT=PARTITION` (repeated) each connection keeps to one
 *                     partition, written at --partition-at, and goes to its leader
 *
 * With `--idempotence true`, produce is an idempotent producer.  With --transactional-id it sends
 * transactions of --transaction-records, of which every --abort-every-th is aborted; its time
 * begins after the first record, and includes the last commit.  --isolation is the consumer's
 * isolation.level.
 * With --keys, produce sends keys of 16 bytes, at random of so many, with different values.
 *
 * Options are pairs `--name value`; the answer is one line of JSON on stdout.  A record that was
 * refused, lost or came twice ends the program with exit code 1: a fast wrong answer is no figure.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <librdkafka/rdkafka.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH_MAX 1000
#define VARIED_MAX 4
#define LEADERS_MAX 64
#define SILENCE_MS_MAX 60000
#define KEY_SIZE 16
#define POOL_SIZE (1 << 20)

static struct {
    const char *broker, *topic, *acks, *linger_ms, *batch_bytes, *batch_records, *frame, *answer;
    const char *fetch_frame, *transactional_id, *idempotence, *isolation, *compression;
    const char *vary[VARIED_MAX], *leaders[LEADERS_MAX];
    int partitions, connections, vary_count, leader_count;
    int64_t records, warm_up, size, offset_at, partition_at, transaction_records, abort_every, keys;
} asked = {
    .broker = "127.0.0.1:9092", .topic = "bench", .acks = "1", .linger_ms = "5",
    .batch_bytes = "1000000", .batch_records = "1000000", .partitions = 1, .connections = 1,
    .records = 1000, .size = 100, .isolation = "read_uncommitted", .transaction_records = 1000,
    .compression = "none",
};

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static int compare(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Latencies may be NULL, where a mode has no latency of its own. */
static void report(int64_t records, int64_t bytes, int64_t took_ns, int64_t *latencies_ns) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"records\": %lld, \"bytes\": %lld, \"seconds\": %.6f", (long long)records,
           (long long)bytes, took_ns / 1e9);
    printf(", \"client_user_s\": %.6f, \"client_system_s\": %.6f",
           usage.ru_utime.tv_sec + usage.ru_utime.tv_usec / 1e6,
           usage.ru_stime.tv_sec + usage.ru_stime.tv_usec / 1e6);
    if (latencies_ns != NULL) {
        qsort(latencies_ns, records, sizeof *latencies_ns, compare);
        printf(", \"p50_us\": %.3f, \"p99_us\": %.3f, \"max_us\": %.3f",
               latencies_ns[records / 2] / 1e3, latencies_ns[records * 99 / 100] / 1e3,
               latencies_ns[records - 1] / 1e3);
    }
    puts("}");
}

/* ---- librdkafka ---- */

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char reason[512];
    if (rd_kafka_conf_set(conf, name, value, reason, sizeof reason) != RD_KAFKA_CONF_OK)
        die("%s=%s: %s", name, value, reason);
}

static rd_kafka_t *client(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char reason[512];
    set(conf, "bootstrap.servers", asked.broker);
    set(conf, "socket.nagle.disable", "true");
    rd_kafka_t *handle = rd_kafka_new(type, conf, reason, sizeof reason);
    if (handle == NULL)
        die("librdkafka: %s", reason);
    return handle;
}

static _Atomic int64_t delivered;

static void on_delivery(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque) {
    (void)handle, (void)opaque;
    if (message->err)
        die("a record was refused: %s", rd_kafka_err2str(message->err));
    delivered++;
}

static rd_kafka_topic_t *producing(rd_kafka_t **handle) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "linger.ms", asked.linger_ms);
    set(conf, "batch.size", asked.batch_bytes);
    set(conf, "batch.num.messages", asked.batch_records);
    set(conf, "queue.buffering.max.messages", "1000000");
    set(conf, "queue.buffering.max.kbytes", "1048576");
    set(conf, "compression.type", asked.compression);
    if (asked.idempotence != NULL)
        set(conf, "enable.idempotence", asked.idempotence);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    if (asked.transactional_id != NULL)
        set(conf, "transactional.id", asked.transactional_id);
    *handle = client(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_conf_t *topic_conf = rd_kafka_topic_conf_new();
    char reason[512];
    const char *acks = asked.transactional_id != NULL ? "all" : asked.acks;
    if (rd_kafka_topic_conf_set(topic_conf, "acks", acks, reason, sizeof reason))
        die("acks: %s", reason);
    return rd_kafka_topic_new(*handle, asked.topic, topic_conf);
}

static void must(const char *what, rd_kafka_error_t *error) {
    if (error != NULL)
        die("%s: %s", what, rd_kafka_error_string(error));
}

static uint64_t chance(void) {
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return state >> 33;
}

static void send_record(rd_kafka_t *handle, rd_kafka_topic_t *topic, int64_t number, char *bytes) {
    int partition = number % asked.partitions;
    char key[KEY_SIZE + 1];
    int key_size = 0;
    if (asked.keys) {
        key_size = snprintf(key, sizeof key, "key-%012" PRIu64, chance() % asked.keys);
        bytes += chance() % POOL_SIZE;
    }
    while (rd_kafka_produce(topic, partition, 0, bytes, asked.size, asked.keys ? key : NULL,
                            key_size, NULL) != 0) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(handle, 10);
    }
}

static void await_delivery(rd_kafka_t *handle, int64_t count) {
    int64_t progress = delivered, since = now_ns();
    while (delivered < count) {
        rd_kafka_poll(handle, 100);
        if (delivered != progress)
            progress = delivered, since = now_ns();
        else if (now_ns() - since > SILENCE_MS_MAX * INT64_C(1000000))
            die("%lld of %lld records acknowledged, then silence", (long long)delivered,
                (long long)count);
    }
}

static char *payload(void) {
    int64_t size = asked.size + (asked.keys ? POOL_SIZE : 0);
    char *bytes = malloc(size);
    uint32_t state = 1; /* letters that do not compress to nothing, the same in every run */
    for (int64_t i = 0; i < size; i++) {
        state = state * 1664525 + 1013904223;
        bytes[i] = 'a' + (state >> 24) % 26;
    }
    return bytes;
}

static void produce(void) {
    rd_kafka_t *handle;
    rd_kafka_topic_t *topic = producing(&handle);
    char *bytes = payload();
    if (asked.transactional_id != NULL) {
        must("init_transactions", rd_kafka_init_transactions(handle, SILENCE_MS_MAX));
        must("begin_transaction", rd_kafka_begin_transaction(handle));
    }
    /* Connection and metadata are not what is measured. */
    for (int partition = 0; partition < asked.partitions; partition++)
        send_record(handle, topic, partition, bytes);
    await_delivery(handle, asked.partitions);
    int64_t begun = now_ns(), transactions = 0;
    for (int64_t number = 0; number < asked.records; number++) {
        send_record(handle, topic, number, bytes);
        if (number % 1000 == 0)
            rd_kafka_poll(handle, 0);
        if (asked.transactional_id != NULL && (number + 1) % asked.transaction_records == 0) {
            if (asked.abort_every && ++transactions % asked.abort_every == 0) {
                /* What is aborted was delivered before: librdkafka would drop what it has not. */
                await_delivery(handle, asked.partitions + number + 1);
                must("abort", rd_kafka_abort_transaction(handle, SILENCE_MS_MAX));
            } else
                must("commit", rd_kafka_commit_transaction(handle, SILENCE_MS_MAX));
            must("begin_transaction", rd_kafka_begin_transaction(handle));
        }
    }
    await_delivery(handle, asked.partitions + asked.records);
    if (asked.transactional_id != NULL)
        must("commit", rd_kafka_commit_transaction(handle, SILENCE_MS_MAX));
    report(asked.records, asked.records * asked.size, now_ns() - begun, NULL);
}

static rd_kafka_topic_t *consuming(rd_kafka_t **handle, rd_kafka_queue_t **queue, int64_t offset) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "queued.min.messages", "1000000");
    set(conf, "isolation.level", asked.isolation);
    *handle = client(RD_KAFKA_CONSUMER, conf);
    *queue = rd_kafka_queue_new(*handle);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(*handle, asked.topic, NULL);
    for (int partition = 0; partition < asked.partitions; partition++)
        if (rd_kafka_consume_start_queue(topic, partition, offset, *queue) != 0)
            die("consume: %s", rd_kafka_err2str(rd_kafka_last_error()));
    return topic;
}

/* Every partition's records in order, none twice and none left out; in a topic of transactions
 * some offsets are those of markers and of aborted records. */
static int64_t take(rd_kafka_message_t *message, int64_t *next_offsets) {
    if (message->err)
        die("consume: %s", rd_kafka_message_errstr(message));
    int64_t missed = message->offset - next_offsets[message->partition];
    if (missed < 0 || (missed > 0 && asked.transactional_id == NULL))
        die("offset %lld came out of turn", (long long)message->offset);
    next_offsets[message->partition] = message->offset + 1;
    int64_t bytes = message->len;
    rd_kafka_message_destroy(message);
    return bytes;
}

static void consume(void) {
    static rd_kafka_message_t *messages[BATCH_MAX];
    rd_kafka_t *handle;
    rd_kafka_queue_t *queue;
    consuming(&handle, &queue, 0);
    int64_t *next_offsets = calloc(asked.partitions, sizeof *next_offsets);
    int64_t begun = 0, started = now_ns(), bytes = 0, count = 0, before = 0;
    while (count < asked.records) {
        /* It returns when it has all it was asked for, so it is never asked for too many. */
        int64_t wanted = asked.records - count;
        ssize_t got = rd_kafka_consume_batch_queue(queue, SILENCE_MS_MAX, messages,
                                                   wanted < BATCH_MAX ? wanted : BATCH_MAX);
        if (got <= 0)
            die("%lld of %lld records, then silence", (long long)count, (long long)asked.records);
        for (ssize_t i = 0; i < got; i++)
            bytes += take(messages[i], next_offsets);
        count += got;
        /* Connecting is not what is measured: the first records start the clock, if more come. */
        if (begun == 0 && count < asked.records)
            begun = now_ns(), before = count, bytes = 0;
    }
    report(count - before, bytes, now_ns() - (begun ? begun : started), NULL);
}

static void roundtrip(void) {
    rd_kafka_t *producer, *consumer;
    rd_kafka_queue_t *queue;
    asked.linger_ms = "0";
    rd_kafka_topic_t *topic = producing(&producer);
    int64_t total = asked.warm_up + asked.records, *latencies = calloc(total, sizeof *latencies);
    /* The topic must have a record before its end can be waited at. */
    char *bytes = payload();
    send_record(producer, topic, 0, bytes);
    await_delivery(producer, 1);
    consuming(&consumer, &queue, RD_KAFKA_OFFSET_TAIL(1));
    rd_kafka_message_t *message = rd_kafka_consume_queue(queue, SILENCE_MS_MAX);
    if (message == NULL || message->err)
        die("the first record did not come");
    rd_kafka_message_destroy(message);
    int64_t begun = 0;
    for (int64_t number = 0; number < total; number++) {
        if (number == asked.warm_up)
            begun = now_ns();
        int64_t sent = now_ns();
        memcpy(bytes, &sent, sizeof sent);
        send_record(producer, topic, 0, bytes);
        message = rd_kafka_consume_queue(queue, SILENCE_MS_MAX);
        latencies[number] = now_ns() - sent;
        if (message == NULL || message->err)
            die("record %lld did not come back", (long long)number);
        if (memcmp(message->payload, &sent, sizeof sent) != 0)
            die("record %lld came back as another", (long long)number);
        rd_kafka_message_destroy(message);
        rd_kafka_poll(producer, 0);
    }
    int64_t took = now_ns() - begun;
    report(asked.records, asked.records * asked.size, took, latencies + asked.warm_up);
}

/* ---- transactions ---- */

static int64_t *transaction_ns;
static _Atomic int64_t next_transaction;
static pthread_barrier_t all_ready;

static rd_kafka_t *transactional(int number, rd_kafka_topic_t **topic) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    char name[256];
    snprintf(name, sizeof name, "%s-%d", asked.topic, number);
    rd_kafka_t *handle;
    pthread_mutex_lock(&one_at_a_time);
    asked.transactional_id = name;
    asked.linger_ms = "0";
    *topic = producing(&handle);
    pthread_mutex_unlock(&one_at_a_time);
    must("init_transactions", rd_kafka_init_transactions(handle, SILENCE_MS_MAX));
    return handle;
}

static void one_transaction(rd_kafka_t *handle, rd_kafka_topic_t *topic, char *bytes) {
    must("begin_transaction", rd_kafka_begin_transaction(handle));
    for (int partition = 0; partition < asked.partitions; partition++)
        send_record(handle, topic, partition, bytes);
    must("commit", rd_kafka_commit_transaction(handle, SILENCE_MS_MAX));
}

static void *transact(void *number) {
    rd_kafka_topic_t *topic;
    rd_kafka_t *handle = transactional((int)(intptr_t)number, &topic);
    char *bytes = payload();
    one_transaction(handle, topic, bytes); /* connections and metadata are not measured */
    pthread_barrier_wait(&all_ready);
    pthread_barrier_wait(&all_ready);
    int64_t turn;
    while ((turn = next_transaction++) < asked.records) {
        int64_t begun = now_ns();
        one_transaction(handle, topic, bytes);
        transaction_ns[turn] = now_ns() - begun;
    }
    return NULL;
}

static void transactions(void) {
    pthread_t *threads = calloc(asked.connections, sizeof *threads);
    transaction_ns = calloc(asked.records, sizeof *transaction_ns);
    pthread_barrier_init(&all_ready, NULL, asked.connections + 1);
    for (int i = 0; i < asked.connections; i++)
        if (pthread_create(&threads[i], NULL, transact, (void *)(intptr_t)i) != 0)
            die("no thread");
    pthread_barrier_wait(&all_ready);
    int64_t begun = now_ns();
    pthread_barrier_wait(&all_ready);
    for (int i = 0; i < asked.connections; i++)
        pthread_join(threads[i], NULL);
    report(asked.records, asked.records * asked.partitions * asked.size, now_ns() - begun,
           transaction_ns);
}

static void visible(void) {
    rd_kafka_t *producer, *consumer;
    rd_kafka_topic_t *topic;
    rd_kafka_queue_t *queue;
    char *bytes = payload();
    int64_t total = asked.warm_up + asked.records, *latencies = calloc(total, sizeof *latencies);
    producer = transactional(0, &topic);
    one_transaction(producer, topic, bytes);
    asked.isolation = "read_committed";
    consuming(&consumer, &queue, 0);
    int64_t begun = 0;
    for (int64_t number = -1; number < total; number++) {
        if (number == asked.warm_up)
            begun = now_ns();
        if (number >= 0)
            one_transaction(producer, topic, bytes);
        int64_t committed = now_ns();
        for (int partition = 0; partition < asked.partitions; partition++) {
            rd_kafka_message_t *message = rd_kafka_consume_queue(queue, SILENCE_MS_MAX);
            if (message == NULL || message->err)
                die("transaction %lld did not become visible", (long long)number);
            rd_kafka_message_destroy(message);
        }
        if (number >= 0)
            latencies[number] = now_ns() - committed;
    }
    report(asked.records, asked.records * asked.size, now_ns() - begun, latencies + asked.warm_up);
}

/* ---- plain sockets ---- */

struct varied {
    int64_t position, width, low, high; /* an integer of the frame, drawn anew in [low, high) */
};

struct connection {
    int file;
    enum { IDLE, SENDING, ANSWERING } state;
    uint32_t moved, answer_size; /* bytes moved in this state, the size prefix included */
    unsigned char size[4], *frame;
    int64_t begun_ns;
};

static struct varied varied[VARIED_MAX];
static uint32_t frame_size; /* with its size prefix */
static int64_t *latencies, begun_count, answer_count, answer_bytes;
static uint64_t dice = 0x9E3779B97F4A7C15u;

static void vary(unsigned char *frame) {
    for (int i = 0; i < asked.vary_count; i++) {
        dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
        int64_t value = varied[i].low + dice % (varied[i].high - varied[i].low);
        for (int64_t byte = varied[i].width; byte-- > 0; value >>= 8)
            frame[4 + varied[i].position + byte] = value & 0xFF;
    }
}

static unsigned char *read_frame(const char *path, uint32_t *size_with_prefix) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        die("%s: %s", path, strerror(errno));
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    unsigned char *frame = malloc(size + 4);
    if (fread(frame + 4, 1, size, file) != (size_t)size)
        die("%s could not be read", path);
    fclose(file);
    *(uint32_t *)frame = htobe32(size);
    *size_with_prefix = size + 4;
    return frame;
}

static int connect_to(const char *where) {
    char host[64];
    const char *colon = strrchr(where, ':');
    if (colon == NULL)
        die("%s is not of the form HOST:PORT", where);
    snprintf(host, sizeof host, "%.*s", (int)(colon - where), where);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(colon + 1))};
    inet_pton(AF_INET, host, &address.sin_addr);
    int file = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (connect(file, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect to %s: %s", where, strerror(errno));
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return file;
}

static void begin_request(struct connection *each) {
    vary(each->frame);
    each->state = SENDING;
    each->moved = 0;
    each->begun_ns = now_ns();
    begun_count++;
}

/* Whether all of the request has gone out. */
static int send_some(struct connection *each) {
    while (each->moved < frame_size) {
        ssize_t sent = send(each->file, each->frame + each->moved, frame_size - each->moved,
                            MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            return 0;
        if (sent < 0)
            die("send: %s", strerror(errno));
        each->moved += sent;
    }
    each->state = ANSWERING;
    each->moved = 0;
    return 1;
}

/* Keep one whole answer for the harness to judge; it asks for it on a run of one request. */
static void keep_answer(struct connection *each) {
    FILE *file = fopen(asked.answer, "wb");
    unsigned char *bytes = malloc(each->answer_size);
    if (file == NULL)
        die("%s: %s", asked.answer, strerror(errno));
    fcntl(each->file, F_SETFL, 0);
    if (recv(each->file, bytes, each->answer_size, MSG_WAITALL) != (ssize_t)each->answer_size)
        die("the answer ended early");
    fwrite(bytes, 1, each->answer_size, file);
    fclose(file);
    each->moved = each->answer_size + 4;
}

/* Whether all of the answer has come in. */
static int receive_some(struct connection *each) {
    for (;;) {
        ssize_t got;
        if (each->moved < 4) {
            got = recv(each->file, each->size + each->moved, 4 - each->moved, 0);
        } else if (asked.answer != NULL) {
            keep_answer(each);
            return 1;
        } else {
            /* MSG_TRUNC on TCP: taken off the queue without being copied to us. */
            got = recv(each->file, each->size, each->answer_size + 4 - each->moved, MSG_TRUNC);
        }
        if (got < 0 && errno == EAGAIN)
            return 0;
        if (got <= 0)
            die("the broker closed the connection");
        each->moved += got;
        if (each->moved == 4)
            each->answer_size = be32toh(*(uint32_t *)each->size);
        if (each->moved >= 4 && each->moved == each->answer_size + 4)
            return 1;
    }
}

/* Take one connection as far as it goes without waiting. */
static void go_on(struct connection *each) {
    for (;;) {
        if (each->state == IDLE) {
            if (begun_count == asked.records)
                return;
            begin_request(each);
        }
        if (each->state == SENDING && !send_some(each))
            return;
        if (!receive_some(each))
            return;
        latencies[answer_count++] = now_ns() - each->begun_ns;
        answer_bytes += each->answer_size;
        each->state = IDLE;
    }
}

static void read_varied(void) {
    for (int i = 0; i < asked.vary_count; i++)
        if (sscanf(asked.vary[i], "%ld:%ld:%ld:%ld", &varied[i].position, &varied[i].width,
                   &varied[i].low, &varied[i].high) != 4 ||
            varied[i].low >= varied[i].high)
            die("--vary takes position:width:low:high, not %s", asked.vary[i]);
}

/* Connect the connection of this number to whom it sends to, with a frame of its own. */
static void open_connection(struct connection *each, int number, const unsigned char *frame) {
    const char *leader = NULL, *where = asked.broker;
    if (asked.leader_count)
        where = leader = asked.leaders[number % asked.leader_count];
    each->file = connect_to(where);
    fcntl(each->file, F_SETFL, O_NONBLOCK);
    each->frame = memcpy(malloc(frame_size), frame, frame_size);
    if (leader == NULL)
        return;
    const char *equals = strrchr(leader, '=');
    if (equals == NULL || asked.partition_at + 8 > frame_size)
        die("--leader takes HOST:PORT=PARTITION, and --partition-at a place in the frame");
    uint32_t partition = htobe32(atoi(equals + 1));
    memcpy(each->frame + 4 + asked.partition_at, &partition, sizeof partition);
}

static void frames(void) {
    unsigned char *frame = read_frame(asked.frame, &frame_size);
    read_varied();
    struct connection *all = calloc(asked.connections, sizeof *all);
    struct epoll_event events[256];
    int poller = epoll_create1(0);
    latencies = calloc(asked.records, sizeof *latencies);
    for (int i = 0; i < asked.connections; i++) {
        open_connection(&all[i], i, frame);
        struct epoll_event want = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = &all[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, all[i].file, &want);
    }
    int64_t begun = now_ns();
    for (int i = 0; i < asked.connections; i++)
        go_on(&all[i]);
    while (answer_count < asked.records) {
        int ready = epoll_wait(poller, events, 256, SILENCE_MS_MAX);
        if (ready <= 0)
            die("%lld of %lld answers, then silence", (long long)answer_count,
                (long long)asked.records);
        for (int i = 0; i < ready; i++)
            go_on(events[i].data.ptr);
    }
    report(answer_count, answer_bytes, now_ns() - begun, latencies);
}

/* One whole answer on a blocking socket; its size. */
static int64_t await_answer(int file) {
    static unsigned char bytes[1 << 16];
    if (recv(file, bytes, 4, MSG_WAITALL) != 4)
        die("the broker closed the connection");
    ssize_t size = be32toh(*(uint32_t *)bytes);
    if (size > (ssize_t)sizeof bytes || recv(file, bytes, size, MSG_WAITALL) != size)
        die("an answer of %lld bytes could not be read", (long long)size);
    return size;
}

static void rawtrip(void) {
    uint32_t produce_size, fetch_size;
    unsigned char *produced = read_frame(asked.frame, &produce_size);
    unsigned char *fetched = read_frame(asked.fetch_frame, &fetch_size);
    int producer = connect_to(asked.broker), consumer = connect_to(asked.broker);
    int64_t total = asked.warm_up + asked.records, began = 0;
    latencies = calloc(total, sizeof *latencies);
    for (int64_t number = 0; number < total; number++) {
        if (number == asked.warm_up)
            began = now_ns();
        *(uint64_t *)(fetched + 4 + asked.offset_at) = htobe64(number);
        if (send(consumer, fetched, fetch_size, 0) != (ssize_t)fetch_size)
            die("send: %s", strerror(errno));
        int64_t sent = now_ns();
        if (send(producer, produced, produce_size, 0) != (ssize_t)produce_size)
            die("send: %s", strerror(errno));
        int64_t size = await_answer(consumer);
        latencies[number] = now_ns() - sent;
        await_answer(producer);
        if (size < produce_size / 2) /* an answer without the record is only headers */
            die("fetch %lld brought no record", (long long)number);
    }
    int64_t took = now_ns() - began;
    report(asked.records, asked.records * produce_size, took, latencies + asked.warm_up);
}

/* ---- options ---- */

static void read_option(const char *name, const char *value) {
    if (!strcmp(name, "--broker")) asked.broker = value;
    else if (!strcmp(name, "--topic")) asked.topic = value;
    else if (!strcmp(name, "--acks")) asked.acks = value;
    else if (!strcmp(name, "--linger-ms")) asked.linger_ms = value;
    else if (!strcmp(name, "--batch-bytes")) asked.batch_bytes = value;
    else if (!strcmp(name, "--batch-records")) asked.batch_records = value;
    else if (!strcmp(name, "--frame")) asked.frame = value;
    else if (!strcmp(name, "--fetch-frame")) asked.fetch_frame = value;
    else if (!strcmp(name, "--offset-at")) asked.offset_at = atoll(value);
    else if (!strcmp(name, "--partition-at")) asked.partition_at = atoll(value);
    else if (!strcmp(name, "--answer")) asked.answer = value;
    else if (!strcmp(name, "--partitions")) asked.partitions = atoi(value);
    else if (!strcmp(name, "--connections")) asked.connections = atoi(value);
    else if (!strcmp(name, "--records")) asked.records = atoll(value);
    else if (!strcmp(name, "--warm-up")) asked.warm_up = atoll(value);
    else if (!strcmp(name, "--size")) asked.size = atoll(value);
    else if (!strcmp(name, "--transactional-id")) asked.transactional_id = value;
    else if (!strcmp(name, "--transaction-records")) asked.transaction_records = atoll(value);
    else if (!strcmp(name, "--abort-every")) asked.abort_every = atoll(value);
    else if (!strcmp(name, "--idempotence")) asked.idempotence = value;
    else if (!strcmp(name, "--isolation")) asked.isolation = value;
    else if (!strcmp(name, "--compression")) asked.compression = value;
    else if (!strcmp(name, "--keys")) asked.keys = atoll(value);
    else if (!strcmp(name, "--vary") && asked.vary_count < VARIED_MAX)
        asked.vary[asked.vary_count++] = value;
    else if (!strcmp(name, "--leader") && asked.leader_count < LEADERS_MAX)
        asked.leaders[asked.leader_count++] = value;
    else die("unknown option %s", name);
}

int main(int count, char **words) {
    if (count < 2 || count % 2 != 0)
        die("client MODE [--name value]...; see the head of client.c");
    for (int i = 2; i < count; i += 2)
        read_option(words[i], words[i + 1]);
    if (asked.partitions < 1 || asked.connections < 1 || asked.records < asked.connections ||
        asked.size < 8)
        die("partitions, connections >= 1; records >= connections; size >= 8");
    if (!strcmp(words[1], "produce")) produce();
    else if (!strcmp(words[1], "consume")) consume();
    else if (!strcmp(words[1], "roundtrip")) roundtrip();
    else if (!strcmp(words[1], "transactions")) transactions();
    else if (!strcmp(words[1], "visible")) visible();
    else if (!strcmp(words[1], "rawtrip")) rawtrip();
    else if (!strcmp(words[1], "frames")) frames();
    else die("unknown mode %s", words[1]);
    fflush(stdout);
    _exit(0); /* librdkafka's threads need no farewell, and it would cost seconds */
}
