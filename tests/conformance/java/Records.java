// What goes in and out, one order at a time.

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;

final class Records {
    private static final Duration BLINK = Duration.ofMillis(100);
    private static final Duration ANSWER = Duration.ofSeconds(60);

    private Records() {}

    static void enter(Map<String, Lines.Order> orders) {
        orders.put("produce", Records::produce);
        orders.put("consume", Records::consume);
    }

    private static Object produce(JsonNode order) throws Exception {
        String topic = order.get("topic").asText();
        int partition = order.get("partition").asInt();
        List<Future<?>> sent = new ArrayList<>();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Settings.producer(order));
        try {
            for (JsonNode line : order.get("records")) {
                long timestamp = line.get(3).asLong();
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    topic,
                    partition < 0 ? null : partition,
                    timestamp == 0 ? null : timestamp,
                    Lines.raw(line.get(1)),
                    Lines.raw(line.get(0)));
                for (JsonNode header : line.get(2)) {
                    record.headers().add(header.get(0).asText(), Lines.raw(header.get(1)));
                }
                sent.add(producer.send(record));
            }
            producer.flush();
            for (Future<?> answer : sent) {
                answer.get();
            }
        } finally {
            producer.close(Duration.ZERO);
        }
        return null;
    }

    private static Object consume(JsonNode order) {
        Properties words = Settings.consumer(order);
        words.putIfAbsent("auto.offset.reset", "none");
        String topic = order.get("topic").asText();
        TopicPartition place = new TopicPartition(topic, order.get("partition").asInt());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(words)) {
            if (consumer.partitionsFor(topic).isEmpty()) {
                throw new UnknownTopicOrPartitionException(topic);
            }
            consumer.assign(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            long start = start(consumer, place, order.get("start"), end);
            consumer.seek(place, start);
            if (start > end) {
                consumer.poll(ANSWER);  // throws as soon as the broker has refused the offset
            }
            return read(consumer, place, order.get("count"), end);
        }
    }

    private static long start(
            KafkaConsumer<?, ?> consumer, TopicPartition place, JsonNode start, long end) {
        long beginning = consumer.beginningOffsets(List.of(place)).get(place);
        if (start.isNumber()) {
            long offset = start.asLong();
            return offset >= 0 ? offset : Math.max(beginning, end + offset);
        }
        String word = start.asText();
        if (word.startsWith("s@")) {
            long time = Long.parseLong(word.substring(2));
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(place, time)).get(place);
            return found == null ? end : found.offset();
        }
        return word.equals("end") ? end : beginning;
    }

    /** So many records, or all before an offset. */
    private static List<Object> read(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition place, JsonNode count, long end) {
        List<Object> lines = new ArrayList<>();
        boolean all = count.isNull();
        do {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(BLINK)) {
                if (all || lines.size() < count.asInt()) {
                    lines.add(told(record));
                }
            }
        } while (all ? consumer.position(place) < end : lines.size() < count.asInt());
        return lines;
    }

    private static List<Object> told(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(Arrays.asList(header.key(), Lines.text(header.value())));
        }
        return Arrays.asList(
            record.partition(),
            record.offset(),
            Lines.text(record.key()),
            Lines.text(record.value()),
            headers,
            record.timestamp());
    }
}
