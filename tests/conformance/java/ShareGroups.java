// A member of a share group; it polls, acknowledges and leaves by order.

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.protocol.Errors;

final class ShareGroups {
    private static final Duration COMMIT_MAX = Duration.ofSeconds(45);

    private final Map<List<Object>, ConsumerRecord<byte[], byte[]>> delivered = new HashMap<>();
    private KafkaShareConsumer<byte[], byte[]> consumer;

    void enter(Map<String, Lines.Order> orders) {
        orders.put("share_join", this::join);
        orders.put("share_poll", this::poll);
        orders.put("share_acknowledge", this::acknowledge);
        orders.put("share_leave", this::leave);
    }

    private Object join(JsonNode order) {
        Properties words = Settings.consumer(order);
        words.put("fetch.max.wait.ms", 200);
        words.putIfAbsent("share.acknowledgement.mode", "explicit");
        words.put("group.id", order.get("group").asText());
        consumer = new KafkaShareConsumer<>(words);
        List<String> topics = new ArrayList<>();
        order.get("topics").forEach(topic -> topics.add(topic.asText()));
        consumer.subscribe(topics);
        // It joins with its first poll, which is too short for records.
        consumer.poll(Duration.ZERO);
        return null;
    }

    private Object poll(JsonNode order) {
        delivered.clear();
        List<Object> lines = new ArrayList<>();
        Duration wait = Duration.ofMillis(order.get("timeout_ms").asLong());
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(wait)) {
            delivered.put(List.of(record.topic(), record.partition(), record.offset()), record);
            String value = Lines.text(record.value());
            int count = record.deliveryCount().orElse((short) 0);
            lines.add(List.of(record.topic(), record.partition(), record.offset(), value, count));
        }
        return lines;
    }

    private Object acknowledge(JsonNode order) {
        for (JsonNode line : order.get("records")) {
            List<Object> place =
                List.of(line.get(0).asText(), line.get(1).asInt(), line.get(2).asLong());
            String type = line.get(3).asText().toUpperCase(Locale.ROOT);
            consumer.acknowledge(delivered.get(place), AcknowledgeType.valueOf(type));
        }
        List<Object> failed = new ArrayList<>();
        Map<TopicIdPartition, Optional<KafkaException>> outcomes = consumer.commitSync(COMMIT_MAX);
        outcomes.forEach((place, outcome) -> outcome.ifPresent(fault -> failed.add(
            List.of(place.topic(), place.partition(), Errors.forException(fault).code()))));
        return failed;
    }

    private Object leave(JsonNode order) {
        consumer.close();
        return null;
    }
}
