// A member of a group, of the classic protocol, that reads on.

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;

final class Groups {
    private static final Duration TURN = Duration.ofMillis(20);

    private KafkaConsumer<byte[], byte[]> consumer;
    private ConsumerGroupMetadata membership;
    private boolean awake;

    void enter(Map<String, Lines.Order> orders) {
        orders.put("join", this::join);
        orders.put("commit", this::commit);
        orders.put("keep_membership", this::keepMembership);
        orders.put("leave", this::leave);
    }

    boolean awake() {
        return awake;
    }

    void sleep() {
        awake = false;
    }

    private Object join(JsonNode order) {
        Properties words = Settings.consumer(order);
        // Many members wait at once, and a JVM that is still cold pays for every answer.
        words.put("fetch.max.wait.ms", 200);
        words.putIfAbsent("auto.offset.reset", "earliest");
        words.put("group.id", order.get("group").asText());
        consumer = new KafkaConsumer<>(words);
        List<String> topics = new ArrayList<>();
        order.get("topics").forEach(topic -> topics.add(topic.asText()));
        if (topics.get(0).startsWith("^")) {
            consumer.subscribe(new SubscriptionPattern(topics.get(0)), new Told());
        } else {
            consumer.subscribe(topics, new Told());
        }
        awake = true;
        return null;
    }

    void turn() {
        if (!awake) {
            return;
        }
        List<Object> lines = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(TURN)) {
            String value = Lines.text(record.value());
            lines.add(List.of(record.topic(), record.partition(), record.offset(), value));
        }
        if (!lines.isEmpty()) {
            Lines.say("read", lines);
        }
    }

    private Object commit(JsonNode order) {
        Map<TopicPartition, OffsetAndMetadata> offsets = offsets(order.get("offsets"));
        boolean wait = order.get("wait").asBoolean();
        if (offsets == null && wait) {
            consumer.commitSync();
        } else if (offsets == null) {
            consumer.commitAsync();
        } else if (wait) {
            consumer.commitSync(offsets);
        } else {
            consumer.commitAsync(offsets, null);
        }
        return null;
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode lines) {
        if (lines.isNull()) {
            return null;
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode line : lines) {
            TopicPartition place = new TopicPartition(line.get(0).asText(), line.get(1).asInt());
            String metadata = line.get(3).asText();
            offsets.put(place, new OffsetAndMetadata(line.get(2).asLong(), metadata));
        }
        return offsets;
    }

    private Object keepMembership(JsonNode order) {
        membership = consumer.groupMetadata();
        return null;
    }

    ConsumerGroupMetadata membership() {
        return membership;
    }

    private Object leave(JsonNode order) {
        awake = false;
        consumer.close();
        return null;
    }

    static List<Object> told(Collection<TopicPartition> places) {
        List<Object> lines = new ArrayList<>();
        places.forEach(place -> lines.add(List.of(place.topic(), place.partition())));
        return lines;
    }

    /** Tells of what was added and what was taken. */
    private static final class Told implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> places) {
            Lines.say("assigned", told(places));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> places) {
            Lines.say("revoked", told(places));
        }
    }
}
